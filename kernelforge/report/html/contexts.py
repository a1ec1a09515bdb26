"""What each template is given: views, and the tables and figures made of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kernelforge.records import Attempt, Origin
from kernelforge.report.board import Leaderboard
from kernelforge.report.html import paths
from kernelforge.report.html.paths import Links
from kernelforge.report.html.shown import ShownRun
from kernelforge.report.html.tables import HtmlTable, Link, html_table
from kernelforge.report.run_view import RunView
from kernelforge.report.table import Column, Table
from kernelforge.report.tables import (
    board_tables,
    board_title,
    check_table,
    metric_table,
    task_table,
    timing_table,
    trial_table,
)
from kernelforge.report.text import duration, number

Context = dict[str, Any]


def tasks_table(view: RunView) -> Table:
    """The run's tasks: counters where times are modelled, speedups where they are measured."""
    origin = next((task.origin for task in view.tasks if task.origin is not None), None)
    if origin is None:
        origin = Origin.MODELLED if view.device.startswith("emulated") else Origin.MEASURED
    return task_table("Tasks", view.tasks, origin=origin)


def runs(shown: Sequence[ShownRun], pairs: Sequence[tuple[ShownRun, ShownRun]], links: Links) -> Context:
    columns = (
        Column("id", "run"),
        Column("state", "state"),
        Column("device", "device"),
        Column("strategy", "strategy"),
        Column("coder", "coder", wide=True),
        Column("tasks_ok", "correct", number, "right"),
        Column("tasks_total", "of", number, "right"),
        Column("attempts", "attempts", number, "right"),
        Column("seconds", "time", duration, "right"),
        Column("started", "started"),
    )
    table = Table.of("Runs", columns, [run.view for run in shown])
    return {"table": html_table(table, {"id": lambda row: links.to(paths.run_page(row["id"]))}), "pairs": pairs}


def run(shown: ShownRun, links: Links) -> Context:
    link: dict[str, Link] = {"task": lambda row: links.to(paths.task_page(shown.id, row["task"]))}
    return {"view": shown.view, "tasks": html_table(tasks_table(shown.view), link)}


def task(shown: ShownRun, name: str, links: Links) -> Context:
    return {"view": shown.task(name)}


def attempt(
    shown: ShownRun, one: Attempt, before: Attempt | None, after: Attempt | None, links: Links
) -> Context:
    """Args:
    before, after: the attempts before and after it at the same task.
    """
    view = shown.attempt(one)
    origin = Origin.MODELLED if view.fingerprint.device_kind == "emulated" else Origin.MEASURED
    tables: dict[str, HtmlTable | None] = {"checks": None, "timing": None, "trials": None, "metrics": None}
    if view.checks:
        tables["checks"] = html_table(check_table(view.checks))
    if view.performance is not None and view.performance.timing is not None:
        tables["timing"] = html_table(timing_table(view.performance.timing))
    if view.trials:
        tables["trials"] = html_table(trial_table(view.trials, origin=origin))
    if view.metrics:
        tables["metrics"] = html_table(metric_table(view.metrics, title="Metrics", compared=view.parent is not None))
    return {
        "view": view,
        "task": one.task,
        "number": one.number,
        "before": before,
        "after": after,
        "tables": tables,
        "diffs": [("Source", view.source_diff, view.source, "cpp"), ("Plan", view.plan_diff, view.plan, "python")],
    }


def boards(view: Leaderboard, links: Links) -> Context:
    made = []
    for board in view.boards:
        entries, records = board_tables(board)
        to_run: Mapping[str, Link] = {"run": lambda row: links.to(paths.run_page(row["run"]))}
        made.append((board_title(board.key), html_table(entries, to_run), html_table(records, to_run)))
    return {"view": view, "boards": made}


def diff_parts(diff: str) -> list[tuple[str, str]]:
    """A unified diff as runs of lines of one kind: ``add``, ``del``, ``hunk``, ``head`` or ``same``, with their text."""
    parts: list[tuple[str, list[str]]] = []
    kinds = {"+": "add", "-": "del", "@": "hunk"}
    for index, line in enumerate(diff.split("\n")):
        kind = "head" if index < 2 else kinds.get(line[:1], "same")
        if not parts or parts[-1][0] != kind:
            parts.append((kind, []))
        parts[-1][1].append(line)
    return [(kind, "\n".join(lines)) for kind, lines in parts]
