"""Comparisons in the terminal: leaderboards, two runs, and differences of two attempts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.segment import Segment
from rich.style import Style
from rich.text import Text

from kernelforge.report.exports import compare_facts
from kernelforge.report.formatting import one_line, printable
from kernelforge.report.tables.run import board_notes, board_tables, board_title
from kernelforge.report.tables.task import compare_table, correlation_table, sample_table
from kernelforge.report.terminal.widgets import field, folded

if TYPE_CHECKING:
    from kernelforge.report.views.board import Leaderboard
    from kernelforge.report.views.compare import CompareView
    from kernelforge.report.views.diff import Diff, DiffLine, DiffView
    from kernelforge.report.views.metric_selection import MetricSelection


def leaderboard_lines(view: Leaderboard) -> Group:
    """Every board."""
    if not view.boards:
        return Group(Text("no run has an attempt yet: start one with 'kernelforge run'"))
    parts: list[RenderableType] = []
    for board in view.boards:
        parts.append(Text(one_line(board_title(board.key)), style="bold", overflow="fold"))
        parts += [Text(note, style="dim", overflow="fold") for note in board_notes(board)]
        parts += [table.to_rich() for table in board_tables(board)]
    return Group(*parts)


def selection_lines(selections: Iterable[MetricSelection]) -> Group:
    """Metrics of every GPU with their correlations, and the tasks that these are of."""
    parts: list[RenderableType] = []
    for selection in selections:
        parts += [
            Text(one_line(selection.gpu), style="bold", overflow="fold"),
            field("times", selection.origin.value),
            field("chosen", f"{len(selection.names)} with a mean |r| above {selection.threshold:.2f}"),
            sample_table(selection.tasks).to_rich(),
            correlation_table(selection.metrics).to_rich(),
        ]
    return Group(*parts)


def compare_lines(view: CompareView) -> Group:
    """Score, differences of the runs, and the pairs."""
    facts = [field(label, text) for label, text in compare_facts(view)]
    if not view.pairs:
        return Group(*facts, Text("no task is in both"))
    return Group(*facts, Text(), compare_table(view).to_rich())


MAX_CHARS = 2_000
"""Length at which a line is cut; longer ones would slow down the terminal."""

_MARKS = {"same": " ", "removed": "-", "added": "+"}
_STYLES = {"same": "", "removed": "red", "added": "green", "gap": "cyan"}


def diff_lines(view: DiffView) -> Group:
    """Differences of two attempts."""
    parts: list[RenderableType] = [
        field("from", f"{view.before}  {view.before_outcome}"),
        field("to", f"{view.after}  {view.after_outcome}"),
    ]
    return Group(*parts, *(part for diff in view.diffs for part in diff_parts(diff)))


def diff_parts(diff: Diff) -> Iterator[RenderableType]:
    """One difference with its heading."""
    against = {"parent": "the parent's", "best": "the best's", "other": "the other's"}[diff.beside]
    if not diff.compared:
        yield Text(f"{diff.name}: too long to compare line by line", style="dim")
        return
    if diff.equal:
        yield Text(f"{diff.name}: as {against}", style="dim")
        return
    head = Text()
    head.append(f"{diff.name}", style="bold")
    head.append("  " if diff.beside == "other" else f"  against {against} ({one_line(diff.against)})  ", style="dim")
    head.append(f"+{diff.added}", style="green")
    head.append(f" -{diff.removed}", style="red")
    yield Text()
    yield head
    yield DiffBody(diff.lines)


class DiffBody:
    """Numbered lines; long lines wrap below their own text."""

    def __init__(self, lines: Iterable[DiffLine]) -> None:
        self._lines = tuple(lines)
        numbers = [line.old_number or line.new_number or 0 for line in self._lines]
        self._digits = max(3, len(str(max(numbers, default=0))))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        styles = {kind: console.get_style(name) if name else Style.null() for kind, name in _STYLES.items()}
        dim = console.get_style("dim")
        width = max(options.max_width - 2 * self._digits - 3, 8)
        for line in self._lines:
            if line.kind == "gap":
                yield Segment(f"{'':>{2 * self._digits}} @@ {line.text}"[: options.max_width], styles["gap"])
                yield Segment.line()
                continue
            gutter = f"{line.old_number or '':>{self._digits}} {line.new_number or '':>{self._digits}} "
            for piece in _pieces(line.text, width):
                yield Segment(gutter, dim)
                yield Segment(_MARKS[line.kind] + piece, styles[line.kind])
                yield Segment.line()
                gutter = " " * len(gutter)


def _pieces(text: str, width: int) -> list[str]:
    cut = printable(text[:MAX_CHARS]).replace("\n", "\\n").expandtabs(4)
    if len(text) > MAX_CHARS:
        cut += f"… ({len(text):,} characters)"
    return folded(cut, width)
