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

Rounds that follow each other may be alike too, where one side drifts and the other does not. Their correlation is
estimated, and rounds count for less by it (Zwiers & von Storch, "Taking Serial Correlation into Account in Tests of the
Mean", Journal of Climate 1995).
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

_MOST_CORRELATED = 0.9
_WIDEST = 100.0


def student(freedom: int) -> float:
    """Half-width of a 95 % interval in standard errors: Student's t at 0.975.

    From a table up to 10 degrees of freedom, then by its expansion about the normal quantile (Abramowitz & Stegun,
    26.7.5), which is right to four digits there.
    """
    if freedom <= len(_STUDENT):
        return _STUDENT[freedom - 1]
    z = _NORMAL
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
    )
    return z + sum(term / float(freedom) ** power for power, term in enumerate(terms, start=1))


def trimmed_mean(values: Floats) -> Floats:
    """Mean over the last axis without the lowest and the highest fifth: a disturbed round moves it little, and it needs
    fewer rounds than a median does."""
    count = values.shape[-1]
    cut = int(TRIMMED * count)
    kept: Floats = np.sort(values, axis=-1)[..., cut : count - cut].mean(axis=-1)
    return kept


def serial_correlation(values: Floats) -> float:
    """Correlation of each value with the next, at least 0 and below 1, from its estimate freed of bias.

    In short series the plain estimate is too low by about (1 + 3r)/n (Kendall, "Note on Bias in the Estimation of
    Autocorrelation", Biometrika 1954). Fewer than four values say nothing, and count as independent.
    """
    count = len(values)
    apart = values - values.mean()
    total = float(apart @ apart)
    if count < 4 or total == 0:
        return 0.0
    plain = float(apart[1:] @ apart[:-1]) / total
    return min(max(plain + (1 + 3 * plain) / count, 0.0), _MOST_CORRELATED)


def bootstrap(
    estimate: Callable[[Draws], Floats], rounds: int, rng: np.random.Generator, *, correlation: float = 0.0
) -> tuple[float, Interval]:
    """An estimate over all rounds, and its 95 % interval.

    Args:
        estimate: The statistic for each row of drawn rounds; positive.
        rounds: How many there are, at least 2.
        correlation: Of each round with the next, from 0 to below 1.

    Raises:
        TimingError: there are too few rounds, or the statistic is not a positive, finite number.
    """
    if rounds < 2:
        raise TimingError(f"an interval needs at least 2 rounds of blocks, not {rounds}")
    centre = float(estimate(np.arange(rounds)[np.newaxis])[0])
    resampled = estimate(rng.integers(rounds, size=(RESAMPLES, rounds)))
    if not (0 < centre < math.inf and np.isfinite(resampled).all() and resampled.min() > 0):
        raise TimingError(f"an estimate of {centre:g} from {rounds} rounds has no interval: the times are not positive")
    inflation = (1 + correlation) / (1 - correlation)
    # The bootstrap's variance is too small by n/(n-1) (Efron & Tibshirani, problem 5.2), and knows of no correlation.
    error = float(np.log(resampled).std()) * math.sqrt(rounds / (rounds - 1) * inflation)
    freedom = max(1, int(rounds / inflation) - 1)
    # Wider than this an interval says nothing, and its upper end would overflow.
    half = min(student(freedom) * error, _WIDEST)
    return centre, (centre * math.exp(-half), centre * math.exp(half))


def half_width(estimate: float, interval: Interval) -> float:
    """Half of the interval's width as a part of the estimate."""
    return (interval[1] - interval[0]) / 2 / estimate


def log_ratios(over: Floats, under: Floats) -> Floats:
    """Logarithm of each round's ratio.

    Raises:
        TimingError: a time is not positive.
    """
    if not (np.isfinite(over).all() and np.isfinite(under).all() and over.min() > 0 and under.min() > 0):
        raise TimingError("a round's time is not a positive number, so that it has no ratio")
    logs: Floats = np.log(over / under)
    return logs


def ratio_of_rounds(over: Floats, under: Floats, rng: np.random.Generator) -> tuple[float, Interval]:
    """Trimmed mean of the rounds' ratios, on the scale of logarithms, and its interval; one number per round each.

    What both sides of a round share, such as the clock at that moment, cancels before anything is averaged.

    Raises:
        TimingError: a time is not positive, or there are too few rounds.
    """
    logs = log_ratios(over, under)

    def ratios(drawn: Draws) -> Floats:
        return np.exp(trimmed_mean(logs[drawn]))

    return bootstrap(ratios, len(logs), rng, correlation=serial_correlation(logs))


def median_of_clusters(clusters: list[Floats], rng: np.random.Generator) -> tuple[float, Interval]:
    """Median of all samples, and its interval when whole clusters of them are drawn."""
    values = np.concatenate(clusters)
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    owner = np.repeat(np.arange(len(clusters)), [len(cluster) for cluster in clusters])[order]

    def medians(drawn: Draws) -> Floats:
        # How often each cluster was drawn in each resample.
        cells = drawn + len(clusters) * np.arange(len(drawn))[:, np.newaxis]
        times = np.bincount(cells.ravel(), minlength=len(drawn) * len(clusters)).reshape(len(drawn), -1)
        weights = np.cumsum(times[:, owner], axis=1, dtype=np.int32)
        total = weights[:, -1:]
        # As an ordinary median: the middle value, or the mean of the two in the middle.
        lower = ordered[np.argmax(weights >= total / 2, axis=1)]
        upper = ordered[np.argmax(weights > total / 2, axis=1)]
        both: Floats = (lower + upper) / 2
        return both

    typical = np.array([np.median(cluster) for cluster in clusters])
    return bootstrap(medians, len(clusters), rng, correlation=serial_correlation(typical))
