"""Timing of a correct candidate on a device that measures: its sets of tensors, its baselines, and what is believed.

Runs in the parent. The candidate's runner and the oracle's process, which also holds the baselines, take turns; what
the candidate left in every set is compared while the clocks stand still.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

from kernelforge.devices.base import Armed, Device, RunRequest, Session, TimedSide
from kernelforge.errors import TaskError
from kernelforge.evaluate.oracle import Draw, Oracle
from kernelforge.evaluate.timing import floor, kernelbench, measure, plan_sets, suspicious
from kernelforge.records import (
    Comparison,
    MeasureSettings,
    Origin,
    Performance,
    Profile,
    SizeFacts,
    Timing,
    content_hash,
)

MEMORY_SHARE = 0.25
"""Part of the device's memory that the sets of one side may take: candidate and reference each hold theirs."""

UNPROFILED = "unprofiled"
"""What stands for the bound of a measured time that no profile explains."""


class WrongWhenTimed(Exception):
    """What a candidate left behind while it was timed is not what it computes when it is checked."""

    def __init__(self, comparison: Comparison) -> None:
        super().__init__(comparison.message)
        self.comparison = comparison


@dataclass(kw_only=True)
class Stopwatch:
    """Times one candidate at one size, as often as asked, on fresh values each time.

    Args:
        seed: Secret; every draw is derived from it and from how many there were before.
        request: The run of the candidate on the tensors of a draw.
    """

    device: Device
    oracle: Oracle
    facts: SizeFacts
    settings: MeasureSettings
    seed: int
    request: Callable[[Draw], RunRequest]
    _draws: int = field(default=0, init=False)

    def time(self, session: Session) -> Timing:
        """Time the candidate that ``session`` holds.

        Raises:
            WrongWhenTimed: its outputs were wrong in a set that was timed.
            RunFaulted: it faulted while it was timed.
            TimingError: the clocks gave what cannot be a time.
        """
        published = self.settings.protocol == "kernelbench"
        limit = int(MEMORY_SHARE * self.device.memory_bytes)
        shape = plan_sets(self.set_bytes, self.device.l2_bytes, limit) if not published else None
        sets, flush_bytes = (1, 0) if shape is None else (shape.sets, shape.flush_bytes)
        with ExitStack() as stack:
            draws = [stack.enter_context(self._drawn()) for _ in range(sets)]
            armed = session.arm([self.request(draw) for draw in draws], flush_bytes=flush_bytes)
            stack.callback(armed.close)
            baselines, notes = self._baselines(stack, draws, flush_bytes, only_eager=published)
            rounds = _Refresher(self, armed, draws, stack)
            rng = random.Random(int(content_hash(self.seed, "order"), 16))
            if published:
                timing = kernelbench(armed, baselines, set_bytes=self.set_bytes, clocks=self.device.clocks)
            else:
                assert shape is not None
                timing = measure(
                    armed,
                    baselines,
                    shape,
                    self.settings,
                    set_bytes=self.set_bytes,
                    clocks=self.device.clocks,
                    host_clock=time.perf_counter,
                    between=rounds.between,
                    rng=rng,
                )
            rounds.check()
            return timing.model_copy(
                update={
                    "setup_us": armed.setup_us,
                    "coverage": armed.coverage(),
                    "notes": (*timing.notes, *notes),
                }
            )

    @property
    def set_bytes(self) -> int:
        """Bytes of inputs, weights and outputs: what both sides touch."""
        tensors = [spec for spec in self.facts.inputs if not isinstance(spec, int | float | bool | None)]
        weights = [weight.spec for weight in self.facts.weights]
        return sum(spec.nbytes for spec in (*tensors, *weights, *self.facts.outputs))

    def draw(self) -> Draw:
        """Fresh inputs of the task's own distribution, with what must come out."""
        self._draws += 1
        seed = int(content_hash(self.seed, "timing", self._draws), 16)
        return self.oracle.draw(self.facts.size, self.oracle.families(self.facts.size)[0], seed)

    def compare(self, draw: Draw, outputs: Sequence[bytes]) -> None:
        """Compare what one set holds.

        Raises:
            WrongWhenTimed: it is wrong.
        """
        specs = self.facts.outputs
        shapes, dtypes = [spec.shape for spec in specs], [spec.dtype for spec in specs]
        comparison = self.oracle.check(draw.handle, outputs, shapes, dtypes)
        if not comparison.ok:
            raise WrongWhenTimed(comparison)

    @contextmanager
    def _drawn(self) -> Iterator[Draw]:
        draw = self.draw()
        try:
            yield draw
        finally:
            self.oracle.release(draw.handle)

    def _baselines(
        self, stack: ExitStack, draws: Sequence[Draw], flush_bytes: int, *, only_eager: bool
    ) -> tuple[list[TimedSide], list[str]]:
        """Every baseline that can be built and gives right values, and why others cannot."""
        sides: list[TimedSide] = []
        notes: list[str] = []
        names = ("eager",) if only_eager else self.oracle.baselines()
        for name in names:
            try:
                side = self.oracle.arm(name, [draw.handle for draw in draws], flush_bytes=flush_bytes)
            except TaskError as error:
                notes.append(f"baseline {name}: {error}")
                continue
            stack.callback(side.close)
            sides.append(side)
        return sides, notes


class _Refresher:
    """Checks the sets and puts new values into them, ever more seldom: after 1, 2, 4, 8... pairs of blocks.

    When it will do so cannot be told from within a kernel, and the last outputs are always checked.
    """

    def __init__(self, stopwatch: Stopwatch, armed: Armed, draws: list[Draw], stack: ExitStack) -> None:
        self._stopwatch = stopwatch
        self._armed = armed
        self._draws = draws
        self._pairs = 0
        self._next = 1
        stack.callback(self._release)
        self._fresh: list[Draw] = []

    def between(self) -> None:
        """To be called between pairs of blocks, when nothing is timed."""
        self._pairs += 1
        if self._pairs < self._next:
            return
        self._next *= 2
        self.check()
        fresh = [self._stopwatch.draw() for _ in self._draws]
        self._release()
        self._fresh = fresh
        self._armed.refresh([self._stopwatch.request(draw) for draw in fresh])

    def check(self) -> None:
        """Compare what the last sample left in every set."""
        for draw, outputs in zip(self._fresh or self._draws, self._armed.outputs(), strict=True):
            self._stopwatch.compare(draw, outputs)

    def _release(self) -> None:
        for draw in self._fresh:
            self._stopwatch.oracle.release(draw.handle)
        self._fresh = []


def believed(
    stopwatch: Stopwatch, session: Callable[[], Session], first: Timing, floor_us: float
) -> tuple[Timing, str | None]:
    """A timing that raises suspicion is taken again in a fresh process; what is still suspicious is quarantined.

    Returns:
        The timing to record, and why it is not believed, if it is not.
    """
    if suspicious(first, floor_us) is None:
        return first, None
    with session() as fresh:
        second = stopwatch.time(fresh)
    return second, suspicious(second, floor_us)


def performance(timing: Timing, quarantined: str | None, profile: Profile | None) -> Performance:
    """The record of a measured time."""
    against = None if timing.fastest is None else timing.ratio(timing.fastest)
    eager = timing.ratio("eager")
    scored = quarantined is None
    return Performance(
        time_us=timing.candidate.median_us,
        origin=Origin.MEASURED,
        interval_us=timing.candidate.interval_us,
        samples=len(timing.candidate.samples_us),
        protocol=timing.protocol,
        bound=UNPROFILED if profile is None else profile.roofline.bound,
        speedup=against.speedup if scored and against else None,
        speedup_lower=min(against.interval[0], against.speedup) if scored and against else None,
        speedup_eager=eager.speedup if scored and eager else None,
        timing=timing,
        quarantined=quarantined,
    )


def floor_of(facts: SizeFacts, device: Device) -> float:
    """Least time of the task on the device, in µs: compulsory bytes at peak bandwidth; 0 where that is unknown."""
    bandwidth = device.memory_bandwidth_gbps
    return floor(facts.compulsory_bytes, bandwidth) if bandwidth > 0 else 0.0
