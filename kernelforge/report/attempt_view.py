"""One attempt, answering four questions: what changed, is it right, is it fast, and why."""

from __future__ import annotations

import difflib

from kernelforge.candidate import chosen_values
from kernelforge.evaluate.generators import caught_by
from kernelforge.records import (
    Attempt,
    Build,
    Finding,
    Fingerprint,
    Message,
    Operator,
    Performance,
    Reward,
    SizeCheck,
    Verdict,
)
from kernelforge.report.cost import Cost, total_cost
from kernelforge.report.summary import View
from kernelforge.report.task_view import MetricChange, metric_changes

MAX_DIFF_LINES = 20_000
"""Texts longer than this are shown whole: finding the smallest difference takes time that grows with its square."""


class TrialRow(View):
    """One combination of ``# tune:`` values that was tried on the attempt's candidate."""

    choices: dict[str, int]
    own: bool
    """Whether these are the candidate's own values."""
    rung: int
    """How far it came; times are comparable where it is equal."""
    time_us: float | None
    problem: str


class AttemptView(View):
    """One attempt beside its parent."""

    id: str
    operator: Operator
    parent: str | None
    candidate: str | None
    """Hash of the candidate; None when the reply held none."""
    lane: str | None
    coder: str
    """Specification of the Coder that wrote it; empty for a tuned child."""
    technique: str
    """The technique that the Coder was asked to use; empty for none."""
    inspirations: tuple[str, ...]
    """Ids of the other attempts that the Coder was shown."""
    cost: Cost
    caught_by: str | None
    """Name of the Tester's generator whose inputs it failed on."""
    choices: dict[str, int]
    """Value of every ``# tune:`` name."""
    parent_choices: dict[str, int]
    """Those of the parent's candidate."""
    source: str | None
    plan: str | None
    source_diff: str | None
    """Unified diff against the parent's source; None where there is nothing to compare with."""
    plan_diff: str | None
    verdict: Verdict
    stage: str
    reason: str
    build: Build | None
    checks: tuple[SizeCheck, ...]
    performance: Performance | None
    finding: Finding | None
    metrics: tuple[MetricChange, ...]
    profile_notes: tuple[str, ...]
    """What a reader of the metrics must know."""
    trials: tuple[TrialRow, ...]
    """The furthest and fastest first."""
    reward: Reward
    accepted: bool
    note: str
    started: str
    seconds: float
    timings: dict[str, float]
    fingerprint: Fingerprint
    messages: tuple[Message, ...] | None
    """Prompts and replies, where they were asked for."""


def attempt_view(attempt: Attempt, parent: Attempt | None, *, messages: bool = False) -> AttemptView:
    """View of an attempt.

    Args:
        parent: the attempt it came from, if any.
        messages: include every prompt and reply.
    """
    candidate, evaluation = attempt.candidate, attempt.evaluation
    before = parent.candidate if parent else None
    return AttemptView(
        id=attempt.id,
        operator=attempt.operator,
        parent=attempt.parent,
        candidate=candidate.hash if candidate else None,
        lane=candidate.lane if candidate else None,
        coder=attempt.coder,
        technique=attempt.technique,
        inspirations=attempt.inspirations,
        cost=total_cost(attempt.messages),
        caught_by=caught_by(evaluation),
        choices=chosen_values(candidate) if candidate else {},
        parent_choices=chosen_values(before) if before else {},
        source=candidate.source if candidate else None,
        plan=candidate.plan if candidate else None,
        source_diff=_diff(before.source, candidate.source, "source") if before and candidate else None,
        plan_diff=_diff(before.plan, candidate.plan, "plan") if before and candidate else None,
        verdict=evaluation.verdict,
        stage=evaluation.stage,
        reason=evaluation.reason,
        build=evaluation.build,
        checks=evaluation.correctness.sizes if evaluation.correctness else (),
        performance=evaluation.performance,
        finding=attempt.finding,
        metrics=metric_changes(attempt, parent),
        profile_notes=attempt.profile.notes if attempt.profile else (),
        trials=_trials(attempt),
        reward=attempt.reward,
        accepted=attempt.accepted,
        note=attempt.note,
        started=attempt.started,
        seconds=attempt.seconds,
        timings=evaluation.seconds,
        fingerprint=evaluation.fingerprint,
        messages=attempt.messages if messages else None,
    )


def _trials(attempt: Attempt) -> tuple[TrialRow, ...]:
    own = chosen_values(attempt.candidate) if attempt.candidate else {}
    rows = [TrialRow(own=trial.choices == own, **trial.model_dump()) for trial in attempt.trials]
    return tuple(sorted(rows, key=_how_far))


def _how_far(row: TrialRow) -> tuple[bool, int, float]:
    return row.time_us is None, -row.rung, row.time_us or 0.0


def _diff(before: str, after: str, name: str) -> str | None:
    old, new = before.splitlines(), after.splitlines()
    if max(len(old), len(new)) > MAX_DIFF_LINES:
        return None
    return "\n".join(difflib.unified_diff(old, new, f"parent {name}", f"this {name}", lineterm=""))
