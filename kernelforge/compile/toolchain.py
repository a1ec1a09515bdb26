"""Which compiler and which headers: what a build depends on besides its source."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path

from kernelforge.compile.worker import supplied_headers
from kernelforge.errors import DeviceError
from kernelforge.records import content_hash
from kernelforge.sandbox import data_folder
from kernelforge.sandbox.policy import cuda_include_folders

_WHEELS = ("nvidia-cuda-nvrtc", "nvidia-cuda-runtime", "nvidia-cuda-crt", "nvidia-cuda-cccl")


@dataclass(frozen=True)
class Toolchain:
    """The compiler as installed. ``digest`` changes with any version or supplied header."""

    name: str
    """``nvrtc 13.0.88``."""
    digest: str
    headers: Path
    """Folder of the supplied headers."""
    includes: tuple[Path, ...]
    """CUDA's own headers."""

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


@cache
def installed_toolchain() -> Toolchain:
    """The toolchain of this environment.

    Raises:
        DeviceError: a wheel is missing; the message says how to install it.
    """
    versions: list[str] = []
    for wheel in _WHEELS:
        try:
            versions.append(metadata.version(wheel))
        except metadata.PackageNotFoundError:
            raise DeviceError(
                f"{wheel} is not installed, so nothing can be compiled; pip install '{wheel}==13.0.*'"
            ) from None
    folder = data_folder() / "headers"
    digest = content_hash("toolchain/1", versions, supplied_headers(folder))
    return Toolchain(f"nvrtc {versions[0]}", digest, folder, cuda_include_folders())


def warm_up_options(known: Toolchain, arch: str = "sm_90a") -> dict[str, str | Sequence[str]]:
    """Options of the compiler's zygote."""
    return {"headers": str(known.headers), "warm": known.options(arch)}
