"""Leaderboards."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.text import Text

from kernelforge.report.tables.board import board_notes, board_tables, board_title
from kernelforge.report.text import one_line

if TYPE_CHECKING:
    from kernelforge.report.views.board import Leaderboard


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
