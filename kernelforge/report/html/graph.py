"""A lineage as rails of a version history: what follows from an attempt stands below it, side branches one column in.

The last child of an attempt goes on in its parent's column, so a search that only goes forward is one straight line
however long it is; only what was tried beside it is indented.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from kernelforge.report.views.task import LineageNode

MOST_COLUMNS = 10
"""Deeper branches stay in this column, so that a wide tree fits the page."""


class Row(NamedTuple):
    """One attempt with what is drawn before it."""

    node: LineageNode
    rails: tuple[bool, ...]
    """For each column before the attempt's own, whether a line passes through."""
    up: bool
    """A line comes from the attempt above in the same column."""
    down: bool
    """A line goes on below."""
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
        open_columns = {one for one in open_columns if one < column}
        made.append(
            Row(
                node=node,
                rails=tuple(one in open_columns for one in range(column)),
                up=up,
                down=has_children,
                branch=node.depth > 0 and column > above,
            )
        )
        if has_children:
            open_columns.add(column)
    return made


def _last_children(lineage: Sequence[LineageNode]) -> list[bool]:
    """For each node, whether no later one has the same parent."""
    found = [False] * len(lineage)
    seen: list[bool] = []  # by depth: whether a later sibling was met, going backwards
    for index in range(len(lineage) - 1, -1, -1):
        depth = lineage[index].depth
        del seen[depth + 1 :]
        seen += [False] * (depth + 1 - len(seen))
        found[index] = not seen[depth]
        seen[depth] = True
    return found
