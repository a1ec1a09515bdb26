"""The compiler and headers that a build depends on.

NVRTC and CUDA's headers come from NVIDIA's wheels, of CUDA 13 or of CUDA 12. A program compiled with CUDA 13 does not
run on a driver of CUDA 12 (CUDA Compatibility, *Minor Version Compatibility*), and CUDA 13 builds for no GPU older than
Turing.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path

from kernelforge.compile import nvrtc
from kernelforge.compile.worker import supplied_headers
from kernelforge.errors import DeviceError
from kernelforge.hardware.wheels import (
    HEADER_WHEELS,
    RELEASES,
    cuda_include_folders,
    header_wheels,
    installed_cuda,
    nvidia_folders,
)
from kernelforge.records import content_hash
from kernelforge.sandbox import data_folder
from kernelforge.sandbox.policy import import_path

_WAIT_S = 120.0
_RUN = (
    "import json, runpy, sys; sys.path[:] = json.loads(sys.argv.pop()); "
    "runpy.run_path(sys.argv.pop(1), run_name='__main__')"
)


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
    """Headers of NVIDIA's wheels, CUDA's own first."""
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

    def shown_paths(self) -> dict[str, str]:
        """Folders of this machine → their replacements in diagnostics, longest first."""
        folders = sorted((str(folder) for folder in self.includes), key=len, reverse=True)
        return {folder + os.sep: "" for folder in folders}

    def missing_headers(self) -> dict[str, str]:
        """Beginnings of the names of headers that are not installed → the advice that a build error gives."""
        installed = header_wheels(self.major)
        return {
            beginning: f"it is in {wheel.distribution}, which is not installed here: install the extra {wheel.extra}"
            for wheel in HEADER_WHEELS[self.major]
            if wheel not in installed
            for beginning in wheel.beginnings
        }

    @property
    def install(self) -> str:
        """The command that installs the toolchain's packages."""
        return RELEASES[self.major].install()

    def architectures(self) -> tuple[int, ...]:
        """Supported architectures, oldest first: ``75`` stands for ``sm_75``. NVRTC is asked once, in a separate
        process.

        Raises:
            DeviceError: NVRTC does not load; the message says how to reinstall it.
        """
        try:
            return _architectures(self.library)
        except DeviceError as error:
            raise DeviceError(f"{error}; reinstall it: {self.install}") from error

    def architecture(self, compute_capability: tuple[int, int]) -> str:
        """The real architecture to compile for.

        The GPU's own architecture, from Hopper on with its specific instructions (``sm_90a``). For a GPU newer than the
        compiler, the newest of its generation: cubins run on later minor revisions (CUDA C++ Programming Guide, *Binary
        Compatibility*).

        Raises:
            DeviceError: NVRTC builds no cubin that the GPU runs. PTX is no alternative: the number of registers and the
                policy gate need the cubin.
        """
        major, minor = compute_capability
        number = 10 * major + minor
        supported = self.architectures()
        if number in supported:
            return f"sm_{number}{'a' if major >= 9 else ''}"
        older = [arch for arch in supported if arch // 10 == major and arch < number and arch not in _EMBEDDED]
        if older:
            return f"sm_{older[-1]}"
        raise DeviceError(self.refusal(f"sm_{number}"))

    def refusal(self, arch: str) -> str:
        """Message with advice for ``arch``, an architecture that NVRTC does not support."""
        supported = self.architectures()
        number = int("".join(filter(str.isdigit, arch)) or 0)
        what = f"this GPU is {arch}, {self.name} builds for sm_{supported[0]} to sm_{supported[-1]}"
        if self.major == 13 and number < supported[0]:
            return f"{what}: install the extra gpu12 instead of gpu"
        if number > supported[-1] and self.major == 12:
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
    """Architectures that this environment's toolchain supports, oldest first: ``75`` stands for ``sm_75``.

    Raises:
        DeviceError: a wheel is missing, or NVRTC does not load.
    """
    return installed_toolchain().architectures()


@cache
def installed_toolchain(major: int | None = None) -> Toolchain:
    """The toolchain of this environment.

    Args:
        major: CUDA's major version; by default the one that :func:`kernelforge.hardware.wheels.installed_cuda` chooses.

    Raises:
        DeviceError: a wheel is missing; the message says how to install it.
    """
    release = RELEASES[installed_cuda().compiler if major is None else major]
    missing = release.missing()
    if missing:
        raise DeviceError(f"{missing[0]} is not installed, so nothing can be compiled; {release.install(missing)}")
    libraries = (folder / f"libnvrtc.so.{release.major}" for folder in nvidia_folders(release.libraries))
    library = next((path for path in libraries if path.is_file()), None)
    if library is None:
        raise DeviceError(f"the libraries of {release.compiler[0]} are gone; {release.install()}")
    further = [wheel.distribution for wheel in header_wheels(release.major)]
    versions = [metadata.version(distribution) for distribution in (*release.compiler, *further)]
    headers = data_folder() / "headers"
    digest = content_hash("toolchain/1", versions, supplied_headers(headers))
    includes = cuda_include_folders(release.major)
    return Toolchain(f"nvrtc {versions[0]}", release.major, digest, headers, includes, library)


def warm_up_options(toolchain: Toolchain, arch: str = "sm_90a") -> dict[str, str | Sequence[str]]:
    """Options of the compiler's zygote."""
    return {"headers": str(toolchain.headers), "library": str(toolchain.library), "warm": toolchain.options(arch)}
