"""Roofline chart: an attempt and its parent under the peak rates of their device."""

from __future__ import annotations

import math
from collections.abc import Sequence

from kernelforge.report.figures import base
from kernelforge.report.figures.base import Absent, Drawing, Encoding, Row, figure
from kernelforge.report.formatting import number
from kernelforge.report.views.roofline import DevicePeaks, RooflinePoint

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
