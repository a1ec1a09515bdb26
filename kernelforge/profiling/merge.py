"""Merge two profiles of one run: measured by a GPU, and counted by the emulator over the same PTX.

Each metric keeps its origin. A measured number replaces the emulator's of the same name.
"""

from __future__ import annotations

from collections.abc import Iterable

from kernelforge.records import KernelProfile, Metric, Origin, Profile

PTX_COUNTER = "ptx__warp_inst_executed.sum"
"""A counter of every emulated profile, and of no profile of hardware counters."""
UNPROFILED = "unprofiled"
"""The bound of a profile without counters for one."""


def has_ptx_counts(profile: Profile) -> bool:
    """Whether a profile has the emulator's counters."""
    return profile.metric(PTX_COUNTER) is not None


def with_counts(measured: Profile, emulated: Profile, *notes: str) -> Profile:
    """A device's profile with figures that only the emulator has: instruction classes, limits, accesses by line.

    Time, grid and number of launches are the device's; so are traffic and bound if it measured them. A kernel that was
    sampled on either side keeps the smaller share.

    Args:
        measured: Profile of the device.
        emulated: Profile by the emulator, of the same build, plan and size.
        notes: Notes to add.
    """
    counted = {kernel.kernel: kernel for kernel in emulated.kernels}
    kernels = [_kernel(kernel, counted.get(kernel.kernel)) for kernel in measured.kernels]
    names = {kernel.kernel for kernel in measured.kernels}
    roofline = measured.roofline
    changes: dict[str, object] = {}
    if not roofline.dram_bytes:
        traffic = emulated.roofline.dram_bytes
        changes = {"dram_bytes": traffic, "arithmetic_intensity": roofline.flops / traffic if traffic else 0.0}
    if roofline.bound == UNPROFILED:
        changes["bound"] = emulated.roofline.bound
    return measured.model_copy(
        update={
            "kernels": (*kernels, *(kernel for kernel in emulated.kernels if kernel.kernel not in names)),
            "metrics": _joined(measured.metrics, emulated.metrics),
            "roofline": roofline.model_copy(update=changes),
            "notes": (*measured.notes, *notes),
        }
    )


def _kernel(measured: KernelProfile, emulated: KernelProfile | None) -> KernelProfile:
    if emulated is None:
        return measured
    return measured.model_copy(
        update={
            "sampled": min(measured.sampled, emulated.sampled),
            "metrics": _joined(measured.metrics, emulated.metrics),
            "hot_spots": measured.hot_spots or emulated.hot_spots,
        }
    )


def _joined(measured: Iterable[Metric], emulated: Iterable[Metric]) -> tuple[Metric, ...]:
    """The device's measured metrics, then the emulator's for the other names."""
    first = {metric.name: metric for metric in measured}
    second = {metric.name: metric for metric in emulated}
    kept = [metric for metric in first.values() if metric.origin is Origin.MEASURED or metric.name not in second]
    names = {metric.name for metric in kept}
    return (*kept, *(metric for metric in second.values() if metric.name not in names))
