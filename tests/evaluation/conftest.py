"""The helper process of oracles, one for every test."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kernelforge.sandbox import Zygote


@pytest.fixture(scope="module")
def zygote(kept_zygotes: Callable[..., Zygote]) -> Zygote:
    return kept_zygotes("oracle")
