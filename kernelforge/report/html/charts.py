"""Figures of views on a page: the drawing, and the table of its numbers beside it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from markupsafe import Markup

from kernelforge.report.figures import Figure, embedded_json
from kernelforge.report.html.paths import Links


class Chart(NamedTuple):
    """One figure of a page."""

    name: str
    id: str
    title: str
    description: str
    spec: Markup
    """JSON that ends no script element."""
    height: int
    """Of the drawing on a wide page, in CSS pixels: room that is kept for it, so that nothing moves when it comes."""


def charts_of(figures: Iterable[Figure], links: Links) -> dict[str, Chart]:
    """The figures of a page by name."""
    return {figure.name: _chart(figure, links) for figure in figures}


def _chart(figure: Figure, links: Links) -> Chart:
    spec = Markup(embedded_json(figure))
    id = links.id(f"f-{figure.name}")
    return Chart(figure.name, id, figure.title, figure.description, spec, height_px(figure.spec))


AXIS_PX, LEGEND_ROW_PX, LEGEND_TITLE_PX = 49, 13, 17
"""What a drawing has around its plot: the axis below it with labels and title; each row of a legend above, and its
title."""


def height_px(spec: dict[str, Any]) -> int:
    """Height of the whole drawing of a specification whose plot has a height in pixels."""
    legends = [channel for channel in _channels(spec) if "scale" in channel and channel.get("legend", True) is not None]
    rows = [
        len(channel["scale"]["domain"]) if channel.get("legend", {}).get("columns") == 1 else 1 for channel in legends
    ]
    titled = any(channel.get("title") for channel in legends)
    return int(spec["height"]) + AXIS_PX + LEGEND_ROW_PX * max(rows, default=0) + LEGEND_TITLE_PX * titled


def _channels(spec: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The encodings of a specification and of its layers that are told in a legend."""
    for part in (spec, *spec.get("layer", ())):
        encoding = part.get("encoding", {})
        yield from (encoding[name] for name in ("color", "shape", "strokeDash") if "field" in encoding.get(name, {}))
