"""Charts of a task: each attempt's result, and the best so far."""

from __future__ import annotations

from collections.abc import Sequence

from kernelforge.records import Origin, Verdict
from kernelforge.report.figures import base
from kernelforge.report.figures.base import Absent, Drawing, Links, Row, figure
from kernelforge.report.figures.speedups import MODELLED, NO_SPEEDUP
from kernelforge.report.formatting import number
from kernelforge.report.views.task import LineageNode, TaskView

_BEST, _CORRECT, _FAILED = "became the best", "correct", "not correct"
_KINDS = (_BEST, _CORRECT, _FAILED)
_COLOURS = (base.GREEN, base.BLUE, base.VERMILLION)


def draw_task(view: TaskView, links: Links | None = None) -> tuple[Drawing, ...]:
    """Every figure of a task; for those that cannot be drawn, the reason.

    Args:
        links: address that the mark of an attempt leads to, by the attempt's id.
    """
    nodes = sorted(view.lineage, key=lambda node: node.number)
    links = links or {}
    modelled = any(node.origin is Origin.MODELLED for node in nodes)
    origin = "modelled" if modelled else "measured"
    speedup: Drawing = Absent(name="attempts-speedup", why=MODELLED)
    if not modelled:
        axis, why = "speedup over the fastest baseline (measured)", NO_SPEEDUP.replace("task", "attempt")
        speedup = _attempts(nodes, "speedup", ("attempts-speedup", "Speedup by attempt", axis, why), links)
    time = ("attempts-time", "Time by attempt", f"µs at the full size ({origin})", "no attempt has a time")
    why = "no attempt has counters of DRAM traffic"
    dram = ("attempts-dram", "DRAM traffic by attempt", f"DRAM bytes / least ({origin})", why)
    return (speedup, _attempts(nodes, "time_us", time, links), _attempts(nodes, "dram_ratio", dram, links))


def _attempts(nodes: Sequence[LineageNode], field: str, texts: tuple[str, str, str, str], links: Links) -> Drawing:
    """One mark per attempt over its number, and a line through those that became the best.

    Args:
        field: of a node, that is drawn.
        texts: name, title, title of the axis, and the reason where no attempt has a value.
    """
    name, title, axis, why = texts
    drawn: list[Row] = []
    failed: list[Row] = []
    for node in nodes:
        value = getattr(node, field)
        row = base.linked(
            {"number": node.number, "step": base.words(node.step), "verdict": node.outcome}, links.get(node.id)
        )
        if node.verdict is not Verdict.OK or node.uncompared:
            failed.append(row | {"kind": _FAILED})
        elif base.positive(value):
            drawn.append(row | {"kind": _BEST if node.accepted else _CORRECT, "value": value})
    if not drawn:
        return Absent(name=name, why=why)
    values = [row["value"] for row in drawn]
    last = nodes[-1].number
    x = base.quantity("number", "attempt", ticks="d", zero=False, grid=False)
    x["axis"] |= {"tickMinStep": 1}
    x["scale"] = {"domain": [min(node.number for node in nodes) - 0.5, last + 0.5], "nice": False}
    relative = field != "time_us"
    y = base.logarithmic("value", axis, values, about=(1.0,) if relative else ())
    best = [row for row in drawn if row["kind"] == _BEST]
    steps = [*best, *([best[-1] | {"number": last}] if best else [])]
    colour, shape = base.coloured("kind", _KINDS, _COLOURS), base.shaped("kind", _KINDS)
    shape["scale"]["range"] = ["circle", "square", "cross"]
    mark = base.point(48, **base.pointer(links))
    line = {"type": "line", "interpolate": "step-after", "color": base.GREY, "strokeWidth": 1.6}
    tip = base.tip(number="attempt", step="step", value=axis, kind="")
    layers = [
        *([base.reference("y", 1.0)] if relative else []),
        base.layer(line, steps, x=x, y=y),
        base.layer(mark, drawn, x=x, y=y, color=colour, shape=shape, tooltip=tip),
    ]
    if failed:
        on_axis = {"value": {"expr": "height"}}  # these have no value
        tip = base.tip(number="attempt", step="step", verdict="verdict")
        layers.append(base.layer(mark | {"size": 40}, failed, x=x, y=on_axis, color=colour, shape=shape, tooltip=tip))
    best_words = f"; the best is {number(best[-1]['value'])} (attempt {best[-1]['number']})" if best else ""
    return figure(
        name,
        title,
        f"{len(nodes)} attempts by number, {axis}: from {number(values[0])} (the first correct one){best_words}; "
        f"{len(failed)} are not correct and are marked on the axis.",
        layers,
    )
