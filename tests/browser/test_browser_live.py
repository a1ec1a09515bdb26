"""``kernelforge view`` in a browser: the page of a run follows its journal, and talks to this machine alone."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from kernelforge.report.html import paths
from kernelforge.store import DATABASE_NAME, Store
from tests.browser.chromium import WAIT_MS
from tests.browser.page_checks import WATCH, Heard, listen, strangers
from tests.report.golden.golden_runs import golden

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page, Route

pytestmark = pytest.mark.browser

MODELLED = golden("modelled")
CELLS = "table.matrix .cells a"
LATE = 6
"""Attempts that the run is yet to have."""
COUNT_NEWS = """
window.news = 0;
const Source = EventSource;
window.EventSource = class extends Source {
  constructor(address) {
    super(address);
    this.addEventListener("changed", () => (window.news += 1));
  }
};
const parse = DOMParser.prototype.parseFromString;
window.parsed = 0;
DOMParser.prototype.parseFromString = function (...text) {
  window.parsed += 1;
  return parse.apply(this, text);
};
"""
"""Number of updates that the page received, and number of its reloads."""


@dataclass(frozen=True)
class Followed:
    """A viewer of a run that goes on."""

    address: str
    """With its token."""
    results: Path
    late: list[Any]
    """Attempts that the run does not have yet."""

    @property
    def home(self) -> str:
        return self.address.split("?")[0]

    @property
    def run(self) -> str:
        """Address of the run's page."""
        return self.home + paths.run_page(MODELLED.run.id)

    def grow(self) -> None:
        """The run makes an attempt."""
        with Store.open(self.results / DATABASE_NAME) as store:
            store.add_attempt(self.late.pop(0))


@pytest.fixture(scope="module")
def followed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Followed]:
    results, made = tmp_path_factory.mktemp("followed"), golden("modelled")
    late, made.attempts[-LATE:] = made.attempts[-LATE:], []
    with Store.open(results / DATABASE_NAME) as store:
        made.journal(store)
    command = [sys.executable, "-m", "kernelforge", "view", "--results", str(results), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as viewer:
        messages = []
        for line in viewer.stdout:
            messages.append(line)
            result = re.search(r"http://\S+", line)
            if result:
                break
        else:
            pytest.fail("".join(messages))
        yield Followed(result[0], results, late)
        viewer.terminate()


@pytest.fixture
def open_run(chrome: Browser, followed: Followed) -> Callable[..., Any]:
    """``with open_run() as (page, heard, count):`` the run's page, what it says, and how many attempts it shows."""

    @contextmanager
    def opened() -> Iterator[tuple[Page, Heard, int]]:
        context = chrome.new_context(viewport={"width": 1280, "height": 300})  # few charts to draw again and again
        heard = listen(context)
        page = context.new_page()
        page.set_default_timeout(WAIT_MS)
        page.add_init_script(WATCH + COUNT_NEWS)
        page.goto(followed.address)
        page.goto(followed.run)
        page.locator(".live-note", has_text="live: ").or_(page.locator(".live-note", has_text="ended")).wait_for()
        yield page, heard, page.locator(CELLS).count()
        context.close()

    return opened


@pytest.mark.slow
def test_a_page_grows_with_the_journal(open_run: Callable[..., Any], followed: Followed):
    from playwright.sync_api import expect

    with open_run() as (page, heard, before):
        assert before == len(MODELLED.attempts) - len(followed.late)
        assert page.evaluate("moved") < 0.01  # though a note came under the heading
        followed.grow()
        expect(page.locator(CELLS)).to_have_count(before + 1)
    assert heard.faults == []
    assert strangers(heard, followed.home) == []


@pytest.mark.slow
def test_a_page_asks_for_what_came_after_it_was_made(open_run: Callable[..., Any]):
    """However late it listens: one that is opened behind others does so when it is first seen."""
    with open_run() as (page, heard, _):
        made_with = page.locator("body").get_attribute("data-live")
        assert f"last={made_with}" in [url for url in heard.requests if "/events?" in url][-1]


@pytest.mark.slow
def test_what_is_pressed_is_not_replaced_before_it_is_a_click(open_run: Callable[..., Any], followed: Followed):
    from playwright.sync_api import expect

    with open_run() as (page, heard, before):
        value: list[Route] = []
        page.route(followed.run, lambda route: value.append(route))
        page.locator("summary").first.hover()
        with page.expect_request(followed.run):
            followed.grow()
        page.mouse.down()
        value.pop().continue_()
        page.wait_for_function("() => parsed > 0")
        page.unroute(followed.run)
        unfolds = page.locator("details").first
        was = unfolds.get_attribute("open")
        page.mouse.up()
        expect(page.locator(CELLS)).to_have_count(before + 1)
        assert unfolds.get_attribute("open") != was
    assert heard.faults == []


@pytest.mark.slow
def test_an_older_page_never_follows_a_newer_one(open_run: Callable[..., Any], followed: Followed):
    """News that come while the page is being fetched wait for that."""
    from playwright.sync_api import expect

    with open_run() as (page, heard, before):
        value: list[Route] = []
        page.route(followed.run, lambda route: value.append(route))
        with page.expect_request(followed.run):
            followed.grow()
        page.wait_for_function("() => news === 1")
        page.clock.install()
        followed.grow()
        page.wait_for_function("() => news === 2")
        page.clock.run_for(60_000)
        assert len(value) == 1
        value.pop().continue_()
        page.unroute(followed.run)
        page.clock.resume()
        expect(page.locator(CELLS)).to_have_count(before + 2)
    assert heard.faults == []


@pytest.mark.slow
def test_a_page_that_could_not_be_fetched_is_fetched_again(open_run: Callable[..., Any], followed: Followed):
    from playwright.sync_api import expect

    with open_run() as (page, _, before):
        note = page.locator(".live-note")
        messages = note.text_content()
        page.route(followed.run, lambda route: route.fulfill(status=503, body="the database is locked"))
        followed.grow()
        expect(note).to_have_text("connection lost; trying again")
        page.unroute(followed.run)
        expect(page.locator(CELLS)).to_have_count(before + 1)
        expect(note).to_have_text(messages)


@pytest.mark.slow
def test_a_page_that_may_not_listen_at_first_listens_later(open_run: Callable[..., Any], followed: Followed):
    from playwright.sync_api import expect

    with open_run() as (page, _, before):
        messages = page.locator(".live-note").text_content()
        page.route("**/events?*", lambda route: route.fulfill(status=503, body="too many pages listen already"))
        page.clock.install()
        page.reload()
        expect(page.locator(".live-note")).to_have_text("connection lost; trying again")
        page.unroute("**/events?*")
        page.clock.fast_forward(6_000)
        expect(page.locator(".live-note")).to_have_text(messages)
        followed.grow()
        expect(page.locator(CELLS)).to_have_count(before + 1)
