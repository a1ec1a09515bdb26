"""One warm compiler for the folder."""

import pytest

from kernelforge.compile import Compiler


@pytest.fixture(scope="session")
def compiler(open_warm):
    with open_warm(Compiler, None) as warm:
        yield warm
