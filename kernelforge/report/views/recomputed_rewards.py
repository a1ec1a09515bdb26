"""Rewards recomputed from stored evaluations, beside the stored ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pydantic import BaseModel

from kernelforge.records import Attempt, Evaluation
from kernelforge.rewards import rescore, unscored


class Rescored(BaseModel):
    """One stored evaluation under one policy."""

    id: str
    """Of the attempt, or of the job."""
    verdict: str
    stage: str
    origin: str | None
    """Where its time comes from, if it has one."""
    speedup: float | None
    """Against the fastest baseline."""
    stored_policy: str
    stored: float | None
    """The reward that is in the journal."""
    policy: str
    value: float | None
    components: dict[str, float | None]
    why: str
    """Why there is no value; empty if there is one."""
    differs: bool
    """Whether the same policy now gives another number than it did when it was stored."""
    outcome: str
    """The verdict in words: ``OK, full size not compared`` where that is so."""


def rescored_attempts(attempts: Sequence[Attempt], policies: Sequence[str]) -> Iterator[Rescored]:
    """Attempts at one task, by number, under each of the policies.

    Raises:
        UsageError: there is no such policy.
    """
    for index, attempt in enumerate(attempts):
        source = None if attempt.candidate is None else attempt.candidate.source
        earlier = [previous.evaluation for previous in attempts[:index]]
        stored = (attempt.reward.policy, attempt.reward.value)
        yield from rescored(attempt.id, attempt.evaluation, source, earlier, stored, policies)


def rescored(
    name: str,
    evaluation: Evaluation,
    source: str | None,
    earlier: Sequence[Evaluation],
    stored: tuple[str, float | None],
    policies: Sequence[str],
) -> Iterator[Rescored]:
    """One evaluation under each of the policies.

    Args:
        name: what its rows are called.
        source: the candidate's, if there was one.
        earlier: evaluations of the same task before it, oldest first.
        stored: the policy and the value that it was given.

    Raises:
        UsageError: there is no such policy.
    """
    performance = evaluation.performance
    for scored in rescore(evaluation, source, earlier, policies).values():
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
        """How many there are, and how many differ from what was stored under the same policy."""
        evaluations, differ = len({row.id for row in self.rows}), sum(row.differs for row in self.rows)
        compared = sum(row.policy == row.stored_policy for row in self.rows)
        differing = f", {differ} of {compared} differ from what was stored under the same policy" if compared else ""
        return f"{len(self.rows)} rewards of {evaluations} evaluations{differing}"
