"""The figures of an attempt: its place on the roofline, its samples, and what changed in its metrics."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from kernelforge.records import SideTimes, Timing
from kernelforge.report.figures import style
from kernelforge.report.figures.base import Absent, Drawing, Figure, figures_of
from kernelforge.report.figures.style import Row, figure
from kernelforge.report.text import change, number
from kernelforge.report.views.attempt import AttemptView
from kernelforge.report.views.roofs import RooflinePlace, Roofs
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


def roofline(place: RooflinePlace | None, parent: RooflinePlace | None = None) -> Drawing:
    """Operations per second over operations per DRAM byte, under the roofs of the device, on logarithmic axes.

    Source of the plot: Williams, Waterman and Patterson, "Roofline", CACM 52(4), 2009.
    """
    name = "roofline"
    if place is None:
        return Absent(name=name, why="the attempt has no profile")
    if place.roofs is None:
        return Absent(name=name, why="the peak rates of the device are not known")
    if not all(map(style.positive, (place.flops, place.dram_bytes, place.arithmetic_intensity, place.flops_per_s))):
        return Absent(
            name=name, why="the attempt counts no floating-point operation, or no DRAM byte: it has no intensity"
        )
    origin = place.time_origin.value
    least = place.flops / place.compulsory_bytes if place.compulsory_bytes else place.arithmetic_intensity
    attained = place.flops_per_s / _attainable(place.roofs, place.arithmetic_intensity)
    return figure(
        name,
        "Roofline",
        f"{number(place.flops_per_s / 1e9)} Gflop/s ({origin}) at {number(place.arithmetic_intensity)} flop per DRAM "
        f"byte, {attained:.0%} of the roof of {style.words(place.roofs.device)} there; bound: "
        f"{style.words(place.bound)}. Roofs: {number(place.roofs.dram_bandwidth_gbps)} GB/s of DRAM, "
        f"{number(place.roofs.fp32_flops_per_s / 1e12)} Tflop/s in FP32 without tensor cores. The dashed "
        f"line is the task's least DRAM traffic, {number(least)} flop/byte.",
        {"layer": _under_roofs(place.roofs, _points(place, parent), least, origin)},
    )


def _points(place: RooflinePlace, parent: RooflinePlace | None) -> list[Row]:
    """The attempt, and its parent where the two can stand in one plot."""
    beside = [("its parent", parent)] if parent is not None and _comparable(parent, place) else []
    return [
        {
            "who": who,
            "attempt": style.words(one.attempt),
            "intensity": one.arithmetic_intensity,
            "rate": one.flops_per_s,
            "bound": style.words(one.bound),
        }
        for who, one in [("this attempt", place), *beside]
    ]


def _comparable(parent: RooflinePlace, place: RooflinePlace) -> bool:
    same = parent.time_origin is place.time_origin
    return same and style.positive(parent.flops_per_s) and style.positive(parent.arithmetic_intensity)


def _under_roofs(roofs: Roofs, points: list[Row], least: float, origin: str) -> list[Row]:
    """Roofs, least traffic and points, one layer over another.

    Args:
        least: flop per byte where no more DRAM bytes move than have to.
    """
    line = _roof(roofs, [row["intensity"] for row in points] + [least])
    x = style.logarithmic(
        "intensity", "operations per DRAM byte (flop/byte)", [row["intensity"] for row in line + points], about=(least,)
    )
    rates = [row["rate"] for row in line + points]
    above = 1.5 * roofs.fp32_flops_per_s  # room for its name
    y = style.logarithmic("rate", f"operations per second (flop/s, {origin})", rates, ticks="~s", about=(above,))
    who = [row["who"] for row in points]
    colours = {"color": style.coloured("who", who), "shape": style.shaped("who", who)}
    return [
        {
            "data": style.data(line),
            "mark": {"type": "line", "color": style.GREY, "strokeWidth": 2},
            "encoding": {"x": x, "y": y},
        },
        *_roof_names(roofs, line, x, y),
        {
            "data": {"values": [{"intensity": least, "what": "least DRAM traffic of the task"}]},
            "mark": {"type": "rule", "color": style.GREY, "strokeDash": [4, 3]},
            "encoding": {"x": x, "tooltip": style.tip(what="line", intensity="flop/byte")},
        },
        {
            "data": {"values": [{"intensity": least, "what": "least traffic"}]},
            "mark": {"type": "text", "align": "left", "baseline": "bottom", "dx": 9, "dy": -4},
            "encoding": {"x": x, "y": {"value": {"expr": "height"}}, "text": {"field": "what"}},
        },
        {
            "data": style.data(points[::-1]),
            "mark": {"type": "point", "filled": True, "size": 90, "opacity": 1},
            "encoding": {
                "x": x,
                "y": y,
                **colours,
                "tooltip": style.tip(who="", attempt="attempt", intensity="flop/byte", rate="flop/s", bound="bound"),
            },
        },
    ]


def _attainable(roofs: Roofs, intensity: float) -> float:
    return min(roofs.fp32_flops_per_s, intensity * roofs.dram_bandwidth_gbps * 1e9)


def _roof(roofs: Roofs, intensities: Iterable[float]) -> list[Row]:
    """Corners of the roof over all that is shown."""
    low, high = min(*intensities, roofs.ridge) / 4, max(*intensities, roofs.ridge) * 4
    return [{"intensity": at, "rate": _attainable(roofs, at)} for at in (low, roofs.ridge, high)]


def _roof_names(roofs: Roofs, line: Sequence[Row], x: style.Encoding, y: style.Encoding) -> list[Row]:
    """What the two roofs are, beside them: below the slope, and above the flat part."""
    low, ridge, high = (corner["intensity"] for corner in line)
    slope = math.sqrt(low * ridge)
    dram: Row = {"intensity": slope, "rate": _attainable(roofs, slope)}
    dram["name"] = f"DRAM {number(roofs.dram_bandwidth_gbps)} GB/s"
    fp32 = {"intensity": high, "rate": roofs.fp32_flops_per_s}
    fp32["name"] = f"FP32 {number(roofs.fp32_flops_per_s / 1e12)} Tflop/s"
    encoding = {"x": x, "y": y, "text": {"field": "name"}}
    return [
        {
            "data": style.data([dram]),
            "mark": {"type": "text", "align": "left", "dx": 10, "dy": 8},
            "encoding": encoding,
        },
        {
            "data": style.data([fp32]),
            "mark": {"type": "text", "align": "right", "dx": -2, "dy": -8},
            "encoding": encoding,
        },
    ]


def samples(timing: Timing | None) -> Drawing:
    """Every sample of the candidate and of its baselines, with the median and its interval."""
    name = "samples"
    if timing is None:
        return Absent(name=name, why="the attempt was not timed; a modelled time has no samples")
    sides = [timing.candidate, *sorted(timing.baselines, key=lambda side: side.median_us)]
    rows: list[Row] = [
        {"side": style.words(side.name), "us": sample, "number": index, "jitter": index * _GOLDEN % 1.0}
        for side in sides
        for index, sample in enumerate(side.samples_us, 1)
    ]
    medians: list[Row] = [
        {"side": style.words(side.name), "us": side.median_us, "low": side.interval_us[0], "high": side.interval_us[1]}
        for side in sides
    ]
    spread = [row["us"] for row in rows] + [row[end] for row in medians for end in ("low", "high")]
    title = "µs per execution (measured)"
    x = style.below(style.quantity("us", title, zero=False))
    if max(spread) > 4 * min(spread):
        x = style.below(style.logarithmic("us", title, spread))
    y = style.names("side")
    return figure(
        name,
        "Samples",
        "Time of one execution (measured), median [95 % interval]: " + "; ".join(map(_in_words, sides)) + ".",
        {
            "height": 34 * len(sides),
            "layer": [
                {
                    "data": style.data(rows),
                    "mark": {"type": "point", "filled": True, "size": 16, "opacity": 0.55, "color": style.BLUE},
                    "encoding": {
                        "x": x,
                        "y": y,
                        "yOffset": {"field": "jitter", "type": "quantitative", "scale": {"domain": [-0.4, 1.4]}},
                        "tooltip": style.tip(side="side", us="µs", number="sample"),
                    },
                },
                {
                    "data": style.data(medians),
                    "mark": {"type": "rule", "strokeWidth": 3, "color": style.VERMILLION},
                    "encoding": {"y": y, "x": x | {"field": "low"}, "x2": {"field": "high"}},
                },
                {
                    "data": style.data(medians),
                    "mark": {"type": "tick", "thickness": 2.5, "size": 26, "color": style.VERMILLION},
                    "encoding": {
                        "y": y,
                        "x": x,
                        "tooltip": style.tip(side="side", us="median µs", low="from", high="to"),
                    },
                },
            ],
        },
    )


def _in_words(side: SideTimes) -> str:
    low, high = side.interval_us
    median = f"{number(side.median_us)} µs [{number(low)}, {number(high)}]"
    return f"{style.words(side.name)} {median}, {len(side.samples_us)} samples"


def metric_changes(metrics: Sequence[MetricChange]) -> Drawing:
    """Relative change of each metric against the parent, those that the Judge named first."""
    name = "metrics"
    moved = [one for one in metrics if style.finite(one.change) and one.change]
    if not moved:
        return Absent(name=name, why="no metric changed, or there is no parent with a profile")
    moved.sort(key=lambda one: (not one.named, -abs(one.change or 0), one.name))
    shown = moved[:MOST_METRICS]
    origins = sorted({one.origin for one in shown})
    rows: list[Row] = [
        {
            "metric": style.words(one.name),
            "change": one.change,
            "before": one.before,
            "after": one.after,
            "unit": style.words(one.unit),
            "origin": style.words(one.origin),
            "named": "named by the Judge" if one.named else "others",
        }
        for one in shown
    ]
    groups = [group for group in ("named by the Judge", "others") if any(row["named"] == group for row in rows)]
    y = style.names("metric")
    x = style.below(style.quantity("change", f"change from the parent ({', '.join(origins)})", ticks="+.0%"), ticks=4)
    changes = [row["change"] for row in rows]
    if max(map(abs, changes)) > 3:
        x["scale"] = {"type": "symlog", "constant": 1}
        x["axis"] |= {"values": [-1, -0.5, 0, 1, 3, 10, 30, 100, 1000, 1e4, 1e5]}
    left_out = f" ({len(moved) - len(shown)} smaller ones left out)" if len(moved) > len(shown) else ""
    return figure(
        name,
        "Metrics against the parent" + left_out,
        f"Relative change of {len(moved)} metrics against the parent ({', '.join(origins)}){left_out}: "
        + "; ".join(f"{style.words(one.name)} {change(one.change)}" for one in shown[:6])
        + ("…" if len(shown) > 6 else "")
        + ".",
        {
            "height": style.rows_height(len(rows)),
            "data": style.data(rows),
            "layer": [
                {
                    "mark": {"type": "bar", "height": {"band": 0.62}},
                    "encoding": {
                        "y": y,
                        "x": x,
                        "color": style.coloured("named", groups, (style.BLUE, style.GREY)) | {"legend": {"columns": 1}},
                        "tooltip": style.tip(
                            metric="metric",
                            before="parent",
                            after="this",
                            unit="unit",
                            change="change",
                            origin="origin",
                        ),
                    },
                },
                style.reference("x", 0, dash=(1, 0)),
            ],
        },
    )
