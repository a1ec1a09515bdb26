"""Vega-Lite specifications: what all figures share, colours and sizes among it."""

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
"""One datum. Keys are ours; what others wrote is a value, never a key and never an expression."""
Encoding = dict[str, Any]

BLUE, VERMILLION, GREEN = "#0072b2", "#d55e00", "#009e73"
PURPLE, OCHRE, GREY = "#c0679a", "#b07c00", "#7a7f87"
SERIES = (BLUE, VERMILLION, GREEN, PURPLE, OCHRE, GREY)
"""Colours that colour-blind readers tell apart: hues of Okabe and Ito, "Color Universal Design" (2008). Their pink and
orange are darkened, until each stands 3:1 or more against a light page and against a dark one."""
DASHES = ((1, 0), (6, 3), (2, 2), (8, 3, 2, 3), (4, 4), (1, 3))
"""One per series, for those who see no colours."""
SHAPES = ("circle", "square", "triangle-up", "diamond", "cross", "triangle-down")

HEIGHT = 240
PLAIN = ",.6~r"
"""Format of numbers on axes: grouped, without an exponent, with as many digits as they need up to six."""
ROW = 17
"""Height of one row of bars."""


def figure(name: str, title: str, description: str, spec: Mapping[str, Any]) -> Figure:
    """A figure of a specification's own parts: layers, or a mark with its encoding."""
    whole = {
        "$schema": VEGA_LITE,
        "description": description,
        "width": "container",
        "height": HEIGHT,
        "autosize": {"type": "fit-x", "contains": "padding"},
    }
    return Figure(name=name, title=title, description=description, spec=whole | dict(spec))


def rows_height(rows: int) -> int:
    """Height of a chart with one bar per row."""
    return ROW * max(rows, 1)


def data(rows: Sequence[Row]) -> dict[str, Any]:
    return {"values": list(rows)}


def words(text: str) -> str:
    """Text of others as a datum: on one line, with control characters written out."""
    return one_line(text, 200)


def labels(texts: Sequence[str]) -> list[str]:
    """:func:`words` of each, told apart by a number where they are the same."""
    seen: Counter[str] = Counter()
    found = []
    for text in map(words, texts):
        seen[text] += 1
        found.append(text if seen[text] == 1 else f"{text} ({seen[text]})")
    return found


def linked(row: Row, href: str | None) -> Row:
    """The row, leading to a page of ours."""
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
    """A logarithmic axis that holds all of ``values`` and ``about``, with ticks where a reader expects them."""
    shown = [value for value in (*values, *about) if positive(value)]
    low, high = min(shown, default=1.0), max(shown, default=1.0)
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
    """At most nine round numbers between the two: even steps if they are near each other; else powers of ten, or with 2
    and 5 between them."""
    if high < 3 * low:
        step = next(step for step in _even_steps(high - low) if (high - low) / step <= 7)
        return [float(f"{n * step:.6g}") for n in range(math.ceil(low / step), math.floor(high / step) + 1)]
    exponents = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    found: list[float] = []
    for steps in ((1,), (1, 3), (1, 2, 5), (1, 1.5, 2, 3, 5, 7)):
        finer = [float(f"{step * 10.0**power:.6g}") for power in exponents for step in steps]
        finer = [tick for tick in finer if low <= tick <= high]
        if found and len(finer) > 9:
            break
        found = finer[:: math.ceil(len(finer) / 9)] if len(finer) > 9 else finer
        if len(found) >= 5:
            break
    return found


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
    """Colour by one of a few names that are known beforehand."""
    span = [colours[index % len(colours)] for index in range(len(domain))]
    return {
        "field": field,
        "type": "nominal",
        "title": title,
        "scale": {"domain": list(domain), "range": span},
    }


def dashed(field: str, domain: Sequence[str], *, title: str | None = None) -> Encoding:
    span = [list(DASHES[index % len(DASHES)]) for index in range(len(domain))]
    return {"field": field, "type": "nominal", "title": title, "scale": {"domain": list(domain), "range": span}}


def shaped(field: str, domain: Sequence[str], *, title: str | None = None) -> Encoding:
    span = [SHAPES[index % len(SHAPES)] for index in range(len(domain))]
    return {"field": field, "type": "nominal", "title": title, "scale": {"domain": list(domain), "range": span}}


def below(axis: Encoding, *, ticks: int = 6) -> Encoding:
    """The axis under rows with long names: its title ends with the plot, and has the room below the names too."""
    return axis | {"axis": axis["axis"] | {"titleAnchor": "end", "tickCount": ticks}}


def tip(**fields: str) -> list[Encoding]:
    """Lines of a tooltip: field and what it is called. Numbers come with six digits, all of them are in the table."""
    return [{"field": field, "title": title} for field, title in fields.items()]


def reference(channel: str, value: float, *, dash: Sequence[int] = (4, 3)) -> dict[str, Any]:
    """A line across the chart at a value of the axis."""
    return {
        "data": {"values": [{"at": value}]},
        "mark": {"type": "rule", "color": GREY, "strokeDash": list(dash), "strokeWidth": 1.2},
        "encoding": {channel: {"field": "at", "type": "quantitative"}},
    }


def positive(value: float | None) -> bool:
    """Whether a logarithmic axis can show it."""
    return value is not None and math.isfinite(value) and value > 0


def finite(value: float | None) -> bool:
    return value is not None and math.isfinite(value)


VEGA_LITE = "https://vega.github.io/schema/vega-lite/v6.json"


class Figure(View):
    """One figure. It says in words what it shows, for those who cannot see it."""

    name: str
    """``fast-p``, ``anytime-correct-dollars``, ``roofline``...: in file names and in element ids."""
    title: str
    description: str
    """Alternative text: what is shown, with the numbers that matter."""
    spec: dict[str, Any] = Field(repr=False)
    """Vega-Lite 6, data inline, no address anywhere. No colours of text or background: the reader's theme sets them."""


class Absent(View):
    """A figure that cannot be drawn of this view."""

    name: str
    why: str
    """In a line: what is not there."""


Drawing = Figure | Absent


def figures_of(drawings: Iterable[Drawing]) -> tuple[Figure, ...]:
    """Those that can be drawn."""
    return tuple(one for one in drawings if isinstance(one, Figure))


def embedded_json(figure: Figure) -> str:
    """The specification as JSON for the inside of a ``<script type="application/json">``: nothing in it ends one.

    Raises:
        ValueError: a number in it is not finite, which JSON does not know.
    """
    text = to_json(figure.spec, inf_nan_mode="constants").decode()  # five times as fast as json, but takes any number
    if "NaN" in text or "Infinity" in text:
        text = json.dumps(figure.spec, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
