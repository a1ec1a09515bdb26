"""Terminal widgets shared by pages: labelled lines, headings, bars, verdict styles."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.cells import chop_cells
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.segment import Segment
from rich.table import Table as Grid
from rich.text import Text

from kernelforge.report.formatting import format_interval, one_line, percent, printable

if TYPE_CHECKING:
    from kernelforge.report.views.curves import FastPoint
    from kernelforge.report.views.statistics import Estimate

_LABEL = 9


def field(label: str, value: str | Text, *, style: str = "") -> RenderableType:
    """A labelled line; long values wrap below themselves."""
    text = value if isinstance(value, Text) else Text(one_line(value), style=style)
    return hanging(Text(f"{label:<{_LABEL}}", style="bold"), text)


def hanging(label: Text, text: Text) -> RenderableType:
    """A text after a label; it wraps below itself."""
    grid = Grid.grid(padding=(0, 1, 0, 0), pad_edge=False)
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    grid.add_row(label, text)
    return grid


def heading(title: str) -> list[RenderableType]:
    return [Text(), Text(one_line(title), style="bold underline")]


class Block:
    """A text of several lines, wrapped at the width of the terminal at any character."""

    def __init__(self, text: str) -> None:
        self._lines = printable(text).expandtabs(4).split("\n")

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        # Segments, not Text: finding where words could be parted takes seconds for a megabyte.
        for line in self._lines:
            for piece in folded(line, options.max_width):
                yield Segment(piece)
                yield Segment.line()


def folded(line: str, width: int) -> list[str]:
    """A line in pieces of at most ``width`` cells."""
    if line.isascii():
        return [line[at : at + width] for at in range(0, len(line), width)] or [""]
    return chop_cells(line, width) or [""]


def bar(share: float, width: int) -> str:
    """A bar in eighths of a cell, ``share`` of ``width`` long; any positive share is visible."""
    eighths = round(min(max(share, 0.0), 1.0) * width * 8)
    if share > 0:
        eighths = max(eighths, 1)
    full, rest = divmod(eighths, 8)
    return "█" * full + ("", "▏", "▎", "▍", "▌", "▋", "▊", "▉")[rest]


def interval(estimate: Estimate | FastPoint) -> str:
    """``67 % [33 %, 100 %]``."""
    return f"{percent(estimate.value)} {format_interval(estimate, percent)}"
