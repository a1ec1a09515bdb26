"""HTML of tables, and of the graph of a plan's launches."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Literal, NamedTuple

from markupsafe import Markup, escape

from kernelforge.records import Verdict
from kernelforge.report.formatting import UNCOMPARED_MARK, one_line
from kernelforge.report.tables.base import Column, Table
from kernelforge.report.tables.run import DIFFERS
from kernelforge.report.views.task import LineageNode

MOST_COLUMNS = 10
"""Deepest column of a branch, so that a wide tree fits the page."""


class Row(NamedTuple):
    """One attempt with the lines in front of it."""

    node: LineageNode
    rails: tuple[bool, ...]
    """For each column before the attempt's: whether a line passes through."""
    up: bool
    """A line comes from the attempt above in the same column."""
    down: bool
    """A line continues below."""
    branch: bool
    """A line comes from the column before."""


def rows(lineage: Sequence[LineageNode]) -> list[Row]:
    """Rows of a lineage whose nodes are in depth-first order."""
    last = _last_children(lineage)
    made: list[Row] = []
    path: list[tuple[int, bool]] = []  # (column, is its parent's last child) of each ancestor and of the node
    open_columns: set[int] = set()
    for index, node in enumerate(lineage):
        del path[node.depth :]
        ends = last[index]
        above = path[-1][0] if path else 0
        column = above if node.depth == 0 or ends else min(above + 1, MOST_COLUMNS)
        path.append((column, ends))
        has_children = index + 1 < len(lineage) and lineage[index + 1].depth > node.depth
        up = node.depth > 0 and column in open_columns and (ends or column == above)
        open_columns = {rail for rail in open_columns if rail < column}
        made.append(
            Row(
                node=node,
                rails=tuple(rail in open_columns for rail in range(column)),
                up=up,
                down=has_children,
                branch=node.depth > 0 and column > above,
            )
        )
        if has_children:
            open_columns.add(column)
    return made


def _last_children(lineage: Sequence[LineageNode]) -> list[bool]:
    """For each node: whether it is the last child of its parent."""
    last = [False] * len(lineage)
    seen: list[bool] = []  # by depth: whether a later sibling was met, going backwards
    for index in range(len(lineage) - 1, -1, -1):
        depth = lineage[index].depth
        del seen[depth + 1 :]
        seen += [False] * (depth + 1 - len(seen))
        last[index] = not seen[depth]
        seen[depth] = True
    return last


Link = Callable[[Mapping[str, Any]], str | None]
"""Address of a cell, given its row by column key; None for no link."""

_VERDICTS = frozenset((UNCOMPARED_MARK, *(verdict.value for verdict in Verdict)))
_TIGHT, _TIGHT_OF_WIDE = 40, 24
"""Characters of a cell on one line; fewer in a column whose text may wrap."""
_REPEATED = frozenset((str, bool, type(None)))
"""Names of metrics, units and verdicts repeat on every page; numbers seldom do."""
_MOST = 4_096
"""Cached texts of a column."""
_ONE_LINE = re.compile(r"[\w.,:%+/-]+(?: [\w.,:%+/-]+)*", re.ASCII)
"""Text without need for escaping or wrapping: most of a million cells."""
_MARKED = {"passed": "good", "win": "good", "failed": "bad", "loss": "bad", "guarded": "quiet", "skipped": "quiet"}
_MARKED |= {
    "not compared": "bad",
    "not reached": "quiet",
    "not applicable": "quiet",
    "both-failed": "quiet",
    "tie": "quiet",
}


class HtmlTable(NamedTuple):
    """A table, ready to be placed on a page."""

    title: str
    head: Markup
    """Row of its headings."""
    body: Markup
    """Its rows; cells contain only text, links within the report and classes."""
    dense: bool = False
    """Whether some columns appear under others."""
    note: str = ""
    """Explanation of a mark in the cells."""


def html_table(table: Table, links: Mapping[str, Link] | None = None, *, mark: str = "") -> HtmlTable:
    """A table with links from some of its cells.

    Built here and not in a template, because a large report has a million cells.

    Args:
        links: address of a column's cells, by column key.
        mark: key of a column whose text each row has as ``data-<mark>``, for filters.
    """
    links = links or {}
    keys = [column.key for column in table.columns]
    numbered = tuple(enumerate(table.columns))
    parts = {key: tuple((index, column) for index, column in numbered if column.beneath == key) for key in keys}
    own = [(index, column) for index, column in numbered if not column.beneath]
    head = "".join(_heading(column, [part for _, part in parts[column.key]]) for _, column in own)
    writers = [
        (_cell_writer(column, "td" if index else "th", index, parts[column.key]), links.get(column.key))
        for index, column in own
    ]
    rows = []
    for values in table.rows:
        row = dict(zip(keys, values, strict=True)) if links or mark else {}
        attribute = f' data-{mark}="{escape(one_line(str(row[mark])))}"' if mark else ""
        line = [cell(values, find(row) if find is not None else None) for cell, find in writers]
        rows.append(f"<tr{attribute}>{''.join(line)}</tr>")
    return HtmlTable(table.title, Markup(head), Markup("\n".join(rows)), len(own) < len(keys), table.note)


def _heading(column: Column, parts: Sequence[Column]) -> str:
    numeric = ' class="num"' if column.align == "right" else ""
    more = ("–" if numeric else ", ").join(str(escape(part.label)) for part in parts)
    beneath = f"<small> {more}</small>" if more else ""
    label = str(escape(column.label)).replace("/", "/<wbr>")  # where headings may fold
    return f'<th scope="col" data-key="{escape(column.key)}"{numeric}>{label}{beneath}</th>'


@lru_cache(maxsize=512)
def _cell_writer(
    column: Column, element: Literal["td", "th"], index: int, parts: tuple[tuple[int, Column], ...]
) -> Callable[[Sequence[Any], str | None], str]:
    """Function that writes the cells of a column from the values of a row: the formatted text, and for a number also
    its value as in JSON and CSV. Values that depend only on the column are computed once, and short texts are
    cached."""
    show, marked, numeric = column.show, column.key in ("status", "outcome"), column.align == "right"
    begin = f"<{element}" + (' scope="row"' if element == "th" else "") + (' class="num"' if numeric else "")
    end = f"</{element}>"
    longest = _TIGHT_OF_WIDE if column.wide else _TIGHT
    written: dict[str | bool | None, str] = {}

    def write(values: Sequence[Any], href: str | None) -> str:
        value = values[index]
        reusable = href is None and not parts and type(value) in _REPEATED
        if reusable and value in written:
            return written[value]
        plain, text = _escaped(show(value))
        if href is not None:
            text = f'<a href="{escape(href)}">{text}</a>'
        elif plain in _VERDICTS:
            text = f'<span class="verdict v-{plain}">{text}</span>'
        elif marked and plain in _MARKED:
            text = f'<span class="{_MARKED[plain]}">{text}</span>'
        folds = ' class="wide"' if not numeric and len(plain) > longest else ""
        beneath = _beneath(values, parts) if parts else ""
        cell = f"{begin}{folds}{_data_value(value)}>{text}{beneath}{end}"
        if reusable and len(plain) <= _TIGHT and len(written) < _MOST:
            written[value] = cell
        return cell

    return write


def _beneath(values: Sequence[Any], parts: Sequence[tuple[int, Column]]) -> str:
    """Second line of a cell: values of other columns, each in an element that names its column; numbers on one line,
    texts on a line each."""
    cells = []
    for index, part in parts:
        value = values[index]
        if value not in (None, ""):
            attributes = f'data-part="{escape(part.key)}"{_data_value(value)}{_warned(part, value)}'
            cells.append(f"{escape(part.lead)}<span {attributes}>{_escaped(part.show(value))[1]}</span>")
    lines = ["".join(cells)] if parts[0][1].align == "right" else cells
    return "".join(f"<small> {line}</small>" for line in lines if line)


def _warned(part: Column, value: Any) -> str:
    return ' class="bad"' if part.key == "checked" and value.endswith(DIFFERS) else ""


def _data_value(value: Any) -> str:
    raw = raw_number(value)
    return "" if raw is None else f' data-value="{raw}"'


def _escaped(text: str) -> tuple[str, str]:
    """A cell's text on one line, and the same as HTML."""
    if _ONE_LINE.fullmatch(text):
        return text, text
    line = one_line(text)
    return line, str(escape(line))


def raw_number(value: Any) -> str | None:
    """A number or a boolean as in JSON; None for anything else."""
    if value is None or isinstance(value, str):
        return None
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return repr(value) if math.isfinite(value) else _NON_FINITE[str(value)]
    return None


_NON_FINITE = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}
