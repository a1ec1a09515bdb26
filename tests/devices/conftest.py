"""One warm compiler for every folder of devices."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from kernelforge.compile import Compiler


@pytest.fixture(scope="session")
def compiler(open_warm: Callable[..., Any]) -> Iterator[Compiler]:
    with open_warm(Compiler, None) as made:
        yield made
