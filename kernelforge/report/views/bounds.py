"""Views of modelled times: an attempt's kernels under each limit, and its time against the least of the task."""

from __future__ import annotations

from collections.abc import Mapping

from kernelforge.records import KernelProfile, Performance, Profile
from kernelforge.report.views import View

TITLES: Mapping[str, str] = {
    "dram": "DRAM", "l2": "L2", "l1": "L1", "shared": "shared memory", "fp32": "arithmetic", "tensor": "tensor cores",
    "issue": "issue", "latency": "latency", "blocks": "block turnover", "atomics": "atomics", "host": "host link",
    "launch": "launch",
}  # fmt: skip
"""Limits in words; of others the name is shown."""


class Bound(View):
    """Modelled time of a kernel under one limit of the GPU."""

    name: str
    """``dram``, ``l2``, ``l1``, ``shared``, ``fp32``, ``tensor``, ``issue``, ``latency``, ``blocks``, ``atomics``,
    ``host``, or ``launch``: what starting its launches takes."""
    title: str
    time_us: float
    """Of all its launches, if nothing else bound them."""
    share: float | None
    """Of the kernel's modelled time; the shares of a kernel add up to more than 1."""


class KernelBounds(View):
    """One kernel of an attempt at the full size."""

    kernel: str
    launches: int
    time_us: float | None
    """Modelled time of all launches; less than the sum of the bounds, for work under one limit hides behind work under
    another. None in profiles of versions that did not record it."""
    bounds: tuple[Bound, ...]
    """The longest first."""


class Reach(View):
    """A predicted speedup beside the greatest one that the memory allows."""

    time_us: float
    """Modelled time of the attempt."""
    low_us: float
    high_us: float
    """Ends of its interval: times at which the speedup is at the ends of its 90 % interval, at the same time of
    PyTorch."""
    floor_us: float | None
    """Least bytes of the task at peak bandwidth."""
    ceiling_us: float | None
    """Least time for the bytes and operations of the attempt itself."""
    eager_us: float
    eager_origin: str
    """``predicted`` or ``published``."""
    gpu: str


def kernel_bounds(profile: Profile | None) -> tuple[KernelBounds, ...]:
    """Kernels of a profile that has modelled limits, those with the most time first."""
    kernels = [] if profile is None else [_of_kernel(kernel) for kernel in profile.kernels]
    return tuple(sorted((kernel for kernel in kernels if kernel.bounds), key=_spent, reverse=True))


def _of_kernel(kernel: KernelProfile) -> KernelBounds:
    total_us = kernel.modelled_us
    bounds = [
        Bound(name=name, title=TITLES.get(name, name), time_us=value, share=value / total_us if total_us else None)
        for name, value in kernel.limits_us.items()
        if value > 0
    ]
    bounds.sort(key=lambda bound: -bound.time_us)
    return KernelBounds(kernel=kernel.kernel, launches=kernel.launches, time_us=total_us, bounds=tuple(bounds))


def _spent(kernel: KernelBounds) -> float:
    return kernel.time_us or kernel.bounds[0].time_us


def reach(speed: Performance | None, floor_us: float | None, ceiling_us: float | None) -> Reach | None:
    """The predicted speedup of an attempt beside the least times; None without a prediction."""
    if speed is None or speed.predicted is None:
        return None
    predicted = speed.predicted
    return Reach.of(
        predicted,
        time_us=speed.time_us,
        low_us=predicted.eager_us / predicted.high,
        high_us=predicted.eager_us / predicted.low,
        floor_us=floor_us,
        ceiling_us=ceiling_us,
    )
