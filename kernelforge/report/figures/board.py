"""Charts of a leaderboard: its entries side by side."""

from __future__ import annotations

from collections.abc import Mapping

from kernelforge.records import Origin
from kernelforge.report.figures import base
from kernelforge.report.figures.base import Absent, Drawing, Figure, figure, figures_of
from kernelforge.report.formatting import number, percent
from kernelforge.report.views.board import Board, Entry

MOST_ENTRIES = 25
"""Entries that are drawn, the best; the table has all."""


def draw_board(view: Board, links: Mapping[str, str] | None = None) -> tuple[Drawing, ...]:
    """Every figure of a board, and of those that cannot be drawn why.

    Args:
        links: where a mark of an entry leads, by the id of its run.
    """
    links = links or {}
    return (_fast_p(view, links), _correct(view, links))


def board_figures(view: Board, links: Mapping[str, str] | None = None) -> tuple[Figure, ...]:
    """The figures that can be drawn of a board; see :func:`draw_board`."""
    return figures_of(draw_board(view, links))


def _label(entry: Entry) -> str:
    """Told apart by the rank, which is in the board's table too; the run is in the tooltip."""
    return base.words(f"{entry.rank}. {entry.coder}, {entry.by or entry.strategy}")


def _fast_p(view: Board, links: Mapping[str, str]) -> Drawing:
    name = "board-fast-p"
    if view.key.origin is not Origin.MEASURED:
        return Absent(name=name, why="the times on this board are modelled, and a modelled time has no speedup")
    rows = [
        base.linked(
            {
                "entry": _label(entry),
                "run": base.words(entry.run),
                "p": number(point.p),
                "share": point.value,
                "low": point.low,
                "high": point.high,
            },
            links.get(entry.run),
        )
        for entry in view.entries[:MOST_ENTRIES]
        for point in entry.fast_p
    ]
    if not rows:
        return Absent(name=name, why="no entry has a fast_p")
    thresholds = list(dict.fromkeys(row["p"] for row in rows))
    first = view.entries[0]
    y = base.names("entry")
    y["axis"] |= {"grid": True}
    x = base.below(base.quantity("share", f"share of all {view.key.task_count} tasks (measured)", ticks="%"))
    x["scale"] = {"domain": [0, 1]}
    offset = {"field": "p", "type": "nominal", "sort": None}
    colour = base.coloured("p", thresholds, title="fast_p at p =")
    return figure(
        name,
        "fast_p of the entries",
        f"fast_p of {min(len(view.entries), MOST_ENTRIES)} entries with 95 % intervals over tasks (measured). First: "
        f"{base.words(first.run)} with "
        + ", ".join(f"{percent(one.value)} at p = {number(one.p)}" for one in first.fast_p)
        + ".",
        {
            "height": (11 * len(thresholds) + 14) * min(len(view.entries), MOST_ENTRIES),
            "data": base.data(rows),
            "layer": [
                {
                    "mark": {"type": "rule", "strokeWidth": 1.2},
                    "encoding": {
                        "y": y,
                        "yOffset": offset,
                        "x": x | {"field": "low"},
                        "x2": {"field": "high"},
                        "color": colour,
                    },
                },
                {
                    "mark": {"type": "point", "filled": True, "size": 46, "opacity": 1},
                    "encoding": {
                        "y": y,
                        "yOffset": offset,
                        "x": x,
                        "color": colour,
                        "shape": base.shaped("p", thresholds, title="fast_p at p ="),
                        "tooltip": base.tip(entry="entry", run="run", p="p", share="share", low="from", high="to"),
                    },
                },
            ],
        },
    )


def _correct(view: Board, links: Mapping[str, str]) -> Drawing:
    name = "board-correct"
    if not view.entries:
        return Absent(name=name, why="the board has no entry")
    rows = [
        base.linked(
            {
                "entry": _label(entry),
                "run": base.words(entry.run),
                "share": entry.correct.value,
                "low": entry.correct.low,
                "high": entry.correct.high,
                "ok": entry.tasks_ok,
            },
            links.get(entry.run),
        )
        for entry in view.entries[:MOST_ENTRIES]
    ]
    y = base.names("entry")
    x = base.below(base.quantity("share", f"correct, share of all {view.key.task_count} tasks", ticks="%"))
    x["scale"] = {"domain": [0, 1]}
    first = view.entries[0]
    return figure(
        name,
        "Correct tasks of the entries",
        f"Share of {view.key.task_count} tasks with something correct, of {len(rows)} entries, with 95 % intervals "
        f"over tasks. First: {base.words(first.run)} with {percent(first.correct.value)}.",
        {
            "height": base.rows_height(len(rows)),
            "data": base.data(rows),
            "layer": [
                {
                    "mark": {"type": "bar", "height": {"band": 0.62}, "color": base.BLUE},
                    "encoding": {
                        "y": y,
                        "x": x,
                        "tooltip": base.tip(entry="entry", run="run", ok="tasks", share="share", low="from", high="to"),
                    },
                },
                {
                    "mark": {"type": "rule", "strokeWidth": 1.4, "style": "ink"},
                    "encoding": {"y": y, "x": x | {"field": "low"}, "x2": {"field": "high"}},
                },
            ],
        },
    )
