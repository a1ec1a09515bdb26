"""Times of a C function against the suite's own and against eager PyTorch, by the parent's clock: protocol ``cpu/1``.

A candidate is machine code, so nothing that its process says of time can be believed, not even that a call is over.
Each block is therefore a process of its own, in which only a warm-up call ran before:

- inputs of the timed calls come with the request: values that this process has never seen, so that nothing can be
  prepared or remembered. Large ones are sealed files that are mapped where they are, made for this process alone: in a
  file that several received, one could leave its results to the next. Smaller ones come through the socket, and the
  copy is part of the time;
- the parent's clock runs from before the request until the process has ended, killed after its reply: work that is left
  to a thread is part of the time, or lost;
- outputs are memory files of the parent, read after that, and compared with the oracle's values in every block.

Only one side's process exists at a time. Sides take turns in the order ABBA, as on a GPU, and the suite's function goes
through the same steps.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from random import Random
from typing import Any, Final, NamedTuple, Protocol

import numpy as np

from kernelforge.errors import BaselineError, SandboxError, TaskError, UsageError
from kernelforge.evaluation.oracle.client import DrawHandle, Oracle
from kernelforge.evaluation.timing.protocol import EAGER_ROUNDS, FEWEST_ROUNDS, RoundLog, StopRule
from kernelforge.evaluation.timing.statistics import half_width, median_of_clusters
from kernelforge.modelnew.client import ModelNewFault
from kernelforge.records import CpuConditions, MeasureSettings, Origin, Performance, SideTimes, Timing
from kernelforge.sandbox import Zygote
from kernelforge.sandbox.policy import Limits, role_policy
from kernelforge.sandbox.shared_memory import Blob, MemoryFile, freeze, written_bytes
from kernelforge.translation.client import CChild

PROTOCOL: Final = "cpu/1"
SUITE_FUNCTION: Final = "c"
"""The baseline that is the suite's own C function, compiled by the same command."""
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
    outputs: list[list[bytes]]
    """By draw; empty of a side whose outputs are compared where they are."""


class TimedSide(Protocol):
    """The candidate or a baseline."""

    name: str

    def block(self, warm: PlacedDraw, draws: Sequence[PlacedDraw]) -> TimedBlock:
        """Call on ``warm``, then on each of ``draws``, and time the latter."""


class CFunction:
    """A compiled C function, each block in a fresh process.

    Args:
        name: of the side.
        library: what it was compiled to.
        symbol: name of the function.
        zygote: forks the processes: role ``c-candidate``.
        limits: of each.
        run_s: longest wait for a block.
        clock: the parent's monotonic clock, in seconds.
    """

    def __init__(
        self,
        name: str,
        library: Blob,
        symbol: str,
        zygote: Zygote,
        limits: Limits,
        *,
        run_s: float,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.name = name
        self._library, self._symbol = library, symbol
        self._zygote, self._limits = zygote, limits
        self._run_s, self._clock = run_s, clock

    def block(self, warm: PlacedDraw, draws: Sequence[PlacedDraw]) -> TimedBlock:
        """See :class:`TimedSide`.

        Raises:
            ModelNewFault: the function ended its process, or took too long.
            SandboxError: its process does not end.
        """
        written = [_outputs(draw) for draw in draws]
        library = MemoryFile.sealed(self._library)
        warm_inputs = [MemoryFile.sealed(blob) for blob in warm.inputs]
        calls = [draw.arguments for draw in draws]
        inputs = [MemoryFile.sealed(blob) for draw in draws for blob in draw.inputs]
        with CChild(self._zygote, "cpu", self._limits, run_s=self._run_s) as child:
            child.open(library, self._symbol)
            child.take_outputs(_outputs(warm))
            child.timed([warm.arguments], warm_inputs)
            child.take_outputs([file for files in written for file in files])
            began = self._clock()
            child.timed(calls, inputs)
            child.end()
            for file in (file for files in written for file in files):
                freeze(file)
            seconds = self._clock() - began
        try:
            return TimedBlock(seconds, [[written_bytes(file) for file in files] for files in written])
        except SandboxError as error:
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
        """
        try:
            side = self._oracle.arm(EAGER, [draw.handle.handle for draw in draws])
            try:
                side.run(1)
                return TimedBlock(side.times()[0] * 1e-6, [])
            finally:
                side.close()
        except (SandboxError, TaskError, UsageError) as error:
            if not self._oracle.holds_draws:
                raise
            raise BaselineError(str(error)) from error


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
    """Time a candidate in turn with its baselines, until the ratio to the first is known to ``settings.precision``.

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
    others = {side.name: side for side in baselines}
    logs = {side.name: RoundLog(side.name, [], []) for side in baselines}
    absent: dict[str, str] = {}
    blocks: list[list[float]] = []
    draws = np.random.default_rng(rng.getrandbits(64))
    with draw(1) as (warm,):
        first = candidate.block(warm, [warm])
        arrays = max(len(warm.inputs), sum(item["kind"] == "output" for item in warm.arguments), 1)
        sets = max(1, min(MOST_SETS, _MOST_FILES // arrays, round(BLOCK_S / max(first.seconds, 1e-9) + 0.5)))
        rule = StopRule(settings.precision)
        while True:
            turn = [candidate, *(side for side in others.values() if _is_due(side.name, len(blocks)))]
            rng.shuffle(turn)
            seconds: dict[str, list[float]] = {side.name: [] for side in turn}
            with draw(sets) as drawn:
                for side in (*turn, *reversed(turn)):
                    if side.name in absent:
                        continue
                    try:
                        block = side.block(warm, drawn)
                    except (BaselineError, ModelNewFault) as error:
                        if side is candidate:
                            raise
                        absent[side.name] = str(error)
                        del others[side.name], logs[side.name]
                        continue
                    seconds[side.name].append(block.seconds / sets * 1e6)
                    if side is candidate:
                        for placed, outputs in zip(drawn, block.outputs, strict=True):
                            compare(placed, outputs)
            own = seconds.pop(candidate.name)
            blocks.append(own)
            for name, times in seconds.items():
                if name in logs:
                    logs[name].candidate_us.append(float(np.mean(own)))
                    logs[name].baseline_us.append(float(np.mean(times)))
            done = len(blocks)
            if rule.due(done):
                main = next((log for name, log in logs.items() if len(log.candidate_us) == done), None)
                if main is not None:
                    ratio = main.ratio(draws)
                    rule.saw(done, half_width(ratio.speedup, ratio.interval))
                else:
                    rule.saw(done, half_width(*median_of_clusters([np.asarray(each) for each in blocks], draws)))
            if rule.settled or (done >= FEWEST_ROUNDS and clock() - began >= settings.seconds):
                break
    empty = logs.pop(EMPTY, None)
    absent.pop(EMPTY, None)
    ratios = tuple(log.ratio(draws) for log in logs.values())
    return Timing(
        protocol=PROTOCOL,
        sets=sets,
        set_bytes=set_bytes,
        flush_bytes=0,
        candidate=_side(candidate.name, blocks, draws),
        baselines=tuple(_side(log.baseline, [[each] for each in log.baseline_us], draws) for log in logs.values()),
        ratios=ratios,
        fastest=min(ratios, key=lambda ratio: ratio.speedup).baseline if ratios else None,
        absent=absent,
        settled=rule.settled,
        budget_s=settings.seconds,
        cpu=cpu if empty is None else cpu.model_copy(update={"overhead_us": float(np.median(empty.baseline_us))}),
    )


def cpu_performance(timing: Timing) -> Performance:
    """The record of the time of a C function."""
    against = None if timing.fastest is None else timing.ratio(timing.fastest)
    eager = timing.ratio(EAGER)
    return Performance(
        time_us=timing.candidate.median_us,
        origin=Origin.MEASURED,
        interval_us=timing.candidate.interval_us,
        samples=len(timing.candidate.samples_us),
        protocol=timing.protocol,
        bound="unprofiled",
        speedup=None if against is None else against.speedup,
        speedup_lower=None if against is None else min(against.interval[0], against.speedup),
        speedup_eager=None if eager is None else eager.speedup,
        timing=timing,
    )


def cpu_name() -> str:
    """The name that this machine's processor gives itself."""
    try:
        with open("/proc/cpuinfo") as file:
            names = [line.partition(":")[2].strip() for line in file if line.startswith(("model name", "Model\t"))]
    except OSError:
        names = []
    return names[0] if names else platform.machine()


def usable_cpus() -> int:
    """Processors that this process may run on."""
    return len(os.sched_getaffinity(0))


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


def _is_due(name: str, rounds: int) -> bool:
    """Whether a side takes part in the next round: what is there for information does in the first ones."""
    return name == SUITE_FUNCTION or rounds < EAGER_ROUNDS


def _side(name: str, blocks: Sequence[Sequence[float]], rng: np.random.Generator) -> SideTimes:
    median, interval = median_of_clusters([np.asarray(each) for each in blocks], rng)
    return SideTimes(
        name=name,
        samples_us=tuple(float(f"{value:.6g}") for each in blocks for value in each),
        median_us=median,
        interval_us=interval,
        captured=False,
    )


def declared_threads() -> int:
    """Threads that OpenMP takes in a candidate's process, where its function does not say otherwise."""
    return int(role_policy("c-candidate").environment["OMP_NUM_THREADS"])
