"""One software place for all tests of the GPU script."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

sys.path.insert(0, str(Path(__file__).parent))

if TYPE_CHECKING:
    from software_place import SoftwarePlace


@pytest.fixture(scope="session")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SoftwarePlace]:
    from software_place import make_place

    from kernelforge.sandbox import probe

    if probe().tier == "none":
        pytest.skip("no jail tier works on this machine")
    made = make_place(tmp_path_factory.mktemp("place"))
    with made.stack:
        yield made


@pytest.fixture(autouse=True)
def _warm(warm_zygotes: None) -> None:
    """Each part opens a workshop of its own; what is tested is what the part makes of it."""
