"""Confidence intervals for times and ratios of times, from rounds of blocks.

Samples of one block share clocks, caches and neighbours, so they are not independent, and an interval over single
samples would be far too narrow (Georges et al., "Statistically Rigorous Java Performance Evaluation", OOPSLA 2007;
Kalibera & Jones, "Rigorous Benchmarking in Reasonable Time", ISMM 2013). What is resampled here is therefore the whole
round, with everything in it: the bootstrap for clustered data (Davison & Hinkley, "Bootstrap Methods and their
Application", 1997, section 3.8).

Rounds are few, often six. The percentile bootstrap is too narrow then (Hesterberg, "What Teachers Should Know about the
Bootstrap", The American Statistician 2015), so the interval is the estimate plus and minus the bootstrap's standard
error times Student's t (Efron & Tibshirani, "An Introduction to the Bootstrap", 1993, chapters 6 and 12), on the scale
of logarithms: there a ratio and its inverse have the same interval, and no end is ever below zero.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from kernelforge.errors import TimingError
from kernelforge.records.timing import Interval

RESAMPLES = 1000
"""Draws of the bootstrap: its standard error is then known to about 2 %."""

TRIMMED = 0.2
"""Share of rounds left out at each end of a trimmed mean (Wilcox, "Introduction to Robust Estimation", section 3.3)."""

Floats = NDArray[np.float64]
Draws = NDArray[np.int64]
"""Rounds that were drawn, one row per resample."""

# Quantiles of Student's t at 0.975 for 1 to 10 degrees of freedom.
_STUDENT = (12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281)
_NORMAL = 1.959964


def student(freedom: int) -> float:
    """Half-width of a 95 % interval in standard errors: Student's t at 0.975.

    From a table up to 10 degrees of freedom, then by its expansion about the normal quantile (Abramowitz & Stegun,
    26.7.5), which is right to four digits there.
    """
    if freedom <= len(_STUDENT):
        return _STUDENT[freedom - 1]
    z = _NORMAL
    return z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)


def trimmed_mean(values: Floats) -> Floats:
    """Mean over the last axis without the lowest and the highest fifth: a disturbed round moves it little, and it needs
    fewer rounds than a median does."""
    count = values.shape[-1]
    cut = int(TRIMMED * count)
    kept: Floats = np.sort(values, axis=-1)[..., cut : count - cut].mean(axis=-1)
    return kept


def bootstrap(estimate: Callable[[Draws], Floats], rounds: int, rng: np.random.Generator) -> tuple[float, Interval]:
    """An estimate over all rounds, and its 95 % interval.

    Args:
        estimate: The statistic for each row of drawn rounds; positive.
        rounds: How many there are, at least 2.

    Raises:
        TimingError: there are too few rounds, or the statistic is not a positive, finite number.
    """
    if rounds < 2:
        raise TimingError(f"an interval needs at least 2 rounds of blocks, not {rounds}")
    centre = float(estimate(np.arange(rounds)[np.newaxis])[0])
    resampled = estimate(rng.integers(rounds, size=(RESAMPLES, rounds)))
    if not (0 < centre < math.inf and np.isfinite(resampled).all() and resampled.min() > 0):
        raise TimingError(f"an estimate of {centre:g} from {rounds} rounds has no interval: the times are not positive")
    # The bootstrap's variance is too small by this factor (Efron & Tibshirani, section 5.3 and problem 5.2).
    error = float(np.log(resampled).std()) * math.sqrt(rounds / (rounds - 1))
    # Wider than this the interval says nothing, and its upper end would overflow.
    half = min(student(rounds - 1) * error, 100.0)
    return centre, (centre * math.exp(-half), centre * math.exp(half))


def half_width(estimate: float, interval: Interval) -> float:
    """Half of the interval's width as a part of the estimate."""
    return (interval[1] - interval[0]) / 2 / estimate


def ratio_of_rounds(over: Floats, under: Floats, rng: np.random.Generator) -> tuple[float, Interval]:
    """Trimmed mean of the rounds' ratios, on the scale of logarithms, and its interval; one number per round each.

    What both sides of a round share, such as the clock at that moment, cancels before anything is averaged.
    """
    if not (np.isfinite(over).all() and np.isfinite(under).all() and over.min() > 0 and under.min() > 0):
        raise TimingError("a round's time is not a positive number, so that it has no ratio")
    logs = np.log(over / under)
    return bootstrap(lambda drawn: np.exp(trimmed_mean(logs[drawn])), len(logs), rng)


def median_of_clusters(clusters: list[Floats], rng: np.random.Generator) -> tuple[float, Interval]:
    """Median of all samples, and its interval when whole clusters of them are drawn."""
    values = np.concatenate(clusters)
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    owner = np.repeat(np.arange(len(clusters)), [len(cluster) for cluster in clusters])[order]

    def medians(drawn: Draws) -> Floats:
        times = np.zeros((len(drawn), len(clusters)))
        np.add.at(times, (np.arange(len(drawn))[:, np.newaxis], drawn), 1)
        weights = np.cumsum(times[:, owner], axis=1)
        total = weights[:, -1:]
        # As an ordinary median: the middle value, or the mean of the two in the middle.
        lower = ordered[np.argmax(weights >= total / 2, axis=1)]
        upper = ordered[np.argmax(weights > total / 2, axis=1)]
        both: Floats = (lower + upper) / 2
        return both

    return bootstrap(medians, len(clusters), rng)
