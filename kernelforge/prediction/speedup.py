"""Predicted speedup of a candidate over eager PyTorch: a modelled time against a predicted or published one."""

from __future__ import annotations

import math
from collections.abc import Iterable

from kernelforge.hardware.specs import DeviceSpec
from kernelforge.prediction.baseline import NORMAL_90, BaselineTime
from kernelforge.records import KernelProfile, PredictedSpeedup

KERNEL_SPREAD = 0.41
"""Standard deviation of the logarithm of a modelled time around the published one: 158 kernels of more than 40 us by
language models for tasks of KernelBench, with a warp or more for each scheduler. Today's times make it 0.42: an A100
(0.37), an L40S (0.40), an RTX 4090 (0.48); ``spreads`` of ``benchmarks/predicted_speedups.py``. For 72 candidates of
suite core on an H100 it is 0.30."""
IDLE_SPREAD = 0.80
"""What is added to it, as independent, for kernels that leave schedulers idle: nothing hides a wait there, and the time
is the longest chain of one warp, of which the emulated device knows the mean over warps (22 kernels; 0.75 today)."""


def idle_share(spec: DeviceSpec, kernels: Iterable[KernelProfile]) -> float:
    """Share of the modelled time in kernels that have less than one warp for each scheduler of the GPU."""
    idle = total = 0.0
    for kernel in kernels:
        time_us = kernel.modelled_us or 0.0
        warps = math.prod(kernel.grid) * math.ceil(math.prod(kernel.block) / spec.warp_size)
        total += time_us
        idle += time_us * (warps < spec.sm_count * spec.schedulers_per_sm)
    return idle / total if total else 0.0


def kernel_spread(idle: float) -> float:
    """Standard deviation of the logarithm of a modelled time around the published one, by :func:`idle_share`."""
    return math.hypot(KERNEL_SPREAD, idle * IDLE_SPREAD)


def modelled_interval_us(time_us: float, idle: float) -> tuple[float, float]:
    """The 90 % interval of a modelled time, in microseconds, by :func:`idle_share`."""
    width = math.exp(NORMAL_90 * kernel_spread(idle))
    return time_us / width, time_us * width


def predict_speedup(spec: DeviceSpec, time_us: float, eager: BaselineTime, idle: float = 0.0) -> PredictedSpeedup:
    """Predict how many times as fast as eager PyTorch a kernel would be.

    Args:
        spec: The GPU.
        time_us: The candidate's modelled time there.
        eager: PyTorch's time there.
        idle: Its :func:`idle_share`.

    Returns:
        The ratio, and its 90 % interval by the errors of both times, which are taken to be independent.
    """
    speedup = eager.time_us / time_us
    eager_spread = math.log(eager.high_us / eager.low_us) / (2 * NORMAL_90)
    width = math.exp(NORMAL_90 * math.hypot(kernel_spread(idle), eager_spread))
    return PredictedSpeedup(
        gpu=spec.title,
        speedup=speedup,
        low=speedup / width,
        high=speedup * width,
        eager_us=eager.time_us,
        eager_origin=eager.origin,
        eager_source=eager.source,
    )
