"""Charts in a page that forbids eval and the network: themes, tooltips, links, saving, printing, and failing."""

from __future__ import annotations

import html
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree import ElementTree

import pytest

import kernelforge.report.html
from kernelforge.report import run_view
from kernelforge.report.figures import Figure, draw_run, embedded_json, figures_of
from tests.report.golden.golden_runs import golden_records

if TYPE_CHECKING:
    from playwright.sync_api import Page

    from tests.browser.page_checks import Tab

pytestmark = pytest.mark.browser

STATIC = Path(kernelforge.report.html.__file__).parent / "static"
SCRIPTS = ("vendor/vega.min.js", "vendor/vega-lite.min.js", "vendor/vega-interpreter.min.js", "press.js", "charts.js")
POLICY = "default-src 'none'; script-src 'self' file:; style-src 'self' file:; base-uri 'none'"
LIGHT, DARK = "rgb(27, 29, 33)", "rgb(227, 229, 232)"
STYLE = f"""
body {{ color: {LIGHT}; background: #fff; }}
:root[data-theme="dark"] body {{ color: {DARK}; background: #15171a; }}
.far {{ height: 4000px; }}
.chart-tooltip {{ position: fixed; pointer-events: none; }}
"""
BROKEN = Figure(name="broken", title="Broken", description="", spec={"mark": "no such mark"})


def markup(figure: Figure) -> str:
    return (
        f'<figure class="chart" data-figure="f-{figure.name}"><script type="application/json" id="f-{figure.name}">'
        f'{embedded_json(figure)}</script><div class="chart-plot"></div><figcaption>{html.escape(figure.title)}'
        '</figcaption><button class="chart-save" type="button">Save as SVG</button></figure>'
    )


@pytest.fixture(scope="module")
def charts() -> dict[str, Figure]:
    view = run_view(golden_records("measured-a"))
    return {
        figure.name: figure for figure in figures_of(draw_run(view, {task.task: "there.html" for task in view.tasks}))
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, charts: dict[str, Figure]) -> Path:
    """A page with charts above and far below what is seen at first."""
    where = tmp_path_factory.mktemp("charts")
    shutil.copytree(STATIC, where / "assets")
    (where / "page.css").write_text(STYLE)
    scripts = "".join(f'<script defer src="assets/{name}"></script>' for name in SCRIPTS)
    head = (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Charts</title>{scripts}'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}"><link rel="stylesheet" href="page.css"></head>'
    )
    near, far = markup(charts["speedups"]), markup(charts["funnel"])
    (where / "index.html").write_text(f'{head}<body>{near}<div class="far"></div>{far}</body></html>')
    (where / "broken.html").write_text(f"{head}<body>{markup(BROKEN)}</body></html>")
    (where / "there.html").write_text(f"{head}<body>there</body></html>")
    return where


@pytest.fixture
def opened(tab: Callable[..., Tab], folder: Path) -> Page:
    page = tab(folder).page
    page.wait_for_selector("figure[data-figure='f-speedups'][data-drawn='true']")
    return page


def ink(page: Page, name: str = "f-speedups") -> str:
    """Colour of the text of a chart."""
    return page.evaluate(
        "name => getComputedStyle(document.querySelector(`figure[data-figure='${name}'] svg text`)).fill", name
    )


def first_mark(page: Page) -> tuple[float, float]:
    box = page.locator("figure[data-figure='f-speedups'] .mark-symbol.role-mark path").first.bounding_box()
    assert box is not None
    return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2


@pytest.mark.slow
def test_a_chart_is_drawn_when_it_comes_near_and_described_for_those_who_do_not_see_it(
    opened: Page, charts: dict[str, Figure]
) -> None:
    plot = opened.locator("figure[data-figure='f-speedups'] .chart-plot")
    assert plot.get_attribute("role") == "img"
    assert plot.get_attribute("aria-label") == charts["speedups"].description
    far = opened.locator("figure[data-figure='f-funnel']")
    assert far.get_attribute("data-drawn") is None
    far.scroll_into_view_if_needed()
    opened.wait_for_selector("figure[data-figure='f-funnel'][data-drawn='true']")


@pytest.mark.slow
def test_a_chart_follows_the_theme(opened: Page) -> None:
    assert ink(opened) == LIGHT
    opened.evaluate("document.documentElement.dataset.theme = 'dark'")
    opened.wait_for_function(
        "ink => getComputedStyle(document.querySelector('figure svg text')).fill === ink", arg=DARK
    )


@pytest.mark.slow
def test_a_mark_says_what_it_is_and_leads_to_its_page(opened: Page, charts: dict[str, Figure]) -> None:
    opened.mouse.move(*first_mark(opened))
    opened.wait_for_selector(".chart-tooltip:not([hidden])")
    assert f"task: {charts['speedups'].spec['data']['values'][0]['task']}" in opened.inner_text(".chart-tooltip")
    opened.mouse.click(*first_mark(opened))
    opened.wait_for_url("**/there.html")


@pytest.mark.slow
def test_a_chart_can_be_saved_as_it_would_be_printed(opened: Page, tmp_path: Path) -> None:
    opened.evaluate("document.documentElement.dataset.theme = 'dark'")
    with opened.expect_download() as download:
        opened.get_by_role("button", name="Save as SVG").first.click()
    assert download.value.suggested_filename == "speedups.svg"
    download.value.save_as(tmp_path / "speedups.svg")
    picture = ElementTree.parse(tmp_path / "speedups.svg").getroot()
    assert picture.find("{http://www.w3.org/2000/svg}rect").get("fill") == "#ffffff"


@pytest.mark.slow
def test_all_charts_are_printed_dark_on_white(opened: Page) -> None:
    opened.evaluate("document.documentElement.dataset.theme = 'dark'")
    opened.evaluate("dispatchEvent(new Event('beforeprint'))")
    opened.wait_for_function(
        "ink => [...document.querySelectorAll('figure')].every(figure => figure.dataset.drawn === 'true' && "
        "getComputedStyle(figure.querySelector('svg text')).fill === ink)",
        arg="rgb(26, 26, 26)",
    )
    opened.evaluate("dispatchEvent(new Event('afterprint'))")
    opened.wait_for_function(
        "ink => getComputedStyle(document.querySelector('figure svg text')).fill === ink", arg=DARK
    )


@pytest.mark.slow
def test_a_chart_that_cannot_be_drawn_says_so_in_its_place(tab: Callable[..., Tab], folder: Path) -> None:
    page = tab(folder, "broken.html").page
    page.wait_for_selector("figure[data-drawn='failed']")
    assert "This chart could not be drawn: " in page.inner_text(".chart-error")
