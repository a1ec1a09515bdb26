"""``kernelforge view`` in a browser: the page of a run follows its journal, and talks to this machine alone."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from golden_runs import golden
from visits import listen, strangers

from kernelforge.report.html import paths
from kernelforge.store import DATABASE_NAME, Store

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = pytest.mark.browser

MODELLED = golden("modelled")
CELLS = "table.matrix .cells a"


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """A results folder whose run has one attempt less than it is to have."""
    made = golden("modelled")
    made.attempts.pop()
    with Store.open(tmp_path / DATABASE_NAME) as store:
        made.journal(store)
    return tmp_path


@pytest.fixture
def address(results: Path) -> Iterator[str]:
    """The viewer's address, with its token."""
    command = [sys.executable, "-m", "kernelforge", "view", "--results", str(results), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as viewer:
        said = []
        for line in viewer.stdout:
            said.append(line)
            found = re.search(r"http://\S+", line)
            if found:
                break
        else:
            pytest.fail("".join(said))
        yield found[0]
        viewer.terminate()


def test_a_page_grows_with_the_journal(chrome: Browser, address: str, results: Path):
    from playwright.sync_api import expect

    home = address.split("?")[0]
    context = chrome.new_context()
    heard = listen(context)
    page = context.new_page()
    page.goto(address)
    page.goto(home + paths.run_page(MODELLED.run.id))
    before = page.locator(CELLS).count()
    assert before == len(MODELLED.attempts) - 1
    with Store.open(results / DATABASE_NAME) as store:
        store.add_attempt(MODELLED.attempts[-1])
    expect(page.locator(CELLS)).to_have_count(before + 1)
    context.close()
    assert heard.faults == []
    assert strangers(heard, home) == []
