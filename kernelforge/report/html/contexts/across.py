"""What spans tasks or runs: boards, integrity, comparisons."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from kernelforge.records import Origin
from kernelforge.report.figures import board_figures, compare_figures
from kernelforge.report.html import paths
from kernelforge.report.html.charts import charts_of
from kernelforge.report.html.paths import Links
from kernelforge.report.html.shown import ShownRun
from kernelforge.report.html.tables import Link, html_table
from kernelforge.report.tables.board import board_notes, board_tables, board_title
from kernelforge.report.tables.compare import compare_table
from kernelforge.report.tables.run import integrity_table
from kernelforge.report.views.board import Leaderboard
from kernelforge.report.views.compare import CompareView
from kernelforge.report.views.integrity import CONCERNS

Context = dict[str, Any]

CONCERN_WORDS = {
    "quarantined": "Times that are not believed: below the floor, or the clocks disagree. They have no speedup.",
    "clocks-disagree": "The device's events and the host's clock differ.",
    "throttled": "The GPU held its clocks back while it was timed.",
    "unsettled": "The interval of the ratio did not become as narrow as was asked for.",
    "high-variance": "The interval of the time is wide.",
    "policy": "The candidate did what no candidate may. It was refused.",
    "unconfined": "Untrusted code ran without a jail. Such results are never rewarded.",
    "infra": "Our fault, or unsupported here. No statement about the candidate.",
    "untimed": "Correct, on a device that measures, and without a speedup.",
    "uncompared": "OK, and no value was compared at the full size. It counts as not correct and earns no reward.",
}
assert set(CONCERN_WORDS) == set(CONCERNS), "every concern is explained"


def integrity_context(shown: ShownRun, links: Links) -> Context:
    """Integrity of one run."""
    view = shown.view.integrity
    link: dict[str, Link] = {"attempt": lambda row: shown.attempt_link(row["attempt"], links)}
    found = []
    for concern in CONCERNS:
        rows = [row for row in view.rows if row.concern == concern]
        if rows:
            found.append((concern, CONCERN_WORDS[concern], html_table(integrity_table(concern, rows), link)))
    clear = [(concern, CONCERN_WORDS[concern]) for concern in CONCERNS if not view.counts[concern]]
    return {"view": view, "tables": found, "clear": clear}


def boards_context(view: Leaderboard, shown: dict[str, ShownRun], links: Links) -> Context:
    """Every board."""
    to_run: dict[str, Link] = {"run": lambda row: links.to(paths.run_page(row["run"])) if row["run"] in shown else None}
    found = []
    for index, board in enumerate(view.boards):
        entries, records = board_tables(board)
        own = {entry.run: links.to(paths.run_page(entry.run)) for entry in board.entries if entry.run in shown}
        charts = [
            chart._replace(id=f"{chart.id}-{index}") for chart in charts_of(board_figures(board, own), links).values()
        ]
        to_task = {one.task: links.to(paths.task_page(one.run, one.task)) for one in board.records if one.run in shown}
        best = to_run | {"task": partial(_of, to_task, "task")}
        tables = html_table(entries, to_run), html_table(records, best)
        found.append((board, board_title(board.key), board_notes(board), *tables, charts))
    measured = any(board.key.origin is Origin.MEASURED for board in view.boards)
    return {"view": view, "boards": found, "measured": measured}


def compare_context(a: ShownRun, b: ShownRun, view: CompareView, links: Links) -> Context:
    """Two runs."""
    to_task = {pair.task: links.to(paths.task_page(b.id, pair.task)) for pair in view.pairs}
    link: dict[str, Link] = {
        "task": lambda row: to_task[row["task"]],
        "a_best": lambda row: a.attempt_link(row["a_best"], links),
        "b_best": lambda row: b.attempt_link(row["b_best"], links),
    }
    return {
        "view": view,
        "a": a.view,
        "b": b.view,
        "pairs": html_table(compare_table(view), link),
        "charts": charts_of(compare_figures(view, to_task), links),
    }


def _of(addresses: Mapping[str, str], key: str, row: Mapping[str, Any]) -> str | None:
    return addresses.get(row[key])
