"""A compiler, and the program that reads its machine code."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from kernelforge.compile import Compiler
from kernelforge.compile.sass_tool import Disassembler
from kernelforge.hardware.wheels import DISASSEMBLER, disassembler


@pytest.fixture(scope="module")
def compiler(open_warm: Callable[..., Compiler]) -> Iterator[Compiler]:
    with open_warm(Compiler, None) as warm:
        yield warm


@pytest.fixture(scope="module")
def reader(open_warm: Callable[..., Disassembler]) -> Iterator[Disassembler]:
    if disassembler() is None:
        pytest.skip(f"{DISASSEMBLER} is not installed")
    with open_warm(Disassembler) as warm:
        yield warm
