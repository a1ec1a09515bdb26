"""Roofline chart: an attempt and its parent under the peak rates of their device."""

from __future__ import annotations

import math
from collections.abc import Sequence

from kernelforge.report.figures import base
from kernelforge.report.figures.base import Absent, Drawing, Row, figure
from kernelforge.report.formatting import number
from kernelforge.report.views.roofline import DevicePeaks, RooflinePoint

Places = Sequence[tuple[str, RooflinePoint]]
"""Who stands where."""


def roofline(place: RooflinePoint | None, parent: RooflinePoint | None = None) -> Drawing:
    """Operations per second over operations per DRAM byte, under the roofs of the device, on logarithmic axes.

    The peaks of the tensor cores are shown where tensor cores worked.

    Source of the plot: Williams, Waterman and Patterson, "Roofline", CACM 52(4), 2009.
    """
    name = "roofline"
    if place is None:
        return Absent(name=name, why="the attempt has no profile")
    if place.roofs is None:
        return Absent(name=name, why="the peak rates of the device are not known")
    if not all(map(base.positive, (place.flops, place.dram_bytes, place.arithmetic_intensity, place.flops_per_s))):
        return Absent(
            name=name, why="the attempt counts no floating-point operation, or no DRAM byte: it has no intensity"
        )
    beside = [("its parent", parent)] if parent is not None and _comparable(parent, place) else []
    places = [("this attempt", place), *beside]
    roof = place.roofs.attainable_flops_per_s(place.arithmetic_intensity, tensor_cores=place.tensor_cores)
    peaks = _peaks(place.roofs, places)
    least = place.flops / place.compulsory_bytes if place.compulsory_bytes else place.arithmetic_intensity
    return figure(
        name,
        "Roofline",
        f"{number(place.flops_per_s / 1e9)} Gflop/s ({place.time_origin.value}) at "
        f"{number(place.arithmetic_intensity)} flop per DRAM byte, {place.flops_per_s / roof:.0%} of the roof of "
        f"{base.words(place.roofs.device)} there; bound: {base.words(place.bound)}. Roofs: "
        f"{number(place.roofs.dram_bandwidth_gbps)} GB/s of DRAM, "
        + ", ".join(f"{number(rate / 1e12)} Tflop/s in {what}" for what, rate in peaks.items())
        + f". The dashed line is the task's least DRAM traffic, {number(least)} flop/byte.",
        {"layer": _under_roofs(place.roofs, peaks, places, least)},
    )


def _comparable(parent: RooflinePoint, place: RooflinePoint) -> bool:
    same = parent.time_origin is place.time_origin
    return same and base.positive(parent.flops_per_s) and base.positive(parent.arithmetic_intensity)


def _peaks(roofs: DevicePeaks, places: Places) -> dict[str, float]:
    """Peaks of arithmetic in operations per second, the highest last."""
    peaks = {"FP32": roofs.fp32_flops_per_s}
    if any(place.tensor_cores for _, place in places):
        peaks |= {
            "TF32 tensor": roofs.tf32_tensor_flops_per_s,
            "FP16 tensor": roofs.fp16_tensor_flops_per_s,
        }
    return {name: peak for name, peak in peaks.items() if peak}  # Volta and Turing have no TF32


def _under_roofs(roofs: DevicePeaks, peaks: dict[str, float], places: Places, least: float) -> list[Row]:
    """Roofs, least traffic and points, one layer over another.

    Args:
        least: flop per byte where no more DRAM bytes move than have to.
    """
    points = [
        {
            "who": who,
            "attempt": base.words(place.attempt),
            "intensity": place.arithmetic_intensity,
            "rate": place.flops_per_s,
            "bound": base.words(place.bound),
        }
        for who, place in places
    ]
    lines = _lines(roofs, peaks, [place.arithmetic_intensity for _, place in places] + [least])
    corners = [corner for line in lines for corner in line]
    origin = places[0][1].time_origin.value
    x = base.logarithmic(
        "intensity",
        "operations per DRAM byte (flop/byte)",
        [row["intensity"] for row in corners + points],
        about=(least,),
    )
    rates = [row["rate"] for row in corners + points]
    above = 1.5 * max(peaks.values())  # room for its name
    y = base.logarithmic("rate", f"operations per second (flop/s, {origin})", rates, ticks="~s", about=(above,))
    who = [who for who, _ in places]
    low, high = lines[0][0]["intensity"], lines[0][-1]["intensity"]
    beside = {"align": "left", "dx": 9} if least < low**0.3 * high**0.7 else {"align": "right", "dx": -9}
    return [
        *(
            {
                "data": base.data(line),
                "mark": {"type": "line", "color": base.GREY, "strokeWidth": 2},
                "encoding": {"x": x, "y": y},
            }
            for line in lines
        ),
        *_roof_names(roofs, peaks, lines[0], x, y),
        {
            "data": {"values": [{"intensity": least, "what": "least DRAM traffic of the task"}]},
            "mark": {"type": "rule", "color": base.GREY, "strokeDash": [4, 3]},
            "encoding": {"x": x, "tooltip": base.tip(what="line", intensity="flop/byte")},
        },
        {
            "data": {"values": [{"intensity": least, "what": "least traffic"}]},
            "mark": {"type": "text", "baseline": "bottom", "dy": -4, **beside},
            "encoding": {"x": x, "y": {"value": {"expr": "height"}}, "text": {"field": "what"}},
        },
        {
            "data": base.data(points[::-1]),
            "mark": {"type": "point", "filled": True, "size": 90, "opacity": 1},
            "encoding": {
                "x": x,
                "y": y,
                "color": base.coloured("who", who),
                "shape": base.shaped("who", who),
                "tooltip": base.tip(who="", attempt="attempt", intensity="flop/byte", rate="flop/s", bound="bound"),
            },
        },
    ]


def _lines(roofs: DevicePeaks, peaks: dict[str, float], intensities: Sequence[float]) -> list[list[Row]]:
    """The roof over all that is shown by its corners, then each lower ceiling from the slope on."""
    per_byte = roofs.dram_bandwidth_gbps * 1e9
    *lower, highest = peaks.values()
    low = min(*intensities, roofs.ridge) / 4
    high = max(*intensities, highest / per_byte) * 4
    roof: list[Row] = [{"intensity": at, "rate": min(highest, at * per_byte)} for at in (low, highest / per_byte, high)]
    return [roof, *([{"intensity": at, "rate": rate} for at in (rate / per_byte, high)] for rate in lower)]


def _roof_names(
    roofs: DevicePeaks, peaks: dict[str, float], roof: Sequence[Row], x: base.Encoding, y: base.Encoding
) -> list[Row]:
    """What the roofs are, beside them: below the slope, and above each flat part."""
    low, ridge, high = (corner["intensity"] for corner in roof)
    slope = math.sqrt(low * ridge)
    dram: Row = {"intensity": slope, "rate": slope * roofs.dram_bandwidth_gbps * 1e9}
    dram["name"] = f"DRAM {number(roofs.dram_bandwidth_gbps)} GB/s"
    flat: list[Row] = [
        {"intensity": high, "rate": rate, "name": f"{what} {number(rate / 1e12)} Tflop/s"}
        for what, rate in peaks.items()
    ]
    encoding = {"x": x, "y": y, "text": {"field": "name"}}
    return [
        {
            "data": base.data([dram]),
            "mark": {"type": "text", "align": "left", "dx": 10, "dy": 8},
            "encoding": encoding,
        },
        {
            "data": base.data(flat),
            "mark": {"type": "text", "align": "right", "dx": -2, "dy": -8},
            "encoding": encoding,
        },
    ]
