from __future__ import annotations

from collections.abc import Iterator

import pytest

from kernelforge.compile import Compiler


@pytest.fixture(scope="session")
def compiler() -> Iterator[Compiler]:
    with Compiler(None) as running:
        yield running
