"""Times of a C function against the suite's own and against eager PyTorch, by the parent's clock: protocol ``cpu/1``.

A candidate is machine code, so nothing that its process says of time can be believed, not even that a call is over.
Each block is therefore a process of its own, in which only a warm-up call ran before:

- inputs of the timed calls come with the request: values that this process has never seen, so that nothing can be
  prepared or remembered. Large ones are sealed files that are mapped where they are, made for this process alone: in a
  file that several received, one could leave its results to the next. Smaller ones come through the socket, and the
  copy is part of the time;
- the parent's clock runs from before the request until the process has ended, killed after its reply: work that is left
  to a thread is lost, but for what it does until then, which is part of the time;
- outputs are memory files of the parent, read after that; those of the candidate are compared with the oracle's values
  in every block.

Only one side's process exists at a time. Sides take turns in the order ABBA, as on a GPU, and the suite's function goes
through the same steps, but that nothing compares its outputs.
"""

from __future__ import annotations

import math
import platform
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from random import Random
from typing import Any, Final, NamedTuple, Protocol

import numpy as np

from kernelforge.errors import BaselineError, SandboxError, TaskError, TimingError, UsageError
from kernelforge.evaluation.oracle.client import DrawHandle, Oracle
from kernelforge.evaluation.timing.protocol import EAGER_ROUNDS, FEWEST_ROUNDS, RoundLog, StopRule
from kernelforge.evaluation.timing.statistics import half_width, median_of_clusters
from kernelforge.modelnew.client import ModelNewFault
from kernelforge.records import CpuConditions, MeasureSettings, SideTimes, Timing
from kernelforge.sandbox import Zygote
from kernelforge.sandbox.policy import Limits, role_policy
from kernelforge.sandbox.shared_memory import Blob, MemoryFile, MisusedFile, freeze, written_bytes
from kernelforge.translation.client import CChild

PROTOCOL: Final = "cpu/1"
SUITE_FUNCTION: Final = "c"
"""The baseline that is the suite's own C function, compiled with the same flags by the C compiler."""
EAGER: Final = "eager"
EMPTY: Final = "empty"
"""A function that does nothing: its time is part of each other C function's, and is recorded."""
SECONDS: Final = 20.0
"""Longest that one function is timed, with the drawing of its inputs."""
BLOCK_S: Final = 0.02
"""Shortest block, as far as :data:`MOST_SETS` calls fill it."""
MOST_SETS: Final = 8
"""Most calls in a block, each on inputs of its own."""
_MOST_FILES: Final = 48
"""Most arrays of inputs, and of outputs, in one block: they are files of one frame."""
_POISON: Final = 0xFF


class PlacedDraw(NamedTuple):
    """One draw of inputs as a C function takes it."""

    handle: DrawHandle
    arguments: list[dict[str, Any]]
    """In the order of the C parameters."""
    inputs: list[Blob]
    """Contents of the input arrays. No process receives these files: each has its own."""


class TimedBlock(NamedTuple):
    """One block of a side: a call on each of some draws."""

    seconds: float
    """Of all its calls, without the one on ``warm``."""
    outputs: list[list[bytes]]
    """By draw, for the candidate's to be compared; empty of a side that leaves none."""


class TimedSide(Protocol):
    """The candidate or a baseline."""

    name: str

    def block(self, warm: PlacedDraw, draws: Sequence[PlacedDraw]) -> TimedBlock:
        """Call on ``warm``, then on each of ``draws``, and time the latter.

        Raises:
            ModelNewFault: the function failed.
            BaselineError: this baseline has no time.
        """


class CFunction:
    """A compiled C function, each block in a fresh process.

    Args:
        name: of the side.
        library: what it was compiled to.
        symbol: name of the function.
        zygote: forks the processes: role ``c-candidate``.
        limits: of each.
        run_s: longest wait for a block.
    """

    def __init__(self, name: str, library: Blob, symbol: str, zygote: Zygote, limits: Limits, *, run_s: float) -> None:
        self.name = name
        self._library, self._symbol = library, symbol
        self._zygote, self._limits = zygote, limits
        self._run_s = run_s

    def block(self, warm: PlacedDraw, draws: Sequence[PlacedDraw]) -> TimedBlock:
        """See :class:`TimedSide`.

        Raises:
            ModelNewFault: the function ended its process, took too long, or left files that cannot be read.
            SandboxError: this machine makes no memory files, or the process does not end.
        """
        written = [_outputs(draw) for draw in draws]
        library = MemoryFile.sealed(self._library)
        warm_inputs = [MemoryFile.sealed(blob) for blob in warm.inputs]
        calls = [draw.arguments for draw in draws]
        inputs = [MemoryFile.sealed(blob) for draw in draws for blob in draw.inputs]
        try:
            with CChild(self._zygote, "cpu", self._limits, run_s=self._run_s) as child:
                child.open(library, self._symbol)
                child.take_outputs(_outputs(warm))
                child.timed([warm.arguments], warm_inputs)
                child.take_outputs([file for files in written for file in files])
                began = time.perf_counter()
                child.timed(calls, inputs)
                child.end()
                for file in (file for files in written for file in files):
                    freeze(file)
                seconds = time.perf_counter() - began
            return TimedBlock(seconds, [[written_bytes(file) for file in files] for files in written])
        except MisusedFile as error:
            raise ModelNewFault("policy", str(error)) from error


class EagerTorch:
    """The reference as PyTorch runs it, by the clock of the oracle's process, which is trusted.

    Args:
        oracle: holds the draws.
    """

    name = EAGER

    def __init__(self, oracle: Oracle) -> None:
        self._oracle = oracle

    def block(self, warm: PlacedDraw, draws: Sequence[PlacedDraw]) -> TimedBlock:
        """See :class:`TimedSide`. Each set is warmed up by itself, so ``warm`` is not run.

        Raises:
            BaselineError: it cannot be timed.
            TimingError: it ended the oracle's process, and the draws with it. It is not tried again there.
        """
        try:
            side = self._oracle.arm(EAGER, [draw.handle.handle for draw in draws])
            try:
                side.run(1)
                seconds = side.times()[0] * 1e-6
            finally:
                side.close()
        except (SandboxError, TaskError, UsageError) as error:
            if not self._oracle.holds_draws:
                why = f"timing eager PyTorch ended the oracle's process: {error}"
                self._oracle.give_up(EAGER, why)
                raise TimingError(why) from error
            raise BaselineError(str(error)) from error
        if not 0 < seconds < math.inf:
            raise BaselineError(f"{seconds:g} s is no time of eager PyTorch")
        return TimedBlock(seconds, [])


def time_sides(
    candidate: TimedSide,
    baselines: Sequence[TimedSide],
    draw: Callable[[int], AbstractContextManager[list[PlacedDraw]]],
    compare: Callable[[PlacedDraw, Sequence[bytes]], None],
    settings: MeasureSettings,
    cpu: CpuConditions,
    *,
    set_bytes: int,
    clock: Callable[[], float],
    rng: Random,
) -> Timing:
    """Time a candidate in turn with its baselines, until the ratio to the fastest is known to ``settings.precision``.

    All take part in the first :data:`EAGER_ROUNDS` rounds, then only the suite's function and the one that is the
    fastest so far.

    Args:
        candidate: the candidate.
        baselines: of different names; one that fails is left out, and the record says why. :data:`EMPTY` is none: its
            time goes into the conditions.
        draw: so many fresh draws; they are forgotten when its context ends.
        compare: raises where the outputs of a draw are wrong.
        settings: ``precision`` and ``seconds``.
        cpu: where it runs.
        set_bytes: bytes of the arrays of one call.
        clock: the parent's monotonic clock, in seconds.
        rng: the only source of chance.

    Raises:
        ModelNewFault: the candidate failed.
        TimingError: times that cannot be.
    """
    began = clock()
    rounds = _Rounds([side.name for side in baselines], settings.precision, np.random.default_rng(rng.getrandbits(64)))
    with draw(1) as (warm,):
        sets = _sets(warm, candidate.block(warm, [warm]).seconds)
        while True:
            turn = [side for side in baselines if side.name in rounds.due()]
            with draw(sets) as drawn:
                times, failed = _round(candidate, turn, warm, drawn, compare, rng)
            rounds.add(times.pop(candidate.name), times, failed)
            if rounds.settled or (rounds.done >= FEWEST_ROUNDS and clock() - began >= settings.seconds):
                return rounds.timing(candidate.name, settings, cpu, sets=sets, set_bytes=set_bytes)


class _Rounds:
    """Times of the candidate and of its baselines, by round.

    Args:
        baselines: their names.
        precision: half-width of the interval, as a share of the ratio, at which that is settled.
        generator: for resampling.
    """

    def __init__(self, baselines: Sequence[str], precision: float, generator: np.random.Generator) -> None:
        self._logs = {name: RoundLog(name, [], []) for name in baselines}
        self._absent: dict[str, str] = {}
        self._blocks: list[list[float]] = []
        """µs of a call in both blocks of the candidate, by round."""
        self._rules: defaultdict[str | None, StopRule] = defaultdict(lambda: StopRule(precision))
        """By the baseline whose ratio is looked at; None looks at the candidate's own time."""
        self._generator = generator

    @property
    def done(self) -> int:
        return len(self._blocks)

    @property
    def settled(self) -> bool:
        """Whether the ratio to the baseline that is the fastest so far is; without one, whether the time is."""
        return self._rules[self._fastest()].settled

    def due(self) -> set[str]:
        """Baselines of the next round."""
        if self.done < EAGER_ROUNDS:
            return set(self._logs)
        return {name for name in self._logs if name in (SUITE_FUNCTION, self._fastest())}

    def add(self, own: list[float], times: Mapping[str, Sequence[float]], failed: Mapping[str, str]) -> None:
        """Take in a round.

        Args:
            own: µs of a call in the blocks of the candidate.
            times: likewise, of each baseline that took part.
            failed: why each baseline that takes part no longer failed.
        """
        self._absent.update(failed)
        for name in failed:
            del self._logs[name]
        self._blocks.append(own)
        for name, each in times.items():
            self._logs[name].candidate_us.append(float(np.mean(own)))
            self._logs[name].baseline_us.append(float(np.mean(each)))
        fastest = self._fastest()
        rule, log = self._rules[fastest], None if fastest is None else self._logs[fastest]
        done = self.done if log is None else len(log.candidate_us)
        if rule.due(done):
            rule.saw(done, self._half_width(log))

    def timing(
        self, candidate: str, settings: MeasureSettings, cpu: CpuConditions, *, sets: int, set_bytes: int
    ) -> Timing:
        """The record of all rounds; arguments as of :func:`time_sides`."""
        logs = [log for name, log in self._logs.items() if name != EMPTY]
        empty = self._logs.get(EMPTY)
        return Timing(
            protocol=PROTOCOL,
            sets=sets,
            set_bytes=set_bytes,
            flush_bytes=0,
            candidate=self._side(candidate, self._blocks),
            baselines=tuple(self._side(log.baseline, [[each] for each in log.baseline_us]) for log in logs),
            ratios=tuple(log.ratio(self._generator) for log in logs),
            fastest=self._fastest(),
            absent={name: why for name, why in self._absent.items() if name != EMPTY},
            settled=self.settled,
            budget_s=settings.seconds,
            cpu=cpu if empty is None else cpu.model_copy(update={"overhead_us": float(np.median(empty.baseline_us))}),
        )

    def _fastest(self) -> str | None:
        """The baseline over which the speedup is the smallest so far."""
        logs = [log for name, log in self._logs.items() if name != EMPTY]
        return min(logs, key=lambda log: log.speedup).baseline if logs else None

    def _half_width(self, log: RoundLog | None) -> float:
        """Of the interval of the ratio to a baseline, or of the candidate's own time; as a share of the number."""
        if log is not None:
            ratio = log.ratio(self._generator)
            return half_width(ratio.speedup, ratio.interval)
        return half_width(*median_of_clusters([np.asarray(each) for each in self._blocks], self._generator))

    def _side(self, name: str, blocks: Sequence[Sequence[float]]) -> SideTimes:
        median, interval = median_of_clusters([np.asarray(each) for each in blocks], self._generator)
        return SideTimes(
            name=name,
            samples_us=tuple(float(f"{value:.6g}") for each in blocks for value in each),
            median_us=median,
            interval_us=interval,
            captured=False,
        )


def _sets(draw: PlacedDraw, first_s: float) -> int:
    """Calls of a block: as many as fill it, where the first call took so long, and as their files allow."""
    outputs = [item for item in draw.arguments if item["kind"] == "output"]
    arrays = max(len(draw.inputs), len(outputs), 1)
    return max(1, min(MOST_SETS, _MOST_FILES // arrays, math.ceil(BLOCK_S / max(first_s, 1e-9))))


def _round(
    candidate: TimedSide,
    baselines: Sequence[TimedSide],
    warm: PlacedDraw,
    draws: Sequence[PlacedDraw],
    compare: Callable[[PlacedDraw, Sequence[bytes]], None],
    rng: Random,
) -> tuple[dict[str, list[float]], dict[str, str]]:
    """One block of each side in an order by chance, and one more in the reverse order.

    Returns:
        µs of a call in each block, by side; and why a baseline failed, which has no times then.

    Raises:
        ModelNewFault: the candidate failed.
    """
    turn = [candidate, *baselines]
    rng.shuffle(turn)
    times: dict[str, list[float]] = {side.name: [] for side in turn}
    failed: dict[str, str] = {}
    for side in (*turn, *reversed(turn)):
        if side.name in failed:
            continue
        try:
            block = side.block(warm, draws)
        except (BaselineError, ModelNewFault) as error:
            if side is candidate:
                raise
            failed[side.name] = str(error)
            del times[side.name]
            continue
        times[side.name].append(block.seconds / len(draws) * 1e6)
        if side is candidate:
            for placed, outputs in zip(draws, block.outputs, strict=True):
                compare(placed, outputs)
    return times, failed


def cpu_name() -> str:
    """The name that this machine's processor gives itself."""
    try:
        with open("/proc/cpuinfo") as file:
            names = [line.partition(":")[2].strip() for line in file if line.startswith(("model name", "Model\t"))]
    except OSError:
        names = []
    return names[0] if names else platform.machine()


@contextmanager
def placed_draws(
    oracle: Oracle,
    seeds: Sequence[int],
    arguments: Callable[[DrawHandle], tuple[list[dict[str, Any]], list[Blob]]],
) -> Iterator[list[PlacedDraw]]:
    """Fresh draws of the full size, of the task's own inputs, forgotten at the end.

    Args:
        oracle: draws.
        seeds: secret, one for each.
        arguments: of a draw, those of the C function.

    Raises:
        TaskError: the reference fails on a draw.
        SandboxError: the oracle's process ended.
    """
    placed: list[PlacedDraw] = []
    try:
        for seed in seeds:
            handle = oracle.draw("full", oracle.families("full")[0], seed)
            values, inputs = arguments(handle)
            placed.append(PlacedDraw(handle, values, inputs))
        yield placed
    finally:
        for draw in placed:
            oracle.release(draw.handle.handle)


def _outputs(draw: PlacedDraw) -> list[memoryview]:
    sizes = [int(item["bytes"]) for item in draw.arguments if item["kind"] == "output"]
    return [MemoryFile.writable(size, _POISON) for size in sizes]


def declared_threads() -> int:
    """Threads that OpenMP takes in a candidate's process, where its function does not say otherwise."""
    return int(role_policy("c-candidate").environment["OMP_NUM_THREADS"])
