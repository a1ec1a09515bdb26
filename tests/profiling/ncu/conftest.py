"""The compiler of plans that are profiled."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kernelforge.compile import Compiler


@pytest.fixture(scope="module")
def compiler() -> Iterator[Compiler]:
    with Compiler(None) as made:
        yield made
