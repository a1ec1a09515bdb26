"""A compiler."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from kernelforge.compile import Compiler


@pytest.fixture(scope="module")
def compiler(open_warm: Callable[..., Compiler]) -> Iterator[Compiler]:
    with open_warm(Compiler, None) as warm:
        yield warm
