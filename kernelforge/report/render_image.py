"""Render charts to SVG and PNG for papers, from the specifications of the pages.

Requires the extra ``figures`` (vl-convert, which contains Vega and its fonts); loads nothing from the network.
"""

from __future__ import annotations

import json
from types import ModuleType
from typing import Any

from kernelforge.errors import UsageError
from kernelforge.report.figures import Figure
from kernelforge.utils.shell_hints import install_hint

WIDTH = 380
"""Width of the picture in CSS pixels (1/96 inch): about one column of a paper at a type size of 8 points."""
PNG_SCALE = 3.0
"""Pixels of a PNG per CSS pixel: 288 per inch."""

_INK = "#1a1a1a"
_FONT = "Arial, Liberation Sans, Helvetica, sans-serif"
_LINES = {"domainColor": "#777777", "tickColor": "#777777", "gridColor": "#e4e4e4"}
_WORDS = {
    "labelColor": _INK,
    "titleColor": _INK,
    "labelFontSize": 10,
    "titleFontSize": 10.5,
    "titleFontWeight": "normal",
}
_LEGEND_COLUMN = 125
_LABELS = 0.42
"""Largest share of the width for the names of rows."""
PAPER: dict[str, Any] = {
    "aria": False,
    "background": "#ffffff",
    "font": _FONT,
    "padding": 6,
    "axis": {**_LINES, **_WORDS},
    "legend": {**_WORDS, "orient": "top", "offset": 4, "symbolOpacity": 1, "symbolSize": 60},
    "text": {"color": _INK, "fontSize": 10},
    "style": {"ink": {"stroke": _INK}},
    "title": {"anchor": "start", "color": _INK, "fontSize": 11.5, "fontWeight": "bold", "offset": 8},
    "view": {"stroke": None},
}
"""Theme for print: dark sans-serif text on white."""


def svg(figure: Figure, *, width: int = WIDTH, height: int | None = None, title: bool = True) -> str:
    """The figure as the text of an SVG file; the same text for the same figure.

    Args:
        width: of the picture, in CSS pixels.
        height: of the plot inside the axes; the figure's own if left out.
        title: draw the figure's title above it.

    Raises:
        UsageError: vl-convert is not installed.
    """
    drawn: str = _vl_convert().vegalite_to_svg(_sized(figure, width, height, title), **_settings(width))
    return drawn


def png(
    figure: Figure, *, width: int = WIDTH, height: int | None = None, title: bool = True, scale: float = PNG_SCALE
) -> bytes:
    """The figure as the bytes of a PNG file, with ``scale`` pixels to a CSS pixel; else as :func:`svg`."""
    spec = _sized(figure, width, height, title)
    drawn: bytes = _vl_convert().vegalite_to_png(spec, scale=scale, **_settings(width))
    return drawn


def _settings(width: int) -> dict[str, Any]:
    """Arguments of vl-convert: no network access, and the theme with the settings that depend on the width."""
    legend = PAPER["legend"] | {"columns": max(width // _LEGEND_COLUMN, 1)}
    config = PAPER | {"legend": legend, "axisY": {"labelLimit": int(_LABELS * width)}}
    return {"config": config, "allowed_base_urls": [], "show_warnings": False}


def _sized(figure: Figure, width: int, height: int | None, title: bool) -> str:
    """The specification with its size, which pages compute themselves."""
    spec = dict(figure.spec) | {"width": width}
    if height is not None:
        spec["height"] = height
    if title:
        spec["title"] = {"text": figure.title, "limit": width - 20}
    return json.dumps(spec, ensure_ascii=False, allow_nan=False)


def _vl_convert() -> ModuleType:
    try:
        import vl_convert
    except ImportError:
        raise UsageError(f"pictures need vl-convert: {install_hint('figures')}") from None
    return vl_convert
