"""Charts of leaderboards and of two runs compared."""

from __future__ import annotations

from collections.abc import Mapping

from kernelforge.records import Origin
from kernelforge.report.figures import base
from kernelforge.report.figures.base import Absent, Drawing, Figure, figure, figures_of
from kernelforge.report.formatting import number, percent
from kernelforge.report.views.board import Board, Entry
from kernelforge.report.views.compare import CompareView

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


_OUTCOMES = {"win": "b is better", "tie": "a tie", "loss": "a is better"}
_COLOURS = (base.GREEN, base.GREY, base.VERMILLION)
_AXES = {"time_us": "µs (measured)", "dram_bytes": "DRAM bytes (modelled)"}


def draw_compare(view: CompareView, links: Mapping[str, str] | None = None) -> tuple[Drawing, ...]:
    """The scatter, or why there is none.

    Args:
        links: where a mark of a task leads, by the task's name.
    """
    return (_scatter(view, links or {}),)


def compare_figures(view: CompareView, links: Mapping[str, str] | None = None) -> tuple[Figure, ...]:
    """The figures that can be drawn of a comparison; see :func:`draw_compare`."""
    return figures_of(draw_compare(view, links))


def _scatter(view: CompareView, links: Mapping[str, str]) -> Drawing:
    name = "scatter"
    rows = [
        base.linked(
            {
                "task": base.words(pair.task),
                "a": pair.a_value,
                "b": pair.b_value,
                "outcome": _OUTCOMES[pair.outcome],
                "why": base.words(pair.why),
            },
            links.get(pair.task),
        )
        for pair in view.pairs
        if base.positive(pair.a_value) and base.positive(pair.b_value) and pair.outcome in _OUTCOMES
    ]
    if view.quantity == "none" or not rows:
        return Absent(name=name, why="no task has a value in both runs that may be compared")
    unit = _AXES[view.quantity]
    spread = [row[side] for row in rows for side in ("a", "b")]
    ticks = base.PLAIN if view.quantity == "time_us" else "~s"
    x = base.logarithmic("a", f"a: {base.words(view.a)}, {unit}", spread, ticks=ticks)
    y = base.logarithmic("b", f"b: {base.words(view.b)}, {unit}", spread, ticks=ticks)
    ends = x["scale"]["domain"]
    outcomes = tuple(_OUTCOMES.values())
    without = len(view.pairs) - len(rows)
    return figure(
        name,
        "Task by task",
        f"Best of {len(rows)} tasks in run {base.words(view.a)} (a) against run {base.words(view.b)} (b), {unit}; "
        f"below the diagonal b is better. b wins {view.wins}, loses {view.losses}, ties {view.ties}; both failed "
        f"{view.both_failed}; {without} tasks without a value in both are not drawn.",
        {
            "height": 360,
            "layer": [
                {
                    "data": base.data([{"a": end, "b": end} for end in ends]),
                    "mark": {"type": "line", "color": base.GREY, "strokeDash": [4, 3], "strokeWidth": 1.2},
                    "encoding": {"x": x, "y": y},
                },
                {
                    "data": base.data(rows),
                    "mark": {
                        "type": "point",
                        "filled": True,
                        "size": 52,
                        "opacity": 0.9,
                        **({"cursor": "pointer"} if links else {}),
                    },
                    "encoding": {
                        "x": x,
                        "y": y,
                        "color": base.coloured("outcome", outcomes, _COLOURS),
                        "shape": base.shaped("outcome", outcomes),
                        "tooltip": base.tip(task="task", a="a", b="b", outcome="", why="why"),
                    },
                },
            ],
        },
    )
