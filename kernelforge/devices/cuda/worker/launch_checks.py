"""Checks of launches that CUDA would refuse, with the same messages on every device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kernelforge.candidate.resolved import Fill, Launch, Library, ResolvedPlan, TensorMapArg
from kernelforge.devices.base import RunFailure
from kernelforge.devices.cuda.worker.driver import Feature, GpuFacts
from kernelforge.devices.cuda.worker.errors import describe_step

MAX_GRID = (2**31 - 1, 65535, 65535)
MAX_BLOCK = (1024, 1024, 64)
MAX_THREADS_PER_BLOCK = 1024
_WARP, _SCHEDULERS, _REGISTER_ALLOCATION, _MAX_REGISTERS = 32, 4, 256, 255
"""CUDA C++ Programming Guide, technical specifications per compute capability; ``cuda_occupancy.h``."""


@dataclass(frozen=True)
class KernelLimits:
    """Figures of the build for one kernel that a plan may launch."""

    symbol: str
    registers_per_thread: int
    static_shared_bytes: int
    max_threads_per_block: int | None
    """From ``__launch_bounds__``."""


def launch_error(
    plan: ResolvedPlan, kernels: Mapping[str, KernelLimits], facts: GpuFacts, lacks: frozenset[Feature]
) -> RunFailure | None:
    """The failure of a plan that cannot run on this GPU; None if no check refuses it."""
    for step in (*plan.setup, *plan.steps):
        fault: RunFailure | None = None
        if isinstance(step, Launch):
            fault = _unsupported(step, lacks) or _refused(step, kernels.get(step.expression), facts)
        elif isinstance(step, Library) and "torch" in lacks:
            text = f"this device does not call torch operators: library({step.operator!r}) in {describe_step(step)}"
            fault = RunFailure("unsupported", text)
        else:
            assert isinstance(step, Fill | Library)
        if fault is not None:
            return fault
    return None


def _unsupported(step: Launch, lacks: frozenset[Feature]) -> RunFailure | None:
    uses: list[tuple[Feature, bool, str]] = [
        ("cooperative", step.cooperative, "a cooperative launch"),
        ("clusters", step.cluster is not None, "thread block clusters"),
        ("tensor_maps", any(isinstance(arg, TensorMapArg) for arg in step.args), "tensor maps"),
    ]
    for feature, used, name in uses:
        if used and feature in lacks:
            return RunFailure("unsupported", f"this device does not have {name}: {describe_step(step)}")
    return None


def _refused(step: Launch, kernel: KernelLimits | None, facts: GpuFacts) -> RunFailure | None:
    where = describe_step(step)
    if kernel is None:
        return RunFailure("crash", f"the build has no kernel {where}")
    for name, extents, limits in (("grid", step.grid, MAX_GRID), ("block", step.block, MAX_BLOCK)):
        if any(not 1 <= extent <= limit for extent, limit in zip(extents, limits, strict=True)):
            return RunFailure("crash", f"{name} {extents} is outside 1 to {limits}: {where}")
    threads = step.block[0] * step.block[1] * step.block[2]
    allowed = min(MAX_THREADS_PER_BLOCK, kernel.max_threads_per_block or MAX_THREADS_PER_BLOCK)
    if threads > allowed:
        return RunFailure("crash", f"a block of {threads} threads, {allowed} are allowed: {where}")
    shared = kernel.static_shared_bytes + step.dynamic_shared_bytes
    if shared > facts.shared_bytes_per_block:
        text = f"{shared} bytes of shared memory per block, {facts.shared_bytes_per_block} are there: {where}"
        return RunFailure("crash", text)
    if not _registers_fit(kernel.registers_per_thread, threads, facts):
        return RunFailure(
            "crash",
            f"too many registers: {kernel.registers_per_thread} for each of {threads} threads, "
            f"{facts.registers_per_sm} are there per block: {where}",
        )
    if step.cluster is not None:
        size = step.cluster[0] * step.cluster[1] * step.cluster[2]
        if size < 1 or any(extent % part for extent, part in zip(step.grid, step.cluster, strict=True)):
            return RunFailure("crash", f"grid {step.grid} is not a multiple of cluster {step.cluster}: {where}")
    return None


def _registers_fit(per_thread: int, threads: int, facts: GpuFacts) -> bool:
    """Whether one block's registers fit, by the rule of :func:`kernelforge.hardware.occupancy.occupancy`."""
    warps = -(-threads // _WARP)
    per_warp = -(-per_thread * _WARP // _REGISTER_ALLOCATION) * _REGISTER_ALLOCATION
    assumed = per_warp * (-(-warps // _SCHEDULERS) * _SCHEDULERS)
    return per_thread <= _MAX_REGISTERS and assumed <= facts.registers_per_sm
