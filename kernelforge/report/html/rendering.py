"""Jinja templates, compiled once. All text is HTML-escaped; control characters are written as escapes."""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import BaseLoader, ChoiceLoader, Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from kernelforge.report import formatting
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
