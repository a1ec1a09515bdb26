"""One number by which strategies rank correct attempts of one task on one device."""

from __future__ import annotations

import math

from kernelforge.records import Attempt, Origin, Verdict


def score(attempt: Attempt) -> float | None:
    """Higher is better; None for an attempt that is not OK, or has no time.

    Measured: log of the lower bound of the speedup. Modelled: minus the log of the modelled time in microseconds, which
    orders kernels that differ several-fold and no finer. The two never meet: a run has one device.
    """
    performance = attempt.evaluation.performance
    if attempt.evaluation.verdict is not Verdict.OK or performance is None:
        return None
    if performance.origin is Origin.MEASURED:
        return None if performance.speedup_lower is None else math.log(performance.speedup_lower)
    return -math.log(performance.time_us)


def value(attempt: Attempt) -> float:
    """The score, or minus infinity for an attempt that has none."""
    number = score(attempt)
    return float("-inf") if number is None else number
