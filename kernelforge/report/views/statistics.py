"""Statistics of leaderboards and runs: fast_p, geometric means, task bootstrap.

Every statistic takes one value per task, in any order. NaN stands for a task without that value: it failed, or was not
timed. The denominator is always the number of all tasks, except where a name says ``correct``.

An interval is a percentile bootstrap over tasks (Efron & Tibshirani, "An Introduction to the Bootstrap", 1993, chapter
13): tasks are drawn with replacement, as many as there are, and the statistic is computed on each draw. It shows how
much the number depends on the choice of tasks. The noise of one task's time is not part of it; that is in
:class:`~kernelforge.records.Ratio`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from kernelforge.report.views import View

FAST_P = (0.0, 1.0, 1.2, 1.5, 2.0)
"""Thresholds of fast_p in all reports; 0 is the share of correct tasks."""
RESAMPLES = 2_000
CONFIDENCE = 0.95
SEED = 20_261_121
"""Fixed, so that equal records give equal intervals everywhere."""

Values = NDArray[np.float64]
Statistic = Callable[[Values], Values]
"""From values of shape (draws, tasks) to one number per draw, shape (draws,)."""


class Estimate(View):
    """A statistic over tasks with its 95 % interval by task bootstrap."""

    value: float
    low: float
    high: float


def estimate(values: Sequence[float], statistic: Statistic) -> Estimate | None:
    """The statistic of ``values`` (one per task) with its interval; None without values, or where it is NaN.

    A draw on which the statistic is NaN (none of its tasks has a value) is left out. The interval always contains the
    value.
    """
    if not len(values):
        return None
    data = np.sort(np.asarray(values, dtype=np.float64))  # the order of tasks must not decide the draws
    value = float(statistic(data[np.newaxis, :])[0])
    if np.isnan(value):
        return None
    drawn = statistic(data[_draws(len(data))])
    low, high = np.nanquantile(drawn, _ENDS)
    return Estimate(value=value, low=min(float(low), value), high=max(float(high), value))


def correct_share(correct: Sequence[bool]) -> Estimate | None:
    """Share of all tasks with a correct attempt: fast_p at p = 0."""
    return estimate([float(flag) for flag in correct], _mean)


def fast_p(speedups: Sequence[float], p: float, correct: Sequence[bool] | None = None) -> Estimate | None:
    """Share of all tasks that are correct and more than ``p`` times as fast as the baseline.

    KernelBench (Ouyang et al., arXiv:2502.10517, section 4.2): strictly more than ``p``, over all tasks; fast_0 is the
    share of correct tasks.

    Args:
        speedups: One per task; NaN where no correct attempt was timed against the baseline.
        correct: One per task, in the same order. At p = 0 it also counts correct tasks without a time.
    """
    if p == 0 and correct is not None:
        return correct_share(correct)
    return estimate([float(speedup > p) for speedup in speedups], _mean)


def fast_p_curve(speedups: Sequence[float], grid: Sequence[float], correct: Sequence[bool]) -> tuple[Estimate, ...]:
    """:func:`fast_p` at every ``p`` of ``grid``, from the same draws of tasks; empty without tasks.

    The band is pointwise: 95 % at each ``p``, not of whole curves.
    """
    if not len(speedups):
        return ()
    data = np.asarray(speedups, dtype=np.float64)[:, np.newaxis]
    thresholds = np.asarray(grid, dtype=np.float64)
    hits = (data > thresholds).astype(np.float64)
    hits[:, thresholds == 0] = np.asarray(correct, dtype=np.float64)[:, np.newaxis]
    values = hits.mean(axis=0)
    hits.sort(axis=0)  # per threshold, as estimate() does
    drawn = _weights(len(data)) @ hits / len(data)
    low, high = np.quantile(drawn, _ENDS, axis=0)
    return tuple(
        Estimate(value=float(value), low=min(float(below), float(value)), high=max(float(above), float(value)))
        for value, below, above in zip(values, low, high, strict=True)
    )


def geomean_deployable(speedups: Sequence[float]) -> Estimate | None:
    """Geometric mean over all tasks of max(speedup, 1), a task without a speedup as 1.

    The gain from deploying the better of candidate and baseline: a failure never beats a slow correct kernel, and a run
    gains nothing by leaving out hard tasks. A mean of ratios has to be geometric (Fleming & Wallace, "How not to lie
    with statistics", CACM 1986).
    """
    gains = [max(speedup, 1.0) if speedup == speedup else 1.0 for speedup in speedups]
    return estimate(gains, _geomean)


def geomean_correct(speedups: Sequence[float]) -> Estimate | None:
    """Geometric mean over tasks with a speedup only; it favours a run that fails the hard ones. None without any.

    The geometric mean of correct kernels in KernelBench's ``score.py``. The bootstrap still draws from all tasks, so
    that the interval reflects their number.
    """
    return estimate(speedups, _geomean)


def median_correct(values: Sequence[float]) -> Estimate | None:
    """Median over tasks with a value only (a speedup, a DRAM ratio); None without any."""
    return estimate(values, _median)


def win_rate(lowers: Sequence[float]) -> Estimate | None:
    """Share of all tasks whose speedup is above 1 beyond its noise: the lower end of its interval is above 1.

    fast_p at p = 1 uses the speedup itself.
    """
    return fast_p(lowers, 1.0)


def share_of_floor(shares: Sequence[float]) -> Estimate | None:
    """Mean over all tasks of floor / time, a task without a time as 0, a share above 1 as 1.

    The floor is the memory side of the roofline (Williams, Waterman & Patterson, CACM 2009): compulsory bytes at the
    peak bandwidth of the device's memory. 1 is as fast as memory allows; an L2 that still contains the data allows a
    little more, which must not compensate for slow kernels elsewhere.

    Args:
        shares: One per task; NaN where nothing correct was timed or no bandwidth is known.
    """
    return estimate([min(share, 1.0) if share == share else 0.0 for share in shares], _mean)


def _mean(values: Values) -> Values:
    return np.asarray(values.mean(axis=1))


def _geomean(values: Values) -> Values:
    valid = ~np.isnan(values)
    logs = np.where(valid, np.log(np.where(valid, values, 1.0)), 0.0)
    count = valid.sum(axis=1)
    return np.where(count > 0, np.exp(logs.sum(axis=1) / np.maximum(count, 1)), np.nan)


def _median(values: Values) -> Values:
    """Median by sorting, which puts NaN last; ``nanmedian`` warns about rows of NaN only."""
    ordered = np.sort(values, axis=1)
    count = (~np.isnan(values)).sum(axis=1)
    rows = np.arange(len(values))
    lower, upper = np.maximum(count - 1, 0) // 2, np.minimum(count // 2, values.shape[1] - 1)
    return np.where(count > 0, (ordered[rows, lower] + ordered[rows, upper]) / 2, np.nan)


_ENDS = ((1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2)


@lru_cache(maxsize=8)
def _draws(tasks: int) -> NDArray[np.intp]:
    """Tasks of each draw, shape (draws, tasks); the same for every statistic of a run."""
    return np.random.default_rng(SEED).integers(0, tasks, size=(RESAMPLES, tasks))


@lru_cache(maxsize=8)
def _weights(tasks: int) -> Values:
    """Count of each task in each draw, shape (draws, tasks)."""
    flat = _draws(tasks) + np.arange(RESAMPLES)[:, np.newaxis] * tasks
    counts = np.bincount(flat.ravel(), minlength=RESAMPLES * tasks)
    return counts.reshape(RESAMPLES, tasks).astype(np.float64)
