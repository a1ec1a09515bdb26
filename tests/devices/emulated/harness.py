"""Run a kernel on the emulated device with NumPy arguments."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from kernelforge.devices.emulated.execute.loaded_module import LoadedModule
from kernelforge.devices.emulated.execute.memory import Memory
from kernelforge.devices.emulated.report import LaunchReport
from tests.devices.emulated.nvrtc import compile_ptx

_SCALARS = {"f32": np.float32, "f64": np.float64, "u64": np.uint64, "s64": np.int64, "b64": np.uint64}


class Device:
    """One memory and one module; arrays are copied in before a launch and back after it."""

    def __init__(self, ptx: str, threads: int = 1, capacity: int = 1 << 26) -> None:
        self.memory = Memory(capacity)
        self.machine = LoadedModule(ptx, self.memory, threads)

    def run(
        self,
        grid: int | Sequence[int],
        block: int | Sequence[int],
        *arguments: Any,
        kernel: str | None = None,
        shared: int = 0,
        read_only: Sequence[int] = (),
        clean: bool = True,
        **options: Any,
    ) -> LaunchReport:
        """Launch and return the report; with ``clean`` a fault fails the test."""
        name = kernel or next(iter(self.machine.entries))
        entry = self.machine.entries[name]
        buffer = bytearray(entry.param_bytes)
        arrays: list[tuple[int, np.ndarray]] = []
        assert len(arguments) == len(entry.params)
        for index, (param, value) in enumerate(zip(entry.params, arguments, strict=True)):
            if isinstance(value, np.ndarray):
                address = self.memory.allocate(value.nbytes, f"arg{index}", read_only=index in read_only)
                self.memory.write(address, value)
                arrays.append((address, value))
                raw = np.uint64(address).tobytes()
            elif isinstance(value, np.generic):
                raw = value.tobytes()
            elif isinstance(value, float):
                raw = _SCALARS.get(param.type, np.float32)(value).tobytes()
            else:
                raw = int(value).to_bytes(param.size, "little", signed=value < 0)
            assert len(raw) == param.size, param
            buffer[param.offset : param.offset + param.size] = raw
        report = self.machine.launch(name, _three(grid), _three(block), shared, bytes(buffer), **options)
        for address, value in arrays:
            value.reshape(-1).view(np.uint8)[:] = np.frombuffer(self.memory.read(address, value.nbytes), np.uint8)
            self.memory.free(address)
        if clean:
            assert not report.faults, [str(f) for f in report.faults]
        return report


def total(report: LaunchReport, counter: str, space: str, *accesses: str) -> int:
    """A counter's sum over the memory operations of one state space, of some accesses or of all."""
    ops = [op for op in report.memory if op.space == space and (not accesses or op.access in accesses)]
    return sum(getattr(op, counter) for op in ops)


def bank_conflicts(report: LaunchReport) -> int:
    """Wavefronts of shared memory beyond those of conflict-free accesses."""
    return total(report, "transactions", "shared") - total(report, "ideal_transactions", "shared")


@contextmanager
def compiled_at(level: int) -> Iterator[None]:
    """Run code of this level of optimisation in this context; otherwise a launch's size selects the level."""
    with pytest.MonkeyPatch.context() as patch:
        for module in ("execute.loaded_module", "codegen.program"):
            patch.setattr(f"kernelforge.devices.emulated.{module}.level_for", lambda flow, warps: level)
        yield


def _three(shape: int | Sequence[int]) -> tuple[int, int, int]:
    values = (shape,) if isinstance(shape, int) else tuple(shape)
    x, y, z = (*values, 1, 1)[:3]
    return (x, y, z)


def cuda(source: str, *options: str, threads: int = 1, capacity: int = 1 << 26) -> Device:
    """Compile CUDA source and load it."""
    return Device(compile_ptx(source, *options), threads, capacity)


def ptx_module(body: str, parameters: str = ".param .u64 out", declarations: str = "", target: str = "sm_90a") -> str:
    """Hand-written PTX: one kernel named ``k`` around ``body``, with plenty of registers declared."""
    return f"""
.version 8.7
.target {target}
.address_size 64
{declarations}
.visible .entry k({parameters})
{{
.reg .pred %p<32>;
.reg .b16 %h<64>;
.reg .b32 %r<128>;
.reg .f32 %f<128>;
.reg .b64 %d<64>;
.reg .f64 %g<64>;
{body}
ret;
}}
"""


_REGISTERS = {"pred": "%p", "16": "%h", "32": "%r", "64": "%d", "f32": "%f", "f64": "%g"}


def apply(instruction: str, out: str, *inputs: tuple[str, np.ndarray], variation: int = 0) -> np.ndarray:
    """Run one PTX instruction (or several) over arrays.

    ``instruction`` names its operands ``{d}``, ``{a}``, ``{b}``, ``{c}``; inputs are (PTX type, array) pairs of one
    length; ``out`` is the PTX type of ``{d}``. Returns the raw results as unsigned integers of that width, which are
    the same at every level of optimisation.
    """
    return apply_each([(instruction, out)], *inputs, variation=variation)[0]


def apply_each(
    instructions: Sequence[tuple[str, str]], *inputs: tuple[str, np.ndarray], variation: int = 0
) -> list[np.ndarray]:
    """Run many PTX instructions over the same arrays in one kernel; each comes with the type of its result."""
    widths = {"b8": 1, "u8": 1, "s8": 1, "b16": 2, "u16": 2, "s16": 2, "f16": 2, "bf16": 2, "b32": 4, "u32": 4,
              "s32": 4, "f32": 4, "b64": 8, "u64": 8, "s64": 8, "f64": 8}  # fmt: skip

    def register(kind: str, number: int) -> str:
        if kind in ("f32", "f64"):
            return f"{_REGISTERS[kind]}{number}"
        return f"{_REGISTERS[str(max(8 * widths[kind], 16))]}{number}"

    def stored(kind: str) -> str:
        return kind if kind in ("f32", "f64") else "b" + str(8 * widths[kind])

    count = len(inputs[0][1])
    lines = ["mov.u32 %r120, %ctaid.x; mov.u32 %r121, %tid.x; mad.lo.u32 %r122, %r120, 128, %r121;"]
    lines.append("ld.param.u32 %r123, [n]; setp.ge.u32 %p31, %r122, %r123; @%p31 bra DONE; cvt.u64.u32 %d60, %r122;")
    lines.append("ld.param.u64 %d61, [out]; mad.lo.u64 %d59, %d60, 8, %d61; mul.wide.u32 %d58, %r123, 8;")
    names = {}
    for index, (kind, _) in enumerate(inputs):
        names["abc"[index]] = register(kind, 40 + index)
        lines.append(f"ld.param.u64 %d61, [in{index}]; mad.lo.u64 %d62, %d60, {widths[kind]}, %d61;")
        lines.append(f"ld.global.{stored(kind)} {names['abc'[index]]}, [%d62];")
    for instruction, out in instructions:
        result = register(out, 50)
        lines.append(instruction.format(**names, d=result))
        lines.append(f"st.global.{stored(out)} [%d59], {result}; add.u64 %d59, %d59, %d58;")
    lines.append("DONE:")
    parameters = ", ".join([".param .u64 out", *(f".param .u64 in{k}" for k in range(len(inputs))), ".param .u32 n"])
    device = Device(ptx_module("\n".join(lines), parameters, target="sm_100a"))
    results = []
    for level in (0, 1):
        result = np.zeros((len(instructions), count), np.uint64)
        with compiled_at(level):
            device.run(-(-count // 128), 128, result, *(np.ascontiguousarray(a) for _, a in inputs), count,
                       variation=variation)  # fmt: skip
        results.append(result)
    assert np.array_equal(*results)
    return [
        words.astype(f"u{widths[out]}") for words, (_, out) in zip(results[0], instructions, strict=True)
    ]  # fmt: skip
