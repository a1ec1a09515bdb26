"""One Chromium and one report of the golden runs for all browser tests of a process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kernelforge.report import RunRecords
from kernelforge.report.html import Site
from kernelforge.report.html.writer import write_file, write_folder
from kernelforge.store import Store
from tests.browser.chromium import WAIT_MS, chromium, missing
from tests.browser.page_checks import Tab, Visit, visit
from tests.report.golden.golden_runs import golden_records, golden_store

if TYPE_CHECKING:
    from playwright.sync_api import Browser


@pytest.fixture(scope="session")
def chrome() -> Iterator[Browser]:
    """The browser; its tests are skipped where there is none."""
    why = missing()
    if why:
        pytest.skip(why)
    with chromium() as browser:
        from playwright.sync_api import expect

        expect.set_options(timeout=WAIT_MS)
        loop = asyncio._get_running_loop()
        yield browser
        asyncio._set_running_loop(loop)  # the last test of the session may be one that it was hidden from


def write_report(folder: Path, *names: str) -> Path:
    """A report of golden runs as a folder; gives it back."""
    with Store.open(golden_store(folder / "results", *names), read_only=True) as store:
        records = [RunRecords.load(store, run) for run in store.runs()]
    write_folder(Site(records), folder / "report")
    return folder / "report"


@pytest.fixture(scope="session")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of one modelled and three measured runs."""
    return write_report(tmp_path_factory.mktemp("golden"))


@pytest.fixture(scope="session")
def hostile_report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of the hostile runs."""
    return write_report(tmp_path_factory.mktemp("hostile"), "hostile", "escaping")


@pytest.fixture(scope="session")
def report_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of a modelled and a measured run as one file."""
    file = tmp_path_factory.mktemp("one") / "report.html"
    write_file(Site([golden_records("modelled"), golden_records("measured-a")]), file)
    return file


@pytest.fixture
def tab(chrome: Browser) -> Iterator[Callable[..., Tab]]:
    """Opens a page of a report as a reader would; after the test, none of them may have complained or called out."""
    opened: list[Tab] = []

    def new(folder: Path, page: str = "index.html", **context: object) -> Tab:
        opened.append(Tab(chrome.new_context(**context), folder))
        return opened[-1].open(page)

    yield new
    for page in opened:
        page.context.close()
    for page in opened:
        assert page.heard.faults == []
        assert page.strangers == []


@pytest.fixture(scope="session")
def visited(chrome: Browser, report: Path) -> Callable[[str, str], Visit]:
    """Visit of a page of the report in a theme, cached per page."""
    seen: dict[tuple[str, str], Visit] = {}

    def look(page: str, theme: str) -> Visit:
        if (page, theme) not in seen:
            seen[page, theme] = visit(chrome, report, page, theme, second=any(page == other for other, _ in seen))
        return seen[page, theme]

    return look
