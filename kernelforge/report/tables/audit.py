"""Tables of an audit: kinds of faults, and suites."""

from __future__ import annotations

from kernelforge.report.tables.table import Column, Table
from kernelforge.report.text import fine_percent, number
from kernelforge.report.views.audit import AuditView


def fault_table(view: AuditView) -> Table:
    """Kinds of faults with how many mutants each rule rejects."""
    columns = (
        Column("fault", "fault"),
        Column("judged", "mutants", number, "right"),
        Column("killed", "rejected", number, "right"),
        Column("kernelbench_killed", "by KernelBench's rule", number, "right"),
    )
    return Table.of("Faults", columns, view.faults)


def suite_table(view: AuditView) -> Table:
    """Suites with how many mutants each rule rejects, and how many could not be judged at all."""
    columns = (
        Column("suite", "suite"),
        Column("tasks", "tasks", number, "right"),
        Column("judged", "mutants", number, "right"),
        Column("killed", "rejected", number, "right"),
        Column("equivalent", "equivalent", number, "right"),
        Column("invalid", "invalid", number, "right"),
        Column("kill_rate", "rate", fine_percent, "right"),
        Column("kernelbench_kill_rate", "KernelBench's", fine_percent, "right"),
    )
    return Table.of("Suites", columns, view.suites)
