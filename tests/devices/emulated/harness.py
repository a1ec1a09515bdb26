"""Run a kernel on the emulated device with NumPy arguments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from kernelforge.devices.emulated import LaunchReport, Machine, Memory
from nvrtc import compile_ptx

_SCALARS = {"f32": np.float32, "f64": np.float64, "u64": np.uint64, "s64": np.int64, "b64": np.uint64}


class Device:
    """One memory and one module; arrays are copied in before a launch and back after it."""

    def __init__(self, ptx: str, threads: int = 1, capacity: int = 1 << 26) -> None:
        self.memory = Memory(capacity)
        self.machine = Machine(ptx, self.memory, threads)

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
