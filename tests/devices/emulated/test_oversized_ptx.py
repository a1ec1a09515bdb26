"""PTX that would grow without bound when it is expanded is refused, by name, before it costs much."""

from __future__ import annotations

import pytest

from kernelforge.devices.emulated.errors import OutOfDeviceMemory, UnsupportedInstruction
from kernelforge.devices.emulated.execute.loaded_module import LoadedModule
from kernelforge.devices.emulated.execute.memory import Memory
from kernelforge.devices.emulated.ptx.parser import PtxSyntaxError
from tests.devices.emulated.harness import ptx_module


def calls(depth: int, per_function: int, end: str) -> str:
    """A chain of functions, each calling the next ``per_function`` times."""
    functions = [f".func f{depth}() {{ {end} }}"]
    for k in range(depth - 1, -1, -1):
        functions.append(f".func f{k}() {{ {f'call f{k + 1}; ' * per_function} {end} }}")
    return "\n".join(functions)


@pytest.mark.slow
@pytest.mark.parametrize(
    "declarations",
    [calls(40, 2, "ret;"), calls(40, 2, ""), calls(2000, 1, "ret;")],
    ids=["doubling calls", "doubling calls of empty functions", "deep calls"],
)
def test_calls_that_explode_are_refused(declarations: str) -> None:
    machine = LoadedModule(ptx_module("call f0;", declarations=declarations), Memory(1 << 20))
    with pytest.raises(UnsupportedInstruction, match="calls"):
        machine.launch("k", (1, 1, 1), (32, 1, 1), 0, bytes(8))


def test_a_register_bomb_is_refused() -> None:
    with pytest.raises(PtxSyntaxError, match="more than 1048576 registers"):
        LoadedModule(ptx_module(".reg .b32 %bomb<2000000000>;"), Memory(1 << 20))


def test_variables_larger_than_memory_are_refused() -> None:
    for space in ("global", "const"):
        with pytest.raises(OutOfDeviceMemory):
            LoadedModule(ptx_module("", declarations=f".{space} .b8 big[{1 << 45}];"), Memory(1 << 20))
