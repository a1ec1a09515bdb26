"""Parts of Vega-Lite specifications that all figures share: axes, marks, layers, colours and sizes."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pydantic import Field
from pydantic_core import to_json

from kernelforge.report.formatting import one_line
from kernelforge.report.views import View

Row = dict[str, Any]
"""One datum. Its keys are constants of this package; untrusted text is a value, never a key or an expression."""
Encoding = dict[str, Any]
Links = Mapping[str, str]
"""Addresses that marks lead to, relative to the page, by name of run or task or by id of attempt."""

BLUE, VERMILLION, GREEN = "#0072b2", "#d55e00", "#009e73"
PURPLE, OCHRE, GREY = "#c0679a", "#b07c00", "#7a7f87"
SERIES = (BLUE, VERMILLION, GREEN, PURPLE, OCHRE, GREY)
"""Colours that colour-blind readers can distinguish: hues of Okabe and Ito, "Color Universal Design" (2008). Their pink
and orange are darkened until each has a contrast of 3:1 or more with a light page and with a dark one."""
DASHES = ([1, 0], [6, 3], [2, 2], [8, 3, 2, 3], [4, 4], [1, 3])
"""One per series, for readers who see no colours."""
SHAPES = ("circle", "square", "triangle-up", "diamond", "cross", "triangle-down")

VEGA_LITE = "https://vega.github.io/schema/vega-lite/v6.json"
HEIGHT = 240
PLAIN = ",.6~r"
"""Format of numbers on axes: grouped, without an exponent, up to six significant digits."""
ROW = 17
"""Height of one row of bars."""
BAR: Row = {"type": "bar", "height": {"band": 0.62}}


class Figure(View):
    """One figure, with a description for readers who cannot see it."""

    name: str
    """``fast-p``, ``anytime-correct-dollars``, ``roofline``...: in file names and in element ids."""
    title: str
    description: str
    """Alternative text: the content in words, with the numbers that matter."""
    spec: dict[str, Any] = Field(repr=False)
    """Vega-Lite 6, data inline, no addresses. Colours of text and background come from the reader's theme."""


class Absent(View):
    """A figure that cannot be drawn of this view."""

    name: str
    why: str
    """The missing data, in one line."""


Drawing = Figure | Absent


def figures_of(drawings: Iterable[Drawing]) -> tuple[Figure, ...]:
    """The drawings that are figures."""
    return tuple(drawing for drawing in drawings if isinstance(drawing, Figure))


def embedded_json(figure: Figure) -> str:
    """The specification as JSON for the inside of a ``<script type="application/json">``: nothing in it ends one.

    Raises:
        ValueError: a number in it is not finite, which JSON does not know.
    """
    text = to_json(figure.spec, inf_nan_mode="constants").decode()  # five times as fast as json, but takes any number
    if "NaN" in text or "Infinity" in text:
        text = json.dumps(figure.spec, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def figure(
    name: str,
    title: str,
    description: str,
    layers: Sequence[Row],
    *,
    height: int = HEIGHT,
    rows: Sequence[Row] | None = None,
) -> Figure:
    """A figure of layers.

    Args:
        height: of the plot inside the axes, in CSS pixels.
        rows: data of the layers that have none of their own.
    """
    spec = {
        "$schema": VEGA_LITE,
        "description": description,
        "width": "container",
        "height": height,
        "autosize": {"type": "fit-x", "contains": "padding"},
        **({} if rows is None else data(rows)),
        "layer": list(layers),
    }
    return Figure(name=name, title=title, description=description, spec=spec)


def layer(mark: Row, rows: Sequence[Row] | None = None, /, **encoding: Encoding | list[Encoding]) -> Row:
    """One layer: a mark, and its encoding by channel; on the figure's data where it has no rows."""
    return {**({} if rows is None else data(rows)), "mark": mark, "encoding": encoding}


def data(rows: Sequence[Row]) -> Row:
    return {"data": {"values": list(rows)}}


def point(size: int, **more: Any) -> Row:
    """Mark of a filled point; ``size`` is its area in square pixels."""
    return {"type": "point", "filled": True, "size": size, "opacity": 1, **more}


def pointer(links: Links) -> Row:
    """The pointer of marks that lead somewhere."""
    return {"cursor": "pointer"} if links else {}


def rows_height(rows: int) -> int:
    """Height of a chart with one bar per row."""
    return ROW * max(rows, 1)


def words(text: str) -> str:
    """Untrusted text as a datum: on one line, with control characters written out."""
    return one_line(text, 200)


def labels(texts: Sequence[str]) -> list[str]:
    """:func:`words` of each; equal ones are numbered."""
    seen: Counter[str] = Counter()
    numbered = []
    for text in map(words, texts):
        seen[text] += 1
        numbered.append(text if seen[text] == 1 else f"{text} ({seen[text]})")
    return numbered


def linked(row: Row, href: str | None) -> Row:
    """The row with the address of a page of the report."""
    return row if href is None else row | {"href": href}


def quantity(field: str, title: str, *, ticks: str = PLAIN, zero: bool = True, grid: bool = True) -> Encoding:
    """A linear axis with the unit and the origin in its title."""
    return {
        "field": field,
        "type": "quantitative",
        "title": title,
        "scale": {"zero": zero},
        "axis": {"format": ticks, "grid": grid, "tickCount": 6},
    }


def logarithmic(
    field: str, title: str, values: Iterable[float], *, ticks: str = PLAIN, about: Sequence[float] = ()
) -> Encoding:
    """A logarithmic axis over all of ``values`` and ``about``, with ticks at round numbers."""
    covered = [value for value in (*values, *about) if positive(value)]
    low, high = min(covered, default=1.0), max(covered, default=1.0)
    margin = max((high / low) ** 0.04, 1.04)
    domain = [low / margin, high * margin]
    return {
        "field": field,
        "type": "quantitative",
        "title": title,
        "scale": {"type": "log", "domain": domain, "nice": False},
        "axis": {"format": ticks, "values": log_ticks(*domain)},
    }


def log_ticks(low: float, high: float) -> list[float]:
    """At most nine round numbers from ``low`` to ``high``.

    Even steps where ``high`` is less than three times ``low``; otherwise powers of ten, with multiples of them between
    where there is room.
    """
    if high < 3 * low:
        step = next(step for step in _even_steps(high - low) if (high - low) / step <= 7)
        return [float(f"{n * step:.6g}") for n in range(math.ceil(low / step), math.floor(high / step) + 1)]
    exponents = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks: list[float] = []
    for steps in ((1,), (1, 3), (1, 2, 5), (1, 1.5, 2, 3, 5, 7)):
        finer = [float(f"{step * 10.0**power:.6g}") for power in exponents for step in steps]
        finer = [tick for tick in finer if low <= tick <= high]
        if ticks and len(finer) > 9:
            break
        ticks = finer[:: math.ceil(len(finer) / 9)] if len(finer) > 9 else finer
        if len(ticks) >= 5:
            break
    return ticks


def _even_steps(span: float) -> Iterable[float]:
    power = math.floor(math.log10(span)) - 1 if span > 0 else 0
    return (step * 10.0**exponent for exponent in range(power, power + 4) for step in (1, 2, 5))


def names(field: str, *, title: str | None = None) -> Encoding:
    """One row per name, in the order of the data."""
    axis = {"ticks": False, "domain": False, "labelPadding": 6, "grid": False}
    return {"field": field, "type": "nominal", "sort": None, "title": title, "axis": axis}


def coloured(
    field: str, domain: Sequence[str], colours: Sequence[str] = SERIES, *, title: str | None = None
) -> Encoding:
    """Colour by one of a few known names."""
    return _nominal(field, domain, colours, title)


def dashed(field: str, domain: Sequence[str], *, title: str | None = None) -> Encoding:
    return _nominal(field, domain, DASHES, title)


def shaped(field: str, domain: Sequence[str], *, title: str | None = None) -> Encoding:
    return _nominal(field, domain, SHAPES, title)


def _nominal(field: str, domain: Sequence[str], values: Sequence[Any], title: str | None) -> Encoding:
    span = [values[index % len(values)] for index in range(len(domain))]
    return {"field": field, "type": "nominal", "title": title, "scale": {"domain": list(domain), "range": span}}


def below(axis: Encoding, *, ticks: int = 6) -> Encoding:
    """The axis under rows with long names: its title ends with the plot, and may extend below the names."""
    return axis | {"axis": axis["axis"] | {"titleAnchor": "end", "tickCount": ticks}}


def tip(**fields: str) -> list[Encoding]:
    """Lines of a tooltip: the title of each field. Numbers have six digits; the table on the page has all of them."""
    return [{"field": field, "title": title} for field, title in fields.items()]


def reference(channel: str, value: float, *, dash: Sequence[int] = (4, 3)) -> Row:
    """A line across the chart at a value of the axis."""
    mark = {"type": "rule", "color": GREY, "strokeDash": list(dash), "strokeWidth": 1.2}
    return layer(mark, [{"at": value}], **{channel: {"field": "at", "type": "quantitative"}})


def positive(value: float | None) -> bool:
    """Whether a logarithmic axis can show the value."""
    return value is not None and math.isfinite(value) and value > 0


def finite(value: float | None) -> bool:
    return value is not None and math.isfinite(value)
