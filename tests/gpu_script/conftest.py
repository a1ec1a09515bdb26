"""One software machine for all tests of the GPU script."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from kernelforge.sandbox import Zygote
    from tests.gpu_script.software_machine import SoftwareMachine


@pytest.fixture(scope="session")
def machine(tmp_path_factory: pytest.TempPathFactory, kept_zygotes: Callable[..., Zygote]) -> SoftwareMachine:
    from kernelforge.sandbox import select_tier
    from tests.gpu_script.software_machine import make_place

    if select_tier().tier == "none":
        pytest.skip("no jail tier works on this machine")
    return make_place(tmp_path_factory.mktemp("machine"), kept_zygotes)


@pytest.fixture(autouse=True)
def _apart(warm_zygotes: None, own_leases: None) -> None:
    """Each part opens a workshop of its own; what is tested is what the part makes of it. Workers that test other parts
    at the same time have a software GPU of the same name."""
