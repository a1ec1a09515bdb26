"""Acceptance of attempts, and infrastructure failures; the same for every run."""

from __future__ import annotations

from collections.abc import Sequence

from kernelforge.agents.acceptance import drift_reason, improves
from kernelforge.evaluation.evaluator import Evaluator
from kernelforge.records import Attempt, Candidate, Evaluation, Operator, Verdict


def accept(attempt: Attempt, earlier: Sequence[Attempt], best: Attempt | None) -> tuple[bool, str]:
    """Whether an attempt becomes its task's best, and why, in one line.

    Args:
        earlier: every earlier attempt at the task.
        best: the best of them.
    """
    verdict = attempt.evaluation.verdict
    if verdict is not Verdict.OK:
        return False, f"not accepted: {verdict}"
    if best is None:
        return (
            True,
            f"first correct attempt{', at its full size not compared' if attempt.evaluation.uncompared else ''}",
        )
    answered = _answered(attempt, earlier)
    # A finding speaks of the kernel that the Judge read; against any other, time alone decides.
    finding = answered.finding if answered is not None and answered.parent == best.id else None
    better, note = improves(best, attempt, finding)
    drift = drift_reason(attempt, earlier) if better else None
    return (better, note) if drift is None else (False, drift)


def _answered(attempt: Attempt, earlier: Sequence[Attempt]) -> Attempt | None:
    """The attempt whose finding a chain of repairs set out to answer."""
    current: Attempt | None = attempt
    by_id = {one.id: one for one in earlier}
    while current is not None and current.operator is Operator.REPAIR:
        current = by_id.get(current.parent or "")
    return current


def infra(evaluator: Evaluator, candidate: Candidate, reason: str) -> Evaluation:
    """The evaluation of a candidate that could not be judged, for a reason that is not its own."""
    return Evaluation(
        candidate=candidate.hash,
        task=evaluator.task.digest,
        fingerprint=evaluator.fingerprint,
        verdict=Verdict.INFRA,
        stage="compile",
        reason=reason,
    )
