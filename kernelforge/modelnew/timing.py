"""External timing of a ``ModelNew``, protocol ``launch/1``: N calls against 2N by the parent's clock.

Whatever the candidate's process says of time is the candidate's to say. The parent sends "N calls" and waits for the
answer, then "2N calls"; what a frame, a wake-up and a synchronisation cost is the same in both and cancels in the
difference. Launches from the host are part of the time, so it is never compared with a time of a CUDA graph.

What remains open: a candidate could leave work undone until its outputs are asked for, after the clock stopped. All
outputs are compared, a time below the floor of the memory's bandwidth is quarantined, and this lane earns no reward.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

import numpy as np

from kernelforge.devices.base import Timeable
from kernelforge.errors import TimingError
from kernelforge.evaluation.timing.clocks import merge
from kernelforge.evaluation.timing.statistics import half_width, median_of_clusters, ratio_of_rounds
from kernelforge.records import Clocks, MeasureSettings, Ratio, SideTimes, Timing

PROTOCOL: Final = "launch/1"

WINDOW_S: Final = 0.02
"""Shortest window of N calls. Long against what a frame and a wake-up vary by."""

MAX_CALLS: Final = 1 << 20
WINDOW_TIMEOUT_S: Final = 60.0
MIN_ROUNDS: Final = 6
MAX_ROUNDS: Final = 200


class Windows(Protocol):
    """What is timed: :class:`~kernelforge.modelnew.client.ModelNewChild` is one."""

    def window(self, calls: int, timeout_s: float) -> None: ...


@dataclass
class _Taken:
    """Times of one execution in µs, one per round."""

    candidate_us: list[float] = field(default_factory=list)
    baselines_us: dict[str, list[float]] = field(default_factory=dict)
    lost: int = 0


def time_from_outside(
    child: Windows,
    sets: int,
    settings: MeasureSettings,
    *,
    set_bytes: int,
    host_clock: Callable[[], float],
    between: Callable[[], None],
    rng: random.Random,
    baselines: Sequence[Timeable] = (),
    clocks: Callable[[], Clocks | None] = lambda: None,
) -> Timing:
    """Time a candidate whose sets are placed, until its interval is within ``settings.precision`` or the time is up.

    Args:
        child: The candidate's process; it goes through the sets in turn.
        sets: How many there are.
        settings: ``precision`` and ``seconds``.
        set_bytes: Bytes of one set, for the record.
        host_clock: The parent's monotonic clock, in seconds.
        between: Called before each round, when nothing is timed: check outputs and refresh values here.
        rng: Decides which window comes first.
        baselines: Sides armed on as many sets, without a flush, each timed in every round by its own events.
        clocks: What the GPU says of itself now.

    Raises:
        LaneFault: the candidate failed while it was timed.
        TimingError: no difference between N and 2N calls can be seen.
    """
    started, taken = host_clock(), _Taken()
    readings = [clocks()]
    calls = _calibrate(child, sets, host_clock)
    draws_rng = np.random.default_rng(rng.getrandbits(64))
    settled = False
    for number in range(1, MAX_ROUNDS + 1):
        between()
        _round(child, calls, baselines, sets, host_clock, rng, taken)
        readings.append(clocks())
        if len(taken.candidate_us) >= MIN_ROUNDS:
            median, interval = _median(taken.candidate_us, draws_rng)
            settled = half_width(median, interval) <= settings.precision
        if settled or (number >= MIN_ROUNDS and host_clock() - started >= settings.seconds):
            break
    if len(taken.candidate_us) < 2:
        raise TimingError(
            f"2N calls took no longer than N in {taken.lost} of {taken.lost + len(taken.candidate_us)} rounds: either "
            "this machine is too busy to time anything, or the calls do no work"
        )
    return _record(taken, settings, settled, sets, set_bytes, readings, draws_rng)


def _calibrate(child: Windows, sets: int, host_clock: Callable[[], float]) -> int:
    """A number of calls, the same for every set, that fills a window; the first window warms up."""
    child.window(sets, WINDOW_TIMEOUT_S)
    calls = sets
    while calls < MAX_CALLS:
        before = host_clock()
        child.window(calls, WINDOW_TIMEOUT_S)
        if host_clock() - before >= WINDOW_S:
            break
        calls *= 2
    return calls


def _round(
    child: Windows,
    calls: int,
    baselines: Sequence[Timeable],
    sets: int,
    host_clock: Callable[[], float],
    rng: random.Random,
    taken: _Taken,
) -> None:
    order = [calls, 2 * calls]
    rng.shuffle(order)
    elapsed: dict[int, float] = {}
    for count in order:
        before = host_clock()
        child.window(count, WINDOW_TIMEOUT_S)
        elapsed[count] = host_clock() - before
    per_call = (elapsed[2 * calls] - elapsed[calls]) / calls * 1e6
    others = {side.name: float(np.median(side.block(max(1, calls // sets)))) / sets for side in baselines}
    if per_call <= 0:
        taken.lost += 1
        return
    taken.candidate_us.append(per_call)
    for name, time_us in others.items():
        taken.baselines_us.setdefault(name, []).append(time_us)


def _record(
    taken: _Taken,
    settings: MeasureSettings,
    settled: bool,
    sets: int,
    set_bytes: int,
    readings: Sequence[Clocks | None],
    rng: np.random.Generator,
) -> Timing:
    sides = [_side(name, times, rng, captured=False) for name, times in taken.baselines_us.items()]
    ours = np.asarray(taken.candidate_us)
    ratios: list[Ratio] = []
    for name, times in taken.baselines_us.items():
        speedup, interval = ratio_of_rounds(np.asarray(times), ours, rng)
        ratios.append(Ratio(baseline=name, speedup=speedup, interval=interval, blocks=len(times)))
    fastest = min(sides, key=lambda side: side.median_us).name if sides else None
    notes = ["timed from outside, with launches from the host; the sets are not flushed between calls"]
    if taken.lost:
        notes.append(f"{taken.lost} rounds are left out: 2N calls took no longer than N")
    return Timing(
        protocol=PROTOCOL,
        sets=sets,
        set_bytes=set_bytes,
        flush_bytes=0,
        candidate=_side("candidate", taken.candidate_us, rng, captured=False),
        baselines=tuple(sides),
        ratios=tuple(ratios),
        fastest=fastest,
        settled=settled,
        budget_s=settings.seconds,
        clocks=merge(readings),
        notes=tuple(notes),
    )


def _median(times: Sequence[float], rng: np.random.Generator) -> tuple[float, tuple[float, float]]:
    return median_of_clusters([np.asarray([time]) for time in times], rng)


def _side(name: str, times: Sequence[float], rng: np.random.Generator, *, captured: bool) -> SideTimes:
    median, interval = _median(times, rng)
    return SideTimes(name=name, samples_us=tuple(times), median_us=median, interval_us=interval, captured=captured)
