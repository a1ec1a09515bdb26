"""A figure: a Vega-Lite specification with the numbers in it, from which pages draw and PNG and SVG are written."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from kernelforge.report.summary import View

VEGA_LITE = "https://vega.github.io/schema/vega-lite/v6.json"


class Figure(View):
    """One figure. It says in words what it shows, for those who cannot see it."""

    name: str
    """``fast-p``, ``anytime-dollars``, ``roofline``...: in file names and in element ids."""
    title: str
    description: str
    """Alternative text: what is shown, with the numbers that matter."""
    spec: dict[str, Any] = Field(repr=False)
    """Vega-Lite 6, data inline, no address anywhere. No colours of text or background: the reader's theme sets them."""
