"""A table of views, the common form of terminal, Markdown and CSV tables."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table as RichTable
from rich.text import Text

from kernelforge.records.evaluation import UNCOMPARED
from kernelforge.report.formatting import (
    ABSENT,
    UNCOMPARED_MARK,
    UNCOMPARED_NOTE,
    csv_text,
    markdown,
    one_line,
    short_outcome,
)

_GAP = 2
_NARROWEST = 14
"""Least width of a wide column before a table is split."""


def plain(value: Any) -> str:
    """Default text of a cell."""
    if value is None or value == "" or value == ():
        return ABSENT
    if isinstance(value, tuple):
        return " → ".join(map(str, value))
    return str(value)


def listed(values: Sequence[object]) -> str:
    """Values separated by commas."""
    return ", ".join(map(str, values)) or ABSENT


STYLES = {
    "OK": "green", "WRONG": "red", "CRASH": "red", "TIMEOUT": "red", "BUILD": "yellow", "POLICY": "yellow",
    "LIMIT": "yellow", "INFRA": "magenta", UNCOMPARED: "yellow", UNCOMPARED_MARK: "yellow",
}  # fmt: skip
"""Colour of an outcome. A word or letter always has the same meaning, so colours are optional."""


@dataclass(frozen=True)
class Column:
    """One column: an attribute of the view, its heading, and the function that formats its values."""

    key: str
    label: str
    show: Callable[[Any], str] = plain
    align: Literal["left", "right"] = "left"
    wide: bool = False
    """Takes the remaining width, and wraps when there is too little."""
    beneath: str = ""
    """On pages, where wide tables have less room: key of the column under whose cells the values appear as a second
    line."""
    lead: str = ""
    """Prefix of a value there."""
    attribute: str = ""
    """Attribute of the view; empty: the key."""


@dataclass(frozen=True)
class Table:
    """Rows of values under columns. CSV contains the values, other outputs ``Column.show`` of them."""

    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Any, ...], ...]
    keys: int = 1
    """Number of leading columns that identify a row."""

    @classmethod
    def of(cls, title: str, columns: Sequence[Column], views: Iterable[Any], *, keys: int = 1) -> Table:
        """A table of the columns' attributes of each view."""
        rows = tuple(tuple(getattr(view, column.attribute or column.key) for column in columns) for view in views)
        return cls(title, tuple(columns), rows, keys)

    def texts(self) -> list[list[str]]:
        return [
            [one_line(column.show(value)) for column, value in zip(self.columns, row, strict=True)] for row in self.rows
        ]

    @property
    def note(self) -> str:
        """Explanation of a mark in the cells, for a line below the table; empty without marks."""
        marked = [index for index, column in enumerate(self.columns) if column.show is short_outcome]
        return UNCOMPARED_NOTE if any(row[index] == UNCOMPARED for row in self.rows for index in marked) else ""

    def to_rich(self) -> Fitted:
        return Fitted(self)

    def to_markdown(self) -> str:
        marks = {"left": ":--", "right": "--:"}
        lines = [
            "| " + " | ".join(markdown(column.label) for column in self.columns) + " |",
            "| " + " | ".join(marks[column.align] for column in self.columns) + " |",
        ]
        lines += ["| " + " | ".join(markdown(cell) for cell in row) + " |" for row in self.texts()]
        note = f"\n{markdown(self.note)}\n" if self.note else ""
        return "\n".join(lines) + "\n" + note

    def to_csv(self, *, heading: bool = True) -> str:
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        if heading:
            writer.writerow([column.key for column in self.columns])
        for row in self.rows:
            writer.writerow([_csv_value(value) for value in row])
        return out.getvalue()


class Fitted:
    """A table on a terminal of any width: columns that do not fit follow in another part, after the key columns."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self._texts = table.texts()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Text(one_line(self._table.title), style="bold underline")
        for columns in self._parts(options.max_width):
            yield self._part(columns, options.max_width)
            yield Text()
        if self._table.note:
            yield Text(self._table.note, style="dim", overflow="fold")
            yield Text()

    def _natural(self, index: int) -> int:
        """Width at which no cell of the column wraps; its heading may, between words."""
        words = self._table.columns[index].label.split()
        return max([cell_len(row[index]) for row in self._texts] + [cell_len(word) for word in words])

    def _least(self, index: int) -> int:
        wide = self._table.columns[index].wide
        return min(self._natural(index), _NARROWEST) if wide else self._natural(index)

    def _parts(self, width: int) -> list[list[int]]:
        keys = list(range(self._table.keys))
        parts = [list(keys)]
        for index in range(len(keys), len(self._table.columns)):
            trial = [*parts[-1], index]
            too_wide = sum(self._least(column) + _GAP for column in trial) - _GAP > width
            if too_wide and len(parts[-1]) > len(keys):
                parts.append([*keys, index])
            else:
                parts[-1] = trial
        return parts

    def _part(self, columns: list[int], width: int) -> RichTable:
        widths = {index: self._least(index) for index in columns}
        spare = width - sum(widths.values()) - _GAP * (len(columns) - 1)
        for index in columns:
            more = min(max(spare, 0), self._natural(index) - widths[index])
            widths[index] += more
            spare -= more
        part = RichTable(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="bold")
        for index in columns:
            column = self._table.columns[index]
            part.add_column(Text(column.label), justify=column.align, overflow="fold", width=widths[index])
        for row in self._texts:
            part.add_row(*(Text(row[index], style=STYLES.get(row[index], "")) for index in columns))
        return part


def _csv_value(value: Any) -> Any:
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return value
    return csv_text(" > ".join(map(str, value)) if isinstance(value, tuple) else str(value))
