"""The libcuda in software, built once."""

import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import software_cuda


@pytest.fixture(scope="session")
def software_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("gcc") is None:
        pytest.skip("needs gcc, to build a libcuda in software")
    folder = tmp_path_factory.mktemp("libcuda")
    software_cuda.build(folder)
    return folder


@pytest.fixture
def software(software_library: Path) -> Callable[[str], Any]:
    """Run a script on that library; its ``answer`` comes back."""
    pytest.importorskip("cuda.bindings", reason="needs cuda-bindings: pip install 'kernelforge[gpu]'")
    return lambda script: software_cuda.run(software_library, script)
