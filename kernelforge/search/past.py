"""What strategies read from the attempts they were told: which to build on, which to mend, which is the best."""

from __future__ import annotations

from collections.abc import Sequence

from kernelforge.records import Attempt, Operator, Verdict
from kernelforge.search.score import score, value


def sound(attempt: Attempt) -> bool:
    """Whether an attempt is correct."""
    return attempt.evaluation.verdict is Verdict.OK


def mendable(attempt: Attempt) -> bool:
    """Whether an attempt failed with a candidate that a Coder can mend."""
    return not sound(attempt) and attempt.candidate is not None


def leader(attempts: Sequence[Attempt]) -> int | None:
    """Number of the task's best: the attempt accepted last.

    It goes before others whatever their scores. Where time is measured it has the highest score anyway; modelled times
    tell no two good kernels apart, and there the counters decided.
    """
    return max((attempt.number for attempt in attempts if attempt.accepted), default=None)


def parent_number(attempt: Attempt) -> int | None:
    """Number of an attempt's parent within the task."""
    return None if attempt.parent is None else int(attempt.parent.rpartition("/")[2])


def settled(attempts: Sequence[Attempt]) -> list[Attempt]:
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


def fastest(attempts: Sequence[Attempt]) -> Attempt | None:
    """The correct attempt with the highest score, the oldest of equals; without any score, the last accepted one."""
    scored = [attempt for attempt in attempts if score(attempt) is not None]
    if scored:
        return max(scored, key=lambda one: (value(one), -one.number))
    return next((attempt for attempt in reversed(attempts) if attempt.accepted), None)
