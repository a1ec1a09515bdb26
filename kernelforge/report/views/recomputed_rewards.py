"""Rewards recomputed from stored evaluations, compared with the stored rewards."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pydantic import BaseModel

from kernelforge.records import Attempt, Evaluation
from kernelforge.rewards import Context, rescore, unscored


class Rescored(BaseModel):
    """One stored evaluation under one policy."""

    id: str
    """Of the attempt, or of the job."""
    verdict: str
    stage: str
    origin: str | None
    """Origin of its time, if it has one."""
    speedup: float | None
    """Against the fastest baseline."""
    stored_policy: str
    stored: float | None
    """The reward in the journal."""
    policy: str
    value: float | None
    components: dict[str, float | None]
    why: str
    """Reason for a missing value; else empty."""
    differs: bool
    """Whether the same policy now gives another number than the stored one."""
    outcome: str
    """The verdict in words: ``OK, full size not compared`` where that is so."""


def rescored_attempts(attempts: Sequence[Attempt], policies: Sequence[str]) -> Iterator[Rescored]:
    """Attempts at one task, by number, under each of the policies.

    Raises:
        UsageError: there is no such policy.
    """
    for index, attempt in enumerate(attempts):
        source = None if attempt.candidate is None else attempt.candidate.source
        context = Context(source, [previous.evaluation for previous in attempts[:index]], attempt.profile)
        stored = (attempt.reward.policy, attempt.reward.value)
        yield from rescored(attempt.id, attempt.evaluation, context, stored, policies)


def rescored(
    name: str,
    evaluation: Evaluation,
    context: Context,
    stored: tuple[str, float | None],
    policies: Sequence[str],
) -> Iterator[Rescored]:
    """One evaluation under each of the policies.

    Args:
        name: id of its rows.
        context: what else the policies may see.
        stored: policy and value in the journal.

    Raises:
        UsageError: there is no such policy.
    """
    performance = evaluation.performance
    for scored in rescore(evaluation, context, policies).values():
        yield Rescored(
            id=name,
            verdict=evaluation.verdict,
            stage=evaluation.stage,
            origin=None if performance is None else performance.origin,
            speedup=None if performance is None else performance.speedup,
            stored_policy=stored[0],
            stored=stored[1],
            policy=scored.policy,
            value=scored.value,
            components=scored.components,
            why=unscored(evaluation, scored),
            differs=stored[0] == scored.policy and stored[1] != scored.value,
            outcome=evaluation.outcome,
        )


class RescoredView(BaseModel):
    """Rows in the order of runs, tasks and numbers, or of the jobs' submission."""

    rows: list[Rescored]

    def summary(self) -> str:
        """Number of rewards, and of those that differ from the stored ones of the same policy."""
        evaluations, differ = len({row.id for row in self.rows}), sum(row.differs for row in self.rows)
        compared = sum(row.policy == row.stored_policy for row in self.rows)
        differing = f", {differ} of {compared} differ from what was stored under the same policy" if compared else ""
        return f"{len(self.rows)} rewards of {evaluations} evaluations{differing}"
