"""Which compiler and which headers: what a build depends on besides its source.

NVRTC and CUDA's headers come from NVIDIA's wheels, of CUDA 13 or of CUDA 12. A program compiled with CUDA 13 does not
run on a driver of CUDA 12 (CUDA Compatibility, *Minor Version Compatibility*), and CUDA 13 builds for no GPU older than
Turing.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path

from kernelforge.compile import nvrtc
from kernelforge.compile.worker import supplied_headers
from kernelforge.errors import DeviceError
from kernelforge.records import content_hash
from kernelforge.sandbox import data_folder
from kernelforge.sandbox.policy import cuda_include_folders, import_path, nvidia_folder

_WAIT_S = 120.0
_RUN = (
    "import json, runpy, sys; sys.path[:] = json.loads(sys.argv.pop()); "
    "runpy.run_path(sys.argv.pop(1), run_name='__main__')"
)


@dataclass(frozen=True)
class _Wheels:
    """NVIDIA's wheels of one major version of CUDA."""

    distributions: tuple[str, ...]
    """As pip names them, NVRTC's first."""
    libraries: str
    """Folder of NVRTC's libraries, under ``nvidia``."""
    versions: str
    """What pip is asked for."""


_WHEELS: Mapping[int, _Wheels] = {
    13: _Wheels(
        ("nvidia-cuda-nvrtc", "nvidia-cuda-runtime", "nvidia-cuda-crt", "nvidia-cuda-cccl"), "cu13/lib", "==13.0.*"
    ),
    12: _Wheels(
        ("nvidia-cuda-nvrtc-cu12", "nvidia-cuda-runtime-cu12", "nvidia-cuda-nvcc-cu12", "nvidia-cuda-cccl-cu12"),
        "cuda_nvrtc/lib",
        "==12.9.*",
    ),
}
"""By CUDA's major version, the default first."""

_EMBEDDED = frozenset({53, 62, 72, 87, 101, 110})
"""Architectures of Jetson, whose cubins run on no other (CUDA C++ Programming Guide, *Binary Compatibility*)."""


@dataclass(frozen=True)
class Toolchain:
    """One compiler with its headers. ``digest`` changes with any version or supplied header."""

    name: str
    """``nvrtc 13.0.88``."""
    major: int
    """CUDA's major version: a GPU's driver must support this one or a newer one."""
    digest: str
    headers: Path
    """Folder of the supplied headers."""
    includes: tuple[Path, ...]
    """CUDA's own headers."""
    library: Path
    """NVRTC's."""

    def options(self, arch: str) -> list[str]:
        """NVRTC's options for ``arch``."""
        return [
            f"--gpu-architecture={arch}",
            "--std=c++17",
            "-default-device",
            "-lineinfo",
            "--ptxas-options=-v",
            "--pre-include=kernelforge_prelude.h",
            *(f"-I{folder}" for folder in self.includes),
        ]

    def spoken_paths(self) -> dict[str, str]:
        """Folders of this machine → what stands for them in diagnostics, longest first."""
        folders = sorted((str(folder) for folder in self.includes), key=len, reverse=True)
        return {folder + os.sep: "" for folder in folders}

    @property
    def install(self) -> str:
        """The command that installs what the toolchain is made of."""
        return _install(self.major, _WHEELS[self.major].distributions)

    def architectures(self) -> tuple[int, ...]:
        """What it builds for, oldest first: ``75`` stands for ``sm_75``. NVRTC is asked once, in a process of its own.

        Raises:
            DeviceError: NVRTC does not load; the message says how to install it anew.
        """
        try:
            return _architectures(self.library)
        except DeviceError as error:
            raise DeviceError(f"{error}; reinstall it: {self.install}") from error

    def architecture(self, compute_capability: tuple[int, int]) -> str:
        """The real architecture to compile for.

        That of the GPU itself, with the instructions that it alone has (``sm_90a``) from Hopper on. For a GPU that is
        newer than the compiler, the newest of its own generation: cubins run on later minor revisions (CUDA C++
        Programming Guide, *Binary Compatibility*).

        Raises:
            DeviceError: NVRTC builds nothing that the GPU runs as it is. PTX, which the driver would compile, is no way
                out: the cubin is what registers are read from and what the policy gate looks at.
        """
        major, minor = compute_capability
        number = 10 * major + minor
        known = self.architectures()
        if number in known:
            return f"sm_{number}{'a' if major >= 9 else ''}"
        older = [one for one in known if one // 10 == major and one < number and one not in _EMBEDDED]
        if older:
            return f"sm_{older[-1]}"
        raise DeviceError(self.refusal(f"sm_{number}"))

    def refusal(self, arch: str) -> str:
        """Why nothing is built for ``arch``, an architecture that NVRTC does not know, and what to do."""
        known = self.architectures()
        number = int("".join(filter(str.isdigit, arch)) or 0)
        what = f"this GPU is {arch}, {self.name} builds for sm_{known[0]} to sm_{known[-1]}"
        if self.major == 13 and number < known[0]:
            return f"{what}: install the extra gpu12 instead of gpu"
        if number > known[-1] and self.major == 12:
            return f"{what}: install the extra gpu instead of gpu12"
        return f"{what}: use another GPU, or the emulated device"


@cache
def _architectures(library: Path) -> tuple[int, ...]:
    command = [sys.executable, "-I", "-c", _RUN, nvrtc.__file__, str(library), json.dumps(import_path())]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=_WAIT_S, stdin=subprocess.DEVNULL)
    except subprocess.TimeoutExpired as error:
        raise DeviceError(f"NVRTC did not say within {_WAIT_S:.0f} s what it builds for") from error
    if answer.returncode:
        lines = answer.stderr.strip().splitlines()
        raise DeviceError(lines[-1] if lines else f"the process that loads NVRTC ended with {answer.returncode}")
    return tuple(json.loads(answer.stdout))


def supported_architectures() -> tuple[int, ...]:
    """What the toolchain of this environment builds for, oldest first: ``75`` stands for ``sm_75``.

    Raises:
        DeviceError: a wheel is missing, or NVRTC does not load.
    """
    return installed_toolchain().architectures()


@cache
def installed_toolchain(major: int | None = None) -> Toolchain:
    """The toolchain of this environment.

    Args:
        major: CUDA's major version. By default 12 beside cupy-cuda12x without cupy-cuda13x, where NVRTC 12 and its
            headers are installed, too; otherwise 13, or the one that is installed alone.

    Raises:
        DeviceError: a wheel is missing; the message says how to install it.
    """
    chosen = fitting_major() if major is None else major
    missing = _missing(chosen)
    if missing:
        raise DeviceError(f"{missing[0]} is not installed, so nothing can be compiled; {_install(chosen, missing)}")
    wheels = _WHEELS[chosen]
    folder = nvidia_folder(wheels.libraries)
    library = None if folder is None else folder / f"libnvrtc.so.{chosen}"
    if library is None or not library.is_file():
        raise DeviceError(
            f"the libraries of {wheels.distributions[0]} are gone; {_install(chosen, wheels.distributions)}"
        )
    versions = [metadata.version(wheel) for wheel in wheels.distributions]
    headers = data_folder() / "headers"
    digest = content_hash("toolchain/1", versions, supplied_headers(headers))
    return Toolchain(f"nvrtc {versions[0]}", chosen, digest, headers, cuda_include_folders(chosen), library)


def fitting_major() -> int:
    """CUDA's major version that fits the installed packages: see :func:`installed_toolchain`."""
    wanted = 12 if _installed("cupy-cuda12x") and not _installed("cupy-cuda13x") else 13
    complete = [major for major in _WHEELS if not _missing(major)]
    return wanted if wanted in complete or not complete else complete[0]


def _missing(major: int) -> list[str]:
    return [wheel for wheel in _WHEELS[major].distributions if not _installed(wheel)]


def _installed(distribution: str) -> bool:
    try:
        metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return False
    return True


def _install(major: int, distributions: Sequence[str]) -> str:
    return "pip install " + " ".join(f"'{wheel}{_WHEELS[major].versions}'" for wheel in distributions)


def warm_up_options(known: Toolchain, arch: str = "sm_90a") -> dict[str, str | Sequence[str]]:
    """Options of the compiler's zygote."""
    return {"headers": str(known.headers), "library": str(known.library), "warm": known.options(arch)}
