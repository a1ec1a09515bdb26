"""How tests read a page: what it said, what it asked for, what it shows."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Page

DESKTOP = {"width": 1280, "height": 800}
PHONE = {"width": 390, "height": 844}
AXE = {"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa"], "resultTypes": ["violations"], "preload": False}
"""WCAG 2.1 at levels A and AA. Preloading would fetch the style sheets, which the policy of the pages forbids."""


@dataclass
class Heard:
    """What pages said to the console and what they asked for."""

    faults: list[str] = field(default_factory=list)
    """Warnings and errors of the console, and errors that nobody caught."""
    requests: list[str] = field(default_factory=list)


def listen(context: BrowserContext) -> Heard:
    """Hear everything that pages of this context say and ask for."""
    heard = Heard()

    def said(message: Any) -> None:
        if message.type in ("warning", "error"):
            heard.faults.append(f"{message.type}: {message.text}")

    context.on("console", said)
    context.on("weberror", lambda error: heard.faults.append(f"uncaught: {error.error}"))
    context.on("request", lambda request: heard.requests.append(request.url))
    return heard


def strangers(heard: Heard, home: str) -> list[str]:
    """Requests to anything but the report itself."""
    return [url for url in heard.requests if not url.startswith((home, "data:", "blob:"))]


class Tab:
    """One page of a report in a context of its own."""

    def __init__(self, context: BrowserContext, folder: Path) -> None:
        self.context, self.folder = context, folder
        self.heard = listen(context)
        self.page = context.new_page()
        self.page.set_default_timeout(10_000)

    def open(self, page: str) -> Tab:
        """Go to a page of the folder: its path, with a fragment where there is one."""
        path, _, part = page.partition("#")
        self.page.goto((self.folder / path).as_uri() + (f"#{part}" if part else ""), wait_until="load")
        return self

    @property
    def place(self) -> str:
        """Path of the page within the report, with its fragment."""
        return self.page.url.removeprefix(self.folder.as_uri() + "/")

    @property
    def strangers(self) -> list[str]:
        return strangers(self.heard, self.folder.as_uri())


@dataclass(frozen=True)
class Visit:
    """What one page was like, at a desk and on a phone."""

    title: str
    faults: list[str]
    strangers: list[str]
    charts: dict[str, int]
    """Marks that each figure drew; -1 where it failed."""
    tables: list[list[dict[str, str]]]
    """Rows of the page's tables: by column key, the raw value of each cell that has one."""
    overflow: int
    """Pixels by which the page is wider than a phone."""
    violations: dict[str, list[str]]
    """By theme, what axe-core found: rule, element, why."""


def visit(browser: Browser, folder: Path, page: str) -> Visit:
    """Open a page at both widths and in both themes, and look at everything."""
    from axe_playwright_python.sync_playwright import Axe

    context = browser.new_context(viewport=DESKTOP, color_scheme="light")
    tab = Tab(context, folder).open(page)
    charts = drawn(tab.page)
    tables = tab.page.evaluate(_TABLES)
    violations = {}
    for theme in ("light", "dark"):
        tab.page.emulate_media(color_scheme=theme)
        tab.page.wait_for_timeout(30)
        found = Axe().run(tab.page, options=AXE).response
        violations[theme] = [
            f"{rule['id']}: {node['html'][:160]}: {node['failureSummary'][:300]}"
            for rule in found["violations"]
            for node in rule["nodes"][:3]
        ]
    tab.page.set_viewport_size(PHONE)
    tab.page.reload(wait_until="load")
    phone = drawn(tab.page)
    overflow = tab.page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    title = tab.page.title()
    context.close()
    assert phone == charts, "a phone draws what a desk draws"
    return Visit(title, tab.heard.faults, tab.strangers, charts, tables, overflow, violations)


def drawn(page: Page) -> dict[str, int]:
    """Scroll through the page, and count the marks of each chart that can be seen."""
    names: list[str] = page.evaluate(
        "[...document.querySelectorAll('figure.chart')].filter(f => f.offsetParent).map(f => f.dataset.figure)"
    )
    for name in names:
        figure = page.locator(f"figure[data-figure='{name}']")
        figure.scroll_into_view_if_needed()
        page.wait_for_function(
            "name => document.querySelector(`figure[data-figure='${name}']`).dataset.drawn", arg=name
        )
    counts: dict[str, int] = page.evaluate(_MARKS)
    return {name: counts[name] for name in names}


_MARKS = """() => Object.fromEntries([...document.querySelectorAll('figure.chart')].map(figure => [
  figure.dataset.figure,
  figure.dataset.drawn === 'true' ? figure.querySelectorAll(
    'svg g[class*=mark-]:not([class*=role-axis]):not([class*=role-legend]):not([class*=mark-group]) > *').length : -1,
]))"""

_TABLES = """() => [...document.querySelectorAll('table.data')].map(table => {
  const keys = [...table.tHead.rows[0].cells].map(cell => cell.dataset.key);
  return [...table.tBodies[0].rows].map(row => Object.fromEntries(
    [...row.cells].map((cell, at) => [keys[at], cell.dataset.value]).filter(pair => pair[1] !== undefined)));
})"""
