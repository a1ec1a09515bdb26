"""Clocks of a GPU while it is timed, and of the host, which must agree with them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np

from kernelforge.evaluation.timing.sampler import ClockPair, SamplePlan, SideSampler
from kernelforge.records import Clocks, HostClock


def merge(readings: Iterable[Clocks | None]) -> Clocks | None:
    """The range of each value over all readings, and every throttle reason that was seen; None where there are none."""
    seen = [reading for reading in readings if reading is not None]
    if not seen:
        return None
    return Clocks(
        sm_mhz=_range([reading.sm_mhz for reading in seen]),
        memory_mhz=_range([reading.memory_mhz for reading in seen]),
        temperature_c=_range([reading.temperature_c for reading in seen]),
        power_w=(min(reading.power_w[0] for reading in seen), max(reading.power_w[1] for reading in seen)),
        throttled=tuple(sorted({reason for reading in seen for reason in reading.throttled})),
    )


def _range(ranges: Sequence[tuple[int, int]]) -> tuple[int, int]:
    return min(low for low, _ in ranges), max(high for _, high in ranges)


DOUBLE_BLOCKS = 3
"""Blocks of 2N samples; those of N are the ones that are timed anyway."""

TRIES = 3
"""How often as many are added while the clocks disagree: a busy parent reads its own clock late, a liar lies again."""

RELATIVE = 0.05
"""How far the slope may lie from the events, as a part of a sample."""

GAP_US = 10.0
"""Time of a sample besides its events: launching a graph and recording two events between it and the next."""

READ_US = 10.0
"""What reading the two events of a sample may cost: a call of the driver from Python takes 2 to 4 µs on a slow CPU."""

FIXED_US = 5_000.0
"""Time that a block may take besides its samples. Without a bound, a runner could delay the answers to short blocks and
so bend the slope."""

FLUSH_APART = 0.5
"""How much longer than its baseline's the candidate's flushes may take: the same bytes are read on the same GPU, but by
another kernel. That they are shorter gains a candidate nothing."""

RESET_US = 10.0
"""Time to fill or copy one buffer besides moving its bytes: a node of a graph, or a call from the host."""

RESET_SHARE = 0.25
"""Part of the peak bandwidth that filling and copying reach at least, when the buffers are not tiny."""


def reset_allowance(buffers: int, nbytes: int, bandwidth_gbps: float) -> float:
    """Most time in µs that is believed for putting a candidate's buffers back before one execution.

    Args:
        buffers: How many are filled or copied into.
        nbytes: Their bytes; a copy's count twice.
        bandwidth_gbps: Peak of the device's memory; where it is 0 moving bytes is believed to take no time.
    """
    moved = nbytes / (RESET_SHARE * bandwidth_gbps * 1e3) if bandwidth_gbps > 0 else 0.0
    return buffers * RESET_US + moved


def compare_clocks(
    candidate: SideSampler, shape: SamplePlan, baseline_flush_us: float, reset_us: float = 0.0
) -> HostClock:
    """Whether the candidate's events can be believed.

    Args:
        candidate: Its ``watched`` blocks are of N and of 2N samples, some of each.
        shape: What one of its samples is made of.
        baseline_flush_us: Median of a sample's overhead in the baseline's process; 0 where nothing is known of it.
        reset_us: What resetting the candidate's sets may add to that in one sample.
    """
    single = [block for block in candidate.watched if block.samples == candidate.gapless]
    double = [block for block in candidate.watched if block.samples == 2 * candidate.gapless]
    beyond_single, beyond_double = _beyond(single), _beyond(double)
    count = candidate.gapless
    per_sample = float(np.median(beyond_double) - np.median(beyond_single)) / count
    per_block = float(np.median(beyond_single)) - per_sample * count
    events = sum(block.events_us for block in double) / sum(block.samples for block in double)
    jitter = 2 * math.hypot(_error(beyond_single), _error(beyond_double))
    # Bounded, or answers that are held back at random would make anything believable.
    uncertain = min(jitter / count, RELATIVE * events)
    believed = -RELATIVE * events - uncertain <= per_sample <= RELATIVE * events + GAP_US + uncertain
    flush = (
        float(np.median(np.concatenate([visit.flush_us for visit in candidate.visits]))) if shape.flush_bytes else 0.0
    )
    # An overhead that is said to take long makes the work that it is subtracted from look short.
    if flush and baseline_flush_us:
        believed = believed and flush <= (1 + FLUSH_APART) * baseline_flush_us + reset_us
    if candidate.overheads:
        events_us = float(np.median([block.events_us for block in candidate.overheads]))
        believed = believed and float(np.median(_beyond(candidate.overheads))) >= -RELATIVE * events_us
    reading = [block.read_us - READ_US * block.samples for block in (*candidate.watched, *candidate.overheads)]
    believed = believed and float(np.median(reading)) <= FIXED_US
    return HostClock(
        events_us=(events - flush) / shape.sets,
        slope_us=(events + per_sample - flush) / shape.sets,
        agrees=bool(believed and per_block <= FIXED_US + min(jitter, FIXED_US)),
    )


def _beyond(blocks: list[ClockPair]) -> list[float]:
    """Time on the parent's clock beyond the events, per block."""
    return [block.host_us - block.events_us for block in blocks]


def _error(values: list[float]) -> float:
    """Standard error of a median, from the median absolute deviation: one late answer does not widen it."""
    deviation = 1.4826 * float(np.median(np.abs(np.asarray(values) - np.median(values))))
    return 1.2533 * deviation / math.sqrt(len(values))
