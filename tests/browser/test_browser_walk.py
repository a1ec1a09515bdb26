"""Walking through a report: links, filters, sorting, permalinks, theme, keys; and all of it without scripts."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kernelforge.records import Verdict
from kernelforge.report.html import paths
from tests.browser.page_checks import DESKTOP, PHONE, Tab
from tests.report.golden.golden_runs import golden

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = pytest.mark.browser

OPEN = Callable[..., Tab]
MODELLED, MEASURED = golden("modelled").run.id, golden("measured-a").run.id
RUN = paths.run_page(MODELLED)
HOLD = """
const Observer = IntersectionObserver, held = [];
window.IntersectionObserver = class extends Observer {
  constructor(callback, options) { super((...news) => held.push(() => callback(...news)), options); }
};
window.waiting = () => held.length;
window.release = () => held.splice(0).map(one => one()).length;
"""
"""Charts learn that they are visible only when the test says so."""


TASKS = list(golden("modelled").run.config.tasks)


def shows(page: Page, *tasks: str) -> None:
    """Wait until the matrix shows these tasks and no other, in their order."""
    from playwright.sync_api import expect

    expect(page.locator("table.matrix tbody tr:visible > th")).to_have_text(list(tasks))


def tasks_with(verdict: Verdict) -> list[str]:
    made = golden("modelled")
    with_it = {attempt.task for attempt in made.attempts if attempt.evaluation.verdict is verdict}
    return [name for name in TASKS if name in with_it]


@pytest.mark.slow
def test_from_the_runs_to_an_attempt_to_its_parent_and_back(tab: OPEN, report: Path):
    walk = tab(report)
    page = walk.page
    page.get_by_role("main").get_by_role("link", name=MODELLED, exact=True).first.click()
    walk.arrive(RUN)
    page.get_by_role("link", name="softmax", exact=True).first.click()
    walk.arrive(paths.task_page(MODELLED, "softmax"))
    page.locator(f"a[href='{Path(paths.attempt_page(MODELLED, 'softmax', 5)).name}']").first.click()
    walk.arrive(paths.attempt_page(MODELLED, "softmax", 5))
    page.get_by_role("link", name="parent").first.click()
    walk.arrive(paths.attempt_page(MODELLED, "softmax", 4))
    page.go_back()
    walk.arrive(paths.attempt_page(MODELLED, "softmax", 5))
    page.go_back()
    walk.arrive(paths.task_page(MODELLED, "softmax"))


@pytest.mark.slow
def test_every_address_of_a_page_leads_to_a_page_that_is_there(report: Path, tab: OPEN):
    walk = tab(report)
    seen: set[str] = set()
    for path in ("index.html", RUN, paths.task_page(MODELLED, "softmax"), paths.LEADERBOARD):
        walk.open(path)
        seen |= set(walk.page.locator("a[href]").evaluate_all("links => links.map(link => link.href.split('#')[0])"))
    home = report.as_uri() + "/"
    assert all(address.startswith(home) for address in seen)
    assert [address for address in seen if not (report / address.removeprefix(home)).is_file()] == []
    assert len(seen) > 30


@pytest.mark.slow
def test_a_step_of_the_funnel_filters_the_matrix(tab: OPEN, report: Path):
    page = tab(report, RUN).page
    shows(page, *TASKS)
    page.locator("a[data-state*='reached']").last.click()
    page.wait_for_url("**reached=4**")
    shows(page, *tasks_with(Verdict.OK))


@pytest.mark.slow
@pytest.mark.parametrize("viewport", [DESKTOP, PHONE], ids=["desk", "phone"])
def test_a_press_that_lasts_while_charts_come_near_is_still_a_click(viewport: dict[str, int], tab: OPEN, report: Path):
    """The control for the numbers of a chart is below it."""
    walk = tab(report, viewport=viewport)
    page = walk.page
    page.add_init_script(HOLD)
    page.goto((report / paths.run_page(MEASURED)).as_uri())
    page.evaluate("document.querySelector('[data-tabs]').scrollIntoView({behavior: 'instant'})")
    numbers = page.locator("[data-tabs] + details").first
    numbers.locator("summary").hover()
    box = numbers.bounding_box()
    page.wait_for_function("() => waiting() > 0")
    page.mouse.down()
    page.evaluate("release()")
    assert page.locator("figure.chart[data-drawn]").count() == 0
    page.mouse.up()
    page.locator("[data-tabs] figure.chart[data-drawn=true]").first.wait_for()
    assert numbers.get_attribute("open") is not None
    assert box is not None
    assert numbers.bounding_box()["y"] == box["y"]


@pytest.mark.slow
def test_charts_that_were_hidden_meanwhile_come_back_as_wide_as_their_place(tab: OPEN, report: Path):
    page = tab(report, paths.run_page(MEASURED), viewport=DESKTOP).page
    first, second = (page.locator("[role=tablist]").first.get_by_role("tab").nth(at) for at in (0, 1))
    chart = page.locator("[role=tabpanel]:not([hidden]) figure.chart").first
    for change in (
        lambda: page.evaluate("document.documentElement.dataset.theme = 'dark'"),
        lambda: page.set_viewport_size({"width": 900, "height": 800}),
    ):
        chart.scroll_into_view_if_needed()
        drawn_wide(page)
        second.click()
        drawn_wide(page)
        change()
        first.click()
        drawn_wide(page)


def drawn_wide(page: Page) -> None:
    """Wait until the chart of the tab that is chosen is drawn, as wide as the page has room for it."""
    page.wait_for_function("""() => {
      const figure = document.querySelector("[role=tabpanel]:not([hidden]) figure.chart[data-drawn=true]");
      if (!figure) return false;
      const room = figure.querySelector(".chart-plot").clientWidth;
      return room > 400 && Number(figure.querySelector("svg").getAttribute("width")) === room;
    }""")


@pytest.mark.slow
def test_filters_leave_the_rows_that_fit(tab: OPEN, report: Path):
    page = tab(report, RUN).page
    page.select_option("form[data-filters] [name=verdict]", "WRONG")
    shows(page, *tasks_with(Verdict.WRONG))
    page.select_option("form[data-filters] [name=verdict]", "")
    page.fill("form[data-filters] [name=q]", "matm")
    shows(page, "matmul")
    page.fill("form[data-filters] [name=q]", "")
    page.select_option("form[data-filters] [name=tag]", "elementwise")
    shows(page, "gelu")
    page.get_by_role("button", name="Clear").click()
    shows(page, *TASKS)


@pytest.mark.slow
def test_a_permalink_restores_the_filter(tab: OPEN, report: Path):
    page = tab(report, RUN).page
    page.fill("form[data-filters] [name=q]", "cumsum")
    page.wait_for_url("**q=cumsum")
    second = tab(report, RUN + "#" + page.url.partition("#")[2]).page
    shows(second, "cumsum")
    assert second.input_value("form[data-filters] [name=q]") == "cumsum"


@pytest.mark.slow
@pytest.mark.parametrize("fragment", ["%E0%A4%A", "'\"><img src=x>"])
def test_a_fragment_that_means_nothing_does_no_harm(fragment: str, tab: OPEN, report: Path):
    page = tab(report, f"{RUN}#{fragment}").page
    shows(page, *TASKS)


@pytest.mark.slow
def test_a_heading_sorts_by_value(tab: OPEN, report: Path):
    page = tab(report, paths.run_page(MEASURED)).page
    table = page.locator("table.data").filter(has=page.locator("th[data-key=time_us]")).first
    index = table.locator("thead th").evaluate_all("cells => cells.findIndex(c => c.dataset.key === 'time_us')")

    def values() -> list[float]:
        cells = table.locator("tbody tr").evaluate_all(
            "(rows, index) => rows.map(row => row.cells[index].dataset.value)", index
        )
        return [float(cell) for cell in cells if cell is not None]

    unsorted = values()
    heading = table.locator("th[data-key=time_us] button")
    for order in ("descending", "ascending"):
        heading.click()
        table.locator(f"th[data-key=time_us][aria-sort={order}]").wait_for()
        assert values() == sorted(unsorted, reverse=order == "descending")


@pytest.mark.slow
def test_the_theme_stays_after_a_reload(tab: OPEN, report: Path):
    page = tab(report, color_scheme="light").page
    paper = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(paper)
    for theme in ("light", "dark"):
        page.locator("button.theme").click()
        page.locator(f"html[data-theme={theme}]").wait_for()
    dark = page.evaluate(paper)
    assert dark != light
    page.reload()
    assert page.evaluate(paper) == dark


@pytest.mark.slow
def test_a_theme_that_is_none_is_not_taken(tab: OPEN, report: Path):
    """Pages of other people's files share the storage of ours."""
    page = tab(report).page
    page.evaluate("localStorage.setItem('kernelforge-theme', '<b>x</b>')")
    page.reload()
    assert page.locator("html").get_attribute("data-theme") is None
    assert page.locator("button.theme").text_content() == "Theme: auto"


@pytest.mark.slow
def test_a_keyboard_is_enough(tab: OPEN, report: Path):
    page = tab(report, RUN).page
    page.keyboard.press("Tab")
    page.wait_for_function("() => document.activeElement.className === 'skip'")
    page.keyboard.press("Enter")
    page.wait_for_function("() => document.activeElement.id === 'main'")
    page.keyboard.press("/")
    page.wait_for_function("() => document.activeElement.name === 'q'")
    page.keyboard.type("gelu")
    shows(page, "gelu")
    page.locator("table.matrix tbody tr:visible a").first.focus()
    page.keyboard.press("Enter")
    page.wait_for_url("**/gelu/index.html")


@pytest.mark.slow
def test_without_scripts_everything_can_be_read(tab: OPEN, report: Path):
    page = tab(report, RUN, java_script_enabled=False).page
    assert page.locator("table.matrix tbody tr").count() == len(TASKS)
    assert not page.locator("form[data-filters]").is_visible()
    assert not page.locator("button.theme").is_visible()
    page.goto((report / paths.attempt_page(MODELLED, "softmax", 1)).as_uri())
    text = page.locator("main").inner_text()
    assert "// softmax, version 1" in text
    assert "dram__bytes.sum" in text
    assert page.locator("ins").count() > 0
    assert page.locator("del").count() > 0
    assert "Write a kernel for softmax." in page.locator("main").text_content()


@pytest.mark.slow
def test_paper_shows_everything_dark_on_white(tab: OPEN, report: Path):
    page = tab(report, RUN, color_scheme="dark").page
    page.emulate_media(media="print", color_scheme="dark")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") in (
        "rgb(255, 255, 255)",
        "rgba(0, 0, 0, 0)",
    )
    assert page.evaluate("getComputedStyle(document.body).color") == "rgb(0, 0, 0)"
    assert not page.locator("form[data-filters]").is_visible()
    assert page.locator("table.matrix tbody tr").first.is_visible()


@pytest.mark.slow
def test_one_file_is_walked_by_its_fragments(tab: OPEN, report_file: Path):
    from playwright.sync_api import expect

    walk = tab(report_file.parent, report_file.name)
    page, text = walk.page, walk.page.locator(".page:visible")
    heading = text.locator("h1")
    expect(text).to_have_count(1)
    text.get_by_role("link", name=MODELLED, exact=True).first.click()
    expect(heading).to_contain_text(MODELLED)
    text.get_by_role("link", name="softmax", exact=True).first.click()
    expect(heading).to_have_text(re.compile("softmax(?! /)"))
    text.get_by_role("link", name="04 register_reuse").first.click()
    expect(heading).to_have_text(re.compile("softmax / 04"))
    expect(text).to_contain_text("// softmax, version 4")
    page.go_back()
    expect(heading).to_have_text(re.compile("softmax(?! /)"))
    assert set(walk.heard.requests) - {"data:,"} == {url for url in walk.heard.requests if report_file.name in url}


@pytest.mark.slow
def test_one_file_is_walked_without_scripts_too(tab: OPEN, report_file: Path):
    from playwright.sync_api import expect

    page = tab(report_file.parent, report_file.name, java_script_enabled=False).page
    text = page.locator(".page:visible")
    expect(text).to_have_count(1)
    text.get_by_role("link", name=MODELLED, exact=True).first.click()
    expect(text).to_have_count(1)
    expect(text.locator("table.matrix tbody tr")).to_have_count(len(TASKS))
