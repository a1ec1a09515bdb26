"""Timing of a correct candidate on a device that measures: tensor sets, baselines, plausibility.

Runs in the parent. The candidate's runner and the oracle's process, which also holds the baselines, take turns; what
the candidate left in every set is compared while the clocks stand still.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass, field

from kernelforge.devices.base import Device, RunRequest, SampleWork, Session, Timeable, TimedPlan
from kernelforge.errors import BaselineError, SandboxError, TaskError, UsageError
from kernelforge.evaluation.oracle.client import DrawHandle, Oracle
from kernelforge.evaluation.oracle.remote_baseline import RemoteBaseline
from kernelforge.evaluation.timing import (
    SamplePlan,
    cache_resident,
    clock_jump,
    differ,
    implausible_reason,
    kernelbench,
    measure,
    physical_floor_us,
    plan_sets,
    reported_time,
    reset_allowance,
    tensor_bytes,
)
from kernelforge.evaluation.timing.sampler import MAX_SETS
from kernelforge.hardware.specs import find_spec
from kernelforge.records import (
    LaunchQueue,
    MeasureSettings,
    Origin,
    Performance,
    Profile,
    SizeFacts,
    Timing,
    content_hash,
)
from kernelforge.sandbox.shared_memory import Blob
from kernelforge.utils.machine import installed_memory_bytes

MEMORY_SHARE = 0.25
"""Part of the device's memory that the sets of one side may take: candidate and reference each hold theirs."""

HOST_MEMORY_SHARE = 0.125
"""Part of the machine's memory that inputs in pinned host memory of one side's sets may take; each has a pageable copy
too, and other slots have theirs."""

UNPROFILED = "unprofiled"
"""What stands for the bound of a measured time that no profile explains."""


MOST_LOST = 8
"""How often baselines may take the oracle's process, and every draw, with them. Each does so once: the oracle does not
try it again. After that a candidate is timed without any."""


class _OracleRestarted(Exception):
    """A baseline ended the oracle's process: its draws are gone, and timing starts again."""


class OutputChangedWhileTimed(Exception):
    """A candidate's outputs while it was timed are wrong, unlike those when it was checked.

    Args:
        message: how they are wrong.
        error: the largest error as a multiple of the tolerance, where it is known.
    """

    def __init__(self, message: str, error: float | None = None) -> None:
        super().__init__(message)
        self.error = error


@dataclass(kw_only=True)
class CandidateTimer:
    """Times one candidate at one size, as often as asked, on fresh values each time.

    Args:
        seed: Secret; every draw is derived from it and from how many there were before.
        request: The run of the candidate on the tensors of a draw.
        host_clock: The parent's monotonic clock, in seconds.
    """

    device: Device
    oracle: Oracle
    facts: SizeFacts
    settings: MeasureSettings
    seed: int
    request: Callable[[DrawHandle], RunRequest]
    host_clock: Callable[[], float] = time.perf_counter
    _draws: int = field(default=0, init=False)
    _lost: int = field(default=0, init=False)
    _without_baselines: str = field(default="", init=False)
    """Why no baseline is tried any more; empty where they are."""

    def time(self, session: Session) -> Timing:
        """Time the candidate that ``session`` holds.

        Raises:
            OutputChangedWhileTimed: its outputs were wrong in a set that was timed.
            RunFailed: it faulted while it was timed.
            TimingError: the clocks gave what cannot be a time.
        """
        while True:
            try:
                return self._once(session)
            except _OracleRestarted as lost:
                self._lost += 1
                if self._lost > MOST_LOST:
                    self._without_baselines = f"baselines ended the oracle's process again and again: {lost.__cause__}"

    def _once(self, session: Session) -> Timing:
        shape = self.shape
        with ExitStack() as stack:
            draws = [stack.enter_context(self._drawn()) for _ in range(shape.sets)]
            requests = [self.request(draw) for draw in draws]
            armed = session.arm(requests, flush_bytes=shape.flush_bytes, flush_each=shape.flush_each)
            stack.callback(armed.close)
            baselines = self._baselines(stack, draws, shape)
            sets = _Sets(self, armed, draws)
            stack.callback(sets.release)
            reset_us = sum(self._reset_us(request) for request in requests)
            timing = self._clocked(armed, baselines, sets, reset_us)
            sets.check()
            launches, untraced = self._eager_launches(baselines)
            notes = {side.name: side.note for side in baselines if side.note}
            details = {
                "setup_us": armed.setup_us,
                "coverage": armed.coverage(),
                "eager_launches": launches,
                "notes": (
                    *timing.notes,
                    *(
                        f"{side_times.name}: {notes[side_times.name]}"
                        for side_times in timing.baselines
                        if side_times.name in notes
                    ),
                    *([self._without_baselines] if self._without_baselines else []),
                    *untraced,
                ),
            }
            return timing.model_copy(update=details)

    def _eager_launches(self, baselines: Sequence[_Baseline]) -> tuple[LaunchQueue | None, tuple[str, ...]]:
        """Launch and queue time of eager PyTorch where it was requested, and why there is none."""
        eager = next((side for side in baselines if side.name == "eager"), None)
        if not self.settings.launches or eager is None:
            return None, ()
        try:
            return eager.launches(), ()
        except BaselineError as error:
            return None, (f"launches: {error}",)
        except _OracleRestarted as error:
            return None, (f"launches: the process with the reference ended: {error.__cause__}",)
        finally:
            eager.close()

    @property
    def published(self) -> bool:
        """Whether times are taken as KernelBench publishes them."""
        return self.settings.protocol == "kernelbench"

    @property
    def shape(self) -> SamplePlan:
        """Plan of one timing sample.

        Raises:
            TimingError: not even one set fits into memory.
        """
        if self.published:
            return SamplePlan(sets=1, flush_bytes=0)
        limit = MAX_SETS if self.settings.qps is None else 1
        host_bytes = tensor_bytes(self.facts) - self.set_bytes
        if host_bytes:
            limit = min(limit, max(1, int(HOST_MEMORY_SHARE * installed_memory_bytes()) // host_bytes))
        return plan_sets(
            self.set_bytes, self.device.l2_bytes, int(MEMORY_SHARE * self.device.memory_bytes), limit=limit
        )

    @property
    def floor_us(self) -> float:
        """Least time of one execution on the device; 0 where its bandwidth is unknown."""
        resident = self.device.l2_bytes if self.published else cache_resident(self.shape, self.device.l2_bytes)
        host_bytes = self.facts.host_bytes
        # Another GPU, though the nearest, may have another link.
        spec = find_spec(self.device.identity().get("gpu", "")) if host_bytes else None
        return physical_floor_us(
            self.facts.compulsory_bytes,
            self.device.memory_bandwidth_gbps,
            resident_bytes=resident,
            host_bytes=host_bytes,
            host_link_gbps=0.0 if spec is None else spec.host_link_raw_gbps,
        )

    def _reset_us(self, request: RunRequest) -> float:
        """Most time that is believed for resetting one set of the candidate."""
        filled = [buffer.nbytes for buffer in request.plan.buffers if buffer.kind == "workspace"]
        copied = [len(request.tensors[buffer]) for buffer in request.mutable]
        nbytes = sum(filled) + 2 * sum(copied)
        return reset_allowance(len(filled) + len(copied), nbytes, self.device.memory_bandwidth_gbps)

    def _clocked(self, armed: TimedPlan, baselines: Sequence[Timeable], sets: _Sets, reset_us: float) -> Timing:
        if self.published:
            return kernelbench(armed, baselines, set_bytes=self.set_bytes, clocks=self.device.clocks)
        return measure(
            armed,
            baselines,
            self.shape,
            self.settings,
            set_bytes=self.set_bytes,
            clocks=self.device.clocks,
            host_clock=self.host_clock,
            between=sets.between,
            rng=random.Random(int(content_hash(self.seed, "order", self._draws), 16)),
            reset_us=reset_us,
            energy=self.device.energy_j,
        )

    @property
    def set_bytes(self) -> int:
        """Bytes of inputs, weights and outputs in device memory, which both sides touch."""
        return tensor_bytes(self.facts, self.oracle.task.policy.host_inputs)

    def draw(self) -> DrawHandle:
        """Fresh inputs of the task's own distribution, with what must come out."""
        self._draws += 1
        seed = int(content_hash(self.seed, "timing", self._draws), 16)
        return self.oracle.draw(self.facts.size, self.oracle.families(self.facts.size)[0], seed)

    def compare(self, draw: DrawHandle, outputs: Sequence[Blob]) -> None:
        """Compare what one set holds.

        Raises:
            OutputChangedWhileTimed: it is wrong.
        """
        specs = self.facts.outputs
        shapes, dtypes = [spec.shape for spec in specs], [spec.dtype for spec in specs]
        comparison = self.oracle.check(draw.handle, outputs, shapes, dtypes)
        if not comparison.ok:
            raise OutputChangedWhileTimed(comparison.message, comparison.error)

    @contextmanager
    def _drawn(self) -> Iterator[DrawHandle]:
        draw = self.draw()
        try:
            yield draw
        finally:
            self.oracle.release(draw.handle)

    def _baselines(self, stack: ExitStack, draws: Sequence[DrawHandle], shape: SamplePlan) -> list[_Baseline]:
        """Every baseline that can be tried; none is built yet."""
        if self._without_baselines:
            return []
        try:
            names = ("eager",) if self.published else self.oracle.baselines()
        except (SandboxError, TaskError) as error:
            self._without_baselines = (
                f"no baselines: the oracle cannot say which there are: {str(error).splitlines()[0]}"
            )
            if not self.oracle.holds_draws:
                raise _OracleRestarted from error
            return []
        handles = [draw.handle for draw in draws]
        sides = [_Baseline(name, self.oracle, handles, shape) for name in names]
        for side in sides:
            stack.callback(side.close)
        return sides


class _Baseline(Timeable):
    """A baseline that is built when it is timed, and freed when it is not.

    Every error in it is its own failure, a :class:`~kernelforge.errors.BaselineError`.

    Args:
        name: One of :meth:`~kernelforge.evaluation.oracle.client.Oracle.baselines`.
        handles: Draws that it is armed on.
        shape: Of a sample.
    """

    def __init__(self, name: str, oracle: Oracle, handles: Sequence[int], shape: SamplePlan) -> None:
        self.name = name
        self.note = ""
        """What a reader of its times should know."""
        self._oracle = oracle
        self._handles = handles
        self._shape = shape
        self._side: RemoteBaseline | None = None

    @property
    def captured(self) -> bool:
        """Whether samples are replays of a CUDA graph."""
        return self._side is not None and self._side.captured

    def ready(self) -> None:
        """Arm it, unless it is.

        Raises:
            BaselineError: it cannot be had.
        """
        if self._side is not None:
            return
        flush, each = self._shape.flush_bytes, self._shape.flush_each
        try:
            self._side = self._oracle.arm(self.name, self._handles, flush_bytes=flush, flush_each=each)
        except (SandboxError, TaskError, UsageError) as error:
            if not self._oracle.holds_draws:
                raise _OracleRestarted from error
            raise BaselineError(str(error)) from error
        self.note = self._side.note

    def rest(self) -> None:
        """Let the oracle free its sets."""
        side, self._side = self._side, None
        if side is not None:
            with suppress(BaselineError), self._own_failures():
                side.close()

    def close(self) -> None:
        """Free the sets at the end, when the oracle's draws are no longer needed."""
        with suppress(_OracleRestarted):
            self.rest()

    def run(self, samples: int, work: SampleWork = "sample", *, gaps_us: Sequence[float] = ()) -> None:
        """Run a block."""
        with self._own_failures():
            self._armed.run(samples, work, gaps_us=gaps_us)

    def times(self) -> tuple[float, ...]:
        """Of the last block, in µs."""
        with self._own_failures():
            return self._armed.times()

    def launches(self) -> LaunchQueue:
        """Of one execution, traced. A profiler that ends the oracle's process does not speak against the baseline.

        Raises:
            BaselineError: there is no trace.
        """
        try:
            return self._armed.launches()
        except (SandboxError, TaskError, UsageError) as error:
            raise BaselineError(str(error).splitlines()[0]) from error

    @property
    def _armed(self) -> RemoteBaseline:
        self.ready()
        assert self._side is not None
        return self._side

    @contextmanager
    def _own_failures(self) -> Iterator[None]:
        try:
            yield
        except (SandboxError, TaskError, UsageError) as error:
            if not self._oracle.holds_draws:
                self._oracle.give_up(self.name, f"timing it ended the oracle's process: {str(error).splitlines()[0]}")
                raise _OracleRestarted from error
            raise BaselineError(str(error)) from error


class _Sets:
    """Contents of the sets: checked and replaced at growing intervals, before the rounds 1, 2, 4, 8...

    A kernel cannot tell when, and what the last round left is always checked.
    """

    def __init__(self, stopwatch: CandidateTimer, armed: TimedPlan, draws: list[DrawHandle]) -> None:
        self._stopwatch = stopwatch
        self._armed = armed
        self._draws = draws
        self._fresh: list[DrawHandle] = []
        self._rounds = 0
        self._next = 1

    def between(self) -> None:
        """To be called before each round, when nothing is timed."""
        self._rounds += 1
        if self._rounds < self._next:
            return
        self._next *= 2
        self.check()
        self.release()
        self._stopwatch.oracle.require_draws()
        for _ in self._draws:
            self._fresh.append(self._stopwatch.draw())
        self._armed.refresh([self._stopwatch.request(draw) for draw in self._fresh])

    def check(self) -> None:
        """Compare what the last sample left in every set.

        Raises:
            OutputChangedWhileTimed: one of them is wrong.
        """
        for draw, outputs in zip(self._fresh or self._draws, self._armed.outputs(), strict=True):
            self._stopwatch.compare(draw, outputs)

    def release(self) -> None:
        """Forget the values that came after the first."""
        for draw in self._fresh:
            self._stopwatch.oracle.release(draw.handle)
        self._fresh = []


def confirm(
    stopwatch: CandidateTimer, fresh: Callable[[], AbstractContextManager[Session]], first: Timing
) -> tuple[Timing, str | None]:
    """A timing that is too good is taken again in a fresh process; what is too good then as well is quarantined.

    An implausible first timing confirms no jump of the second: that one is then compared with a third.

    Returns:
        The timing to record (the second if the first cannot be, else the slower candidate's), and why it is not
        believed, if it is not.
    """

    def new_timing() -> Timing:
        with fresh() as session:
            return stopwatch.time(session)

    implausible = implausible_reason(first, stopwatch.floor_us)
    if implausible is None and clock_jump(first) is None:
        return first, None
    second = new_timing()
    if implausible is not None and clock_jump(second) is not None:
        implausible = implausible_reason(second, stopwatch.floor_us)
        if implausible is None:
            first, second = second, new_timing()
    doubt = implausible_reason(second, stopwatch.floor_us) or differ(first, second)
    if implausible is not None:
        return second, doubt
    return max(first, second, key=lambda timing: timing.candidate.median_us), doubt


def performance(timing: Timing, quarantined: str | None, profile: Profile | None) -> Performance:
    """The record of a measured time."""
    against = None if timing.fastest is None else timing.ratio(timing.fastest)
    eager = timing.ratio("eager")
    scored = quarantined is None
    time_us, interval_us = reported_time(timing)
    return Performance(
        time_us=time_us,
        origin=Origin.MEASURED,
        interval_us=interval_us,
        samples=len(timing.candidate.samples_us),
        protocol=timing.protocol,
        bound=UNPROFILED if profile is None else profile.roofline.bound,
        speedup=against.speedup if scored and against else None,
        speedup_lower=min(against.interval[0], against.speedup) if scored and against else None,
        speedup_eager=eager.speedup if scored and eager else None,
        timing=timing,
        quarantined=quarantined,
    )
