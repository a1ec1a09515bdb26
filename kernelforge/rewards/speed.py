"""Speedups that policies read from an evaluation. A modelled or implausible time has none."""

from __future__ import annotations

from kernelforge.records import Evaluation, Origin, Performance, SideTimes, Timing

MOST_SPEEDUP = 1e6
"""Ratios above this count as this: no kernel is a million times faster, and sums of rewards stay finite."""


def believed(evaluation: Evaluation) -> Performance | None:
    """The measured time of an evaluation; None if it is modelled, in quarantine, or not there."""
    performance = evaluation.performance
    if performance is None or performance.origin is not Origin.MEASURED or performance.quarantined is not None:
        return None
    return performance


def quarantined(evaluation: Evaluation) -> bool:
    """Whether a time was measured that is not believed."""
    return evaluation.performance is not None and evaluation.performance.quarantined is not None


def over_eager(evaluation: Evaluation) -> float | None:
    """Speedup over eager PyTorch, as KernelBench and what trains on it publish it."""
    performance = believed(evaluation)
    return None if performance is None else capped(performance.speedup_eager)


def over_fastest(evaluation: Evaluation) -> float | None:
    """Speedup over the fastest baseline."""
    performance = believed(evaluation)
    return None if performance is None else capped(performance.speedup)


def over(evaluation: Evaluation, baseline: str) -> float | None:
    """Speedup over one baseline: the ratio of samples that alternated, or else of the two medians."""
    performance = believed(evaluation)
    if performance is None or performance.timing is None:
        return None
    timing = performance.timing
    ratio = timing.ratio(baseline)
    if ratio is not None:
        return capped(ratio.speedup)
    side = side_of(timing, baseline)
    return None if side is None else divided(side.median_us, timing.candidate.median_us)


def side_of(timing: Timing, baseline: str) -> SideTimes | None:
    """The times of a baseline, if it was timed."""
    return next((side for side in timing.baselines if side.name == baseline), None)


def coverage_of(evaluation: Evaluation) -> float | None:
    """Share of device time in the candidate's own kernels; None where it was not measured, or is not believed."""
    performance = believed(evaluation)
    return None if performance is None or performance.timing is None else performance.timing.coverage


def capped(speedup: float | None) -> float | None:
    return None if speedup is None else min(speedup, MOST_SPEEDUP)


def divided(over_us: float, under_us: float) -> float:
    """Ratio of two times, at most :data:`MOST_SPEEDUP`."""
    return MOST_SPEEDUP if over_us >= MOST_SPEEDUP * under_us else over_us / under_us
