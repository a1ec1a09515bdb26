"""Views of a mutation audit: rejected and surviving mutants, also by KernelBench's rule; scores of Testers by them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

from kernelforge.agents.tester import TesterScore
from kernelforge.evaluation.audit.results import MutantOutcome, TaskAudit
from kernelforge.report.views import View


class MutantRow(View):
    """One mutant of one task."""

    mutant: str
    fault: str
    outcome: Literal["killed", "survived", "equivalent", "invalid"]
    """``equivalent``: it survived, and the suite argues that it is as correct as the reference."""
    size: str
    """Size at which it was first rejected, with the family of inputs; empty for a survivor."""
    family: str
    bitwise_equal: bool
    kernelbench_killed: bool


class AuditRow(View):
    """One task. Counts are of judged mutants."""

    suite: str
    task: str
    made: int
    """Mutants that could be made; those up to the cap were run."""
    judged: int
    """Mutants that were run and are not argued to be equivalent."""
    killed: int
    equivalent: int
    invalid: int
    kernelbench_killed: int
    """Of the judged mutants."""
    same_as: str
    """Task with equal content whose counts these are; not counted twice."""
    error: str
    stale: tuple[str, ...]
    """Arguments for equivalence that are no longer valid."""
    mutants: tuple[MutantRow, ...]

    @property
    def survivors(self) -> tuple[MutantRow, ...]:
        return tuple(mutant for mutant in self.mutants if mutant.outcome == "survived")

    @property
    def ok(self) -> bool:
        return not self.error and not self.stale


class SuiteRow(View):
    """One suite. Duplicate tasks are not counted."""

    suite: str
    tasks: int
    judged: int
    killed: int
    equivalent: int
    invalid: int
    kernelbench_killed: int
    kill_rate: float | None
    kernelbench_kill_rate: float | None


class FaultRow(View):
    """One kind of fault over all tasks."""

    fault: str
    judged: int
    killed: int
    kernelbench_killed: int


class AuditView(View):
    """An audit of tasks."""

    tasks: tuple[AuditRow, ...]
    suites: tuple[SuiteRow, ...]
    faults: tuple[FaultRow, ...]
    made: int
    judged: int
    killed: int
    equivalent: int
    invalid: int
    kernelbench_killed: int
    kill_rate: float | None
    """killed / judged; None where nothing was judged."""
    kernelbench_kill_rate: float | None
    threshold: float
    ok: bool
    """Whether the kill rate is at least the threshold, every task could be audited, and no argument is stale."""


def audit_row(suite: str, audit: TaskAudit, argued: Sequence[str], stale: Sequence[str]) -> AuditRow:
    """View of one task's audit; ``argued`` names the mutants that its suite argues to be equivalent."""
    rows = tuple(_mutant_row(mutant, mutant.mutant in argued) for mutant in audit.mutants)
    judged = [row for row in rows if row.outcome in ("killed", "survived")]
    return AuditRow(
        suite=suite,
        task=audit.task,
        made=audit.made,
        judged=len(judged),
        killed=sum(row.outcome == "killed" for row in judged),
        equivalent=sum(row.outcome == "equivalent" for row in rows),
        invalid=sum(row.outcome == "invalid" for row in rows),
        kernelbench_killed=sum(row.kernelbench_killed for row in judged),
        same_as=audit.same_as,
        error=audit.error,
        stale=tuple(stale),
        mutants=rows,
    )


def _mutant_row(mutant: MutantOutcome, argued: bool) -> MutantRow:
    outcome = "equivalent" if argued and mutant.outcome == "survived" else mutant.outcome
    return MutantRow.model_validate({**mutant.model_dump(), "outcome": outcome})


def audit_view(rows: Iterable[AuditRow], threshold: float) -> AuditView:
    """View of an audit. Duplicate tasks are not counted."""
    tasks = tuple(rows)
    counted = [row for row in tasks if not row.same_as]
    totals = _totals(counted, _COUNTS)
    rate = _share(totals["killed"], totals["judged"])
    return AuditView(
        tasks=tasks,
        suites=_suite_rows(counted),
        faults=_fault_rows(counted),
        **totals,
        kill_rate=rate,
        kernelbench_kill_rate=_share(totals["kernelbench_killed"], totals["judged"]),
        threshold=threshold,
        ok=all(row.ok for row in tasks) and rate is not None and rate >= threshold,
    )


_COUNTS = ("made", "judged", "killed", "equivalent", "invalid", "kernelbench_killed")


def _totals(rows: Sequence[AuditRow], names: Sequence[str]) -> dict[str, int]:
    return {name: sum(getattr(row, name) for row in rows) for name in names}


def _share(part: int, total: int) -> float | None:
    return part / total if total else None


def _suite_rows(rows: Sequence[AuditRow]) -> tuple[SuiteRow, ...]:
    by_suite: dict[str, list[AuditRow]] = {}
    for row in rows:
        by_suite.setdefault(row.suite, []).append(row)
    suites = []
    for suite, own in by_suite.items():
        totals = _totals(own, [name for name in _COUNTS if name != "made"])
        rates = [_share(totals[name], totals["judged"]) for name in ("killed", "kernelbench_killed")]
        suites.append(
            SuiteRow(suite=suite, tasks=len(own), **totals, kill_rate=rates[0], kernelbench_kill_rate=rates[1])
        )
    return tuple(suites)


def _fault_rows(rows: Sequence[AuditRow]) -> tuple[FaultRow, ...]:
    by_fault: dict[str, list[MutantRow]] = {}
    for row in rows:
        for mutant in row.mutants:
            if mutant.outcome in ("killed", "survived"):
                by_fault.setdefault(mutant.fault, []).append(mutant)
    return tuple(
        FaultRow(
            fault=fault,
            judged=len(mutants),
            killed=sum(mutant.outcome == "killed" for mutant in mutants),
            kernelbench_killed=sum(mutant.kernelbench_killed for mutant in mutants),
        )
        for fault, mutants in by_fault.items()
    )


class ScoredTestRow(View):
    """One generator of a Tester."""

    name: str
    plan: str
    admitted: bool
    reason: str
    """Why it was refused, or left out at some sizes."""
    rejected: int
    """Mutants that its inputs reject, of those that the task's own inputs do not."""


class TesterRow(View):
    """One task that a Tester was scored on."""

    suite: str
    task: str
    mutants: int
    """Mutants that were run."""
    counted: int
    """Those that the task's own inputs do not reject, and the check's other families do."""
    rejected: int
    """Of these, those that the Tester's inputs reject."""
    only_tests: tuple[str, ...]
    """Names of further mutants, which the Tester's inputs alone reject: a gap in the check, or inputs on which a
    correct kernel may differ."""
    score: float | None
    """rejected / counted; None where none counts."""
    missed: tuple[str, ...]
    """Names of the mutants that count and that the Tester's inputs do not reject."""
    tests: tuple[ScoredTestRow, ...]
    error: str
    """Why there is no score; empty otherwise."""


class TesterView(View):
    """A Tester scored on tasks."""

    tester: str
    tasks: tuple[TesterRow, ...]
    proposed: int
    admitted: int
    """Generators on whose inputs torch passes, at one size at least."""
    mutants: int
    counted: int
    rejected: int
    score: float | None
    ok: bool
    """Whether every task has a result."""


def tester_row(suite: str, task: str, score: TesterScore, error: str) -> TesterRow:
    """View of a Tester's score on one task; of an empty one with the error where there is none."""
    return TesterRow(
        suite=suite,
        task=task,
        mutants=len(score.mutants),
        counted=len(score.counted),
        rejected=len(score.rejected),
        only_tests=tuple(mutant.mutant for mutant in score.only_tests),
        score=score.score,
        missed=tuple(mutant.mutant for mutant in score.counted if not mutant.by_tests),
        tests=tuple(ScoredTestRow.of(test, rejected=score.rejected_by(test.name)) for test in score.tests),
        error=error,
    )


def tester_view(tester: str, rows: Iterable[TesterRow]) -> TesterView:
    """View of a Tester's scores on tasks."""
    tasks = tuple(rows)
    totals = {name: sum(getattr(row, name) for row in tasks) for name in _TESTER_COUNTS}
    return TesterView(
        tester=tester,
        tasks=tasks,
        proposed=sum(len(row.tests) for row in tasks),
        admitted=sum(test.admitted for row in tasks for test in row.tests),
        **totals,
        score=_share(totals["rejected"], totals["counted"]),
        ok=bool(tasks) and not any(row.error for row in tasks),
    )


_TESTER_COUNTS = ("mutants", "counted", "rejected")
