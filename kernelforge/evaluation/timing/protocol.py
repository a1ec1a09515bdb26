"""The timing protocol ``graph/1``: a candidate against its baselines. ``docs/timing.md`` gives the reasons."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass

import numpy as np

from kernelforge.devices.base import RunFailed, Timeable
from kernelforge.errors import BaselineError, TimingError
from kernelforge.evaluation.timing.clocks import DOUBLE_BLOCKS, TRIES, compare_clocks, merge
from kernelforge.evaluation.timing.energy import EnergyMeter
from kernelforge.evaluation.timing.sampler import SampleBlock, SamplePlan, SideSampler
from kernelforge.evaluation.timing.statistics import half_width, log_ratios, ratio_of_rounds, trimmed_mean
from kernelforge.records import Clocks, HostClock, MeasureSettings, Ratio, SideEnergy, SideTimes, Timing
from kernelforge.records.timing import UNRANKED

NEAR = 1.1
"""Baselines that took up to so many times as long as the fastest one in the quick pass are compared with it once more,
in turns: they were timed one after the other, and clocks move by a tenth within seconds."""

QUICK_BLOCKS = 3
"""Blocks of every baseline in the pass that finds the fastest."""

QUICK_SHARE = 0.3
"""Share of the time after which that pass takes no more than its fewest blocks."""

MIN_ROUNDS = 6
"""Rounds before the interval is looked at: a spread seen from fewer is often too small by chance."""

FEWEST_ROUNDS = 2
"""Rounds that are run even beyond the budget: with one there is no interval."""

EAGER_ROUNDS = 3
"""Rounds against eager PyTorch where it is not the fastest."""

LOOK = 1.25
"""Growth of the number of rounds between two looks at the interval: each look is a chance to stop too early."""

LOOKS = 2
"""Looks in a row that must find the interval narrow enough, since one may do so by luck."""


@dataclass(frozen=True)
class RoundLog:
    """Rounds of one candidate against one baseline: µs of one execution of each, per round."""

    baseline: str
    candidate_us: list[float]
    baseline_us: list[float]

    @property
    def speedup(self) -> float:
        """Speedup of :meth:`ratio`, without its interval."""
        logs = log_ratios(np.asarray(self.baseline_us), np.asarray(self.candidate_us))
        return float(np.exp(trimmed_mean(logs)))

    def ratio(self, rng: np.random.Generator) -> Ratio:
        speedup, interval = ratio_of_rounds(np.asarray(self.baseline_us), np.asarray(self.candidate_us), rng)
        # Each round is two pairs of blocks.
        return Ratio(baseline=self.baseline, speedup=speedup, interval=interval, blocks=2 * len(self.candidate_us))


class StopRule:
    """Decides when to compute the interval, and when it has been narrow for long enough."""

    def __init__(self, precision: float) -> None:
        self._precision = precision
        self._next = MIN_ROUNDS
        self._narrow = 0

    @property
    def settled(self) -> bool:
        return self._narrow >= LOOKS

    def due(self, rounds: int) -> bool:
        return rounds >= self._next

    def saw(self, rounds: int, half: float) -> None:
        """Take note of the half-width after so many rounds."""
        self._narrow = self._narrow + 1 if half <= self._precision else 0
        self._next = max(rounds + 1, round(LOOK * rounds))


def measure(
    candidate: Timeable,
    baselines: Sequence[Timeable],
    shape: SamplePlan,
    settings: MeasureSettings,
    *,
    set_bytes: int,
    clocks: Callable[[], Clocks | None],
    host_clock: Callable[[], float],
    between: Callable[[], None],
    rng: random.Random,
    reset_us: float = 0.0,
    energy: Callable[[], float | None] = lambda: None,
    wait: Callable[[float], None] = time.sleep,
) -> Timing:
    """Time a candidate against its baselines until the ratio to the fastest is known to ``settings.precision``.

    Args:
        candidate: Ready to run, like each baseline, on ``shape.sets`` sets of its own.
        baselines: Of different names. At most two of them are ready at a time. Each that cannot be had, or fails at
            any time, is left out, and the record says why.
        shape: What both sides were armed with.
        settings: ``precision``, ``seconds``, ``qps`` for gaps between requests, and ``energy``.
        set_bytes: Bytes of one set, for the record.
        clocks: What the GPU says of itself now.
        host_clock: The parent's monotonic clock, in seconds.
        between: Called before each round, outside every block: refresh values here.
        rng: The only source of chance.
        reset_us: Most time that resetting the candidate's sets is believed to add to a sample's overhead.
        energy: Joules that the GPU took since any moment; None where it does not report them.
        wait: Lets so many seconds pass, for the GPU to idle.

    Raises:
        RunFailed: the candidate faulted.
        TimingError: times of the candidate that cannot be.
        ValueError: two sides of one name, or server mode with more than one execution per sample.
    """
    names = [side.name for side in (candidate, *baselines)]
    if len(set(names)) != len(names):
        raise ValueError(f"sides need names of their own: {', '.join(names)}")
    if settings.qps is not None and shape.sets != 1:
        raise ValueError("server mode times single requests: plan its sets with limit=1")
    draws = np.random.default_rng(rng.getrandbits(64))
    meter = EnergyMeter(energy, host_clock, wait) if settings.energy else None
    session = _Measurement(shape, settings, clocks, host_clock, between, draws, reset_us, meter)
    return session.run(candidate, baselines, set_bytes)


class _BaselineFailed(Exception):
    """A baseline cannot be timed any further."""

    def __init__(self, side: SideSampler, reason: str) -> None:
        super().__init__(reason)
        self.side = side


class _Measurement:
    """One measurement in progress."""

    def __init__(
        self,
        shape: SamplePlan,
        settings: MeasureSettings,
        clocks: Callable[[], Clocks | None],
        host_clock: Callable[[], float],
        between: Callable[[], None],
        rng: np.random.Generator,
        reset_us: float,
        meter: EnergyMeter | None,
    ) -> None:
        self._shape = shape
        self._meter = meter
        self._reset_us = reset_us
        self._settings = settings
        self._clocks = clocks
        self._host_clock = host_clock
        self._between = between
        self._rng = rng
        self._readings: list[Clocks | None] = []
        self._absent: dict[str, str] = {}
        self._started = host_clock()

    def run(self, candidate: Timeable, baselines: Sequence[Timeable], set_bytes: int) -> Timing:
        self._readings.append(self._clocks())
        measured = self._side(candidate)
        measured.warm_up(gap_us=self._gap_us)
        measured.find_node_gap()
        others = self._quick_pass(baselines)
        fastest, settled, rounds = self._against_fastest(measured, others)
        host = self._host_check(measured, fastest)
        self._readings.append(self._clocks())
        energy, why = self._energy(measured, fastest)
        timing = self._record(measured, others, fastest, rounds, settled, host, set_bytes)
        return timing.model_copy(update={"energy": energy, "notes": (*timing.notes, *why)})

    @property
    def _gap_us(self) -> float:
        return 0.0 if self._settings.qps is None else 1e6 / self._settings.qps

    def _gaps(self, samples: int) -> tuple[float, ...]:
        """Idle times before the requests of a block: requests that come at random, as in CUDA-L2's server mode."""
        return tuple(self._rng.exponential(self._gap_us, samples).tolist()) if self._gap_us else ()

    def _spent(self) -> float:
        """Share of the time that is spent; above 1 where it is overdrawn."""
        return (self._host_clock() - self._started) / self._settings.seconds

    def _side(self, side: Timeable) -> SideSampler:
        return SideSampler(side, self._shape, self._host_clock)

    @contextmanager
    def _failures_of(self, side: SideSampler) -> Iterator[None]:
        """Turn errors of the block into failures of one baseline.

        Raises:
            _BaselineFailed: it is.
        """
        try:
            yield
        except RunFailed as fault:
            raise _BaselineFailed(side, fault.fault.message) from fault
        except (BaselineError, TimingError) as error:
            raise _BaselineFailed(side, str(error)) from error

    def _leave_out(self, failed: _BaselineFailed, others: list[SideSampler]) -> None:
        """Go on without a baseline; the record says why."""
        self._absent[failed.side.name] = str(failed)
        if failed.side in others:
            others.remove(failed.side)
        failed.side.rest()

    def _ready(self, side: SideSampler) -> None:
        """Have a baseline in memory. To build it is not part of the time that measuring may take."""
        before = self._host_clock()
        with self._failures_of(side):
            side.ready()
        self._started += self._host_clock() - before

    def _quick_pass(self, baselines: Sequence[Timeable]) -> list[SideSampler]:
        """A few blocks of every baseline, one baseline after the other, so that no two need memory at a time."""
        others: list[SideSampler] = []
        for baseline in baselines:
            side = self._side(baseline)
            try:
                self._ready(side)
                with self._failures_of(side):
                    side.warm_up(gap_us=self._gap_us)
                    side.find_node_gap()
                    self._quick_blocks(side)
            except _BaselineFailed as failed:
                self._leave_out(failed, others)
            else:
                others.append(side)
                side.rest()
        return others

    def _quick_blocks(self, side: SideSampler) -> None:
        for _ in range(QUICK_BLOCKS):
            if len(side.visits) < FEWEST_ROUNDS or self._spent() <= QUICK_SHARE:
                side.visit(self._gaps(side.samples))
        side.per_execution(side.visits)  # a baseline that its overhead hides has no time

    def _fastest(self, others: list[SideSampler]) -> SideSampler | None:
        """The fastest baseline. Two that are near each other take turns once more, which no drift of the clock decides.

        A second one whose memory does not fit next to the first leaves the choice to the quick pass.
        """
        ranked = self._ranked(others)
        if len(ranked) < 2:
            return ranked[0][1] if ranked else None
        (first_us, first), (second_us, second) = ranked[:2]
        if second_us > NEAR * first_us:
            return first
        visits: dict[str, list[SampleBlock]] = {first.name: [], second.name: []}
        try:
            for side in (first, second):
                self._ready(side)
            for side in (first, second, second, first):
                with self._failures_of(side):
                    visits[side.name].append(side.visit(self._gaps(side.samples)))
            times = {}
            for side in (first, second):
                with self._failures_of(side):
                    times[side.name] = side.per_execution(visits[side.name])
        except _BaselineFailed:
            return first  # what is wrong with either shows when it is compared with
        finally:
            first.rest()
            second.rest()
        return min((first, second), key=lambda side: times[side.name])

    def _ranked(self, others: list[SideSampler]) -> list[tuple[float, SideSampler]]:
        """Time of one execution in µs of each baseline that may be the fastest, in ascending order. One that has no
        time, for its visits since the quick pass have hidden it in its overhead, is left out from here on."""
        timed: list[tuple[float, SideSampler]] = []
        for side in [side for side in others if side.name not in UNRANKED]:
            try:
                with self._failures_of(side):
                    timed.append((side.per_execution(side.visits), side))
            except _BaselineFailed as failed:
                self._leave_out(failed, others)
        return sorted(timed, key=lambda entry: entry[0])

    def _against_fastest(
        self, candidate: SideSampler, others: list[SideSampler]
    ) -> tuple[SideSampler | None, bool, list[RoundLog]]:
        """Compare with the fastest baseline; where it fails, with the next one, and with none where none is left."""
        while True:
            fastest = self._fastest(others)
            if fastest is None:
                return None, self._alone(candidate), []
            eager = next((side for side in others if side.name == "eager" and side is not fastest), None)
            try:
                self._ready(fastest)
                settled, rounds = self._compare(candidate, fastest, eager, others)
            except _BaselineFailed as failed:
                self._leave_out(failed, others)
                continue
            finally:
                for side in (fastest, *(() if eager is None else (eager,))):
                    side.rest()
            return fastest, settled, rounds

    def _compare(
        self, candidate: SideSampler, fastest: SideSampler, eager: SideSampler | None, others: list[SideSampler]
    ) -> tuple[bool, list[RoundLog]]:
        """Rounds until the ratio against the fastest is settled or the time is up; some against eager among them.

        Raises:
            _BaselineFailed: the fastest did. Where eager does, its ratio is left out.
        """
        main = RoundLog(fastest.name, [], [])
        beside = None if eager is None else RoundLog(eager.name, [], [])
        patience = StopRule(self._settings.precision)
        while True:
            self._round(candidate, fastest, main)
            if beside is not None and eager is not None and len(beside.candidate_us) < EAGER_ROUNDS:
                try:
                    if not beside.candidate_us:
                        self._ready(eager)
                    self._round(candidate, eager, beside)
                except _BaselineFailed as failed:
                    self._leave_out(failed, others)
                    beside = None
                else:
                    if len(beside.candidate_us) == EAGER_ROUNDS:
                        eager.rest()
            done = len(main.candidate_us)
            if patience.due(done):
                ratio = main.ratio(self._rng)
                patience.saw(done, half_width(ratio.speedup, ratio.interval))
            if patience.settled or (done >= FEWEST_ROUNDS and self._spent() >= 1):
                return patience.settled, [main] if beside is None else [main, beside]

    def _round(self, candidate: SideSampler, other: SideSampler, rounds: RoundLog) -> None:
        """Two blocks of each in the order ABBA or BAAB, by chance, overheads placed as symmetrically.

        Each side's two blocks have the same mean time, so that a drift that is linear in time cancels within the round.

        Raises:
            _BaselineFailed: the other side did.
        """
        self._between()
        self._readings.append(self._clocks())
        first, second = (candidate, other) if self._rng.random() < 0.5 else (other, candidate)
        visits: dict[str, list[SampleBlock]] = {first.name: [], second.name: []}
        with self._blamed(first, candidate):
            first.lead_in()
        for index, turn in enumerate((first, second, second, first)):
            with self._blamed(turn, candidate):
                visits[turn.name].append(turn.visit(self._gaps(turn.samples), flush_first=index >= 2))
        with self._failures_of(other):
            baseline_us = other.per_execution(visits[other.name])
        rounds.candidate_us.append(candidate.per_execution(visits[candidate.name]))
        rounds.baseline_us.append(baseline_us)

    def _blamed(self, turn: SideSampler, candidate: SideSampler) -> AbstractContextManager[None]:
        """Attribute errors to the side whose turn it is; the candidate's own are raised unchanged."""
        return nullcontext() if turn is candidate else self._failures_of(turn)

    def _alone(self, candidate: SideSampler) -> bool:
        """Blocks of a candidate that has nothing to be compared with, until its own time is settled."""
        patience = StopRule(self._settings.precision)
        while True:
            self._between()
            self._readings.append(self._clocks())
            candidate.lead_in()
            candidate.per_execution([candidate.visit(self._gaps(candidate.samples))])
            done = len(candidate.visits)
            if patience.due(done):
                times, _ = candidate.times(self._rng)
                patience.saw(done, half_width(times.median_us, times.interval_us))
            if patience.settled or (done >= FEWEST_ROUNDS and self._spent() >= 1):
                return patience.settled

    def _host_check(self, candidate: SideSampler, fastest: SideSampler | None) -> HostClock:
        """Blocks of N and 2N samples, without gaps, as the parent's clock sees them."""
        flushes = np.concatenate([visit.flush_us for visit in fastest.visits]) if fastest else np.empty(0)
        flush_us = float(np.median(flushes)) if len(flushes) else 0.0
        for _ in range(TRIES):
            for _ in range(DOUBLE_BLOCKS):
                if self._gap_us:
                    candidate.block(candidate.gapless)
                candidate.block(2 * candidate.gapless)
            host = compare_clocks(candidate, self._shape, flush_us, self._reset_us)
            if host.agrees:
                break
        return host

    def _energy(
        self, candidate: SideSampler, fastest: SideSampler | None
    ) -> tuple[tuple[SideEnergy, ...], tuple[str, ...]]:
        """Energy of the candidate and of the fastest baseline, and why one has none."""
        if self._meter is None:
            return (), ()
        measured: list[SideEnergy] = []
        try:
            self._between()
            measured.append(self._meter.of(candidate, self._shape.sets, self._rng))
            if fastest is not None:
                self._ready(fastest)
                with self._failures_of(fastest):
                    measured.append(self._meter.of(fastest, self._shape.sets, self._rng))
        except (TimingError, _BaselineFailed) as error:
            return tuple(measured), (f"energy: {error}",)
        finally:
            if fastest is not None:
                fastest.rest()
        return tuple(measured), ()

    def _record(
        self,
        measured: SideSampler,
        others: list[SideSampler],
        fastest: SideSampler | None,
        rounds: list[RoundLog],
        settled: bool,
        host: HostClock,
        set_bytes: int,
    ) -> Timing:
        candidate, notes = measured.times(self._rng)
        baselines: list[SideTimes] = []
        for side in list(others):
            try:
                with self._failures_of(side):
                    times, more = side.times(self._rng)
            except _BaselineFailed as failed:
                self._leave_out(failed, others)
                rounds = [each for each in rounds if each.baseline != side.name]
                fastest = None if fastest is side else fastest
            else:
                baselines.append(times)
                notes += more
        return Timing(
            protocol=("graph/1" if measured.captured else "launch/1") + ("+server" if self._gap_us else ""),
            mode="server" if self._gap_us else "offline",
            sets=self._shape.sets,
            set_bytes=set_bytes,
            flush_bytes=self._shape.flush_bytes,
            flush_each=self._shape.flush_each,
            candidate=candidate,
            baselines=tuple(baselines),
            ratios=tuple(each.ratio(self._rng) for each in rounds),
            fastest=None if fastest is None else fastest.name,
            settled=settled,
            budget_s=self._settings.seconds,
            host=host,
            clocks=merge(self._readings),
            absent=self._absent,
            notes=notes,
        )
