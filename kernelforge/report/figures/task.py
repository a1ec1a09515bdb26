"""Charts of a task: each attempt's result, and the best so far."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from kernelforge.records import Origin, Verdict
from kernelforge.report.figures import base
from kernelforge.report.figures.base import Absent, Drawing, Figure, Row, figure, figures_of
from kernelforge.report.figures.speedups import MODELLED, NO_SPEEDUP
from kernelforge.report.formatting import number
from kernelforge.report.views.task import LineageNode, TaskView

_BEST, _KEPT_OUT, _FAILED = "became the best", "correct", "not correct"
_KINDS = (_BEST, _KEPT_OUT, _FAILED)
_COLOURS = (base.GREEN, base.BLUE, base.VERMILLION)


class _Quantity(NamedTuple):
    """What attempts are compared by."""

    name: str
    field: str
    title: str
    axis: str


def draw_task(view: TaskView, links: Mapping[str, str] | None = None) -> tuple[Drawing, ...]:
    """Every figure of a task, and of those that cannot be drawn why.

    Args:
        links: where a mark of an attempt leads, by the attempt's id: addresses of our own pages, relative to the page.
    """
    nodes = sorted(view.lineage, key=lambda node: node.number)
    links = links or {}
    modelled = any(node.origin is Origin.MODELLED for node in nodes)
    origin = "modelled" if modelled else "measured"
    return (
        Absent(name="attempts-speedup", why=MODELLED)
        if modelled
        else _attempts(
            nodes,
            _Quantity(
                "attempts-speedup", "speedup", "Speedup by attempt", "speedup over the fastest baseline (measured)"
            ),
            links,
            NO_SPEEDUP.replace("task", "attempt"),
        ),
        _attempts(
            nodes,
            _Quantity("attempts-time", "time_us", "Time by attempt", f"µs at the full size ({origin})"),
            links,
            "no attempt has a time",
        ),
        _attempts(
            nodes,
            _Quantity("attempts-dram", "dram_ratio", "DRAM traffic by attempt", f"DRAM bytes / least ({origin})"),
            links,
            "no attempt has counters of DRAM traffic",
        ),
    )


def task_figures(view: TaskView, links: Mapping[str, str] | None = None) -> tuple[Figure, ...]:
    """The figures that can be drawn of a task; see :func:`draw_task`."""
    return figures_of(draw_task(view, links))


def _attempts(nodes: Sequence[LineageNode], what: _Quantity, links: Mapping[str, str], why: str) -> Drawing:
    """One mark per attempt over its number, and a line through those that became the best."""
    shown: list[Row] = []
    failed: list[Row] = []
    for node in nodes:
        value = getattr(node, what.field)
        row = base.linked(
            {"number": node.number, "step": base.words(node.step), "verdict": node.outcome}, links.get(node.id)
        )
        if node.verdict is not Verdict.OK or node.uncompared:
            failed.append(row | {"kind": _FAILED})
        elif base.positive(value):
            shown.append(row | {"kind": _BEST if node.accepted else _KEPT_OUT, "value": value})
    if not shown:
        return Absent(name=what.name, why=why)
    values = [row["value"] for row in shown]
    last = nodes[-1].number
    x = base.quantity("number", "attempt", ticks="d", zero=False, grid=False)
    x["axis"] |= {"tickMinStep": 1}
    x["scale"] = {"domain": [min(node.number for node in nodes) - 0.5, last + 0.5], "nice": False}
    y = base.logarithmic("value", what.axis, values, about=(1.0,) if what.field != "time_us" else ())
    best = [row for row in shown if row["kind"] == _BEST]
    steps = [*best, *([best[-1] | {"number": last}] if best else [])]
    look = {
        "color": base.coloured("kind", _KINDS, _COLOURS),
        "shape": base.shaped("kind", _KINDS),
    }
    look["shape"]["scale"]["range"] = ["circle", "square", "cross"]
    mark = {"type": "point", "filled": True, "size": 48, "opacity": 1, **({"cursor": "pointer"} if links else {})}
    layers = [
        {
            "data": base.data(steps),
            "mark": {"type": "line", "interpolate": "step-after", "color": base.GREY, "strokeWidth": 1.6},
            "encoding": {"x": x, "y": y},
        },
        {
            "data": base.data(shown),
            "mark": mark,
            "encoding": {
                "x": x,
                "y": y,
                **look,
                "tooltip": base.tip(number="attempt", step="step", value=what.axis, kind=""),
            },
        },
    ]
    if failed:
        layers.append(
            {
                "data": base.data(failed),
                "mark": mark | {"size": 40},
                "encoding": {
                    "x": x,
                    "y": {"value": {"expr": "height"}},  # on the axis: it has no value
                    **look,
                    "tooltip": base.tip(number="attempt", step="step", verdict="verdict"),
                },
            }
        )
    if what.field != "time_us":
        layers.insert(0, base.reference("y", 1.0))
    best_words = f"; the best is {number(best[-1]['value'])} (attempt {best[-1]['number']})" if best else ""
    return figure(
        what.name,
        what.title,
        f"{len(nodes)} attempts by number, {what.axis}: from {number(values[0])} (the first correct one){best_words}; "
        f"{len(failed)} are not correct and are marked on the axis.",
        {"layer": layers},
    )
