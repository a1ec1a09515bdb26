"""Charts of a run: best result over its budgets, funnel, time and money spent."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import NamedTuple

from kernelforge.report.figures import base
from kernelforge.report.figures.base import Absent, Drawing, Links, figure
from kernelforge.report.figures.speedups import MODELLED, fast_p, speedups, task_bars, task_dram
from kernelforge.report.formatting import duration, number, percent
from kernelforge.report.views.curves import AnytimePoint, Spent
from kernelforge.report.views.funnel import FunnelStep
from kernelforge.report.views.run import RunView


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
