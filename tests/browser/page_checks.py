"""Checks of a page: its console messages, its requests, its text."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.browser.chromium import WAIT_MS

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Page

DESKTOP = {"width": 1280, "height": 800}
PHONE = {"width": 390, "height": 844}
AXE = {"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa"], "resultTypes": ["violations"], "preload": False}
"""WCAG 2.1 at levels A and AA. Preloading would fetch the style sheets, which the policy of the pages forbids."""


COLOUR_RULES = {"type": "rule", "values": ["color-contrast", "link-in-text-block"]}


@dataclass
class Heard:
    """Console messages and requests of pages."""

    faults: list[str] = field(default_factory=list)
    """Warnings and errors of the console, and uncaught errors."""
    requests: list[str] = field(default_factory=list)


def listen(context: BrowserContext) -> Heard:
    """Hear everything that pages of this context say and ask for."""
    heard = Heard()

    def on_console(message: Any) -> None:
        if message.type in ("warning", "error"):
            heard.faults.append(f"{message.type}: {message.text}")

    context.on("console", on_console)
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
        self.page.set_default_timeout(WAIT_MS)
        self.page.add_init_script(WATCH)

    def open(self, page: str) -> Tab:
        """Go to a page of the folder, a path with a fragment where there is one, and wait for the charts in sight."""
        path, _, part = page.partition("#")
        self.page.goto((self.folder / path).as_uri() + (f"#{part}" if part else ""), wait_until="load")
        self.page.wait_for_function(_SETTLED)
        return self

    def arrive(self, path: str) -> None:
        """Wait until a click has led to a page of the report, and that has loaded."""
        self.page.wait_for_url(f"{self.folder.as_uri()}/{path}")

    @property
    def strangers(self) -> list[str]:
        return strangers(self.heard, self.folder.as_uri())


@dataclass(frozen=True)
class Visit:
    """Observations of one page."""

    faults: list[str]
    strangers: list[str]
    moved: float
    """How far what was in sight moved while the page came about: cumulative layout shift, as the browser reckons it."""
    rooms: dict[str, list[float]]
    """Heights of each figure's drawing, in pixels: that it was given room for, and that it took."""
    charts: dict[str, int]
    """Marks that each figure drew; -1 where it failed."""
    tables: list[list[dict[str, str]]]
    """Rows of the page's tables: by column key, the raw value of each cell that has one."""
    data: dict[str, str]
    """By ending, the path of the file of data that the page offers."""
    overflow: int
    """Pixels by which the page is wider than what it is seen in."""
    sideways: dict[str, int]
    """By name, pixels by which each table is wider than its place."""
    violations: list[str]
    """What axe-core found: rule, element, why."""


def visit(browser: Browser, folder: Path, page: str, theme: str, *, second: bool = False) -> Visit:
    """Open a page at a desk in the light, or on a phone in the dark, and look at everything.

    Args:
        again: it was looked at in the other theme: only what colour and width may change is of interest.
    """
    from axe_playwright_python.sync_playwright import Axe

    viewport = {"light": DESKTOP, "dark": PHONE}[theme]
    context = browser.new_context(viewport=viewport, color_scheme=theme)
    tab = Tab(context, folder).open(page)
    moved = tab.page.evaluate("moved")
    charts = {} if second else drawn(tab.page)
    rooms = {} if second else tab.page.evaluate(_ROOMS)
    result = Axe().run(tab.page, options=AXE | ({"runOnly": COLOUR_RULES} if second else {})).response
    violations = [
        f"{rule['id']}: {node['html'][:160]}: {node['failureSummary'][:300]}"
        for rule in result["violations"]
        for node in rule["nodes"][:3]
    ]
    offered = tab.page.locator("a[href*='data/']").evaluate_all("links => links.map(link => link.href)")
    data = {address.rpartition(".")[2]: address.removeprefix(folder.as_uri() + "/") for address in offered}
    tables = tab.page.evaluate(_TABLES)
    overflow = tab.page.evaluate("document.documentElement.scrollWidth - innerWidth")
    sideways = tab.page.evaluate(SIDEWAYS)
    context.close()
    return Visit(tab.heard.faults, tab.strangers, moved, rooms, charts, tables, data, overflow, sideways, violations)


def drawn(page: Page) -> dict[str, int]:
    """Scroll through the page and its tabs, and count the marks of each chart."""
    names: list[str] = page.evaluate("[...document.querySelectorAll('figure.chart')].map(one => one.dataset.figure)")
    for name in names:
        page.evaluate(_REVEAL, name)
        page.locator(f"figure[data-figure='{name}'][data-drawn]").wait_for(state="attached")
    counts: dict[str, int] = page.evaluate(_MARKS)
    return counts


WATCH = """
window.moved = 0;
new PerformanceObserver(list => {
  for (const shift of list.getEntries()) if (!shift.hadRecentInput) window.moved += shift.value;
}).observe({type: 'layout-shift', buffered: true});
"""

_SETTLED = """() => !document.documentElement.matches('.scripted') ||
  [...document.querySelectorAll('figure.chart:not([data-drawn])')].every(figure => {
    const {top, bottom, height} = figure.getBoundingClientRect();
    return height === 0 || bottom < -390 || top > innerHeight + 390;
  })"""
"""Whether every chart is drawn that is so near that it should be; without scripts none will be."""

_ROOMS = """() => Object.fromEntries([...document.querySelectorAll('figure.chart')].map(figure => [
  figure.dataset.figure,
  [
    parseFloat(figure.querySelector('.chart-plot').style.minHeight),
    Number(figure.querySelector('svg').getAttribute('height')),
  ],
]))"""

_REVEAL = """name => {
  const figure = document.querySelector(`figure[data-figure='${name}']`);
  const panel = figure.closest('[role=tabpanel]');
  if (panel && panel.hidden) document.getElementById(panel.getAttribute('aria-labelledby')).click();
  figure.scrollIntoView({behavior: 'instant'});
}"""
"""Choose the tab of a chart, and scroll to it."""

_MARKS = """() => Object.fromEntries([...document.querySelectorAll('figure.chart')].map(figure => [
  figure.dataset.figure,
  figure.dataset.drawn === 'true' ? figure.querySelectorAll('svg .role-mark:not(.mark-group) > *').length : -1,
]))"""

SIDEWAYS = """() => Object.fromEntries([...document.querySelectorAll('.scroll')]
  .map((one, at) => [`${one.getAttribute('aria-label')} ${at}`, one.scrollWidth - one.clientWidth])
  .filter(pair => pair[1] > 0))"""

_TABLES = """() => [...document.querySelectorAll('table.data')].map(table => {
  const keys = [...table.tHead.rows[0].cells].map(cell => cell.dataset.key);
  return [...table.tBodies[0].rows].map(row => Object.fromEntries(
    [...row.cells].flatMap((cell, at) => [[keys[at], cell.dataset.value],
      ...[...cell.querySelectorAll('[data-part]')].map(part => [part.dataset.part, part.dataset.value])])
    .filter(pair => pair[1] !== undefined)));
})"""
