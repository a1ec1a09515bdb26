"""The protocol ``graph/1``: a candidate timed against its baselines. ``docs/timing.md`` says why each step is there."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from kernelforge.devices.base import RunFaulted, TimedSide
from kernelforge.errors import TimingError
from kernelforge.evaluate.timing.clocks import merge
from kernelforge.evaluate.timing.hostclock import DOUBLE_BLOCKS, TRIES, compare_clocks
from kernelforge.evaluate.timing.intervals import half_width, ratio_of_rounds
from kernelforge.evaluate.timing.shape import SampleShape
from kernelforge.evaluate.timing.side import Side, Visit
from kernelforge.records import Clocks, HostClock, MeasureSettings, Ratio, Timing

QUICK_BLOCKS = 3
"""Blocks of every baseline in the pass that finds the fastest."""

QUICK_SHARE = 0.3
"""Share of the time after which that pass takes no more than its fewest blocks."""

MIN_ROUNDS = 6
"""Rounds before the interval is looked at: a spread seen from fewer is often too small by chance."""

FEWEST_ROUNDS = 2
"""Rounds that are run whatever the budget says: with one there is no interval."""

EAGER_ROUNDS = 3
"""Rounds against eager PyTorch where it is not the fastest."""

LOOK = 1.25
"""Growth of the number of rounds between two looks at the interval: each look is a chance to stop too early."""

LOOKS = 2
"""Looks in a row that must find the interval narrow enough, since one may do so by luck."""


@dataclass(frozen=True)
class Rounds:
    """Rounds of one candidate against one baseline: µs of one execution of each, per round."""

    baseline: str
    candidate_us: list[float]
    baseline_us: list[float]

    def ratio(self, rng: np.random.Generator) -> Ratio:
        speedup, interval = ratio_of_rounds(np.asarray(self.baseline_us), np.asarray(self.candidate_us), rng)
        # Each round is two pairs of blocks.
        return Ratio(baseline=self.baseline, speedup=speedup, interval=interval, blocks=2 * len(self.candidate_us))


class _Patience:
    """When to look at the interval, and when it has been narrow for long enough."""

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
    candidate: TimedSide,
    baselines: Sequence[TimedSide],
    shape: SampleShape,
    settings: MeasureSettings,
    *,
    set_bytes: int,
    clocks: Callable[[], Clocks | None],
    host_clock: Callable[[], float],
    between: Callable[[], None],
    rng: random.Random,
    reset_us: float = 0.0,
) -> Timing:
    """Time a candidate against its baselines until the ratio to the fastest is known to ``settings.precision``.

    Args:
        candidate: Ready to run, like each baseline, on ``shape.sets`` sets of its own.
        baselines: Of different names; those that fault while the fastest is sought are left out, with a note.
        shape: What both sides were armed with.
        settings: ``precision``, ``seconds``, and ``qps`` for gaps between requests.
        set_bytes: Bytes of one set, for the record.
        clocks: What the GPU says of itself now.
        host_clock: The parent's monotonic clock, in seconds.
        between: Called before each round, outside every block: refresh values here.
        rng: The only source of chance.
        reset_us: Most time that resetting the candidate's sets is believed to add to a sample's overhead.

    Raises:
        RunFaulted: the candidate faulted.
        TimingError: times that cannot be, or a baseline that faulted while it was compared with.
        ValueError: two sides of one name, or server mode with more than one execution per sample.
    """
    names = [side.name for side in (candidate, *baselines)]
    if len(set(names)) != len(names):
        raise ValueError(f"sides need names of their own: {', '.join(names)}")
    if settings.qps is not None and shape.sets != 1:
        raise ValueError("server mode times single requests: plan its sets with limit=1")
    draws = np.random.default_rng(rng.getrandbits(64))
    session = _Session(shape, settings, clocks, host_clock, between, draws, reset_us)
    return session.run(candidate, baselines, set_bytes)


class _Session:
    """One measurement in progress."""

    def __init__(
        self,
        shape: SampleShape,
        settings: MeasureSettings,
        clocks: Callable[[], Clocks | None],
        host_clock: Callable[[], float],
        between: Callable[[], None],
        rng: np.random.Generator,
        reset_us: float,
    ) -> None:
        self._shape = shape
        self._reset_us = reset_us
        self._settings = settings
        self._clocks = clocks
        self._host_clock = host_clock
        self._between = between
        self._rng = rng
        self._readings: list[Clocks | None] = []
        self._notes: list[str] = []
        self._started = host_clock()

    def run(self, candidate: TimedSide, baselines: Sequence[TimedSide], set_bytes: int) -> Timing:
        self._readings.append(self._clocks())
        ours = self._side(candidate)
        ours.warm_up(gap_us=self._gap_us)
        others = self._quick_pass(baselines)
        fastest = min(others, key=lambda side: side.per_execution(side.visits)) if others else None
        settled, rounds = self._compare(ours, fastest, next((side for side in others if side.name == "eager"), None))
        host = self._host_check(ours, fastest)
        self._readings.append(self._clocks())
        return self._record(ours, others, fastest, rounds, settled, host, set_bytes)

    @property
    def _gap_us(self) -> float:
        return 0.0 if self._settings.qps is None else 1e6 / self._settings.qps

    def _gaps(self, samples: int) -> tuple[float, ...]:
        """Idle times before the requests of a block: requests that come at random, as in CUDA-L2's server mode."""
        return tuple(self._rng.exponential(self._gap_us, samples).tolist()) if self._gap_us else ()

    def _spent(self) -> float:
        """Share of the time that is spent; above 1 where it is overdrawn."""
        return (self._host_clock() - self._started) / self._settings.seconds

    def _side(self, side: TimedSide) -> Side:
        return Side(side, self._shape, self._host_clock)

    def _quick_pass(self, baselines: Sequence[TimedSide]) -> list[Side]:
        """Every baseline in turn, a few times: the fastest is compared with, the others have at least a time."""
        others: list[Side] = []
        for baseline in baselines:
            side = self._side(baseline)
            try:
                side.warm_up(gap_us=self._gap_us)
            except RunFaulted as fault:
                self._notes.append(f"{side.name} faulted and was left out: {fault.fault.message}")
            else:
                others.append(side)
        for _ in range(QUICK_BLOCKS):
            for side in list(others):
                if len(side.visits) >= FEWEST_ROUNDS and self._spent() > QUICK_SHARE:
                    continue
                try:
                    side.visit(self._gaps(side.samples))
                except RunFaulted as fault:
                    self._notes.append(f"{side.name} faulted and was left out: {fault.fault.message}")
                    others.remove(side)
        return others

    def _compare(self, ours: Side, fastest: Side | None, eager: Side | None) -> tuple[bool, list[Rounds]]:
        """Rounds until the ratio against the fastest is settled or the time is up; some against eager among them."""
        if fastest is None:
            return self._alone(ours), []
        main = Rounds(fastest.name, [], [])
        beside = None if eager is None or eager is fastest else Rounds(eager.name, [], [])
        patience = _Patience(self._settings.precision)
        while True:
            self._round(ours, fastest, main)
            if beside is not None and eager is not None and len(beside.candidate_us) < EAGER_ROUNDS:
                self._round(ours, eager, beside)
            done = len(main.candidate_us)
            if patience.due(done):
                ratio = main.ratio(self._rng)
                patience.saw(done, half_width(ratio.speedup, ratio.interval))
            if patience.settled or (done >= FEWEST_ROUNDS and self._spent() >= 1):
                return patience.settled, [main] if beside is None else [main, beside]

    def _round(self, ours: Side, other: Side, rounds: Rounds) -> None:
        """Two blocks of each in the order ABBA or BAAB, by chance, overheads placed as symmetrically.

        Each side's two blocks have the same mean time, so that a drift that is linear in time cancels within the round.
        """
        self._between()
        self._readings.append(self._clocks())
        first, second = (ours, other) if self._rng.random() < 0.5 else (other, ours)
        visits: dict[str, list[Visit]] = {first.name: [], second.name: []}
        turn = first
        try:
            first.lead_in()
            for place, turn in enumerate((first, second, second, first)):
                visits[turn.name].append(turn.visit(self._gaps(turn.samples), flush_first=place >= 2))
        except RunFaulted as fault:
            if turn is ours:
                raise
            raise TimingError(f"baseline {other.name} faulted while it was compared with: {fault}") from fault
        rounds.candidate_us.append(ours.per_execution(visits[ours.name]))
        rounds.baseline_us.append(other.per_execution(visits[other.name]))

    def _alone(self, ours: Side) -> bool:
        """Blocks of a candidate that has nothing to be compared with, until its own time is settled."""
        patience = _Patience(self._settings.precision)
        while True:
            self._between()
            self._readings.append(self._clocks())
            ours.lead_in()
            ours.visit(self._gaps(ours.samples))
            done = len(ours.visits)
            if patience.due(done):
                times, _ = ours.times(self._rng)
                patience.saw(done, half_width(times.median_us, times.interval_us))
            if patience.settled or (done >= FEWEST_ROUNDS and self._spent() >= 1):
                return patience.settled

    def _host_check(self, ours: Side, fastest: Side | None) -> HostClock:
        """Blocks of N and 2N samples, without gaps, as the parent's clock sees them."""
        flushes = np.concatenate([visit.flush_us for visit in fastest.visits]) if fastest else np.empty(0)
        flush_us = float(np.median(flushes)) if len(flushes) else 0.0
        for _ in range(TRIES):
            for _ in range(DOUBLE_BLOCKS):
                if self._gap_us:
                    ours.block(ours.gapless)
                ours.block(2 * ours.gapless)
            host = compare_clocks(ours, self._shape, flush_us, self._reset_us)
            if host.agrees:
                break
        return host

    def _record(
        self,
        ours: Side,
        others: list[Side],
        fastest: Side | None,
        rounds: list[Rounds],
        settled: bool,
        host: HostClock,
        set_bytes: int,
    ) -> Timing:
        candidate, *baselines = [side.times(self._rng) for side in (ours, *others)]
        notes = [note for _, said in (candidate, *baselines) for note in said]
        return Timing(
            protocol=("graph/1" if ours.captured else "launch/1") + ("+server" if self._gap_us else ""),
            mode="server" if self._gap_us else "offline",
            sets=self._shape.sets,
            set_bytes=set_bytes,
            flush_bytes=self._shape.flush_bytes,
            flush_each=self._shape.flush_each,
            candidate=candidate[0],
            baselines=tuple(times for times, _ in baselines),
            ratios=tuple(each.ratio(self._rng) for each in rounds),
            fastest=None if fastest is None else fastest.name,
            settled=settled,
            budget_s=self._settings.seconds,
            host=host,
            clocks=merge(self._readings),
            notes=(*self._notes, *notes),
        )
