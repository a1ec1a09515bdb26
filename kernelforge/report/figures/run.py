"""Charts of a run: best result over its budgets, funnel, time and money spent."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import NamedTuple

from kernelforge.report.figures import base
from kernelforge.report.figures.base import Absent, Drawing, Figure, figure, figures_of
from kernelforge.report.figures.speedups import MODELLED, fast_p, speedups, task_bars, task_dram
from kernelforge.report.formatting import duration, number, percent
from kernelforge.report.views.curves import AnytimePoint, Spent
from kernelforge.report.views.funnel import FunnelStep
from kernelforge.report.views.run import RunView


def draw_run(view: RunView, links: Mapping[str, str] | None = None) -> tuple[Drawing, ...]:
    """Every figure of a run, and of those that cannot be drawn why.

    Args:
        links: where a mark of a task leads, by the task's name: addresses of our own pages, relative to the page.
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


def run_figures(view: RunView, links: Mapping[str, str] | None = None) -> tuple[Figure, ...]:
    """The figures that can be drawn of a run; see :func:`draw_run`."""
    return figures_of(draw_run(view, links))


class _Measure(NamedTuple):
    """What is best so far."""

    name: str
    field: str
    title: str
    axis: str


class _Budget(NamedTuple):
    """What it is drawn against."""

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
    measures = [one._replace(axis=one.axis.format(tasks=tasks, origin=origin)) for one in (_SPEEDUP, _CORRECT, _DRAM)]
    return tuple(_curve(points, one, budget, modelled) for one in measures for budget in _BUDGETS)


def _curve(points: Sequence[AnytimePoint], measure: _Measure, budget: _Budget, modelled: bool) -> Drawing:
    name = f"anytime-{measure.name}-{budget.name}"
    if modelled and measure.name == "speedup":
        return Absent(name=name, why=MODELLED)
    reached: Callable[[AnytimePoint], float | None] = attrgetter(measure.field)
    spent: Callable[[AnytimePoint], float | None] = attrgetter(budget.name)
    known = [point for point in points if base.finite(reached(point)) and base.finite(spent(point))]
    if not known:
        return Absent(name=name, why=f"no evaluation has a value of: {measure.axis}")
    if budget.absent and not any(spent(point) for point in known):
        return Absent(name=name, why=budget.absent)
    corners = [
        point
        for index, point in enumerate(known)
        if index in (0, len(known) - 1) or reached(point) != reached(known[index - 1])
    ]  # between its corners a step curve says nothing more
    rows = [
        {"spent": spent(point), "reached": reached(point), "attempt": base.words(point.attempt)} for point in corners
    ]
    last = known[-1]
    y = base.quantity("reached", measure.axis, zero=measure.name == "correct")
    if measure.name == "correct":
        y["axis"] |= {"tickMinStep": 1, "format": "d"}
    x = base.quantity("spent", budget.axis, ticks=budget.ticks)
    encoding = {"x": x, "y": y}
    return figure(
        name,
        f"{measure.title} over {budget.name}",
        f"Best so far over {budget.axis}: {measure.axis} goes from {number(reached(known[0]))} to "
        f"{number(reached(last))} within {number(spent(last))} {budget.name}.",
        {
            "data": base.data(rows),
            "layer": [
                {
                    "mark": {"type": "line", "interpolate": "step-after", "color": base.BLUE, "strokeWidth": 2},
                    "encoding": encoding,
                },
                {
                    "mark": {"type": "point", "filled": True, "size": 22, "color": base.BLUE, "opacity": 1},
                    "encoding": encoding
                    | {"tooltip": base.tip(attempt="attempt", spent=budget.axis, reached=measure.axis)},
                },
            ],
        },
    )


_BAR = {"type": "bar", "height": {"band": 0.66}, "color": base.BLUE}
_KINDS = {"agent": "agents", "evaluation": "evaluations", "rest": "the rest"}
_COLOURS = {"agents": base.BLUE, "evaluations": base.GREEN, "the rest": base.GREY}
_BESIDE = {"type": "text", "align": "left", "dx": 5}


def funnel(steps: Sequence[FunnelStep]) -> Drawing:
    """How many attempts came through each gate."""
    name = "funnel"
    if not steps or not steps[0].count:
        return Absent(name=name, why="there is no attempt")
    total = steps[0].count
    rows = [{"step": base.words(step.step), "count": step.count, "share": step.count / total} for step in steps]
    x = base.quantity("count", "attempts that came through", ticks="d")
    x["axis"] |= {"tickMinStep": 1}
    y = base.names("step")
    return figure(
        name,
        "How far attempts came",
        "Attempts that came through each gate: "
        + ", ".join(f"{step.step} {step.count} ({percent(step.count / total)})" for step in steps)
        + ".",
        {
            "height": base.rows_height(len(rows)),
            "data": base.data(rows),
            "layer": [
                {
                    "mark": _BAR,
                    "encoding": {"y": y, "x": x, "tooltip": base.tip(step="gate", count="attempts", share="share")},
                },
                {"mark": _BESIDE, "encoding": {"y": y, "x": x, "text": {"field": "count", "type": "quantitative"}}},
            ],
        },
    )


def spent_time(spent: Sequence[Spent]) -> Drawing:
    """Seconds by agent and by stage of evaluation."""
    parts = sorted((one for one in spent if base.positive(one.seconds)), key=lambda one: -one.seconds)
    if not parts:
        return Absent(name="spent-time", why="no time is recorded")
    rows = _rows(parts, [one.seconds for one in parts])
    total = sum(one.seconds for one in parts)
    return _bars(
        "spent-time",
        "Where the time went",
        f"{duration(total)} of work, summed over workers (measured): "
        + ", ".join(f"{base.words(one.what)} {duration(one.seconds)}" for one in parts)
        + ".",
        rows,
        "seconds of wall time, summed over workers (measured)",
        ",.3~r",
    )


def spent_money(spent: Sequence[Spent]) -> Drawing:
    """Dollars by agent."""
    name = "spent-money"
    parts = sorted((one for one in spent if base.positive(one.dollars)), key=lambda one: -(one.dollars or 0))
    if not parts:
        return Absent(name=name, why="nothing was bought, or no price is known")
    unknown = [base.words(one.what) for one in spent if one.kind == "agent" and one.dollars is None]
    rows = _rows(parts, [one.dollars for one in parts])
    return _bars(
        name,
        "Where the money went" + (" (not all prices are known)" if unknown else ""),
        "US dollars paid to models: "
        + ", ".join(f"{base.words(one.what)} ${number(one.dollars)}" for one in parts)
        + (f"; the price is unknown for {', '.join(unknown)}" if unknown else "")
        + ".",
        rows,
        "US dollars paid to models",
        "$,.3~r",
    )


def _rows(parts: Sequence[Spent], amounts: Sequence[float | None]) -> list[base.Row]:
    whats = base.labels([one.what for one in parts])
    return [
        {"what": what, "amount": amount, "kind": _KINDS[one.kind]}
        for one, what, amount in zip(parts, whats, amounts, strict=True)
    ]


def _bars(name: str, title: str, description: str, rows: list[base.Row], axis: str, ticks: str) -> Drawing:
    x = base.below(base.quantity("amount", axis, ticks=ticks), ticks=5)
    y = base.names("what")
    kinds = [kind for kind in _KINDS.values() if any(row["kind"] == kind for row in rows)]
    colour = base.coloured("kind", kinds, [_COLOURS[kind] for kind in kinds])
    if len(kinds) == 1:
        colour["legend"] = None
    return figure(
        name,
        title,
        description,
        {
            "height": base.rows_height(len(rows)),
            "data": base.data(rows),
            "layer": [
                {
                    "mark": {"type": "bar", "height": {"band": 0.66}},
                    "encoding": {"y": y, "x": x, "color": colour, "tooltip": base.tip(what="for", amount=axis)},
                },
                {
                    "mark": _BESIDE,
                    "encoding": {"y": y, "x": x, "text": {"field": "amount", "type": "quantitative", "format": ticks}},
                },
            ],
        },
    )
