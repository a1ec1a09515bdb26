"""Sampler of one side of a comparison: the plan of a sample, and its blocks, checked and recorded."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from kernelforge.devices.base import SampleWork, Timeable
from kernelforge.errors import TimingError
from kernelforge.evaluation.timing.statistics import Floats, median_of_clusters
from kernelforge.records import SideTimes, SizeFacts, TensorSpec

MAX_SETS = 64
"""Most sets that are worth their trouble: each is drawn, copied in and checked on its own, and costs a node or more in
the graph. Sets of 2 MB and more exceed twice an L2 of 60 MB, so that one flush per sample is enough."""

FLUSHED_SETS = 8
"""Sets where each execution is preceded by a flush: enough to spread the cost of the events over several executions.
More would add no information per second, for the flushes take most of a sample."""


@dataclass(frozen=True)
class SamplePlan:
    """Plan of a sample: one execution on each of ``sets`` disjoint sets of inputs, weights and outputs."""

    sets: int
    flush_bytes: int
    """Read in every sample, to empty the L2; 0 where it stays warm."""
    flush_each: bool = False
    """Before each execution; else once, before the first, where going through the sets empties the L2 for the rest."""


def tensor_bytes(facts: SizeFacts, host_inputs: Sequence[int] = ()) -> int:
    """Bytes of inputs, weights and outputs together, without inputs in host memory (by position)."""
    inputs = (value for position, value in enumerate(facts.inputs) if position not in host_inputs)
    tensors = [*inputs, *(weight.spec for weight in facts.weights), *facts.outputs]
    return sum(spec.nbytes for spec in tensors if isinstance(spec, TensorSpec))


def plan_sets(set_bytes: int, l2_bytes: int, free_bytes: int, *, limit: int = MAX_SETS) -> SamplePlan:
    """As many sets as exceed twice the L2 together; a flush before each where memory or ``limit`` allows too few.

    Every sample begins with a flush, so that both sides and all samples find the same L2. Twice the L2, because a cache
    that is not strictly least-recently-used keeps a part of what is only a little larger than itself. flashinfer's
    ``bench_gpu_time_with_cudagraph`` rotates buffers by the same rule.

    Args:
        set_bytes: Inputs, weights, outputs and workspace of one execution.
        l2_bytes: Size of the L2.
        free_bytes: Device memory that the sets of one side may take. Candidate and baselines each hold their own.
        limit: Most sets. 1 makes each sample one execution, which server mode needs.

    Raises:
        ValueError: a size is not positive.
        TimingError: not even one set fits.
    """
    if set_bytes < 1 or l2_bytes < 0 or limit < 1:
        raise ValueError(f"no sample can be made of sets of {set_bytes} bytes, an L2 of {l2_bytes}, limit {limit}")
    if set_bytes > free_bytes:
        raise TimingError(
            f"one set of tensors takes {set_bytes:,} bytes, and {free_bytes:,} bytes of memory are at hand"
        )
    needed = 2 * l2_bytes // set_bytes + 1
    affordable = free_bytes // set_bytes
    if needed <= min(limit, affordable):
        return SamplePlan(sets=needed, flush_bytes=2 * l2_bytes)
    return SamplePlan(sets=min(FLUSHED_SETS, limit, affordable), flush_bytes=2 * l2_bytes, flush_each=True)


BLOCK_US = 20_000.0
"""Shortest block. Long against a switch between processes and what it leaves in the caches."""

WARM_UP_US = 25_000.0
"""What each side runs before anything counts, as Triton's ``do_bench`` does."""

MAX_SAMPLES = 2_000
"""Most samples of a block: a bound on what a side that reports no time at all can ask for."""

NODE_GAP_SAMPLES = 50
"""Most samples that the cost of a place in the graph is taken from; it is shown, and nothing hangs on it."""

KEPT_SAMPLES = 500
"""Most samples of a side that are recorded, evenly spaced over all."""


@dataclass(frozen=True)
class SampleBlock:
    """One block of a side, with the block of overheads next to it."""

    sample_us: Floats
    """Time of each sample, resets and flushes included."""
    flush_us: Floats
    """Time of a sample without its executions; empty where nothing is flushed."""


@dataclass(frozen=True)
class ClockPair:
    """A block as both clocks saw it."""

    samples: int
    events_us: float
    host_us: float
    read_us: float
    """What reading its events took afterwards, by the parent's clock."""


class SideSampler:
    """Blocks of one process, of a length fixed after its warm-up."""

    def __init__(self, side: Timeable, shape: SamplePlan, host_clock: Callable[[], float]) -> None:
        self.name = side.name
        self.samples = 1
        """Samples per block."""
        self.gapless = 1
        """Samples per block when there are no gaps; the same in offline mode."""
        self.watched: list[ClockPair] = []
        """Blocks without gaps, for the comparison of the clocks."""
        self.overheads: list[ClockPair] = []
        """Blocks of overheads, for the same."""
        self.visits: list[SampleBlock] = []
        self.node_gap_us: float | None = None
        """What an execution that does nothing takes: see :class:`~kernelforge.records.SideTimes`."""
        self.captured = False
        self._side = side
        self._shape = shape
        self._host_clock = host_clock

    def ready(self) -> None:
        """Make again what :meth:`rest` freed.

        Raises:
            BaselineError: it cannot be had.
        """
        self._side.ready()

    def rest(self) -> None:
        """Free what can be made again."""
        self._side.rest()

    def warm_up(self, *, gap_us: float = 0.0, warm_up_us: float = WARM_UP_US, block_us: float = BLOCK_US) -> None:
        """Run for ``warm_up_us``, and settle how many samples fill a block of ``block_us``, gaps included."""
        self.captured = self._side.captured
        first = float(self._checked(self._side.block(1), 1)[0])
        count = _enough(warm_up_us, first)
        settled = float(np.median(self.block(count, watch=False)))
        # A tenth more, so that a clock that rises later leaves no block short.
        self.samples = _enough(1.1 * block_us, settled + gap_us)
        self.gapless = _enough(1.1 * block_us, settled)

    def block(self, samples: int, *, gaps_us: tuple[float, ...] = (), watch: bool = True) -> Floats:
        """Times of the samples of one block, checked."""
        seen, times = self._timed("sample", samples, gaps_us)
        if watch and not gaps_us:
            self.watched.append(seen)
        return times

    def flushes(self, samples: int) -> Floats:
        """Times of as many samples without their executions; empty where nothing is flushed."""
        if not self._shape.flush_bytes:
            return np.empty(0)
        seen, times = self._timed("overhead", samples)
        self.overheads.append(seen)
        return times

    def find_node_gap(self) -> None:
        """Time an empty kernel in place of each execution: what is left when the overhead is subtracted from that."""
        if not self._shape.flush_bytes:
            return
        count = min((self.samples + 1) // 2, NODE_GAP_SAMPLES)
        overhead = float(np.median(self.flushes(count)))
        _, times = self._timed("empty", count)
        self.node_gap_us = max(0.0, float(np.median(times)) - overhead) / self._shape.sets

    def _timed(self, work: SampleWork, samples: int, gaps_us: tuple[float, ...] = ()) -> tuple[ClockPair, Floats]:
        """One block as both clocks saw it. Its events are read once the parent's clock was, for that takes the process
        microseconds per sample."""
        started = self._host_clock()
        self._side.run(samples, work, gaps_us=gaps_us)
        ran = self._host_clock()
        reported = self._side.times()
        read = self._host_clock()
        times = self._checked(reported, samples)
        return ClockPair(samples, float(times.sum()), (ran - started) * 1e6, (read - ran) * 1e6), times

    def lead_in(self) -> None:
        """One sample that does not count, so that the first of the next block does not find the GPU idle."""
        self._checked(self._side.block(1), 1)

    def visit(self, gaps_us: tuple[float, ...] = (), *, flush_first: bool = False) -> SampleBlock:
        """One block, and half as many samples without executions, before it or behind it."""
        half = (self.samples + 1) // 2
        before = self.flushes(half) if flush_first else np.empty(0)
        times = self.block(self.samples, gaps_us=gaps_us)
        visit = SampleBlock(times, before if flush_first else self.flushes(half))
        self.visits.append(visit)
        return visit

    def per_execution(self, visits: list[SampleBlock]) -> float:
        """Time of one execution in µs, of blocks near each other: mean of their medians, less their overhead.

        The mean of two blocks that lie symmetrically in a round is free of a drift that is linear in time.

        Raises:
            TimingError: resets and flushes take as long as the whole sample.
        """
        sample = float(np.mean([np.median(visit.sample_us) for visit in visits]))
        flush = self._flush(visits)
        if flush >= sample:
            raise TimingError(
                f"{self.name}: its resets and flushes alone take {flush:.3f} µs, a sample with them {sample:.3f} µs; "
                "the work between them cannot be distinguished from none"
            )
        return (sample - flush) / self._shape.sets

    def times(self, rng: np.random.Generator) -> tuple[SideTimes, tuple[str, ...]]:
        """Everything that was taken of this side, and what a reader must know of it."""
        executions = [(visit.sample_us - self._flush([visit])) / self._shape.sets for visit in self.visits]
        taken = np.concatenate(executions)
        owner = np.repeat(np.arange(len(executions)), [len(block) for block in executions])
        lost = int((taken <= 0).sum())
        notes: tuple[str, ...] = ()
        if lost:
            notes = (f"{self.name}: {lost} of {len(taken)} samples were shorter than their overhead and are left out",)
            taken, owner = taken[taken > 0], owner[taken > 0]
        kept = np.unique(np.linspace(0, len(taken) - 1, KEPT_SAMPLES).round().astype(int))
        taken, owner = taken[kept], owner[kept]
        clusters = [taken[owner == block] for block in np.unique(owner)]
        median, interval = median_of_clusters(clusters, rng)
        record = SideTimes(
            name=self.name,
            samples_us=tuple(float(f"{time:.6g}") for time in taken),
            median_us=median,
            interval_us=interval,
            captured=self.captured,
            node_gap_us=self.node_gap_us,
        )
        return record, notes

    def _flush(self, visits: list[SampleBlock]) -> float:
        """Mean of the visits' medians of a sample's overhead; 0 where there is none."""
        return float(np.mean([np.median(visit.flush_us) if len(visit.flush_us) else 0.0 for visit in visits]))

    def _checked(self, times: tuple[float, ...], samples: int) -> Floats:
        if len(times) != samples:
            raise TimingError(f"{self.name}: {samples} samples were asked for and {len(times)} came back")
        wrong = next((time for time in times if not 0 < time < math.inf), None)
        if wrong is not None:
            raise TimingError(f"{self.name}: {wrong} µs is no time; its clock or its runner is broken")
        return np.asarray(times, dtype=np.float64)


def _enough(window_us: float, sample_us: float) -> int:
    """Samples that fill a window, at least one."""
    return max(1, min(MAX_SAMPLES, math.ceil(window_us / sample_us)))
