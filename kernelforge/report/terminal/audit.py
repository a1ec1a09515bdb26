"""Admission and mutation audit of tasks in the terminal, and scores of Testers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from kernelforge.report.formatting import fine_percent, one_line
from kernelforge.report.views.audit import AuditRow, AuditView, MutantRow, TesterRow, TesterView

if TYPE_CHECKING:
    from kernelforge.report.views.suite import AdmissionRow


def admission_line(task: str, findings: Sequence[AdmissionRow]) -> Text:
    """Admission of one task: a line, and one more for each failure and each kind of input left out.

    A reference that does not run is a single line. To be printed unwrapped.
    """
    ok = all(finding.ok for finding in findings)
    line = Text(f"{task:<18} ", style="bold")
    line.append("ok" if ok else "FAILED", style="green" if ok else "bold red")
    if any(finding.size is None for finding in findings):
        return line.append(f"  {one_line(findings[0].text)}", style="not bold")
    line.append(f"  {sum(finding.admitted for finding in findings)} of {len(findings)} checks used", style="not bold")
    for finding in findings:
        if not finding.ok or not finding.admitted:
            where = " ".join(filter(None, (finding.size, finding.family)))
            line.append(f"\n    {one_line(f'{where}: {finding.text}')}", style="not bold")
    return line


def audit_lines(row: AuditRow, *, survivors_only: bool = False) -> RenderableType:
    """A line for a task, and one more for each survivor and each stale argument."""
    lines: list[RenderableType] = []
    if not survivors_only or row.error or row.stale or row.survivors:
        head = Text(f"{row.suite}/{row.task:<24} ", style="bold")
        if row.error:
            head.append("FAILED", style="bold red")
            head.append(f"  {one_line(row.error)}", style="not bold")
        elif row.same_as:
            head.append(f"as {one_line(row.same_as)}", style="not bold")
        else:
            head.append(_counts(row), style="not bold")
        lines.append(head)
    if not row.same_as:
        lines += [Padding(Text(one_line(f"survived: {_survivor(mutant)}")), (0, 0, 0, 4)) for mutant in row.survivors]
    lines += [Padding(Text(one_line(f"stale: {text}")), (0, 0, 0, 4)) for text in row.stale]
    return Group(*lines)


def _counts(row: AuditRow) -> str:
    argued = f", {row.equivalent} equivalent" if row.equivalent else ""
    return f"{row.killed} of {row.judged} rejected{argued}; KernelBench's rule: {row.kernelbench_killed}"


def _survivor(mutant: MutantRow) -> str:
    same = "bitwise equal to the reference" if mutant.bitwise_equal else ""
    rejected = "KernelBench's rule rejects it" if mutant.kernelbench_killed else ""
    notes = "; ".join(filter(None, (same, rejected)))
    return mutant.mutant + (f" ({notes})" if notes else "")


def audit_verdict(view: AuditView) -> str:
    """The audit in a line."""
    failed = sum(not row.ok for row in view.tasks)
    same = sum(bool(row.same_as) for row in view.tasks)
    parts = [
        f"{len(view.tasks)} tasks{f' ({same} the same as another)' if same else ''}: {view.killed} of {view.judged} "
        f"faults rejected, {fine_percent(view.kill_rate)}",
        f"by KernelBench's rule {view.kernelbench_killed}, {fine_percent(view.kernelbench_kill_rate)}",
        f"{view.equivalent} more argued to be equivalent",
        f"{view.invalid} without an answer of the right shape",
        *([f"{failed} tasks FAILED"] if failed else []),
    ]
    return "; ".join(parts)


def tester_lines(row: TesterRow) -> Text:
    """A line for a task, and one more for each mutant that a Tester misses and each generator with a reason.

    To be printed unwrapped.
    """
    line = Text(f"{row.suite}/{row.task:<24} ", style="bold")
    if row.error:
        line.append("FAILED", style="bold red")
        return line.append(f"  {one_line(row.error)}", style="not bold")
    counts = ", ".join(f"{test.name} {test.rejected}" for test in row.tests if test.admitted)
    line.append(f"{row.rejected} of {row.counted}; {counts or 'no test admitted'}", style="not bold")
    notes = [f"missed: {mutant}" for mutant in row.missed]
    notes += [f"rejected by these tests alone: {mutant}" for mutant in row.only_tests]
    for test in row.tests:
        if test.reason:
            notes.append(f"{'left out at some sizes' if test.admitted else 'refused'}: {test.name}: {test.reason}")
    for note in notes:
        line.append(f"\n    {one_line(note)}", style="not bold")
    return line


def tester_verdict(view: TesterView) -> str:
    """A Tester's scores in a line."""
    failed = sum(bool(row.error) for row in view.tasks)
    parts = [
        f"{view.tester}: {view.admitted} of {view.proposed} tests admitted",
        f"{view.rejected} of {view.counted} faults rejected that the tasks' own inputs do not show, "
        f"{fine_percent(view.score)}",
        f"{view.mutants} faults in {len(view.tasks)} tasks",
        *([f"{failed} tasks FAILED"] if failed else []),
    ]
    return "; ".join(parts)
