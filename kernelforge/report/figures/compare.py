"""Charts of leaderboards and of two runs compared."""

from __future__ import annotations

from kernelforge.records import Origin
from kernelforge.report.figures import base
from kernelforge.report.figures.base import Absent, Drawing, Links, figure
from kernelforge.report.formatting import number, percent
from kernelforge.report.views.board import Board, Entry
from kernelforge.report.views.compare import CompareView

MOST_ENTRIES = 25
"""Best entries that are drawn; the table has all."""
_OUTCOMES = {"win": "b is better", "tie": "a tie", "loss": "a is better"}
_COLOURS = (base.GREEN, base.GREY, base.VERMILLION)
_AXES = {"time_us": "µs (measured)", "modelled_us": "µs (modelled)"}


def draw_board(view: Board, links: Links | None = None) -> tuple[Drawing, ...]:
    """Every figure of a board; for those that cannot be drawn, the reason.

    Args:
        links: address that the mark of an entry leads to, by the id of its run.
    """
    return (_fast_p(view, links or {}), _correct(view, links or {}))


def draw_compare(view: CompareView, links: Links | None = None) -> tuple[Drawing, ...]:
    """The scatter of two runs, or the reason why there is none.

    Args:
        links: address that the mark of a task leads to, by the task's name.
    """
    return (_scatter(view, links or {}),)


def _label(entry: Entry) -> str:
    """Label with the rank, which makes it unique; the run is in the tooltip."""
    return base.words(f"{entry.rank}. {entry.coder}, {entry.by or entry.strategy}")


def _share_axis(view: Board, title: str) -> base.Encoding:
    axis = base.below(base.quantity("share", title.format(tasks=view.key.task_count), ticks="%"))
    return axis | {"scale": {"domain": [0, 1]}}


def _fast_p(view: Board, links: Links) -> Drawing:
    name = "board-fast-p"
    if view.key.origin is not Origin.MEASURED:
        return Absent(name=name, why="the times on this board are modelled, and a modelled time has no speedup")
    entries = view.entries[:MOST_ENTRIES]
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
        for entry in entries
        for point in entry.fast_p
    ]
    if not rows:
        return Absent(name=name, why="no entry has a fast_p")
    thresholds = list(dict.fromkeys(row["p"] for row in rows))
    first = entries[0]
    y = base.names("entry")
    y["axis"] |= {"grid": True}
    x = _share_axis(view, "share of all {tasks} tasks (measured)")
    offset = {"field": "p", "type": "nominal", "sort": None}
    colour = base.coloured("p", thresholds, title="fast_p at p =")
    shape = base.shaped("p", thresholds, title="fast_p at p =")
    tip = base.tip(entry="entry", run="run", p="p", share="share", low="from", high="to")
    interval = {"y": y, "yOffset": offset, "x": x | {"field": "low"}, "x2": {"field": "high"}, "color": colour}
    return figure(
        name,
        "fast_p of the entries",
        f"fast_p of {len(entries)} entries with 95 % intervals over tasks (measured). First: "
        f"{base.words(first.run)} with "
        + ", ".join(f"{percent(point.value)} at p = {number(point.p)}" for point in first.fast_p)
        + ".",
        [
            base.layer({"type": "rule", "strokeWidth": 1.2}, **interval),
            base.layer(base.point(46), y=y, yOffset=offset, x=x, color=colour, shape=shape, tooltip=tip),
        ],
        height=(11 * len(thresholds) + 14) * len(entries),
        rows=rows,
    )


def _correct(view: Board, links: Links) -> Drawing:
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
    first = view.entries[0]
    y, x = base.names("entry"), _share_axis(view, "correct, share of all {tasks} tasks")
    tip = base.tip(entry="entry", run="run", ok="tasks", share="share", low="from", high="to")
    interval = {"type": "rule", "strokeWidth": 1.4, "style": "ink"}
    return figure(
        name,
        "Correct tasks of the entries",
        f"Share of {view.key.task_count} tasks with something correct, of {len(rows)} entries, with 95 % intervals "
        f"over tasks. First: {base.words(first.run)} with {percent(first.correct.value)}.",
        [
            base.layer(base.BAR | {"color": base.BLUE}, y=y, x=x, tooltip=tip),
            base.layer(interval, y=y, x=x | {"field": "low"}, x2={"field": "high"}),
        ],
        height=base.rows_height(len(rows)),
        rows=rows,
    )


def _scatter(view: CompareView, links: Links) -> Drawing:
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
    x = base.logarithmic("a", f"a: {base.words(view.a)}, {unit}", spread)
    y = base.logarithmic("b", f"b: {base.words(view.b)}, {unit}", spread)
    diagonal = [{"a": end, "b": end} for end in x["scale"]["domain"]]
    outcomes = tuple(_OUTCOMES.values())
    colour, shape = base.coloured("outcome", outcomes, _COLOURS), base.shaped("outcome", outcomes)
    tip = base.tip(task="task", a="a", b="b", outcome="", why="why")
    dashed = {"type": "line", "color": base.GREY, "strokeDash": [4, 3], "strokeWidth": 1.2}
    mark = base.point(52, opacity=0.9, **base.pointer(links))
    return figure(
        name,
        "Task by task",
        f"Best of {len(rows)} tasks in run {base.words(view.a)} (a) against run {base.words(view.b)} (b), {unit}; "
        f"below the diagonal b is better. b wins {view.wins}, loses {view.losses}, ties {view.ties}; both failed "
        f"{view.both_failed}; {len(view.pairs) - len(rows)} tasks without a value in both are not drawn.",
        [
            base.layer(dashed, diagonal, x=x, y=y),
            base.layer(mark, rows, x=x, y=y, color=colour, shape=shape, tooltip=tip),
        ],
        height=360,
    )
