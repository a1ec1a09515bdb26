"""KernelBench's published timing protocol, only for comparison with published numbers.

As in its first release (``time_execution_with_cuda_event`` of ``src/eval.py``; arXiv 2502.10517): three warm-ups, then
100 calls on one set of tensors, each between two CUDA events and waited for before the next, so that the L2 is as warm
as the call before left it; the score is the mean of eager PyTorch over the mean of the candidate, timed one after the
other. Later versions flush the L2 before every call and drop the first; numbers that others published do not. One thing
differs: outputs and workspace are poisoned between calls, outside the events, so that no call finds its work done.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np

from kernelforge.devices.base import Timeable
from kernelforge.errors import BaselineError, TimingError
from kernelforge.evaluation.timing.clocks import merge
from kernelforge.evaluation.timing.sampler import SamplePlan, SideSampler
from kernelforge.evaluation.timing.statistics import Draws, Floats, bootstrap, median_of_clusters, serial_correlation
from kernelforge.records import Clocks, Ratio, SideTimes, Timing
from kernelforge.records.timing import Interval

PROTOCOL = "kernelbench/1"
WARM_UPS = 3
TRIALS = 100
SHAPE = SamplePlan(sets=1, flush_bytes=0)
"""What both sides must be armed with."""

_SEED = 0
"""Of the bootstrap's draws: the protocol itself has no chance in it."""


def kernelbench(
    candidate: Timeable,
    baselines: Sequence[Timeable],
    *,
    set_bytes: int,
    clocks: Callable[[], Clocks | None],
) -> Timing:
    """Time a candidate as KernelBench does.

    The times' own record keeps the median; the ratio is that of the means, and :func:`reported_time` gives the mean.
    Intervals are not KernelBench's, and ignore a drift between the two sides, which do not take turns.

    Args:
        candidate: Armed with one set and no flush, so that its reset lies outside its times.
        baselines: The one called ``eager``; others are left alone. Where it cannot be had, it is tried once more, for
            there is no other; then the record says why.
        set_bytes: Bytes of the set, for the record.
        clocks: What the GPU says of itself now.

    Raises:
        RunFailed: the candidate faulted.
        TimingError: times of the candidate that cannot be.
    """
    rng = np.random.default_rng(_SEED)
    eager = next((side for side in baselines if side.name == "eager"), None)
    started = time.perf_counter()
    before = clocks()
    candidate_times = _trials(candidate)
    theirs: Floats | None = None
    absent: dict[str, str] = {}
    if eager is not None:
        try:
            theirs = _of_eager(eager)
        except (BaselineError, TimingError) as error:
            absent[eager.name] = str(error)
    notes = ["times are means with a warm L2, as KernelBench published them; not to be compared with other protocols"]
    ratios = () if theirs is None else (_ratio(theirs, candidate_times, rng),)
    if theirs is None:
        notes.append("there was no eager baseline to compare with")
    return Timing(
        protocol=PROTOCOL,
        sets=1,
        set_bytes=set_bytes,
        flush_bytes=0,
        candidate=_times(candidate, candidate_times, rng),
        baselines=() if eager is None or theirs is None else (_times(eager, theirs, rng),),
        ratios=ratios,
        fastest=None if theirs is None else "eager",
        absent=absent,
        settled=True,
        budget_s=max(time.perf_counter() - started, 1e-6),
        clocks=merge((before, clocks())),
        notes=tuple(notes),
    )


def reported_time(timing: Timing) -> tuple[float, Interval]:
    """The candidate's time in µs as its protocol reports it, with interval: a mean for KernelBench, else a median."""
    if timing.protocol != PROTOCOL:
        return timing.candidate.median_us, timing.candidate.interval_us
    samples = np.asarray(timing.candidate.samples_us)
    draws = np.random.default_rng(_SEED)
    correlation = serial_correlation(samples)
    return bootstrap(lambda drawn: samples[drawn].mean(axis=1), len(samples), draws, correlation=correlation)


def _trials(side: Timeable) -> Floats:
    timed = SideSampler(side, SHAPE, time.perf_counter)
    for _ in range(WARM_UPS):
        timed.block(1)
    return np.concatenate([timed.block(1) for _ in range(TRIALS)])


def _of_eager(eager: Timeable) -> Floats:
    try:
        return _trials(eager)
    except (BaselineError, TimingError):
        eager.rest()
        return _trials(eager)


def _times(side: Timeable, samples: Floats, rng: np.random.Generator) -> SideTimes:
    median, interval = median_of_clusters(list(samples[:, np.newaxis]), rng)
    return SideTimes(
        name=side.name,
        samples_us=tuple(samples.tolist()),
        median_us=median,
        interval_us=interval,
        captured=side.captured,
    )


def _ratio(eager: Floats, candidate: Floats, rng: np.random.Generator) -> Ratio:
    """Mean over mean. The two were not taken in turns, so their calls are drawn independently."""

    def means(drawn: Draws) -> Floats:
        shuffled = drawn if len(drawn) == 1 else rng.integers(TRIALS, size=drawn.shape)
        both: Floats = eager[drawn].mean(axis=1) / candidate[shuffled].mean(axis=1)
        return both

    correlation = max(serial_correlation(eager), serial_correlation(candidate))
    speedup, interval = bootstrap(means, TRIALS, rng, correlation=correlation)
    return Ratio(baseline="eager", speedup=speedup, interval=interval, blocks=1)
