"""Rewards computed again from stored evaluations, beside those that were stored."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace

from pydantic import BaseModel

from kernelforge.records import Attempt, Evaluation
from kernelforge.report.tables.table import Column, Table
from kernelforge.report.text import ABSENT, number
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


def rescored_attempts(attempts: Sequence[Attempt], policies: Sequence[str]) -> Iterator[Rescored]:
    """Attempts at one task, by number, under each of the policies.

    Raises:
        UsageError: there is no such policy.
    """
    for place, attempt in enumerate(attempts):
        source = None if attempt.candidate is None else attempt.candidate.source
        earlier = [one.evaluation for one in attempts[:place]]
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
        )


class RescoredView(BaseModel):
    """Rows in the order of runs, tasks and numbers, or of the jobs' submission."""

    rows: list[Rescored]

    def summary(self) -> str:
        """How many there are, and how many differ from what was stored under the same policy."""
        evaluations, differ = len({row.id for row in self.rows}), sum(row.differs for row in self.rows)
        compared = sum(row.policy == row.stored_policy for row in self.rows)
        told = f", {differ} of {compared} differ from what was stored under the same policy" if compared else ""
        return f"{len(self.rows)} rewards of {evaluations} evaluations{told}"

    def table(self) -> Table:
        """For people: columns that would be empty in every row are left out."""
        columns = [one for one in _COLUMNS if any(getattr(row, one.key) or one in _ALWAYS for row in self.rows)]
        return Table.of(_TITLE, columns or _COLUMNS, self.rows, keys=2)

    def to_csv(self) -> str:
        """One line per row; components are an object of JSON."""
        table = Table.of(_TITLE, _COLUMNS, self.rows)
        rows = tuple(tuple(json.dumps(one) if isinstance(one, dict) else one for one in row) for row in table.rows)
        return replace(table, rows=rows).to_csv()


def _short(value: float | None) -> str:
    return ABSENT if value is None else f"{value:.4g}"


def _parts(components: dict[str, float | None]) -> str:
    return ", ".join(f"{name} {_short(value)}" for name, value in components.items())


_TITLE = "Rewards from stored evaluations"
_ALWAYS = (
    Column("id", "evaluation of"),
    Column("policy", "policy"),
    Column("value", "value", _short, "right"),
    Column("stored", "stored", _short, "right"),
    Column("stored_policy", "stored policy"),
)
_COLUMNS = (
    *_ALWAYS,
    Column("differs", "differs", lambda differs: "differs" if differs else ABSENT),
    Column("verdict", "verdict"),
    Column("stage", "stage"),
    Column("origin", "origin"),
    Column("speedup", "speedup", number, "right"),
    Column("components", "components", _parts, wide=True),
    Column("why", "why no value", wide=True),
)
