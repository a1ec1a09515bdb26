"""Timing: tensor sets, alternating blocks, confidence intervals, plausibility.

``docs/timing.md`` says why. Pure Python on :class:`~kernelforge.devices.base.Timeable`; nothing here touches a GPU.
"""

from kernelforge.evaluation.timing.clocks import reset_allowance
from kernelforge.evaluation.timing.kernelbench import kernelbench, reported_time
from kernelforge.evaluation.timing.plausibility import (
    cache_resident,
    clock_jump,
    differ,
    implausible_reason,
    physical_floor_us,
)
from kernelforge.evaluation.timing.protocol import measure
from kernelforge.evaluation.timing.sampler import MAX_SETS, SamplePlan, plan_sets, tensor_bytes

__all__ = [
    "MAX_SETS",
    "SamplePlan",
    "cache_resident",
    "clock_jump",
    "differ",
    "implausible_reason",
    "kernelbench",
    "measure",
    "physical_floor_us",
    "plan_sets",
    "reported_time",
    "reset_allowance",
    "tensor_bytes",
]
