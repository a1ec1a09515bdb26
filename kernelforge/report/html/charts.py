"""Figures of views on a page: the drawing, and the table of its numbers beside it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

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


def charts_of(figures: Iterable[Figure], links: Links) -> dict[str, Chart]:
    """The figures of a page by name."""
    return {figure.name: _chart(figure, links) for figure in figures}


def _chart(figure: Figure, links: Links) -> Chart:
    spec = Markup(embedded_json(figure))
    return Chart(figure.name, links.id(f"f-{figure.name}"), figure.title, figure.description, spec)
