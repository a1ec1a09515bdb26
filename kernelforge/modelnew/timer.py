"""Timing of a correct ``ModelNew`` at the full size of a GPU: tensor sets, baselines, plausibility."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from kernelforge.devices.base import Device, Timeable
from kernelforge.errors import BaselineError, TimingError
from kernelforge.evaluation.oracle.client import DrawHandle, Oracle
from kernelforge.evaluation.timing import (
    SamplePlan,
    cache_resident,
    implausible_reason,
    physical_floor_us,
    plan_sets,
    tensor_bytes,
)
from kernelforge.evaluation.timing.candidate_timer import OutputChangedWhileTimed, performance
from kernelforge.evaluation.timing.clocks import merge
from kernelforge.evaluation.timing.statistics import half_width, median_of_clusters, ratio_of_rounds
from kernelforge.modelnew.client import Init, ModelNewChild, unchanged, with_mutated
from kernelforge.records import Clocks, MeasureSettings, Performance, Ratio, SideTimes, SizeFacts, Timing, content_hash

PROTOCOL: Final = "launch/1"

WINDOW_S: Final = 0.02
"""Shortest window of N calls. Long against what a frame and a wake-up vary by."""

MAX_CALLS: Final = 1 << 20
WINDOW_TIMEOUT_S: Final = 60.0
MIN_ROUNDS: Final = 6
MAX_ROUNDS: Final = 200


@dataclass
class _Taken:
    """Times of one execution in µs, one per round."""

    candidate_us: list[float] = field(default_factory=list)
    baselines_us: dict[str, list[float]] = field(default_factory=dict)
    lost: int = 0


def time_from_outside(
    child: ModelNewChild,
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
        ModelNewFault: the candidate failed while it was timed.
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


def _calibrate(child: ModelNewChild, sets: int, host_clock: Callable[[], float]) -> int:
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
    child: ModelNewChild,
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
    candidate_us = np.asarray(taken.candidate_us)
    ratios: list[Ratio] = []
    for name, times in taken.baselines_us.items():
        speedup, interval = ratio_of_rounds(np.asarray(times), candidate_us, rng)
        ratios.append(Ratio(baseline=name, speedup=speedup, interval=interval, blocks=len(times)))
    fastest = min(sides, key=lambda side: side.median_us).name if sides else None
    notes = ["timed from outside, with launches from the host; the sets are not flushed between calls"]
    if settings.energy:
        notes.append("energy: it is measured of candidates with a launch plan alone")
    if settings.launches:
        notes.append("launches: eager PyTorch is traced next to candidates with a launch plan alone")
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


MEMORY_SHARE = 0.25
"""Part of the GPU's memory that the sets may take."""


@dataclass(kw_only=True)
class ModelNewTimer:
    """Times one candidate, which is loaded already, at one size.

    Args:
        seed: Secret; every draw is derived from it.
        mutates: Inputs that the task changes in place.
    """

    child: ModelNewChild
    oracle: Oracle
    facts: SizeFacts
    gpu: Device
    settings: MeasureSettings
    seed: int
    mutates: Sequence[int] = ()
    host_clock: Callable[[], float] = time.perf_counter
    _draws: int = field(default=0, init=False)
    _rounds: int = field(default=0, init=False)
    _now: list[DrawHandle] = field(default_factory=list, init=False)

    def time(self, init: Init) -> Performance:
        """Make a ModelNew for each set, and time them against the baselines that can be built.

        Raises:
            ModelNewFault: the candidate failed.
            OutputChangedWhileTimed: it computed something else than when it was checked.
            TimingError: nothing can be timed, or not one set fits.
        """
        sets = plan_sets(self.set_bytes, self.gpu.l2_bytes, int(MEMORY_SHARE * self.gpu.memory_bytes)).sets
        self.child.construct(init, self.facts, copies=sets)
        with ExitStack() as stack:
            stack.callback(self._release)
            self._refresh(sets)
            baselines, notes = self._baselines(stack)
            timing = time_from_outside(
                self.child,
                sets,
                self.settings,
                set_bytes=self.set_bytes,
                host_clock=self.host_clock,
                between=lambda: self._between(sets),
                rng=random.Random(int(content_hash(self.seed, "order"), 16)),
                baselines=baselines,
                clocks=self.gpu.clocks,
            )
            self._check()
        timing = timing.model_copy(update={"notes": (*timing.notes, *notes)})
        resident = cache_resident(SamplePlan(sets=sets, flush_bytes=0), self.gpu.l2_bytes)
        least = physical_floor_us(self.facts.compulsory_bytes, self.gpu.memory_bandwidth_gbps, resident_bytes=resident)
        return performance(timing, implausible_reason(timing, least), None)

    @property
    def set_bytes(self) -> int:
        """Bytes of inputs, weights and outputs of one set."""
        return max(1, tensor_bytes(self.facts))

    def _between(self, sets: int) -> None:
        """Check and refresh before the rounds 2, 4, 8..., when nothing is timed."""
        self._rounds += 1
        if self._rounds < 2 or self._rounds & (self._rounds - 1):
            return
        self._check()
        self._release()
        self.oracle.require_draws()
        self._refresh(sets)

    def _refresh(self, sets: int) -> None:
        family = self.oracle.families(self.facts.size)[0]
        for _ in range(sets):
            self._draws += 1
            seed = int(content_hash(self.seed, "timing", self._draws), 16)
            self._now.append(self.oracle.draw(self.facts.size, family, seed))
        for number, draw in enumerate(self._now):
            self.child.give(draw, self.facts, number)
        self.child.bind(self._now, self.facts)

    def _check(self) -> None:
        for number, draw in enumerate(self._now):
            got = self.child.outputs(number, self.mutates)
            problem = unchanged(draw, got, self.mutates)
            if problem:
                raise OutputChangedWhileTimed(problem)
            comparison = self.oracle.check(draw.handle, *with_mutated(got, self.facts, self.mutates))
            if not comparison.ok:
                raise OutputChangedWhileTimed(comparison.message, comparison.error)

    def _release(self) -> None:
        for draw in self._now:
            self.oracle.release(draw.handle)
        self._now = []

    def _baselines(self, stack: ExitStack) -> tuple[list[Timeable], list[str]]:
        sides: list[Timeable] = []
        notes: list[str] = []
        for name in self.oracle.baselines():
            try:
                side = self.oracle.arm(name, [draw.handle for draw in self._now], flush_bytes=0)
            except BaselineError as error:
                notes.append(f"no baseline {name}: {error}")
                continue
            stack.callback(side.close)
            sides.append(side)
        return sides, notes
