"""Jinja templates, compiled once, and charts with the table of their numbers.

All text is HTML-escaped; control characters are written as escapes.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import BaseLoader, ChoiceLoader, Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from kernelforge.llm.rate_limits import reasoning_tokens
from kernelforge.report import formatting
from kernelforge.report.figures import Drawing, Figure, embedded_json, figures_of
from kernelforge.report.html.paths import Links
from kernelforge.report.html.tables import raw_number

HERE = Path(__file__).parent
STATIC = HERE / "static"
CHART_SCRIPTS = ("vega.min.js", "vega-lite.min.js", "vega-interpreter.min.js", "press.js", "charts.js")
CODE_SCRIPTS = ("highlight.min.js",)
SCRIPTS = ("app.js",)
EARLY_SCRIPT = "early.js"
STYLE = "style.css"


@cache
def environment(*folders: Path) -> Environment:
    """The template environment of the pages.

    Args:
        folders: further templates, such as those of the live viewer.
    """
    loaders: list[BaseLoader] = [FileSystemLoader(folder) for folder in (HERE / "templates", *folders)]
    made = Environment(
        loader=ChoiceLoader(loaders),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_finalize,
        auto_reload=False,
        cache_size=-1,
    )
    made.filters.update(
        number=formatting.number,
        times=formatting.times,
        predicted=formatting.predicted_speedup,
        card_error=formatting.format_card_error,
        percent=formatting.percent,
        change=formatting.change,
        bytes=formatting.byte_count,
        duration=formatting.duration,
        moment=formatting.moment,
        line=formatting.one_line,
        short=formatting.one_line,
        raw=raw_number,
        dollars=formatting.format_dollars,
        budget=formatting.format_budget,
        where=formatting.format_fingerprint,
        note=formatting.format_note,
        outcome=formatting.short_outcome,
        timings=formatting.format_timings,
        reasoning_tokens=lambda message: reasoning_tokens(message.reasoning, message.usage).text,
    )
    made.globals["absent"] = formatting.ABSENT
    return made


def _finalize(value: Any) -> Any:
    """Text of a printed value: control and bidirectional characters are escaped, ``None`` is a dash."""
    if isinstance(value, str):
        return value if isinstance(value, Markup) else formatting.printable(value)
    return formatting.ABSENT if value is None else value


def policy(*, scripts: tuple[str, ...] = (), styles: tuple[str, ...] = (), live: bool = False) -> str:
    """Content Security Policy of a page: only files of the report are allowed.

    Args:
        scripts: texts of allowed inline scripts; script files are forbidden then.
        styles: texts of inline style sheets.
        live: allow connections to the page's own server.
    """
    script = " ".join(map(_hash, scripts)) or "'self' file:"
    style = " ".join(map(_hash, styles)) or "'self' file:"
    image = "data:" if scripts or styles else "'self' file: data:"
    connect = "; connect-src 'self'" if live else ""
    return (
        f"default-src 'none'; script-src {script}; style-src {style}; img-src {image}{connect}; "
        "base-uri 'none'; form-action 'none'"
    )


def _hash(content: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"


@cache
def assets() -> dict[str, Path]:
    """Files of ``assets/`` by name."""
    files = {path.name: path for folder in (STATIC, STATIC / "vendor") for path in folder.iterdir() if path.is_file()}
    return dict(sorted(files.items()))


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
