"""Charts on a page, each with the table of its numbers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from markupsafe import Markup

from kernelforge.report.figures import Drawing, Figure, embedded_json, figures_of
from kernelforge.report.html.paths import Links


class Chart(NamedTuple):
    """One figure of a page."""

    name: str
    id: str
    title: str
    description: str
    spec: Markup
    """JSON that cannot end a script element."""
    height: int
    """Height of the drawing on a wide page, in CSS pixels: reserved, so that the page does not move when it is
    drawn."""
    narrow: int
    """The same on a narrow page, where a legend has more rows."""


def charts_of(drawings: Iterable[Drawing], links: Links) -> dict[str, Chart]:
    """The figures of a page by name."""
    return {figure.name: _chart(figure, links) for figure in figures_of(drawings)}


def _chart(figure: Figure, links: Links) -> Chart:
    spec = Markup(embedded_json(figure))
    id = links.id(f"f-{figure.name}")
    wide, narrow = height_px(figure.spec), height_px(figure.spec, NARROW_COLUMNS)
    return Chart(figure.name, id, figure.title, figure.description, spec, wide, narrow)


AXIS_PX, LEGEND_ROW_PX, LEGEND_TITLE_PX = 49, 13, 17
"""Heights outside the plot: the axis below it with labels and title, a row of the legend above, and its title."""
SYMBOLS_PX = 18
"""Each further row of a legend in several columns; its symbols may be higher than its text."""
WIDE_COLUMNS, NARROW_COLUMNS = 6, 2
"""Columns of such a legend on a wide page, and at least on a phone."""


def height_px(spec: dict[str, Any], columns: int = WIDE_COLUMNS) -> int:
    """Height of the drawing of a specification whose plot has a height in pixels.

    Args:
        columns: of a legend without its own number of columns.
    """
    legends = [channel for channel in _channels(spec) if "scale" in channel and channel.get("legend", True) is not None]
    above = max((_legend_px(channel, columns) for channel in legends), default=0)
    titled = any(channel.get("title") for channel in legends)
    return int(spec["height"]) + AXIS_PX + above + LEGEND_TITLE_PX * titled


def _legend_px(channel: dict[str, Any], columns: int) -> int:
    entries = len(channel["scale"]["domain"])
    if channel.get("legend", {}).get("columns") == 1:
        return LEGEND_ROW_PX * entries
    return LEGEND_ROW_PX + SYMBOLS_PX * ((entries - 1) // columns)


def _channels(spec: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Encodings of a specification and of its layers that appear in a legend."""
    for part in (spec, *spec.get("layer", ())):
        encoding = part.get("encoding", {})
        yield from (encoding[name] for name in ("color", "shape", "strokeDash") if "field" in encoding.get(name, {}))
