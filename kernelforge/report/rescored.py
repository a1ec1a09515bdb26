"""Rewards computed again from stored evaluations, beside those that were stored."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace

from pydantic import BaseModel

from kernelforge.records import Attempt, Reward
from kernelforge.report.table import Column, Table
from kernelforge.report.text import ABSENT, number
from kernelforge.rewards import rescore, unscored


class Rescored(BaseModel):
    """One attempt under one policy."""

    id: str
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
    """Whether the same policy now gives another number than it did when the attempt was stored."""


def rescored(attempts: Sequence[Attempt], policies: Sequence[str]) -> Iterator[Rescored]:
    """Attempts at one task, by number, under each of the policies.

    Raises:
        UsageError: there is no such policy.
    """
    for place, attempt in enumerate(attempts):
        source = None if attempt.candidate is None else attempt.candidate.source
        earlier = [one.evaluation for one in attempts[:place]]
        for scored in rescore(attempt.evaluation, source, earlier, policies).values():
            yield _row(attempt, scored)


def _row(attempt: Attempt, scored: Reward) -> Rescored:
    evaluation, stored = attempt.evaluation, attempt.reward
    performance = evaluation.performance
    return Rescored(
        id=attempt.id,
        verdict=evaluation.verdict,
        stage=evaluation.stage,
        origin=None if performance is None else performance.origin,
        speedup=None if performance is None else performance.speedup,
        stored_policy=stored.policy,
        stored=stored.value,
        policy=scored.policy,
        value=scored.value,
        components=scored.components,
        why=unscored(evaluation, scored),
        differs=stored.policy == scored.policy and stored.value != scored.value,
    )


class RescoredView(BaseModel):
    """Rows in the order of runs, tasks and numbers."""

    rows: list[Rescored]

    def summary(self) -> str:
        """How many there are, and how many differ from what was stored under the same policy."""
        attempts, differ = len({row.id for row in self.rows}), sum(row.differs for row in self.rows)
        compared = sum(row.policy == row.stored_policy for row in self.rows)
        told = f", {differ} of {compared} differ from what was stored under the same policy" if compared else ""
        return f"{len(self.rows)} rewards of {attempts} attempts{told}"

    def table(self) -> Table:
        return Table.of("Rewards from stored evaluations", _COLUMNS, self.rows)

    def to_csv(self) -> str:
        """One line per row; components are an object of JSON."""
        table = self.table()
        rows = tuple(tuple(json.dumps(one) if isinstance(one, dict) else one for one in row) for row in table.rows)
        return replace(table, rows=rows).to_csv()


def rescored_view(rows: Sequence[Rescored]) -> RescoredView:
    return RescoredView(rows=list(rows))


def _short(value: float | None) -> str:
    return ABSENT if value is None else f"{value:.4g}"


def _parts(components: dict[str, float | None]) -> str:
    return ", ".join(f"{name} {_short(value)}" for name, value in components.items())


_COLUMNS = (
    Column("id", "attempt"),
    Column("verdict", "verdict"),
    Column("stage", "stage"),
    Column("origin", "origin"),
    Column("speedup", "speedup", number, "right"),
    Column("stored_policy", "stored policy"),
    Column("stored", "stored", _short, "right"),
    Column("policy", "policy"),
    Column("value", "value", _short, "right"),
    Column("differs", "differs", lambda differs: "differs" if differs else ABSENT),
    Column("components", "components", _parts),
    Column("why", "why no value", wide=True),
)
