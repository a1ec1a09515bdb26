"""What strategies read from the attempts they were told: which of them to build on, and which is the fastest."""

from __future__ import annotations

from collections.abc import Sequence

from kernelforge.records import Attempt, Operator
from kernelforge.search.score import score


def settled(attempts: Sequence[Attempt]) -> list[Attempt]:
    """One attempt for each step, oldest first: the step itself, or the best of its tuned children that is better."""
    standing: dict[str, Attempt] = {}
    step_of: dict[str, str] = {}
    for attempt in attempts:
        tuned = attempt.operator is Operator.TUNE and attempt.parent is not None
        step = step_of.get(attempt.parent or "", attempt.id) if tuned else attempt.id
        step_of[attempt.id] = step
        if step not in standing or _better(attempt, standing[step]):
            standing[step] = attempt
    return list(standing.values())


def fastest(attempts: Sequence[Attempt]) -> Attempt | None:
    """The correct attempt with the highest score, the oldest of equals; without any score, the last accepted one."""
    scored = [(value, attempt) for attempt in attempts if (value := score(attempt)) is not None]
    if scored:
        return max(scored, key=lambda pair: (pair[0], -pair[1].number))[1]
    return next((attempt for attempt in reversed(attempts) if attempt.accepted), None)


def _better(child: Attempt, parent: Attempt) -> bool:
    after, before = score(child), score(parent)
    return after is not None and (before is None or after > before)
