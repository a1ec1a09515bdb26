"""A figure: a Vega-Lite specification with the numbers in it, from which pages draw and PNG and SVG are written."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from pydantic import Field
from pydantic_core import to_json

from kernelforge.report.views.base import View

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
