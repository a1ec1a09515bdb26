"""Walking through a report: links, filters, sorting, permalinks, theme, keys; and all of it without scripts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from golden_runs import golden
from visits import Tab

from kernelforge.records import Verdict
from kernelforge.report.html import paths

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = pytest.mark.browser

OPEN = Callable[..., Tab]
MODELLED, MEASURED = golden("modelled").run.id, golden("measured-a").run.id
RUN = paths.run_page(MODELLED)
HOLD = """
const Observer = IntersectionObserver, held = [];
window.IntersectionObserver = class extends Observer {
  constructor(told, options) { super((...news) => held.push(() => told(...news)), options); }
};
window.release = () => held.splice(0).map(one => one()).length;
"""
"""No chart knows that it is in sight before it is told to."""


def rows(page: Page) -> list[str]:
    """Tasks of the matrix that are shown, in their order."""
    return page.locator("table.matrix tbody tr:visible").evaluate_all("rows => rows.map(row => row.dataset.task)")


def tasks_with(verdict: Verdict) -> list[str]:
    made = golden("modelled")
    with_it = {attempt.task for attempt in made.attempts if attempt.evaluation.verdict is verdict}
    return [name for name in made.run.config.tasks if name in with_it]


def test_from_the_runs_to_an_attempt_to_its_parent_and_back(tab: OPEN, report: Path):
    walk = tab(report)
    page = walk.page
    page.get_by_role("main").get_by_role("link", name=MODELLED, exact=True).first.click()
    assert walk.place == RUN
    page.get_by_role("link", name="softmax", exact=True).first.click()
    assert walk.place == paths.task_page(MODELLED, "softmax")
    page.locator(f"a[href='{Path(paths.attempt_page(MODELLED, 'softmax', 5)).name}']").first.click()
    assert walk.place == paths.attempt_page(MODELLED, "softmax", 5)
    page.get_by_role("link", name="parent").first.click()
    assert walk.place == paths.attempt_page(MODELLED, "softmax", 4)
    page.go_back()
    page.go_back()
    assert walk.place == paths.task_page(MODELLED, "softmax")


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


def test_a_step_of_the_funnel_filters_the_matrix(tab: OPEN, report: Path):
    page = tab(report, RUN).page
    assert rows(page) == list(golden("modelled").run.config.tasks)
    page.locator("a[data-state*='reached']").last.click()
    page.wait_for_url("**reached=4**")
    assert rows(page) == tasks_with(Verdict.OK)


def test_a_press_that_lasts_while_charts_are_drawn_is_still_a_click(tab: OPEN, report: Path):
    walk = tab(report)
    page = walk.page
    page.add_init_script(HOLD)
    page.goto((report / RUN).as_uri())
    link = page.locator("a[data-state*='reached']").last
    link.hover()
    page.mouse.down()
    assert page.evaluate("release()") > 0
    page.locator("figure.chart[data-drawn=true]").first.wait_for()
    page.mouse.up()
    page.wait_for_url("**reached=4**")


def test_filters_leave_the_rows_that_fit(tab: OPEN, report: Path):
    page = tab(report, RUN).page
    page.select_option("form[data-filters] [name=verdict]", "WRONG")
    assert rows(page) == tasks_with(Verdict.WRONG)
    page.select_option("form[data-filters] [name=verdict]", "")
    page.fill("form[data-filters] [name=q]", "matm")
    assert rows(page) == ["matmul"]
    page.fill("form[data-filters] [name=q]", "")
    page.select_option("form[data-filters] [name=tag]", "elementwise")
    assert rows(page) == ["gelu"]
    page.get_by_role("button", name="Clear").click()
    page.locator("table.matrix tbody tr:not([hidden]) >> nth=5").wait_for()
    assert rows(page) == list(golden("modelled").run.config.tasks)


def test_a_permalink_restores_the_filter(tab: OPEN, report: Path):
    page = tab(report, RUN).page
    page.fill("form[data-filters] [name=q]", "cumsum")
    page.wait_for_url("**q=cumsum")
    again = tab(report, RUN + "#" + page.url.partition("#")[2]).page
    assert rows(again) == ["cumsum"]
    assert again.input_value("form[data-filters] [name=q]") == "cumsum"


@pytest.mark.parametrize("fragment", ["%E0%A4%A", "'\"><img src=x>"])
def test_a_fragment_that_means_nothing_does_no_harm(fragment: str, tab: OPEN, report: Path):
    page = tab(report, f"{RUN}#{fragment}").page
    assert len(rows(page)) == len(golden("modelled").run.config.tasks)


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
    heading.click()
    assert values() == sorted(unsorted, reverse=True)
    heading.click()
    assert values() == sorted(unsorted)
    assert table.locator("th[data-key=time_us]").get_attribute("aria-sort") == "ascending"


def test_the_theme_stays_after_a_reload(tab: OPEN, report: Path):
    page = tab(report, color_scheme="light").page
    paper = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(paper)
    while page.locator("html").get_attribute("data-theme") != "dark":
        page.locator("button.theme").click()
    dark = page.evaluate(paper)
    assert dark != light
    page.reload()
    assert page.evaluate(paper) == dark


def test_a_theme_that_is_none_is_not_taken(tab: OPEN, report: Path):
    """Pages of other people's files share the storage of ours."""
    page = tab(report).page
    page.evaluate("localStorage.setItem('kernelforge-theme', '<b>x</b>')")
    page.reload()
    assert page.locator("html").get_attribute("data-theme") is None
    assert page.locator("button.theme").text_content() == "Theme: auto"


def test_a_keyboard_is_enough(tab: OPEN, report: Path):
    page = tab(report, RUN).page
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.name") == "q"
    page.keyboard.type("gelu")
    assert rows(page) == ["gelu"]
    page.locator("table.matrix tbody tr:visible a").first.focus()
    page.keyboard.press("Enter")
    page.wait_for_url("**/gelu/index.html")


def test_without_scripts_everything_can_be_read(tab: OPEN, report: Path):
    page = tab(report, RUN, java_script_enabled=False).page
    assert page.locator("table.matrix tbody tr").count() == len(golden("modelled").run.config.tasks)
    assert not page.locator("form[data-filters]").is_visible()
    assert not page.locator("button.theme").is_visible()
    page.goto((report / paths.attempt_page(MODELLED, "softmax", 1)).as_uri())
    text = page.locator("main").inner_text()
    assert "// softmax, version 1" in text
    assert "dram__bytes.sum" in text
    assert page.locator("ins").count() > 0
    assert page.locator("del").count() > 0
    assert "Write a kernel for softmax." in page.locator("main").text_content()


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


def test_one_file_is_walked_by_its_fragments(tab: OPEN, report_file: Path):
    walk = tab(report_file.parent, report_file.name)
    page = walk.page
    assert page.locator(".page:visible").count() == 1
    page.locator(".page:visible").get_by_role("link", name=MODELLED, exact=True).first.click()
    page.locator(".page:visible").get_by_role("link", name="softmax", exact=True).first.click()
    page.locator(".page:visible").get_by_role("link", name="04 register_reuse").first.click()
    assert page.locator(".page:visible h1").inner_text().startswith("softmax / 04")
    assert "// softmax, version 4" in page.locator(".page:visible").text_content()
    page.go_back()
    assert page.locator(".page:visible h1").inner_text().startswith("softmax")
    assert set(walk.heard.requests) - {"data:,"} == {url for url in walk.heard.requests if report_file.name in url}


def test_one_file_is_walked_without_scripts_too(tab: OPEN, report_file: Path):
    page = tab(report_file.parent, report_file.name, java_script_enabled=False).page
    assert page.locator(".page:visible").count() == 1
    page.locator(".page:visible").get_by_role("link", name=MODELLED, exact=True).first.click()
    assert page.locator(".page:visible").count() == 1
    assert page.locator(".page:visible table.matrix tbody tr").count() == len(golden("modelled").run.config.tasks)
