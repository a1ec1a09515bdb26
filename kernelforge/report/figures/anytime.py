"""Charts of a run's best result against dollars, evaluations and time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import NamedTuple

from kernelforge.report.figures import base
from kernelforge.report.figures.base import Absent, Drawing, figure
from kernelforge.report.figures.speedups import MODELLED
from kernelforge.report.formatting import number
from kernelforge.report.views.anytime import AnytimePoint


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
