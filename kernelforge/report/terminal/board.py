"""Leaderboards and comparisons of runs in the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.text import Text

from kernelforge.report.exports import compare_facts
from kernelforge.report.formatting import one_line
from kernelforge.report.tables.board import board_notes, board_tables, board_title
from kernelforge.report.tables.task import compare_table
from kernelforge.report.terminal.widgets import field

if TYPE_CHECKING:
    from kernelforge.report.views.board import Leaderboard
    from kernelforge.report.views.compare import CompareView


def leaderboard_lines(view: Leaderboard) -> Group:
    """Every board, one under another."""
    if not view.boards:
        return Group(Text("no run has an attempt yet: start one with 'kernelforge run'"))
    parts: list[RenderableType] = []
    for board in view.boards:
        parts.append(Text(one_line(board_title(board.key)), style="bold", overflow="fold"))
        parts += [Text(note, style="dim", overflow="fold") for note in board_notes(board)]
        parts += [table.to_rich() for table in board_tables(board)]
    return Group(*parts)


def compare_lines(view: CompareView) -> Group:
    """Score, what keeps the runs apart, and the pairs."""
    facts = [field(label, text) for label, text in compare_facts(view)]
    if not view.pairs:
        return Group(*facts, Text("no task is in both"))
    return Group(*facts, Text(), compare_table(view).to_rich())
