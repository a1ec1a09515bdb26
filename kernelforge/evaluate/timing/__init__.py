"""How a time is measured: sets of tensors, blocks in turns, intervals, and what is not believed.

``docs/timing.md`` says why. Pure Python on :class:`~kernelforge.devices.base.TimedSide`; nothing here touches a GPU.
"""

from kernelforge.evaluate.timing.hostclock import reset_allowance
from kernelforge.evaluate.timing.kernelbench import kernelbench, reported_time
from kernelforge.evaluate.timing.protocol import measure
from kernelforge.evaluate.timing.shape import MAX_SETS, SampleShape, plan_sets
from kernelforge.evaluate.timing.trust import apart, floor, jumped, resident, suspicious

__all__ = [
    "MAX_SETS",
    "SampleShape",
    "apart",
    "floor",
    "jumped",
    "kernelbench",
    "measure",
    "plan_sets",
    "reported_time",
    "reset_allowance",
    "resident",
    "suspicious",
]
