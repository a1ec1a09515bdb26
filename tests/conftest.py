"""Shared by all tests: paths to ``builders.py`` and to ``fake_server.py``, which speaks as providers do; a workshop."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from kernelforge.evaluate.workshop import Workshop

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent / "llm")]

settings.register_profile("same", deadline=None, derandomize=True)
settings.register_profile("search", deadline=None)
settings.load_profile("same")
"""The same examples in every run, so that a commit passes or fails for good; ``--hypothesis-profile search`` draws new
ones."""


@pytest.fixture(scope="session")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workshop]:
    """Warm helper processes with an empty build cache: to start them takes seconds."""
    from kernelforge.evaluate.workshop import Workshop

    with Workshop("emulated:h100", cache=tmp_path_factory.mktemp("builds")) as made:
        yield made


@pytest.fixture(scope="module")
def own_leases(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Software GPUs all have one name: tests in other processes must not wait for them."""
    folder = tmp_path_factory.mktemp("leases")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("kernelforge.evaluate.workshop.lease_folder", lambda: folder)
        yield
