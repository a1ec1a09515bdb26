"""One warm compiler for the folder."""

import pytest

from kernelforge.compile import Compiler


@pytest.fixture(scope="session")
def compiler():
    with Compiler(None) as warm:
        yield warm
