"""A time that is good enough to rank by, for a small share of what the protocol spends."""

from __future__ import annotations

import time

from kernelforge.devices.base import TimedSide
from kernelforge.evaluate.timing.shape import SampleShape
from kernelforge.evaluate.timing.side import Side

FULL_US = 200_000.0
"""Work of a quick timing at effort 1; ten blocks of the protocol."""

FEWEST = 3
"""Samples whatever the effort: a median of fewer is a single sample."""


def quick(side: TimedSide, shape: SampleShape, effort: float) -> float:
    """Median time of one execution in µs, less its overhead. Never a result: it has no interval and no baseline.

    Args:
        side: Armed with ``shape``.
        effort: Above 0 and at most 1; the share of :data:`FULL_US` that is run.

    Raises:
        RunFaulted: the side faulted.
        TimingError: times that cannot be.
        ValueError: an effort outside its range.
    """
    if not 0 < effort <= 1:
        raise ValueError(f"an effort lies above 0 and at most at 1, not at {effort}")
    timed = Side(side, shape, time.perf_counter)
    window_us = effort * FULL_US
    timed.warm_up(warm_up_us=window_us / 4, block_us=window_us)
    timed.samples = max(FEWEST, timed.samples)
    return timed.per_execution([timed.visit()])
