"""One number by which strategies rank correct attempts of one task on one device."""

from __future__ import annotations

import math

from kernelforge.records import Attempt, Origin, Verdict


def score(attempt: Attempt) -> float | None:
    """Higher is better; None for an attempt that is not OK, or has no time that counts.

    Measured: log of the lower bound of the speedup; where no baseline could be timed, minus the log of the upper end of
    the time's interval, in microseconds, which is below the former for every kernel of more than some microseconds.
    A quarantined time counts for nothing: the attempt is correct, and behind all that were timed. So does every time of
    an attempt whose full size was not compared. Modelled: minus the
    log of the modelled time in microseconds, which orders kernels that differ several-fold and no finer. Measured and
    modelled never meet: a run has one kind of device.
    """
    performance = attempt.evaluation.performance
    if attempt.evaluation.verdict is not Verdict.OK or attempt.evaluation.uncompared:
        return None
    if performance is None or performance.quarantined is not None:
        return None
    if performance.origin is not Origin.MEASURED:
        return -math.log(performance.time_us)
    if performance.speedup_lower is not None:
        return math.log(performance.speedup_lower)
    assert performance.interval_us is not None
    return -math.log(performance.interval_us[1])


def value(attempt: Attempt) -> float:
    """The score, or minus infinity for an attempt that has none."""
    number = score(attempt)
    return float("-inf") if number is None else number
