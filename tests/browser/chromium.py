"""Debian's Chromium, driven by playwright: one start for all tests of a session."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import Browser

WAIT_MS = 120_000
"""Timeout for events on a busy machine; nothing is timed by it.

What ``wait_for_function`` waits for is given as a function: the policy of the pages forbids that an expression be
evaluated a second time."""

OPTIONS = (
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--js-flags=--no-opt",  # pages are closed before optimised code would pay
)


def missing() -> str | None:
    """Missing requirement of browser tests on this machine, if any."""
    if importlib.util.find_spec("playwright") is None:
        return "playwright is not installed"
    return None if _executable() else "there is no Chromium"


@contextlib.contextmanager
def chromium() -> Iterator[Browser]:
    """A headless Chromium. As root it has no sandbox of its own: it then refuses to start with one."""
    from playwright.sync_api import sync_playwright

    options = [*OPTIONS, "--no-sandbox"] if os.geteuid() == 0 else list(OPTIONS)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=_executable(), args=options, timeout=WAIT_MS)
        try:
            yield browser
        finally:
            browser.close()


def _executable() -> str | None:
    """Chromium without the browser's own windows where it is there: pages take two thirds of the CPU time in it."""
    names = ("chromium-headless-shell", "chromium", "chromium-browser")
    return next((path for name in names if (path := shutil.which(name))), None)
