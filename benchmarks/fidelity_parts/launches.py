"""Builds kernels and profiles single launches of them on the emulated device, as a candidate's are."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernelforge.candidate.resolved import Buffer, Launch, ResolvedPlan, ScalarArg, TensorArg
from kernelforge.compile.cubin import read_cubin
from kernelforge.compile.machine_code import read_machine_code
from kernelforge.compile.nvrtc import Nvrtc
from kernelforge.compile.toolchain import installed_toolchain
from kernelforge.devices.base import RunRequest
from kernelforge.devices.emulated.execute.plan_execution import Kernel
from kernelforge.devices.emulated.worker import Runner
from kernelforge.hardware.specs import DeviceSpec
from kernelforge.profiling.counts import KernelCounts, PlanCounts
from kernelforge.profiling.metrics import plan_metrics
from kernelforge.profiling.sass import MachineWork, machine_work
from kernelforge.profiling.sass_code import NoEstimateError
from kernelforge.profiling.sass_decoding import MachineCode
from kernelforge.records import DType

MEMORY_BYTES = 3 << 30
DEADLINE_S = 600.0
OLDEST = "sm_75"
"""What kernels for older GPUs are compiled for: the oldest architecture that NVRTC 13 knows."""
SCALARS: Mapping[str, Any] = {
    "int32": "i32", "uint32": "i32", "int64": "i64", "uint64": "i64", "float32": "f32", "float64": "f64",
}  # fmt: skip


@dataclass(frozen=True)
class Array:
    """An array argument: what it holds, or of how many bytes an output is."""

    nbytes: int
    contents: bytes | None = None


@dataclass(frozen=True)
class Scalar:
    """A number as an argument."""

    dtype: str
    value: int | float


@dataclass(frozen=True)
class Built:
    """A source, compiled for one architecture."""

    ptx: str
    cubin: bytes
    names: Mapping[str, str]
    """Name of a kernel in the PTX, by the expression that asked for it."""

    @functools.cached_property
    def registers(self) -> Mapping[str, int]:
        """Registers per thread by name."""
        return read_cubin(self.cubin).registers

    def runner(self, spec: DeviceSpec) -> Runner:
        """A runner of it on the emulated device of a GPU."""
        kernels = {name: Kernel(name, count) for name, count in self.registers.items()}
        return Runner(self.ptx, kernels, spec, memory_bytes=MEMORY_BYTES)


@functools.cache
def _nvrtc() -> tuple[Nvrtc, Any]:
    toolchain = installed_toolchain()
    return Nvrtc(toolchain.library), toolchain


def build(source: Path, arch: str, expressions: Sequence[str]) -> Built:
    """Compile a file with the project's own options.

    Raises:
        ValueError: it does not compile; the compiler's log is the message.
    """
    nvrtc, toolchain = _nvrtc()
    if int(arch.removeprefix("sm_").rstrip("a")) < int(OLDEST.removeprefix("sm_")):
        arch = OLDEST
    headers = {path.name: path.read_text(encoding="utf-8") for path in toolchain.headers.iterdir() if path.is_file()}
    text = source.read_text(encoding="utf-8")
    made = nvrtc.compile(text, source.name, headers=headers, options=toolchain.options(arch), expressions=expressions)
    if made.status:
        raise ValueError(f"{source.name} does not compile for {arch}: {made.log}")
    return Built(made.ptx.decode(), made.cubin, dict(zip(expressions, made.lowered, strict=True)))


def profile_launch(
    runner: Runner,
    kernel: str,
    grid: Sequence[int],
    block: Sequence[int],
    shared: int,
    arguments: Sequence[Array | Scalar],
) -> PlanCounts:
    """Counts of a plan of one launch.

    Args:
        runner: Of the kernel's build.
        kernel: Its name in the PTX.
        grid: Blocks per axis.
        block: Threads per axis.
        shared: Bytes of dynamic shared memory.
        arguments: In order.
    """
    buffers: list[Buffer] = []
    tensors: dict[int, bytes] = {}
    passed: list[Any] = []
    for index, argument in enumerate(arguments):
        if isinstance(argument, Scalar):
            passed.append(ScalarArg(SCALARS[argument.dtype], argument.value))
            continue
        number, kind = len(buffers), "workspace" if argument.contents is None else "input"
        buffers.append(Buffer(number, kind, argument.nbytes, f"argument {index}", index))  # type: ignore[arg-type]
        if argument.contents is not None:
            tensors[number] = argument.contents
        passed.append(TensorArg(number, 0, DType.UINT8))
    (x, y, z), (bx, by, bz) = grid, block
    step = Launch(kernel, (x, y, z), (bx, by, bz), shared, tuple(passed), 1)
    request = RunRequest(ResolvedPlan(tuple(buffers), (step,), ()), tensors, poison=0, deadline_s=DEADLINE_S)
    return runner.profile(request)


def work_of(build: Path, kernel: str, counts: KernelCounts) -> MachineWork | None:
    """Work of a kernel's machine code; None without an estimate.

    Args:
        build: The files of its build, without ``.cubin`` and ``.ptx``.
        kernel: Its name in them.
        counts: Counts of its launches.
    """
    code, ptx = _read(build)
    function = code.function(kernel)
    try:
        return None if function is None else machine_work(function, ptx, counts)
    except NoEstimateError:
        return None


@functools.cache
def _read(build: Path) -> tuple[MachineCode, str]:
    cubin = build.with_name(build.name + ".cubin").read_bytes()
    return read_machine_code(cubin), build.with_name(build.name + ".ptx").read_text(encoding="utf-8")


def metrics_of(spec: DeviceSpec, counts: PlanCounts, registers: Mapping[str, int]) -> dict[str, float]:
    """Metrics of one launch by name, with those of the L2 that no profile shows.

    Nsight Compute counts atomics apart from reads and writes, and no bytes that stay in the L2.
    """
    (group,) = counts.kernels
    metrics = {metric.name: metric.value for metric in plan_metrics(spec, counts, registers)}
    atomics = group.total("transactions", "global", "atomic")
    metrics["lts__t_sectors_srcunit_tex_op_read.sum"] = group.l2_read_sectors - atomics
    metrics["lts__t_sectors_srcunit_tex_op_write.sum"] = group.l2_write_sectors - atomics
    metrics["memory_l2_theoretical_sectors_global"] = group.total("transactions", "global")
    metrics["dram__bytes_write.sum"] -= group.l2_dirty_bytes
    return metrics
