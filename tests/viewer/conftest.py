"""Results folders for the viewer's tests, and the paths to what fills them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).resolve().parents[1] / "store")]


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """A folder with run ``r1``, journalled as running, and three tasks with attempts of every verdict."""
    from golden_run import fill, make_run

    from kernelforge.store import Store

    folder = tmp_path / "results"
    with Store.open(folder / "kernelforge.db") as store:
        fill(store, make_run())
    return folder
