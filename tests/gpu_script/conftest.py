"""One software place for all tests of the GPU script."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

sys.path.insert(0, str(Path(__file__).parent))

if TYPE_CHECKING:
    from software_place import SoftwarePlace

    from kernelforge.sandbox import Zygote


@pytest.fixture(scope="session")
def place(tmp_path_factory: pytest.TempPathFactory, kept_zygotes: Callable[..., Zygote]) -> SoftwarePlace:
    from software_place import make_place

    from kernelforge.sandbox import select_tier

    if select_tier().tier == "none":
        pytest.skip("no jail tier works on this machine")
    return make_place(tmp_path_factory.mktemp("place"), kept_zygotes)


@pytest.fixture(autouse=True)
def _apart(warm_zygotes: None, own_leases: None) -> None:
    """Each part opens a workshop of its own; what is tested is what the part makes of it. Workers that test other parts
    meanwhile have a software GPU of the same name."""
