"""``kernelforge tasks audit``: faults put into references, to see whether the check rejects them."""

from __future__ import annotations

from typing import Annotated

import typer

from kernelforge.cli.support.choosing import (
    AllOption,
    JobsOption,
    OnlyOption,
    SuiteArgument,
    TimeoutOption,
    chosen_tasks,
    oracle_zygote,
    print_broken,
)
from kernelforge.cli.support.output import JsonOption, UnconfinedOption, console, print_json


def audit(
    suite: SuiteArgument = "core",
    task: OnlyOption = None,
    every: AllOption = False,
    jobs: JobsOption = 1,
    most: Annotated[
        int, typer.Option("--most", metavar="N", min=1, help="Mutants of each task, spread over the kinds of faults.")
    ] = 60,
    threshold: Annotated[
        float, typer.Option("--threshold", metavar="SHARE", min=0, max=1, help="Leave with 1 below this kill rate.")
    ] = 0.97,
    survivors: Annotated[
        bool, typer.Option("--survivors", help="Print survivors, stale arguments and errors alone.")
    ] = False,
    timeout: TimeoutOption = 60.0,
    allow_unconfined: UnconfinedOption = False,
    as_json: JsonOption = False,
) -> None:
    """Put faults into references, one at a time: the check has to reject each. Leaves with 1 if too many pass."""
    from kernelforge.evaluation.audit.equivalents import stale_arguments, suite_arguments
    from kernelforge.evaluation.oracle.client import Oracle
    from kernelforge.evaluation.suite_checks import AuditJob, audit_tasks
    from kernelforge.report.tables.run import audit_suite_table, fault_table
    from kernelforge.report.terminal.audit import audit_lines, audit_verdict
    from kernelforge.report.views.audit import AuditRow, audit_row, audit_view

    chosen = chosen_tasks(suite, task, every)
    print_broken(chosen)
    arguments = {where: suite_arguments(where) for where in chosen.suites}
    work = [AuditJob(one, tuple(arguments[where].of(one.name))) for where, one in chosen.tasks]
    out = console()
    rows: list[AuditRow] = []
    with oracle_zygote(allow_unconfined) as zygote:
        audits = audit_tasks(work, lambda one: Oracle(zygote, one, reply_s=timeout), most=most, at_once=jobs)
        for (where, one), audited in zip(chosen.tasks, audits, strict=True):
            known = arguments[where]
            stale = [] if audited.same_as else stale_arguments(audited, known)
            rows.append(audit_row(one.suite, audited, known.of(one.name), stale))
            if not as_json and not rows[-1].same_as:
                out.print(audit_lines(rows[-1], survivors_only=survivors), soft_wrap=True)
    view = audit_view(rows, threshold)
    if as_json:
        print_json(view)
    else:
        if not survivors:
            out.print(fault_table(view).to_rich())
            out.print(audit_suite_table(view).to_rich())
        out.print(audit_verdict(view))
    raise typer.Exit(0 if view.ok and not chosen.broken else 1)
