"""Charts of a run: its tasks by speedup and traffic, best result over its budgets, funnel, time and money spent."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter
from typing import NamedTuple

from kernelforge.records import Origin
from kernelforge.report.figures import base
from kernelforge.report.figures.base import Absent, Drawing, Encoding, Figure, Links, Row, figure
from kernelforge.report.formatting import duration, number, percent, times
from kernelforge.report.views.curves import FASTEST, AnytimePoint, FastCurve, Spent
from kernelforge.report.views.funnel import FunnelStep
from kernelforge.report.views.run import RunView
from kernelforge.report.views.run_records import TaskSummary


def draw_run(view: RunView, links: Links | None = None) -> tuple[Drawing, ...]:
    """Every figure of a run; for those that cannot be drawn, the reason.

    Args:
        links: address that the mark of a task leads to, by the task's name.
    """
    links = links or {}
    modelled = view.origin == "modelled"
    return (
        *fast_p(view.fast_curves, modelled=modelled),
        speedups(view.tasks, links, modelled=modelled),
        task_bars(view.tasks, links, modelled=modelled),
        task_dram(view.tasks, links),
        *anytime(view.anytime, view.tasks_total, modelled=modelled),
        funnel(view.funnel),
        spent_time(view.spent),
        spent_money(view.spent),
    )


class _Measure(NamedTuple):
    """A quantity of which the best so far is drawn."""

    name: str
    field: str
    title: str
    axis: str


class _Budget(NamedTuple):
    """The horizontal axis of a curve."""

    name: str
    axis: str
    ticks: str
    absent: str


_SPEEDUP = _Measure("speedup", "geomean_speedup", "Speedup", "geomean of max(speedup, 1) (measured)")
_CORRECT = _Measure("correct", "tasks_ok", "Correct tasks", "correct tasks, of {tasks}")
_DRAM = _Measure("dram", "median_dram_ratio", "DRAM traffic", "median DRAM bytes / least ({origin})")
_BUDGETS = (
    _Budget("dollars", "US dollars paid", "$" + base.PLAIN, "nothing was bought, or a price is unknown"),
    _Budget("evaluations", "evaluations", "d", ""),
    _Budget("seconds", "seconds since the run began (wall time)", base.PLAIN, ""),
)


def anytime(points: Sequence[AnytimePoint], tasks: int, *, modelled: bool = False) -> tuple[Drawing, ...]:
    """Each measure against each budget: ``anytime-speedup-dollars``, ``anytime-correct-evaluations``..."""
    origin = "modelled" if modelled else "measured"
    measures = [
        measure._replace(axis=measure.axis.format(tasks=tasks, origin=origin))
        for measure in (_SPEEDUP, _CORRECT, _DRAM)
    ]
    return tuple(_curve(points, measure, budget, modelled) for measure in measures for budget in _BUDGETS)


def _curve(points: Sequence[AnytimePoint], measure: _Measure, budget: _Budget, modelled: bool) -> Drawing:
    name = f"anytime-{measure.name}-{budget.name}"
    if modelled and measure.name == "speedup":
        return Absent(name=name, why=MODELLED)
    reached: Callable[[AnytimePoint], float | None] = attrgetter(measure.field)
    spent: Callable[[AnytimePoint], float | None] = attrgetter(budget.name)
    drawn = [point for point in points if base.finite(reached(point)) and base.finite(spent(point))]
    if not drawn:
        return Absent(name=name, why=f"no evaluation has a value of: {measure.axis}")
    if budget.absent and not any(spent(point) for point in drawn):
        return Absent(name=name, why=budget.absent)
    first, last = drawn[0], drawn[-1]
    corners = [
        point
        for index, point in enumerate(drawn)
        if index in (0, len(drawn) - 1) or reached(point) != reached(drawn[index - 1])
    ]  # points between the corners of a step curve add nothing
    rows = [
        {"spent": spent(point), "reached": reached(point), "attempt": base.words(point.attempt)} for point in corners
    ]
    y = base.quantity("reached", measure.axis, zero=measure.name == "correct")
    if measure.name == "correct":
        y["axis"] |= {"tickMinStep": 1, "format": "d"}
    x = base.quantity("spent", budget.axis, ticks=budget.ticks)
    tip = base.tip(attempt="attempt", spent=budget.axis, reached=measure.axis)
    line = {"type": "line", "interpolate": "step-after", "color": base.BLUE, "strokeWidth": 2}
    return figure(
        name,
        f"{measure.title} over {budget.name}",
        f"Best so far over {budget.axis}: {measure.axis} goes from {number(reached(first))} to "
        f"{number(reached(last))} within {number(spent(last))} {budget.name}.",
        [base.layer(line, x=x, y=y), base.layer(base.point(22, color=base.BLUE), x=x, y=y, tooltip=tip)],
        rows=rows,
    )


_BAR = {"type": "bar", "height": {"band": 0.66}}
_VALUE = {"type": "text", "align": "left", "dx": 5}
_KINDS = {"agent": "agents", "evaluation": "evaluations", "rest": "the rest"}
_COLOURS = {"agents": base.BLUE, "evaluations": base.GREEN, "the rest": base.GREY}


def funnel(steps: Sequence[FunnelStep]) -> Drawing:
    """Attempts that passed each step."""
    name = "funnel"
    if not steps or not steps[0].count:
        return Absent(name=name, why="there is no attempt")
    total = steps[0].count
    rows = [{"step": base.words(step.step), "count": step.count, "share": step.count / total} for step in steps]
    x = base.quantity("count", "attempts that came through", ticks="d")
    x["axis"] |= {"tickMinStep": 1}
    y = base.names("step")
    tip = base.tip(step="gate", count="attempts", share="share")
    return figure(
        name,
        "How far attempts came",
        "Attempts that came through each gate: "
        + ", ".join(f"{step.step} {step.count} ({percent(step.count / total)})" for step in steps)
        + ".",
        [
            base.layer(_BAR | {"color": base.BLUE}, y=y, x=x, tooltip=tip),
            base.layer(_VALUE, y=y, x=x, text={"field": "count", "type": "quantitative"}),
        ],
        height=base.rows_height(len(rows)),
        rows=rows,
    )


def spent_time(spent: Sequence[Spent]) -> Drawing:
    """Seconds by agent and by stage of evaluation."""
    parts = sorted((part for part in spent if base.positive(part.seconds)), key=lambda part: -part.seconds)
    if not parts:
        return Absent(name="spent-time", why="no time is recorded")
    return _bars(
        "spent-time",
        "Where the time went",
        f"{duration(sum(part.seconds for part in parts))} of work, summed over workers (measured): "
        + ", ".join(f"{base.words(part.what)} {duration(part.seconds)}" for part in parts)
        + ".",
        _rows(parts, [part.seconds for part in parts]),
        "seconds of wall time, summed over workers (measured)",
        ",.3~r",
    )


def spent_money(spent: Sequence[Spent]) -> Drawing:
    """Dollars by agent."""
    name = "spent-money"
    parts = sorted((part for part in spent if base.positive(part.dollars)), key=lambda part: -(part.dollars or 0))
    if not parts:
        return Absent(name=name, why="nothing was bought, or no price is known")
    unknown = [base.words(part.what) for part in spent if part.kind == "agent" and part.dollars is None]
    return _bars(
        name,
        "Where the money went" + (" (not all prices are known)" if unknown else ""),
        "US dollars paid to models: "
        + ", ".join(f"{base.words(part.what)} ${number(part.dollars)}" for part in parts)
        + (f"; the price is unknown for {', '.join(unknown)}" if unknown else "")
        + ".",
        _rows(parts, [part.dollars for part in parts]),
        "US dollars paid to models",
        "$,.3~r",
    )


def _rows(parts: Sequence[Spent], amounts: Sequence[float | None]) -> list[base.Row]:
    names = base.labels([part.what for part in parts])
    return [
        {"what": name, "amount": amount, "kind": _KINDS[part.kind]}
        for part, name, amount in zip(parts, names, amounts, strict=True)
    ]


def _bars(name: str, title: str, description: str, rows: list[base.Row], axis: str, ticks: str) -> Drawing:
    x = base.below(base.quantity("amount", axis, ticks=ticks), ticks=5)
    y = base.names("what")
    kinds = [kind for kind in _KINDS.values() if any(row["kind"] == kind for row in rows)]
    colour = base.coloured("kind", kinds, [_COLOURS[kind] for kind in kinds])
    if len(kinds) == 1:
        colour["legend"] = None
    amount = {"field": "amount", "type": "quantitative", "format": ticks}
    return figure(
        name,
        title,
        description,
        [
            base.layer(_BAR, y=y, x=x, color=colour, tooltip=base.tip(what="for", amount=axis)),
            base.layer(_VALUE, y=y, x=x, text=amount),
        ],
        height=base.rows_height(len(rows)),
        rows=rows,
    )


MODELLED = "the times of this run are modelled, and a modelled time has no speedup"
NO_SPEEDUP = "no task has a measured speedup"
MANY = 60
"""Above this number of tasks, only the first and last bars are drawn: 250 labels cannot be read."""
EACH_END = 25

_FASTER, _SLOWER, _CLOSE = "faster", "slower", "too close to tell"
_OUTCOMES = (_FASTER, _SLOWER, _CLOSE)
_COLOUR = base.coloured("outcome", _OUTCOMES, (base.GREEN, base.VERMILLION, base.GREY))
_TIP = base.tip(task="task", speedup="speedup", low="from", high="to", outcome="at 95 %")


def fast_p(curves: Sequence[FastCurve], *, modelled: bool = False) -> tuple[Drawing, ...]:
    """Share of all tasks that are correct and more than p times as fast.

    ``fast-p`` shows it against every baseline, with the bootstrap band of the first; ``fast-p-BASELINE`` against one
    baseline with its band.

    Source of the statistic: KernelBench, arXiv:2502.10517, section 3.3.
    """
    drawn = [curve for curve in curves if curve.points]
    if modelled or not drawn:
        return (Absent(name="fast-p", why=MODELLED if modelled else NO_SPEEDUP),)
    alone = [
        _fast_p(f"fast-p-{_slug(curve.baseline)}", f"fast_p against {_full(curve.baseline)}", [curve])
        for curve in drawn
    ]
    by_name = {figure.name: figure for figure in alone}  # two names with one slug; ours never have one
    return (_fast_p("fast-p", "fast_p", drawn), *by_name.values())


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
    first = drawn[0]
    baselines = list(dict.fromkeys(base.words(curve.baseline) for curve in drawn))
    legend = {"legend": {"symbolType": "stroke", "symbolSize": 300, "symbolStrokeWidth": 2}}
    colour, dash = base.coloured("baseline", baselines) | legend, base.dashed("baseline", baselines) | legend
    share = base.quantity("share", f"share of all {first.tasks} tasks (measured)", ticks="%")
    share["scale"] = {"domain": [0, 1]}
    p = base.quantity("p", "p, times as fast (measured)")
    area = {"type": "area", "interpolate": "step-after", "opacity": 0.18}
    line = {"type": "line", "interpolate": "step-after", "strokeWidth": 2}
    tip = base.tip(baseline="baseline", p="p", share="share", low="from", high="to")
    band = {"x": p, "y": share | {"field": "low"}, "y2": {"field": "high"}, "color": colour}
    values = "; ".join(f"against {base.words(curve.baseline)}, {_at_one(curve)}" for curve in drawn)
    weaker = first.uncompiled
    without = f" At {weaker} of them torch.compile was not among the baselines." if weaker else ""
    return figure(
        name,
        title,
        f"Share of {first.tasks} tasks that are correct and more than p times as fast as a baseline, with 95 % "
        f"intervals over tasks (measured): {values}. The band is that of {baselines[0]}.{without}",
        [
            base.layer(area, rows[: len(first.points)], **band),
            base.layer(line, rows, x=p, y=share, color=colour, strokeDash=dash, tooltip=tip),
            base.reference("x", 1.0),
        ],
    )


def _full(baseline: str) -> str:
    return "the fastest baseline" if baseline == FASTEST else base.words(baseline)


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:40] or "unnamed"


def _at_one(curve: FastCurve) -> str:
    below = [point for point in curve.points if point.p <= 1.0]
    if not below:
        return f"{percent(curve.points[0].value)} at p = {number(curve.points[0].p)}"
    last = below[-1]
    return f"{percent(last.value)} [{percent(last.low)}, {percent(last.high)}] at p = {number(last.p)}"


def speedups(tasks: Sequence[TaskSummary], links: Links, *, modelled: bool = False) -> Drawing:
    """One mark per task with a speedup, the greatest first, on a logarithmic axis."""
    name = "speedups"
    timed = _by_speedup(tasks)
    if modelled or not timed:
        return Absent(name=name, why=MODELLED if modelled else NO_SPEEDUP)
    rows = [row | {"rank": rank} for rank, row in enumerate(_speedup_rows(timed, links), 1)]
    rank = base.quantity("rank", f"tasks by speedup: {len(rows)} of {len(tasks)} have one", ticks="d", zero=False)
    rank["axis"] |= {"grid": False}
    rank["scale"] = {"domain": [0, len(rows) + 1], "nice": False}
    axis = _speedup_axis(rows)
    values = [row["speedup"] for row in rows]
    mark = base.point(42 if len(rows) <= MANY else 20, **base.pointer(links))
    shape = base.shaped("outcome", _OUTCOMES)
    return figure(
        name,
        "Speedups of the tasks",
        f"Speedup of {len(rows)} tasks against their fastest baseline (measured), from {times(values[0])} to "
        f"{times(values[-1])}; {sum(value > 1 for value in values)} are above 1; {len(tasks) - len(rows)} of "
        f"{len(tasks)} tasks have none.",
        [
            base.reference("y", 1.0),
            _intervals("y", axis, {"x": rank}),
            base.layer(mark, x=rank, y=axis, color=_COLOUR, shape=shape, tooltip=_TIP),
        ],
        rows=rows,
    )


def task_bars(tasks: Sequence[TaskSummary], links: Links, *, modelled: bool = False) -> Drawing:
    """One bar per task: its measured speedup with interval."""
    name = "task-speedups"
    timed = _by_speedup(tasks)
    if modelled or not timed:
        return Absent(name=name, why=MODELLED if modelled else NO_SPEEDUP)
    drawn, omitted = _ends(timed)
    rows = [row | {"one": 1.0} for row in _speedup_rows(drawn, links)]
    axis, y = _speedup_axis(rows), base.names("task")
    first, last = timed[0], timed[-1]
    bar = base.BAR | base.pointer(links)
    return figure(
        name,
        "Speedup by task" + omitted,
        "Speedup of each task against its fastest baseline with the 95 % interval (measured): from "
        f"{times(first.speedup)} ({base.words(first.task)}) to {times(last.speedup)} "
        f"({base.words(last.task)}){omitted}.",
        [
            base.layer(bar, y=y, x=base.below(axis), x2={"field": "one"}, color=_COLOUR, tooltip=_TIP),
            _intervals("x", axis, {"y": y}, colour=None),
            base.reference("x", 1.0, dash=(1, 0)),
        ],
        height=base.rows_height(len(rows)),
        rows=rows,
    )


def task_dram(tasks: Sequence[TaskSummary], links: Links) -> Drawing:
    """One bar per correct task: DRAM bytes over compulsory bytes."""
    name = "task-dram"
    counted = sorted(
        (task for task in tasks if task.correct and base.positive(task.dram_ratio)),
        key=lambda task: (task.dram_ratio or 0, task.task),
    )
    if not counted:
        return Absent(name=name, why="no correct attempt has counters of DRAM traffic")
    drawn, omitted = _ends(counted)
    # Counters of a run whose times are modelled are counted over the PTX that ran; else hardware counted them.
    origin = " and ".join(sorted({"measured" if task.origin is Origin.MEASURED else "modelled" for task in counted}))
    rows = [
        base.linked(
            {"task": label, "ratio": task.dram_ratio, "bytes": task.dram_bytes, "one": 1.0},
            links.get(task.task),
        )
        for task, label in zip(drawn, base.labels([task.task for task in drawn]), strict=True)
    ]
    ratios = [task.dram_ratio for task in counted if task.dram_ratio is not None]
    about = (1.0, 2.0, 1.15 * max(ratios))  # room for the numbers next to the bars
    axis = base.logarithmic("ratio", f"DRAM bytes / least there can be ({origin})", ratios, about=about)
    y = base.names("task")
    tip = base.tip(task="task", ratio="times the least", bytes="DRAM bytes")
    bar = base.BAR | {"color": base.BLUE, **base.pointer(links)}
    value = {"field": "ratio", "type": "quantitative", "format": ".3~r"}
    return figure(
        name,
        "DRAM traffic by task" + omitted,
        f"DRAM bytes of the best attempt of {len(counted)} tasks over the bytes that have to move ({origin}): from "
        f"{times(ratios[0])} ({base.words(counted[0].task)}) to {times(ratios[-1])} "
        f"({base.words(counted[-1].task)}){omitted}; 1 is the least.",
        [
            base.layer(bar, y=y, x=base.below(axis), x2={"field": "one"}, tooltip=tip),
            base.layer({"type": "text", "align": "left", "dx": 5}, y=y, x=axis, text=value),
            base.reference("x", 1.0, dash=(1, 0)),
        ],
        height=base.rows_height(len(rows)),
        rows=rows,
    )


def _by_speedup(tasks: Sequence[TaskSummary]) -> list[TaskSummary]:
    """Tasks with a measured speedup, the greatest first."""
    return sorted(
        (task for task in tasks if task.correct and base.positive(task.speedup)),
        key=lambda task: (-(task.speedup or 0), task.task),
    )


def _speedup_axis(rows: Sequence[Row]) -> Encoding:
    spread = [row[end] for row in rows for end in ("speedup", "low", "high") if end in row]
    return base.logarithmic("speedup", "speedup over the fastest baseline (measured)", spread, about=(1.0,))


def _speedup_rows(tasks: Sequence[TaskSummary], links: Links) -> Iterator[Row]:
    for task, label in zip(tasks, base.labels([task.task for task in tasks]), strict=True):
        speedup, low, high = task.speedup or 0.0, task.speedup_lower, task.speedup_upper
        outcome = _CLOSE
        if (speedup if low is None else low) > 1:
            outcome = _FASTER
        elif (speedup if high is None else high) < 1:
            outcome = _SLOWER
        row: Row = {"task": label, "speedup": speedup, "outcome": outcome}
        row |= {name: end for name, end in (("low", low), ("high", high)) if base.positive(end)}
        yield base.linked(row, links.get(task.task))


def _intervals(channel: str, axis: Encoding, other: dict[str, Encoding], colour: str | None = base.GREY) -> Row:
    """Lines from the lower to the upper end of the intervals; without a colour, in that of text."""
    mark = {"type": "rule", "strokeWidth": 1.4, **({"color": colour} if colour else {"style": "ink"})}
    ends = {channel: axis | {"field": "low"}, f"{channel}2": {"field": "high"}}
    return {
        "transform": [{"filter": "isValid(datum.low) && isValid(datum.high)"}],
        **base.layer(mark, **other, **ends),
    }


def _ends(tasks: list[TaskSummary]) -> tuple[list[TaskSummary], str]:
    """The tasks to draw bars of, and a remark on those left out."""
    if len(tasks) <= MANY:
        return tasks, ""
    middle = len(tasks) - 2 * EACH_END
    return [*tasks[:EACH_END], *tasks[-EACH_END:]], f" (first and last {EACH_END}; {middle} between them left out)"
