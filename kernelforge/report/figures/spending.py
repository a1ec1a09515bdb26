"""Charts of how far attempts got, and of time and money spent."""

from __future__ import annotations

from collections.abc import Sequence

from kernelforge.report.figures import base
from kernelforge.report.figures.base import Absent, Drawing, figure
from kernelforge.report.formatting import duration, number, percent
from kernelforge.report.views.anytime import Spent
from kernelforge.report.views.funnel import FunnelStep

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
