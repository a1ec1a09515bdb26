"""Attempts seen by a search strategy: which are correct or repairable, and their scores."""

from __future__ import annotations

import math
from collections.abc import Sequence

from kernelforge.records import Attempt, Operator, Origin, Verdict


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


def is_correct(attempt: Attempt) -> bool:
    """Whether an attempt is correct."""
    return attempt.evaluation.verdict is Verdict.OK


def is_repairable(attempt: Attempt) -> bool:
    """Whether an attempt failed and has a candidate that a Coder can repair."""
    return not is_correct(attempt) and attempt.candidate is not None


def best_attempt(attempts: Sequence[Attempt]) -> Attempt | None:
    """The best attempt of a task: the one accepted last.

    It comes before others with higher scores. Where time is measured it has the highest score anyway; modelled times
    cannot tell two good kernels apart, and there the counters decided.
    """
    return next((attempt for attempt in reversed(attempts) if attempt.accepted), None)


def current_best(attempts: Sequence[Attempt]) -> int | None:
    """Number of :func:`best_attempt`."""
    best = best_attempt(attempts)
    return None if best is None else best.number


def parent_number(attempt: Attempt) -> int | None:
    """Number of an attempt's parent within the task."""
    return None if attempt.parent is None else int(attempt.parent.rpartition("/")[2])


def best_per_step(attempts: Sequence[Attempt]) -> list[Attempt]:
    """One attempt for each step, oldest first: the step itself, or the best of its tuned children that is better."""
    standing: dict[str, Attempt] = {}
    step_of: dict[str, str] = {}
    for attempt in attempts:
        tuned = attempt.operator is Operator.TUNE and attempt.parent is not None
        step = step_of.get(attempt.parent or "", attempt.id) if tuned else attempt.id
        step_of[attempt.id] = step
        if step not in standing or value(attempt) > value(standing[step]):
            standing[step] = attempt
    return list(standing.values())


def best_scoring(attempts: Sequence[Attempt]) -> Attempt | None:
    """The correct attempt with the highest score, the oldest of equals; without any score, the last accepted one."""
    scored = [attempt for attempt in attempts if score(attempt) is not None]
    if scored:
        return max(scored, key=lambda attempt: (value(attempt), -attempt.number))
    return best_attempt(attempts)
