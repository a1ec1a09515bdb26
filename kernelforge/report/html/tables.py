"""Tables of views as tables of a page: the text that people read, and the raw value beside it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from kernelforge.records import Verdict
from kernelforge.report.table import Table

Link = Callable[[Mapping[str, Any]], str | None]
"""From a row, by column key, to the address of one of its cells; None for no link."""

_VERDICTS = frozenset(verdict.value for verdict in Verdict)


class HtmlColumn(NamedTuple):
    """Heading of a column."""

    key: str
    label: str
    numeric: bool


class HtmlCell(NamedTuple):
    """One cell."""

    text: str
    raw: str | None
    """The value as JSON has it, where it is a number; None for anything else."""
    numeric: bool
    href: str | None
    verdict: str
    """The verdict that the cell holds; empty for any other cell."""
    heading: bool
    """Whether it says what the row is."""
    wide: bool
    """Whether its text may fold."""


class HtmlTable(NamedTuple):
    """A table, ready to be written."""

    title: str
    columns: tuple[HtmlColumn, ...]
    rows: tuple[tuple[HtmlCell, ...], ...]


def html_table(table: Table, links: Mapping[str, Link] | None = None) -> HtmlTable:
    """A table with links from some of its cells.

    Args:
        links: by column key, where a cell of that column leads.
    """
    links = links or {}
    columns = tuple(HtmlColumn(one.key, one.label, one.align == "right") for one in table.columns)
    keys = [column.key for column in columns]
    rows = []
    for values in table.rows:
        row = dict(zip(keys, values, strict=True)) if links else {}
        cells = []
        for index, (column, value) in enumerate(zip(table.columns, values, strict=True)):
            find = links.get(column.key)
            shown = column.show(value)
            cells.append(
                HtmlCell(
                    text=shown,
                    raw=raw_number(value),
                    numeric=column.align == "right",
                    href=find(row) if find is not None else None,
                    verdict=shown if shown in _VERDICTS else "",
                    heading=index == 0,
                    wide=column.wide,
                )
            )
        rows.append(tuple(cells))
    return HtmlTable(table.title, columns, tuple(rows))


def raw_number(value: Any) -> str | None:
    """A number or a truth value as JSON writes it; None for anything else."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return repr(value) if math.isfinite(value) else _NON_FINITE[str(value)]
    return None


_NON_FINITE = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}
