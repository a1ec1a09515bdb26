"""A leaderboard as Markdown and as CSV."""

from __future__ import annotations

from kernelforge.report.tables.board import EntryRow, board_notes, board_tables, board_title
from kernelforge.report.tables.table import Column, Table
from kernelforge.report.text import markdown
from kernelforge.report.views.board import Entry, Leaderboard
from kernelforge.report.views.board_key import BoardKey
from kernelforge.report.views.statistics import FAST_P
from kernelforge.report.views.summary import TaskSummary

_KEY = tuple(Column(name, name) for name in BoardKey.model_fields if name != "task_count")
_SPREAD = {"correct", "median_dram_ratio", "median_speedup", "win_rate", "floor_share"} | {
    f"geomean_{which}" for which in ("speedup", "correct", "eager")
}
"""Statistics with an interval: three columns each."""
_ENTRY = (
    *(
        Column(name, name)
        for name in Entry.model_fields
        if name not in {"key", "tasks", "verified", "fast_p", *_SPREAD}
    ),
    Column("checked", "checked"),
    *(
        Column(f"{name}{end}", f"{name}{end}")
        for name in (*(f"fast_{p:g}".replace(".", "_") for p in FAST_P), *sorted(_SPREAD))
        for end in ("", "_low", "_high")
    ),
)
_TASK = tuple(Column(name, name) for name in TaskSummary.model_fields if name != "origin")


def leaderboard_markdown(view: Leaderboard) -> str:
    """One section per board: its runs, then the best per task."""
    parts = ["# Leaderboard\n"]
    for board in view.boards:
        parts.append(f"## {markdown(board_title(board.key))}\n")
        parts += [f"{markdown(note)}\n" for note in board_notes(board)]
        for table in board_tables(board):
            parts += [f"### {table.title}\n", table.to_markdown()]
    if not view.boards:
        parts.append("No run has an attempt yet.\n")
    return "\n".join(parts)


def entries_csv(view: Leaderboard) -> str:
    """One row per result, with its board's key in front and all its statistics: filter by the key before comparing."""
    rows = []
    for board in view.boards:
        key = tuple(getattr(board.key, column.key) for column in _KEY)
        rows += [(*key, *row) for row in Table.of("", _ENTRY, map(EntryRow, board.entries)).rows]
    return Table("", (*_KEY, *_ENTRY), tuple(rows)).to_csv()


def leaderboard_csv(view: Leaderboard) -> str:
    """One row per task of every run on every board, with the board's key in front: filter by it before comparing."""
    rows = []
    for board in view.boards:
        key = tuple(getattr(board.key, column.key) for column in _KEY)
        tasks = Table.of("", _TASK, (task for entry in board.entries for task in entry.tasks))
        rows += [(*key, *row) for row in tasks.rows]
    return Table("", (*_KEY, *_TASK), tuple(rows)).to_csv()
