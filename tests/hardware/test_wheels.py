"""CUDA version of the installed packages: one decision for the compiler and the check of the driver."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest

from kernelforge.compile import installed_toolchain
from kernelforge.devices.cuda import discovery
from kernelforge.devices.cuda.target import GpuInfo
from kernelforge.hardware.wheels import RELEASES, InstalledCuda, installed_cuda

TWELVE, THIRTEEN = RELEASES[12], RELEASES[13]
PART_OF_TWELVE = TWELVE.compiler[:2]
"""What builds of torch for CUDA 12 bring: NVRTC and the runtime, and neither crt/ nor CCCL."""


@pytest.fixture
def packages(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[set[str]]:
    """Distributions that count as installed, filled by a test, outside of conda."""
    there: set[str] = set()

    def version(name: str) -> str:
        if name not in there:
            raise metadata.PackageNotFoundError(name)
        return "1.0"

    monkeypatch.setattr(metadata, "version", version)
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(tmp_path / "none"))
    monkeypatch.setattr(discovery, "CONTROL", (tmp_path / "nvidiactl", tmp_path / "dxg"))
    installed_toolchain.cache_clear()
    yield there
    installed_toolchain.cache_clear()


def gpu(cuda: str, release: str, capability: tuple[int, int] = (8, 0)) -> GpuInfo:
    return GpuInfo(0, "NVIDIA A100", "GPU-0a", 40 << 30, release, cuda, capability)


@pytest.mark.parametrize(
    ("cupy", "wheels", "compiler", "needed", "needed_by"),
    [
        ([], [THIRTEEN, TWELVE], 13, 13, "nvidia-cuda-nvrtc"),
        ([], [TWELVE], 12, 12, "nvidia-cuda-nvrtc-cu12"),
        ([], [], 13, 13, "nvidia-cuda-nvrtc"),
        (["cupy-cuda13x"], [THIRTEEN, TWELVE], 13, 13, "cupy-cuda13x"),
        (["cupy-cuda12x"], [THIRTEEN, TWELVE], 12, 12, "cupy-cuda12x"),
        (["cupy-cuda12x", "cupy-cuda13x"], [THIRTEEN, TWELVE], 13, 13, "cupy-cuda13x"),
        (["cupy-cuda12x"], [THIRTEEN], 13, 13, "nvidia-cuda-nvrtc"),
        (["cupy-cuda13x"], [TWELVE], 12, 13, "cupy-cuda13x"),
        (["cupy-cuda12x"], [], 12, 12, "cupy-cuda12x"),
        (["cupy"], [THIRTEEN, TWELVE], 13, 13, "nvidia-cuda-nvrtc"),
    ],
)
def test_one_decision_is_what_the_compiler_and_the_driver_follow(
    cupy: list[str], wheels: list, compiler: int, needed: int, needed_by: str, packages: set[str]
) -> None:
    packages.update(cupy, *(release.compiler for release in wheels))
    cuda = installed_cuda()
    assert (cuda.compiler, cuda.needed.major, cuda.needed_by) == (compiler, needed, needed_by)
    if wheels:
        assert installed_toolchain().major == compiler
    refused = discovery.unusable(gpu("12.4", "550.54"))
    assert (refused is None) == (needed == 12), refused
    if refused is not None:
        assert f"older than {THIRTEEN.driver}, the first that supports CUDA 13, which {needed_by} needs" in refused


def test_a_compiler_of_cuda_13_beside_cupy_of_cuda_12_is_refused_on_an_old_driver_with_what_is_missing(
    packages: set[str],
) -> None:
    packages.update(["cupy-cuda12x", *PART_OF_TWELVE, *THIRTEEN.compiler])
    refused = discovery.unusable(gpu("12.4", "550.54"))
    assert refused == (
        "its driver (550.54, CUDA 12.4) is older than 580, the first that supports CUDA 13, which nvidia-cuda-nvrtc "
        "needs: update the driver, or install the compiler of CUDA 12: pip install 'nvidia-cuda-nvcc-cu12==12.9.*' "
        "'nvidia-cuda-cccl-cu12==12.9.*'"
    )
    packages.update(TWELVE.compiler)  # what it says helps
    assert discovery.unusable(gpu("12.4", "550.54")) is None


@pytest.mark.parametrize(
    ("driver", "capability", "helps"),
    [("12.4", (8, 0), True), ("11.4", (8, 0), False), ("12.4", (3, 5), False), ("13.0", (7, 0), True)],
)
def test_packages_of_cuda_12_are_named_only_where_they_help(
    driver: str, capability: tuple[int, int], helps: bool, packages: set[str]
) -> None:
    packages.update(["cupy-cuda13x", *THIRTEEN.compiler])
    refused = discovery.unusable(gpu(driver, "550.54", capability))
    assert refused is not None
    assert ("the extra gpu12" in refused) == helps
    packages.clear()
    packages.update(["cupy-cuda12x", *TWELVE.compiler])
    assert (discovery.unusable(gpu(driver, "550.54", capability)) is None) == helps


@pytest.mark.parametrize(("record", "runner"), [("cuda-version-12.9-h4f385c5_3.json", 12), ("python-3.12.json", None)])
def test_cupy_from_conda_is_of_the_cuda_of_its_environment(
    record: str, runner: int | None, packages: set[str], tmp_path: Path
) -> None:
    (tmp_path / "conda-meta").mkdir()
    (tmp_path / "conda-meta" / record).write_text("{}")
    packages.update(["cupy", *THIRTEEN.compiler, *TWELVE.compiler])
    assert installed_cuda() == InstalledCuda(runner or 13, runner, "cupy")
