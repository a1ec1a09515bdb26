"""NVIDIA's libraries in software, built once, and scripts that run on them."""

import importlib.util
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.devices.cuda.drivers import software_cuda

Script = Callable[..., Any]


@pytest.fixture(scope="session")
def software_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("gcc") is None:
        pytest.skip("needs gcc, to build a libcuda in software")
    folder = tmp_path_factory.mktemp("libcuda")
    software_cuda.build_libcuda(folder)
    return folder


@pytest.fixture(scope="session")
def software_nvml(software_library: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with both libraries."""
    pytest.importorskip("pynvml", reason="needs nvidia-ml-py, of the extra gpu")
    folder = tmp_path_factory.mktemp("libnvidia-ml")
    software_cuda.build_nvml(folder)
    shutil.copy(software_library / "libcuda.so.1", folder)
    return folder


@pytest.fixture(scope="session")
def server(software_library: Path) -> Iterator[software_cuda.Server]:
    pytest.importorskip("cuda.bindings", reason="needs cuda-bindings, of the extra gpu")
    server = software_cuda.Server(software_library)
    yield server
    server.close()


OWNER = "from tests.devices.cuda.drivers.software_owner import *\n"


@pytest.fixture
def software(server: software_cuda.Server) -> Script:
    """Run a script with cuda-bindings on that library; its ``answer`` comes back."""
    return partial(server.run, OWNER)


@pytest.fixture
def software_cupy(server: software_cuda.Server) -> Script:
    """The same with the cupy driver; what cupy's own runtime does is done by the bindings."""
    pytest.importorskip("cupy", reason="needs cupy, of the extra gpu")
    stand_in = "from tests.devices.cuda.drivers import software_cupy\nsoftware_cupy.stand_in()\n"
    return partial(server.run, f"{OWNER}{stand_in}from kernelforge.devices.cuda.worker.cupy_driver import make\n")


@pytest.fixture
def software_pycuda(server: software_cuda.Server) -> Script:
    """The same with pycuda."""
    if importlib.util.find_spec("pycuda") is None:
        pytest.skip("needs pycuda, of the extra pycuda, which takes CUDA's headers")
    return partial(server.run, f"{OWNER}from kernelforge.devices.cuda.worker.pycuda_driver import make\n")


@pytest.fixture
def machine_with_nvml(software_nvml: Path) -> Script:
    """Run a script where there is NVML too; keywords are the script's environment."""
    return partial(software_cuda.run, software_nvml)


@pytest.fixture
def machine_with_cuda(software_library: Path) -> Script:
    """Run a script where there is a libcuda and no NVML."""
    return partial(software_cuda.run, software_library)
