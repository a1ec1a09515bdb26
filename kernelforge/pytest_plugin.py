"""pytest fixture ``emulator``: CUDA kernels tested on the emulated device, on a machine without a GPU.

pytest loads this module by itself where the package is installed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from kernelforge.emulation import Emulator


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--emulated-device``."""
    group = parser.getgroup("kernelforge")
    group.addoption(
        "--emulated-device",
        default="emulated:h100",
        metavar="NAME",
        help="Device of the fixture emulator; emulated:h100 if left out.",
    )


@pytest.fixture(scope="session")
def emulator(request: pytest.FixtureRequest) -> Iterator[Emulator]:
    """A warm compiler and emulated device: ``emulator.run(source, launch, tensors).check()``."""
    from kernelforge.emulation import Emulator

    with Emulator(request.config.getoption("--emulated-device")) as opened:
        yield opened
