"""Results folders for the viewer's tests, and the paths to what fills them."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """A folder with run ``r1``, journalled as running, and three tasks with attempts of every verdict."""
    from kernelforge.store import Store
    from tests.support.recorded_run import fill, make_run

    folder = tmp_path / "results"
    with Store.open(folder / "kernelforge.db") as store:
        fill(store, make_run())
    return folder
