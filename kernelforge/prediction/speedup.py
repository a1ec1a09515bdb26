"""Predicted speedup of a candidate over eager PyTorch: a modelled time against a predicted or published one."""

from __future__ import annotations

import math

from kernelforge.hardware.specs import DeviceSpec
from kernelforge.prediction.baseline import NORMAL_90, BaselineTime
from kernelforge.records import PredictedSpeedup

KERNEL_SPREAD = 0.30
"""Standard deviation of the logarithm of a modelled time around the measured one (``benchmarks/hardware_candidates.py
compare``: 72 candidates of suite core on an H100, on which no constant of the model was chosen)."""


def predict_speedup(spec: DeviceSpec, time_us: float, eager: BaselineTime) -> PredictedSpeedup:
    """Predict how many times as fast as eager PyTorch a kernel would be.

    Args:
        spec: The GPU.
        time_us: The candidate's modelled time there.
        eager: PyTorch's time there.

    Returns:
        The ratio, and its 90 % interval by the errors of both times, which are taken to be independent.
    """
    speedup = eager.time_us / time_us
    eager_spread = math.log(eager.high_us / eager.low_us) / (2 * NORMAL_90)
    width = math.exp(NORMAL_90 * math.hypot(KERNEL_SPREAD, eager_spread))
    return PredictedSpeedup(
        gpu=spec.title,
        speedup=speedup,
        low=speedup / width,
        high=speedup * width,
        eager_us=eager.time_us,
        eager_origin=eager.origin,
        eager_source=eager.source,
    )
