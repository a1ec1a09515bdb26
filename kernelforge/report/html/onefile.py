"""A site as one HTML file: pages are sections, selected by the URL's fragment."""

from __future__ import annotations

import re
from collections.abc import Iterator

from kernelforge.report.html import paths
from kernelforge.report.html.paths import OneFileLinks
from kernelforge.report.html.rendering import CHART_SCRIPTS, CODE_SCRIPTS, EARLY_SCRIPT, SCRIPTS, STYLE, policy
from kernelforge.report.html.site import Site

_ENDING = re.compile(r"<(?=/?(?:script|style)|!--)", re.IGNORECASE)


def document(site: Site) -> Iterator[str]:
    """The document in parts, a page at a time."""
    assets = site.assets()
    names = (EARLY_SCRIPT, *CHART_SCRIPTS, *CODE_SCRIPTS, *SCRIPTS)
    scripts = tuple(_script(assets[name].read_text(encoding="utf-8")) for name in names if name in assets)
    style = _style(assets[STYLE].read_text(encoding="utf-8"))
    opening, closing = site.shell(
        links=OneFileLinks(paths.INDEX, site.twin),
        policy=policy(scripts=scripts, styles=(style,)),
        style=style,
        scripts=scripts,
    )
    yield opening
    for path in site.pages():
        if path != site.twin:
            yield site.section(path)
    yield closing


def _script(text: str) -> str:
    """JavaScript for the inside of a script element: nothing in it ends or nests one. In strings and in regular
    expressions, the only places where it could stand, the escape means the same character."""
    return _ENDING.sub(r"\\x3c", text)


def _style(text: str) -> str:
    """CSS for the inside of a style element."""
    return _ENDING.sub(r"\\3c ", text)
