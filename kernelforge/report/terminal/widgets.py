"""Terminal widgets shared by pages: labelled lines, headings, bars, verdict styles."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.cells import chop_cells
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.segment import Segment
from rich.table import Table as Grid
from rich.text import Text

from kernelforge.records.evaluation import UNCOMPARED
from kernelforge.report.formatting import format_interval, one_line, percent, printable

if TYPE_CHECKING:
    from kernelforge.report.views.curves import FastPoint
    from kernelforge.report.views.statistics import Estimate

_LABEL = 9
STYLES = {
    "OK": "green", "WRONG": "red", "CRASH": "red", "TIMEOUT": "red", "BUILD": "yellow", "POLICY": "yellow",
    "LIMIT": "yellow", "INFRA": "magenta", UNCOMPARED: "yellow",
}  # fmt: skip
"""Colour of an outcome. A word or a letter always says the same, so nothing is lost without colours."""


def field(label: str, value: str | Text, *, style: str = "") -> RenderableType:
    """A labelled line; what does not fit goes on under the value."""
    text = value if isinstance(value, Text) else Text(one_line(value), style=style)
    return hanging(Text(f"{label:<{_LABEL}}", style="bold"), text)


def hanging(label: Text, text: Text) -> RenderableType:
    """A text behind a label; what does not fit goes on under the text."""
    grid = Grid.grid(padding=(0, 1, 0, 0), pad_edge=False)
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    grid.add_row(label, text)
    return grid


def heading(title: str) -> list[RenderableType]:
    return [Text(), Text(one_line(title), style="bold underline")]


class Block:
    """A text of several lines as it is, folded at the width of the terminal wherever that falls."""

    def __init__(self, text: str) -> None:
        self._lines = printable(text).expandtabs(4).split("\n")

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        # Segments, not Text: finding where words could be parted takes seconds for a megabyte.
        for line in self._lines:
            for piece in folded(line, options.max_width):
                yield Segment(piece)
                yield Segment.line()


def folded(line: str, width: int) -> list[str]:
    """A line in pieces that are at most ``width`` cells wide."""
    if line.isascii():
        return [line[at : at + width] for at in range(0, len(line), width)] or [""]
    return chop_cells(line, width) or [""]


def bar(share: float, width: int) -> str:
    """A bar of eighths of a cell: as long as ``share`` of ``width``, and never empty for more than nothing."""
    eighths = round(min(max(share, 0.0), 1.0) * width * 8)
    if share > 0:
        eighths = max(eighths, 1)
    full, rest = divmod(eighths, 8)
    return "█" * full + ("", "▏", "▎", "▍", "▌", "▋", "▊", "▉")[rest]


def interval(estimate: Estimate | FastPoint) -> str:
    """``67 % [33 %, 100 %]``."""
    return f"{percent(estimate.value)} {format_interval(estimate, percent)}"
