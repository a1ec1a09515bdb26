"""Charts of an attempt: roofline position, samples, changed metrics."""

from __future__ import annotations

import math
from collections.abc import Sequence

from kernelforge.records import SideTimes, Timing
from kernelforge.report.figures import base
from kernelforge.report.figures.base import Absent, Drawing, Figure, Row, figure, figures_of
from kernelforge.report.figures.roofline import roofline
from kernelforge.report.formatting import change, number
from kernelforge.report.views.attempt import AttemptView
from kernelforge.report.views.task import MetricChange

MOST_METRICS = 16
_GOLDEN = (math.sqrt(5) - 1) / 2


def draw_attempt(view: AttemptView) -> tuple[Drawing, ...]:
    """Every figure of an attempt, and of those that cannot be drawn why."""
    return (
        roofline(view.place, view.parent_place),
        samples(view.performance.timing if view.performance else None),
        metric_changes(view.metrics),
    )


def attempt_figures(view: AttemptView) -> tuple[Figure, ...]:
    """The figures that can be drawn of an attempt."""
    return figures_of(draw_attempt(view))


def samples(timing: Timing | None) -> Drawing:
    """Every sample of the candidate and of its baselines, with the median and its interval."""
    name = "samples"
    if timing is None:
        return Absent(name=name, why="the attempt was not timed; a modelled time has no samples")
    sides = [timing.candidate, *sorted(timing.baselines, key=lambda side: side.median_us)]
    rows: list[Row] = [
        {"side": base.words(side.name), "us": sample, "number": index, "jitter": index * _GOLDEN % 1.0}
        for side in sides
        for index, sample in enumerate(side.samples_us, 1)
    ]
    medians: list[Row] = [
        {"side": base.words(side.name), "us": side.median_us, "low": side.interval_us[0], "high": side.interval_us[1]}
        for side in sides
    ]
    spread = [row["us"] for row in rows] + [row[end] for row in medians for end in ("low", "high")]
    title = "µs per execution (measured)"
    x = base.below(base.quantity("us", title, zero=False))
    if max(spread) > 4 * min(spread):
        x = base.below(base.logarithmic("us", title, spread))
    y = base.names("side")
    return figure(
        name,
        "Samples",
        "Time of one execution (measured), median [95 % interval]: " + "; ".join(map(_in_words, sides)) + ".",
        {
            "height": 34 * len(sides),
            "layer": [
                {
                    "data": base.data(rows),
                    "mark": {"type": "point", "filled": True, "size": 16, "opacity": 0.55, "color": base.BLUE},
                    "encoding": {
                        "x": x,
                        "y": y,
                        "yOffset": {"field": "jitter", "type": "quantitative", "scale": {"domain": [-0.4, 1.4]}},
                        "tooltip": base.tip(side="side", us="µs", number="sample"),
                    },
                },
                {
                    "data": base.data(medians),
                    "mark": {"type": "rule", "strokeWidth": 3, "color": base.VERMILLION},
                    "encoding": {"y": y, "x": x | {"field": "low"}, "x2": {"field": "high"}},
                },
                {
                    "data": base.data(medians),
                    "mark": {"type": "tick", "thickness": 2.5, "size": 26, "color": base.VERMILLION},
                    "encoding": {
                        "y": y,
                        "x": x,
                        "tooltip": base.tip(side="side", us="median µs", low="from", high="to"),
                    },
                },
            ],
        },
    )


def _in_words(side: SideTimes) -> str:
    low, high = side.interval_us
    median = f"{number(side.median_us)} µs [{number(low)}, {number(high)}]"
    return f"{base.words(side.name)} {median}, {len(side.samples_us)} samples"


def metric_changes(metrics: Sequence[MetricChange]) -> Drawing:
    """Relative change of each metric against the parent, those that the Judge named first."""
    name = "metrics"
    moved = [one for one in metrics if base.finite(one.change) and one.change]
    if not moved:
        return Absent(name=name, why="no metric changed, or there is no parent with a profile")
    moved.sort(key=lambda one: (not one.named, -abs(one.change or 0), one.name))
    shown = moved[:MOST_METRICS]
    origins = sorted({one.origin for one in shown})
    rows: list[Row] = [
        {
            "metric": base.words(one.name),
            "change": one.change,
            "before": one.before,
            "after": one.after,
            "unit": base.words(one.unit),
            "origin": base.words(one.origin),
            "named": "named by the Judge" if one.named else "others",
        }
        for one in shown
    ]
    groups = [group for group in ("named by the Judge", "others") if any(row["named"] == group for row in rows)]
    y = base.names("metric")
    x = base.below(base.quantity("change", f"change from the parent ({', '.join(origins)})", ticks="+.0%"), ticks=4)
    changes = [row["change"] for row in rows]
    if max(map(abs, changes)) > 3:
        x["scale"] = {"type": "symlog", "constant": 1}
        x["axis"] |= {"values": [-1, -0.5, 0, 1, 3, 10, 30, 100, 1000, 1e4, 1e5]}
    left_out = f" ({len(moved) - len(shown)} smaller ones left out)" if len(moved) > len(shown) else ""
    return figure(
        name,
        "Metrics against the parent" + left_out,
        f"Relative change of {len(moved)} metrics against the parent ({', '.join(origins)}){left_out}: "
        + "; ".join(f"{base.words(one.name)} {change(one.change)}" for one in shown[:6])
        + ("…" if len(shown) > 6 else "")
        + ".",
        {
            "height": base.rows_height(len(rows)),
            "data": base.data(rows),
            "layer": [
                {
                    "mark": {"type": "bar", "height": {"band": 0.62}},
                    "encoding": {
                        "y": y,
                        "x": x,
                        "color": base.coloured("named", groups, (base.BLUE, base.GREY)) | {"legend": {"columns": 1}},
                        "tooltip": base.tip(
                            metric="metric",
                            before="parent",
                            after="this",
                            unit="unit",
                            change="change",
                            origin="origin",
                        ),
                    },
                },
                base.reference("x", 0, dash=(1, 0)),
            ],
        },
    )
