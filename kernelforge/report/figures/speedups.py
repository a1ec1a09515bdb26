"""Charts of a run's tasks: fast_p, distribution of speedups, one bar per task."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from kernelforge.records import Origin
from kernelforge.report.figures import base
from kernelforge.report.figures.base import Absent, Drawing, Figure, Row, figure
from kernelforge.report.formatting import number, percent, times
from kernelforge.report.views.curves import FASTEST, FastCurve
from kernelforge.report.views.summary import TaskSummary

MODELLED = "the times of this run are modelled, and a modelled time has no speedup"
NO_SPEEDUP = "no task has a measured speedup"
MANY = 60
"""Above this number of tasks, bars are drawn of the first and last ones alone: nobody reads 250 labels."""
EACH_END = 25

_FASTER, _SLOWER, _CLOSE = "faster", "slower", "too close to tell"
_OUTCOMES = (_FASTER, _SLOWER, _CLOSE)
_OUTCOME_COLOURS = (base.GREEN, base.VERMILLION, base.GREY)


def fast_p(curves: Sequence[FastCurve], *, modelled: bool = False) -> tuple[Drawing, ...]:
    """Share of all tasks that are correct and more than p times as fast: ``fast-p`` against every baseline, with the
    bootstrap band of the first; then ``fast-p-BASELINE`` with the band of each.

    Source of the statistic: KernelBench, arXiv:2502.10517, section 3.3.
    """
    drawn = [curve for curve in curves if curve.points]
    if modelled or not drawn:
        return (Absent(name="fast-p", why=MODELLED if modelled else NO_SPEEDUP),)
    alone = [
        _fast_p(f"fast-p-{_slug(curve.baseline)}", f"fast_p against {_full(curve.baseline)}", [curve])
        for curve in drawn
    ]
    named = {one.name: one for one in alone}  # two names that meet in one slug: baselines of ours never do
    return (_fast_p("fast-p", "fast_p", drawn), *named.values())


def _fast_p(name: str, title: str, drawn: Sequence[FastCurve]) -> Figure:
    rows = [
        {
            "baseline": base.words(curve.baseline),
            "p": point.p,
            "share": point.value,
            "low": point.low,
            "high": point.high,
        }
        for curve in drawn
        for point in curve.points
    ]
    baselines = list(dict.fromkeys(base.words(curve.baseline) for curve in drawn))
    legend = {"symbolType": "stroke", "symbolSize": 300, "symbolStrokeWidth": 2}
    colour = base.coloured("baseline", baselines) | {"legend": legend}
    share = base.quantity("share", f"share of all {drawn[0].tasks} tasks (measured)", ticks="%")
    share["scale"] = {"domain": [0, 1]}
    p = base.quantity("p", "p, times as fast (measured)")
    layers = [
        {
            "data": base.data(rows[: len(drawn[0].points)]),
            "mark": {"type": "area", "interpolate": "step-after", "opacity": 0.18},
            "encoding": {"x": p, "y": share | {"field": "low"}, "y2": {"field": "high"}, "color": colour},
        },
        {
            "data": base.data(rows),
            "mark": {"type": "line", "interpolate": "step-after", "strokeWidth": 2},
            "encoding": {
                "x": p,
                "y": share,
                "color": colour,
                "strokeDash": base.dashed("baseline", baselines) | {"legend": legend},
                "tooltip": base.tip(baseline="baseline", p="p", share="share", low="from", high="to"),
            },
        },
        base.reference("x", 1.0),
    ]
    said = "; ".join(f"against {base.words(curve.baseline)}, {_at_one(curve)}" for curve in drawn)
    weaker = drawn[0].uncompiled
    without = f" At {weaker} of them torch.compile was not among the baselines." if weaker else ""
    return figure(
        name,
        title,
        f"Share of {drawn[0].tasks} tasks that are correct and more than p times as fast as a baseline, with 95 % "
        f"intervals over tasks (measured): {said}. The band is that of {baselines[0]}.{without}",
        {"layer": layers},
    )


def _full(baseline: str) -> str:
    return "the fastest baseline" if baseline == FASTEST else base.words(baseline)


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:40] or "unnamed"


def _at_one(curve: FastCurve) -> str:
    at = [point for point in curve.points if point.p <= 1.0]
    if not at:
        return f"{percent(curve.points[0].value)} at p = {number(curve.points[0].p)}"
    return f"{percent(at[-1].value)} [{percent(at[-1].low)}, {percent(at[-1].high)}] at p = {number(at[-1].p)}"


def speedups(tasks: Sequence[TaskSummary], links: Mapping[str, str], *, modelled: bool = False) -> Drawing:
    """One mark per task with a speedup, from the greatest to the least, on a logarithmic axis."""
    name = "speedups"
    with_one = _by_speedup(tasks)
    if modelled or not with_one:
        return Absent(name=name, why=MODELLED if modelled else NO_SPEEDUP)
    rows = [row | {"rank": rank} for rank, row in enumerate(_speedup_rows(with_one, links), 1)]
    without = len(tasks) - len(rows)
    rank = base.quantity("rank", f"tasks by speedup: {len(rows)} of {len(tasks)} have one", ticks="d", zero=False)
    rank["axis"] |= {"grid": False}
    rank["scale"] = {"domain": [0, len(rows) + 1], "nice": False}
    spread = [row[end] for row in rows for end in ("speedup", "low", "high") if end in row]
    axis = base.logarithmic("speedup", "speedup over the fastest baseline (measured)", spread, about=(1.0,))
    values = [row["speedup"] for row in rows]
    return figure(
        name,
        "Speedups of the tasks",
        f"Speedup of {len(rows)} tasks against their fastest baseline (measured), from {times(values[0])} to "
        f"{times(values[-1])}; {sum(value > 1 for value in values)} are above 1; {without} of {len(tasks)} tasks have "
        "none.",
        {
            "data": base.data(rows),
            "layer": [
                base.reference("y", 1.0),
                _interval("y", axis, {"x": rank}),
                {
                    "mark": _point(links) | {"size": 42 if len(rows) <= MANY else 20},
                    "encoding": {"x": rank, "y": axis, **_outcome(), "tooltip": _SPEEDUP_TIP},
                },
            ],
        },
    )


def task_bars(tasks: Sequence[TaskSummary], links: Mapping[str, str], *, modelled: bool = False) -> Drawing:
    """One bar per task: its speedup with interval when measured."""
    name = "task-speedups"
    with_one = _by_speedup(tasks)
    if modelled or not with_one:
        return Absent(name=name, why=MODELLED if modelled else NO_SPEEDUP)
    shown, left_out = _ends(with_one)
    rows = [row | {"one": 1.0} for row in _speedup_rows(shown, links)]
    spread = [row[end] for row in rows for end in ("speedup", "low", "high") if end in row]
    axis = base.logarithmic("speedup", "speedup over the fastest baseline (measured)", spread, about=(1.0,))
    y = base.names("task")
    values = [task.speedup for task in with_one]
    return figure(
        name,
        "Speedup by task" + left_out,
        f"Speedup of each task against its fastest baseline with the 95 % interval (measured): from {times(values[0])} "
        f"({base.words(with_one[0].task)}) to {times(values[-1])} ({base.words(with_one[-1].task)}){left_out}.",
        {
            "height": base.rows_height(len(rows)),
            "data": base.data(rows),
            "layer": [
                {
                    "mark": {"type": "bar", "height": {"band": 0.62}, **_pointer(links)},
                    "encoding": {
                        "y": y,
                        "x": base.below(axis),
                        "x2": {"field": "one"},
                        "color": _outcome()["color"],
                        "tooltip": _SPEEDUP_TIP,
                    },
                },
                _interval("x", axis, {"y": y}, colour=None),
                base.reference("x", 1.0, dash=(1, 0)),
            ],
        },
    )


def task_dram(tasks: Sequence[TaskSummary], links: Mapping[str, str]) -> Drawing:
    """One bar per correct task: DRAM bytes over the least there can be."""
    name = "task-dram"
    with_one = sorted(
        (task for task in tasks if task.correct and base.positive(task.dram_ratio)),
        key=lambda task: (task.dram_ratio or 0, task.task),
    )
    if not with_one:
        return Absent(name=name, why="no correct attempt has counters of DRAM traffic")
    shown, left_out = _ends(with_one)
    origin = _counter_origin(with_one)
    rows = [
        base.linked(
            {"task": label, "ratio": task.dram_ratio, "bytes": task.dram_bytes, "one": 1.0},
            links.get(task.task),
        )
        for task, label in zip(shown, base.labels([task.task for task in shown]), strict=True)
    ]
    ratios = [task.dram_ratio for task in with_one if task.dram_ratio is not None]
    about = (1.0, 2.0, 1.15 * max(ratios))  # room for the numbers beside the bars
    axis = base.logarithmic("ratio", f"DRAM bytes / least there can be ({origin})", ratios, about=about)
    return figure(
        name,
        "DRAM traffic by task" + left_out,
        f"DRAM bytes of the best attempt of {len(with_one)} tasks over the bytes that have to move ({origin}): from "
        f"{times(ratios[0])} ({base.words(with_one[0].task)}) to {times(ratios[-1])} "
        f"({base.words(with_one[-1].task)}){left_out}; 1 is the least.",
        {
            "height": base.rows_height(len(rows)),
            "data": base.data(rows),
            "layer": [
                {
                    "mark": {"type": "bar", "height": {"band": 0.62}, "color": base.BLUE, **_pointer(links)},
                    "encoding": {
                        "y": base.names("task"),
                        "x": base.below(axis),
                        "x2": {"field": "one"},
                        "tooltip": base.tip(task="task", ratio="times the least", bytes="DRAM bytes"),
                    },
                },
                {
                    "mark": {"type": "text", "align": "left", "dx": 5},
                    "encoding": {
                        "y": base.names("task"),
                        "x": axis,
                        "text": {"field": "ratio", "type": "quantitative", "format": ".3~r"},
                    },
                },
                base.reference("x", 1.0, dash=(1, 0)),
            ],
        },
    )


_SPEEDUP_TIP = base.tip(task="task", speedup="speedup", low="from", high="to", outcome="at 95 %")


def _by_speedup(tasks: Sequence[TaskSummary]) -> list[TaskSummary]:
    """Tasks with a measured speedup, the greatest first."""
    return sorted(
        (task for task in tasks if task.correct and base.positive(task.speedup)),
        key=lambda task: (-(task.speedup or 0), task.task),
    )


def _speedup_rows(tasks: Sequence[TaskSummary], links: Mapping[str, str]) -> Iterator[Row]:
    for task, label in zip(tasks, base.labels([task.task for task in tasks]), strict=True):
        yield base.linked(_speedup_row(task, label), links.get(task.task))


def _speedup_row(task: TaskSummary, label: str) -> Row:
    speedup, low, high = task.speedup or 0.0, task.speedup_lower, task.speedup_upper
    outcome = _CLOSE
    if (speedup if low is None else low) > 1:
        outcome = _FASTER
    elif (speedup if high is None else high) < 1:
        outcome = _SLOWER
    row: Row = {"task": label, "speedup": speedup, "outcome": outcome}
    if base.positive(low):
        row["low"] = low
    if base.positive(high):
        row["high"] = high
    return row


def _outcome() -> dict[str, base.Encoding]:
    return {
        "color": base.coloured("outcome", _OUTCOMES, _OUTCOME_COLOURS),
        "shape": base.shaped("outcome", _OUTCOMES),
    }


def _interval(
    channel: str, axis: base.Encoding, other: dict[str, base.Encoding], colour: str | None = base.GREY
) -> Row:
    """Lines from the lower to the upper end of the intervals; no colour: that of text."""
    ends = {channel: axis | {"field": "low"}, f"{channel}2": {"field": "high"}}
    return {
        "transform": [{"filter": "isValid(datum.low) && isValid(datum.high)"}],
        "mark": {"type": "rule", "strokeWidth": 1.4, **({"color": colour} if colour else {"style": "ink"})},
        "encoding": {**other, **ends},
    }


def _point(links: Mapping[str, str]) -> dict[str, object]:
    return {"type": "point", "filled": True, "opacity": 1, **_pointer(links)}


def _pointer(links: Mapping[str, str]) -> dict[str, str]:
    return {"cursor": "pointer"} if links else {}


def _ends(tasks: list[TaskSummary]) -> tuple[list[TaskSummary], str]:
    """The tasks to draw bars of, and in words which are left out."""
    if len(tasks) <= MANY:
        return tasks, ""
    middle = len(tasks) - 2 * EACH_END
    return [*tasks[:EACH_END], *tasks[-EACH_END:]], f" (first and last {EACH_END}; {middle} between them left out)"


def _counter_origin(tasks: Sequence[TaskSummary]) -> str:
    """Counters of a run whose times are modelled are counted over the PTX that ran; else hardware counted them."""
    return " and ".join(sorted({("measured" if task.origin is Origin.MEASURED else "modelled") for task in tasks}))
