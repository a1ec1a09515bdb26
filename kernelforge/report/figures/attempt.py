"""Charts of a task and of an attempt: results by attempt, roofline position, samples, changed metrics."""

from __future__ import annotations

import math
from collections.abc import Sequence

from kernelforge.records import Origin, SideTimes, Timing, Verdict
from kernelforge.report.figures import base
from kernelforge.report.figures.base import Absent, Drawing, Encoding, Links, Row, figure
from kernelforge.report.figures.bounds import against_floor, kernel_limits
from kernelforge.report.figures.run import MODELLED, NO_SPEEDUP
from kernelforge.report.formatting import change, number
from kernelforge.report.views.attempt import AttemptView
from kernelforge.report.views.roofline import DevicePeaks, RooflinePoint
from kernelforge.report.views.task import LineageNode, MetricChange, TaskView

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


MOST_METRICS = 16
_GOLDEN = (math.sqrt(5) - 1) / 2
_NAMED = "named by the Judge"


def draw_attempt(view: AttemptView) -> tuple[Drawing, ...]:
    """Every figure of an attempt; for those that cannot be drawn, the reason."""
    return (
        kernel_limits(view.bounds),
        against_floor(view.reach),
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


Points = Sequence[tuple[str, RooflinePoint]]
"""Points with their names."""


def roofline(point: RooflinePoint | None, parent: RooflinePoint | None = None) -> Drawing:
    """Operations per second over operations per DRAM byte, under the roofs of the device, on logarithmic axes.

    The peaks of the tensor cores are drawn where tensor cores worked.

    Source of the plot: Williams, Waterman and Patterson, "Roofline", CACM 52(4), 2009.
    """
    name = "roofline"
    if point is None:
        return Absent(name=name, why="the attempt has no profile")
    if point.roofs is None:
        return Absent(name=name, why="the peak rates of the device are not known")
    if not all(map(base.positive, (point.flops, point.dram_bytes, point.arithmetic_intensity, point.flops_per_s))):
        return Absent(
            name=name, why="the attempt counts no floating-point operation, or no DRAM byte: it has no intensity"
        )
    points = [("this attempt", point)]
    if parent is not None and _comparable(parent, point):
        points.append(("its parent", parent))
    roof = point.roofs.attainable_flops_per_s(point.arithmetic_intensity, tensor_cores=point.tensor_cores)
    peaks = _peaks(point.roofs, points)
    least = point.flops / point.compulsory_bytes if point.compulsory_bytes else point.arithmetic_intensity
    return figure(
        name,
        "Roofline",
        f"{number(point.flops_per_s / 1e9)} Gflop/s ({point.time_origin.value}) at "
        f"{number(point.arithmetic_intensity)} flop per DRAM byte, {point.flops_per_s / roof:.0%} of the roof of "
        f"{base.words(point.roofs.device)} there; bound: {base.words(point.bound)}. Roofs: "
        f"{number(point.roofs.dram_bandwidth_gbps)} GB/s of DRAM, "
        + ", ".join(f"{number(rate / 1e12)} Tflop/s in {unit}" for unit, rate in peaks.items())
        + f". The dashed line is the task's least DRAM traffic, {number(least)} flop/byte.",
        _layers(point.roofs, peaks, points, least),
    )


def _comparable(parent: RooflinePoint, point: RooflinePoint) -> bool:
    same = parent.time_origin is point.time_origin
    return same and base.positive(parent.flops_per_s) and base.positive(parent.arithmetic_intensity)


def _peaks(roofs: DevicePeaks, points: Points) -> dict[str, float]:
    """Peaks of arithmetic in operations per second, the highest last."""
    peaks = {"FP32": roofs.fp32_flops_per_s}
    if any(point.tensor_cores for _, point in points):
        peaks |= {"TF32 tensor": roofs.tf32_tensor_flops_per_s, "FP16 tensor": roofs.fp16_tensor_flops_per_s}
    return {name: peak for name, peak in peaks.items() if peak}  # Volta and Turing have no TF32


def _layers(roofs: DevicePeaks, peaks: dict[str, float], points: Points, least: float) -> list[Row]:
    """Roofs, least traffic and points, in drawing order.

    Args:
        least: flop per byte at the least DRAM traffic.
    """
    rows = [
        {
            "who": name,
            "attempt": base.words(point.attempt),
            "intensity": point.arithmetic_intensity,
            "rate": point.flops_per_s,
            "bound": base.words(point.bound),
        }
        for name, point in points
    ]
    lines = _lines(roofs, peaks, [point.arithmetic_intensity for _, point in points] + [least])
    corners = [corner for line in lines for corner in line]
    origin = points[0][1].time_origin.value
    intensities = [row["intensity"] for row in corners + rows]
    x = base.logarithmic("intensity", "operations per DRAM byte (flop/byte)", intensities, about=(least,))
    rates = [row["rate"] for row in corners + rows]
    above = 1.5 * max(peaks.values())  # room for the name of the highest roof
    y = base.logarithmic("rate", f"operations per second (flop/s, {origin})", rates, ticks="~s", about=(above,))
    names = [name for name, _ in points]
    low, high = lines[0][0]["intensity"], lines[0][-1]["intensity"]
    align = {"align": "left", "dx": 9} if least < low**0.3 * high**0.7 else {"align": "right", "dx": -9}
    line_mark = {"type": "line", "color": base.GREY, "strokeWidth": 2}
    tip = base.tip(who="", attempt="attempt", intensity="flop/byte", rate="flop/s", bound="bound")
    return [
        *(base.layer(line_mark, line, x=x, y=y) for line in lines),
        *_roof_names(roofs, peaks, lines[0], x, y),
        base.layer(
            {"type": "rule", "color": base.GREY, "strokeDash": [4, 3]},
            [{"intensity": least, "what": "least DRAM traffic of the task"}],
            x=x,
            tooltip=base.tip(what="line", intensity="flop/byte"),
        ),
        base.layer(
            {"type": "text", "baseline": "bottom", "dy": -4, **align},
            [{"intensity": least, "what": "least traffic"}],
            x=x,
            y={"value": {"expr": "height"}},
            text={"field": "what"},
        ),
        base.layer(
            base.point(90),
            rows[::-1],
            x=x,
            y=y,
            color=base.coloured("who", names),
            shape=base.shaped("who", names),
            tooltip=tip,
        ),
    ]


def _lines(roofs: DevicePeaks, peaks: dict[str, float], intensities: Sequence[float]) -> list[list[Row]]:
    """Corners of the highest roof over the whole width, then of each lower ceiling from the slope on."""
    per_byte = roofs.dram_bandwidth_gbps * 1e9
    *lower, highest = peaks.values()
    low = min(*intensities, roofs.ridge) / 4
    high = max(*intensities, highest / per_byte) * 4
    roof: list[Row] = [{"intensity": at, "rate": min(highest, at * per_byte)} for at in (low, highest / per_byte, high)]
    return [roof, *([{"intensity": at, "rate": rate} for at in (rate / per_byte, high)] for rate in lower)]


def _roof_names(
    roofs: DevicePeaks, peaks: dict[str, float], roof: Sequence[Row], x: Encoding, y: Encoding
) -> list[Row]:
    """Names of the roofs: below the slope, and above each flat part."""
    low, ridge, high = (corner["intensity"] for corner in roof)
    slope = math.sqrt(low * ridge)
    dram: Row = {"intensity": slope, "rate": slope * roofs.dram_bandwidth_gbps * 1e9}
    dram["name"] = f"DRAM {number(roofs.dram_bandwidth_gbps)} GB/s"
    flat: list[Row] = [
        {"intensity": high, "rate": rate, "name": f"{unit} {number(rate / 1e12)} Tflop/s"}
        for unit, rate in peaks.items()
    ]
    text = {"field": "name"}
    return [
        base.layer({"type": "text", "align": "left", "dx": 10, "dy": 8}, [dram], x=x, y=y, text=text),
        base.layer({"type": "text", "align": "right", "dx": -2, "dy": -8}, flat, x=x, y=y, text=text),
    ]
