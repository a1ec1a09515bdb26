"""Untrusted text of models, task files and submitted results is shown as text and has no effect."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kernelforge.report.html import Site, paths
from kernelforge.report.html.writer import write_file
from tests.browser.page_checks import PHONE, Tab, drawn
from tests.report.golden.golden_hostile import FORMULA, IMAGE, LINES, NEVER_COME_TO, SCRIPT, TASKS, TEMPLATE
from tests.report.golden.golden_runs import golden, golden_records

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = pytest.mark.browser

HOSTILE, ESCAPING = golden("hostile").run.id, golden("escaping").run.id
PAGES = {
    "runs": paths.INDEX,
    "run": paths.run_page(HOSTILE),
    "escaping": paths.run_page(ESCAPING),
    "task": paths.task_page(HOSTILE, TASKS[0]),
    "never": paths.task_page(HOSTILE, NEVER_COME_TO[3]),
    "seed": paths.attempt_page(HOSTILE, TASKS[0], 0),
    "child": paths.attempt_page(HOSTILE, TASKS[0], 1),
    "integrity": paths.integrity_page(HOSTILE),
    "compare": paths.compare_page(HOSTILE, ESCAPING),
    "leaderboard": paths.LEADERBOARD,
}
LARGE = {
    "lines": paths.attempt_page(HOSTILE, "large", 0),
    "changed": paths.attempt_page(HOSTILE, "large", 1),
    "one-line": paths.attempt_page(HOSTILE, "large", 2),
}
SHOWN = PAGES | LARGE
CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
"""Characters that move their neighbours, or are invisible."""

_FOREIGN = """() => [...document.querySelectorAll('*')].filter(one =>
    [...one.attributes].some(attribute => attribute.name.startsWith('on')) ||
    ['IMG', 'IFRAME', 'OBJECT', 'EMBED', 'BASE', 'FRAME'].includes(one.tagName) ||
    one.tagName === 'SCRIPT' && !one.src && one.type !== 'application/json' ||
    one.tagName === 'A' && one.href && new URL(one.href).protocol !== 'file:'
  ).map(one => one.outerHTML.slice(0, 200))"""
"""Elements that a page of ours never holds, and links that lead elsewhere."""


@dataclass(frozen=True)
class Sight:
    """Effects of a hostile page."""

    tab: Tab
    title: str
    canary: object
    foreign: list[str]
    text: str
    landmarks: tuple[int, int]
    overflow: int


@pytest.fixture(scope="module")
def sight(chrome: Browser, hostile_report: Path) -> Callable[[str], Sight]:
    """A page on a phone, looked at once however many tests ask."""

    def look(kind: str) -> Sight:
        context = chrome.new_context(viewport=PHONE)
        tab = Tab(context, hostile_report).open(SHOWN[kind])
        page = tab.page
        if kind in ("run", "seed", "leaderboard"):
            assert -1 not in drawn(page).values()
        seen = Sight(
            tab,
            page.title(),
            page.evaluate("window.canary"),
            page.evaluate(_FOREIGN),
            page.evaluate("document.body.textContent"),
            (page.locator("body > main").count(), page.locator("body > footer").count()),
            page.evaluate("document.documentElement.scrollWidth - innerWidth"),
        )
        context.close()
        return seen

    return functools.cache(look)


@pytest.mark.parametrize("kind", SHOWN)
def test_nothing_that_was_written_runs(kind: str, sight: Callable[[str], Sight]):
    seen = sight(kind)
    assert seen.canary is None
    assert seen.foreign == []
    assert seen.tab.heard.faults == []
    assert seen.tab.strangers == []


@pytest.mark.parametrize("kind", SHOWN)
def test_a_page_keeps_its_shape(kind: str, sight: Callable[[str], Sight]):
    seen = sight(kind)
    assert seen.title.endswith("KernelForge")
    assert seen.landmarks == (1, 1)
    assert seen.overflow <= 0


@pytest.mark.parametrize("kind", PAGES)
def test_no_character_hides_or_turns_the_text_around(kind: str, sight: Callable[[str], Sight]):
    seen = sight(kind)
    assert CONTROLS.findall(seen.title + seen.text) == []


@pytest.mark.parametrize("kind", ["seed", "child"])
def test_what_was_written_is_shown_as_it_is(kind: str, sight: Callable[[str], Sight]):
    text = sight(kind).text
    for attack in (SCRIPT, IMAGE, TEMPLATE, FORMULA):
        assert attack in text
    assert "\\x1b[31mred" in text
    assert "\\u202e" in text


def test_a_kernel_of_20_000_lines_is_all_there(sight: Callable[[str], Sight]):
    assert sight("lines").text.count("// a line..\n") >= LINES


def test_nothing_runs_in_one_file_of_hostile_runs(tab: Callable[..., Tab], tmp_path: Path):
    write_file(Site([golden_records("escaping")]), tmp_path / "report.html")
    walk = tab(tmp_path, "report.html")
    assert walk.page.evaluate("window.canary") is None
    inline = "[...document.scripts].filter(one => !one.type || one.type === 'text/javascript').length"
    assert walk.page.evaluate(inline) == script_count(tmp_path / "report.html")
    assert walk.page.locator("[onerror], [onload], [onmouseover], img, iframe, a[href^='javascript']").count() == 0


def script_count(file: Path) -> int:
    """Scripts that the policy of a file names by their hashes."""
    policy = re.search(r"script-src ([^;]*);", file.read_text().replace("&#39;", "'"))
    assert policy is not None
    return policy[1].count("'sha256-")
