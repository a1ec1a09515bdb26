"""Merge two profiles of one run: measured by a GPU, and counted by the emulator over the same PTX.

Each metric keeps its own origin. Where both have a name, the measured number is taken.
"""

from __future__ import annotations

from collections.abc import Iterable

from kernelforge.records import KernelProfile, Metric, Origin, Profile

PTX_COUNTER = "ptx__warp_inst_executed.sum"
"""Every emulated profile has it, and no profile of hardware counters."""
UNPROFILED = "unprofiled"
"""The bound where no counter tells one."""


def has_ptx_counts(profile: Profile) -> bool:
    """Whether the emulator's counters are in a profile already."""
    return profile.metric(PTX_COUNTER) is not None


def with_counts(measured: Profile, emulated: Profile, *notes: str) -> Profile:
    """A device's profile with what the emulator alone can tell: instruction classes, limits, accesses by line.

    Time, grid and number of launches are the device's; so are traffic and bound where it measured them. A kernel that
    was profiled in part on either side is marked with the smaller share.

    Args:
        measured: Of the device.
        emulated: Of the same build, plan and size.
        notes: Added to those of ``measured``.
    """
    counted = {kernel.kernel: kernel for kernel in emulated.kernels}
    kernels = [_kernel(kernel, counted.get(kernel.kernel)) for kernel in measured.kernels]
    known = {kernel.kernel for kernel in measured.kernels}
    roofline = measured.roofline
    changes: dict[str, object] = {}
    if not roofline.dram_bytes:
        traffic = emulated.roofline.dram_bytes
        changes = {"dram_bytes": traffic, "arithmetic_intensity": roofline.flops / traffic if traffic else 0.0}
    if roofline.bound == UNPROFILED:
        changes["bound"] = emulated.roofline.bound
    return measured.model_copy(
        update={
            "kernels": (*kernels, *(kernel for kernel in emulated.kernels if kernel.kernel not in known)),
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
    """The device's metrics first; the emulator's fill in what it lacks, and replace what was not measured."""
    first = {metric.name: metric for metric in measured}
    second = {metric.name: metric for metric in emulated}
    kept = [one for one in first.values() if one.origin is Origin.MEASURED or one.name not in second]
    names = {one.name for one in kept}
    return (*kept, *(one for one in second.values() if one.name not in names))
