"""Charts of an attempt: roofline position, samples, changed metrics."""

from __future__ import annotations

import math
from collections.abc import Sequence

from kernelforge.records import SideTimes, Timing
from kernelforge.report.figures import base
from kernelforge.report.figures.base import Absent, Drawing, Row, figure
from kernelforge.report.figures.roofline import roofline
from kernelforge.report.formatting import change, number
from kernelforge.report.views.attempt import AttemptView
from kernelforge.report.views.task import MetricChange

MOST_METRICS = 16
_GOLDEN = (math.sqrt(5) - 1) / 2
_NAMED = "named by the Judge"


def draw_attempt(view: AttemptView) -> tuple[Drawing, ...]:
    """Every figure of an attempt; for those that cannot be drawn, the reason."""
    return (
        roofline(view.place, view.parent_place),
        samples(view.performance.timing if view.performance else None),
        metric_changes(view.metrics),
    )


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
    jitter = {"field": "jitter", "type": "quantitative", "scale": {"domain": [-0.4, 1.4]}}
    tip = base.tip(side="side", us="µs", number="sample")
    median_tip = base.tip(side="side", us="median µs", low="from", high="to")
    interval = {"type": "rule", "strokeWidth": 3, "color": base.VERMILLION}
    tick = {"type": "tick", "thickness": 2.5, "size": 26, "color": base.VERMILLION}
    return figure(
        name,
        "Samples",
        "Time of one execution (measured), median [95 % interval]: " + "; ".join(map(_describe, sides)) + ".",
        [
            base.layer(base.point(16, opacity=0.55, color=base.BLUE), rows, x=x, y=y, yOffset=jitter, tooltip=tip),
            base.layer(interval, medians, y=y, x=x | {"field": "low"}, x2={"field": "high"}),
            base.layer(tick, medians, y=y, x=x, tooltip=median_tip),
        ],
        height=34 * len(sides),
    )


def _describe(side: SideTimes) -> str:
    low, high = side.interval_us
    median = f"{number(side.median_us)} µs [{number(low)}, {number(high)}]"
    return f"{base.words(side.name)} {median}, {len(side.samples_us)} samples"


def metric_changes(metrics: Sequence[MetricChange]) -> Drawing:
    """Relative change of each metric against the parent; those that the Judge named first."""
    name = "metrics"
    moved = [metric for metric in metrics if base.finite(metric.change) and metric.change]
    if not moved:
        return Absent(name=name, why="no metric changed, or there is no parent with a profile")
    moved.sort(key=lambda metric: (not metric.named, -abs(metric.change or 0), metric.name))
    drawn = moved[:MOST_METRICS]
    origins = ", ".join(sorted({metric.origin for metric in drawn}))
    rows: list[Row] = [
        {
            "metric": base.words(metric.name),
            "change": metric.change,
            "before": metric.before,
            "after": metric.after,
            "unit": base.words(metric.unit),
            "origin": base.words(metric.origin),
            "named": _NAMED if metric.named else "others",
        }
        for metric in drawn
    ]
    groups = [group for group in (_NAMED, "others") if any(row["named"] == group for row in rows)]
    colour = base.coloured("named", groups, (base.BLUE, base.GREY)) | {"legend": {"columns": 1}}
    x = base.below(base.quantity("change", f"change from the parent ({origins})", ticks="+.0%"), ticks=4)
    if max(abs(row["change"]) for row in rows) > 3:
        x["scale"] = {"type": "symlog", "constant": 1}
        x["axis"] |= {"values": [-1, -0.5, 0, 1, 3, 10, 30, 100, 1000, 1e4, 1e5]}
    tip = base.tip(metric="metric", before="parent", after="this", unit="unit", change="change", origin="origin")
    omitted = f" ({len(moved) - len(drawn)} smaller ones left out)" if len(moved) > len(drawn) else ""
    return figure(
        name,
        "Metrics against the parent" + omitted,
        f"Relative change of {len(moved)} metrics against the parent ({origins}){omitted}: "
        + "; ".join(f"{base.words(metric.name)} {change(metric.change)}" for metric in drawn[:6])
        + ("…" if len(drawn) > 6 else "")
        + ".",
        [
            base.layer(base.BAR, y=base.names("metric"), x=x, color=colour, tooltip=tip),
            base.reference("x", 0, dash=(1, 0)),
        ],
        height=base.rows_height(len(rows)),
        rows=rows,
    )
