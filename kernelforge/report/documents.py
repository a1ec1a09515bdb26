"""A leaderboard as Markdown and as CSV."""

from __future__ import annotations

from kernelforge.report.board import Leaderboard
from kernelforge.report.board_key import BoardKey
from kernelforge.report.summary import TaskSummary
from kernelforge.report.table import Column, Table
from kernelforge.report.tables import board_tables, board_title
from kernelforge.report.text import markdown

_KEY = tuple(Column(name, name) for name in BoardKey.model_fields if name != "task_count")
_TASK = tuple(Column(name, name) for name in TaskSummary.model_fields if name != "origin")


def leaderboard_markdown(view: Leaderboard) -> str:
    """One section per board: its runs, then the best per task."""
    parts = ["# Leaderboard\n"]
    for board in view.boards:
        parts.append(f"## {markdown(board_title(board.key))}\n")
        for table in board_tables(board):
            parts += [f"### {table.title}\n", table.to_markdown()]
    if not view.boards:
        parts.append("No run has an attempt yet.\n")
    return "\n".join(parts)


def leaderboard_csv(view: Leaderboard) -> str:
    """One row per task of every run on every board, with the board's key in front: filter by it before comparing."""
    rows = []
    for board in view.boards:
        key = tuple(getattr(board.key, column.key) for column in _KEY)
        tasks = Table.of("", _TASK, (task for entry in board.entries for task in entry.tasks))
        rows += [(*key, *row) for row in tasks.rows]
    return Table("", (*_KEY, *_TASK), tuple(rows)).to_csv()
