"""CUDA from Python packages: requirements of each major version, and the wheels and their folders."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path


@dataclass(frozen=True)
class CudaRelease:
    """One major version of CUDA: its needs, and the layout of its wheels. Folders are relative to ``nvidia`` in the
    folder that packages are installed into."""

    major: int
    driver: str
    """First release of the driver that supports it; it supports all minor versions (CUDA Toolkit Release Notes, *CUDA
    Driver*; CUDA Compatibility, *Minor Version Compatibility*)."""
    compute_capability: tuple[int, int]
    """Oldest that its compiler supports (NVRTC documentation, *Supported Compile Options*)."""
    cards: str
    """The oldest supported GPUs, for messages."""
    extra: str
    """Extra of this project that installs its packages."""
    cupy: str
    """Distribution of cupy that is built for it."""
    compiler: tuple[str, ...]
    """Distributions that candidates are compiled with: NVRTC's first, then those of the headers."""
    versions: str
    """Version specifier of :attr:`compiler` for pip."""
    libraries: str
    """Folder of NVRTC's libraries."""
    headers: tuple[str, ...]
    """Folders of the runtime's headers, of those in ``crt/`` and of CCCL's."""
    programs: str
    """Folder of ``ptxas``, and of ``nvcc`` in wheels of CUDA 13."""
    sanitizer: str
    """Folder of ``compute-sanitizer``."""

    def install(self, distributions: Sequence[str] | None = None) -> str:
        """The command that installs the compiler, or some of its distributions."""
        return "pip install " + " ".join(f"'{name}{self.versions}'" for name in distributions or self.compiler)

    def missing(self) -> list[str]:
        """Distributions of the compiler that are not installed."""
        return [name for name in self.compiler if not is_installed(name)]


RELEASES: Mapping[int, CudaRelease] = {
    13: CudaRelease(
        major=13,
        driver="580",
        compute_capability=(7, 5),
        cards="Turing, such as T4 and RTX 20",
        extra="gpu",
        cupy="cupy-cuda13x",
        compiler=("nvidia-cuda-nvrtc", "nvidia-cuda-runtime", "nvidia-cuda-crt", "nvidia-cuda-cccl"),
        versions="==13.0.*",
        libraries="cu13/lib",
        headers=("cu13/include", "cu13/include/cccl"),
        programs="cu13/bin",
        sanitizer="cu13/compute-sanitizer",
    ),
    12: CudaRelease(
        major=12,
        driver="525",
        compute_capability=(5, 0),
        cards="Maxwell, such as GTX 900",
        extra="gpu12",
        cupy="cupy-cuda12x",
        compiler=(
            "nvidia-cuda-nvrtc-cu12", "nvidia-cuda-runtime-cu12", "nvidia-cuda-nvcc-cu12", "nvidia-cuda-cccl-cu12",
        ),
        versions="==12.9.*",
        libraries="cuda_nvrtc/lib",
        headers=("cuda_runtime/include", "cuda_nvcc/include", "cuda_cccl/include"),
        programs="cuda_nvcc/bin",
        sanitizer="cuda_sanitizer_api/bin",
    ),
}  # fmt: skip
"""By major version, the default first. Wheels of CUDA 13 share one folder; each of CUDA 12 has its own."""


@dataclass(frozen=True)
class HeaderWheel:
    """A wheel of headers that candidates may include, optional."""

    distribution: str
    extra: str
    """Extra of this project that installs it."""
    folder: tuple[str, ...]
    """Folder of the headers in the folder that packages are installed into."""
    beginnings: tuple[str, ...]
    """How the names of its headers begin in an ``#include``."""


_CUTLASS = HeaderWheel("nvidia-cutlass", "cutlass", ("cutlass_library", "source", "include"), ("cute/", "cutlass/"))
HEADER_WHEELS: Mapping[int, tuple[HeaderWheel, ...]] = {
    13: (_CUTLASS, HeaderWheel("nvidia-curand", "curand", ("nvidia", "cu13", "include"), ("curand",))),
    12: (_CUTLASS, HeaderWheel("nvidia-curand-cu12", "curand12", ("nvidia", "curand", "include"), ("curand",))),
}
"""By CUDA's major version."""


@dataclass(frozen=True)
class InstalledCuda:
    """CUDA versions of this environment's packages."""

    compiler: int
    """Major version that candidates are compiled with."""
    runner: int | None
    """Major version of the cupy that runs them; None if there is none, or its version is unknown."""
    runner_package: str | None
    """Distribution of that cupy; None if none is installed."""

    @property
    def needed(self) -> CudaRelease:
        """The newest of them, which a GPU's driver must support: a program compiled with one major version does not run
        on a driver of an older one (CUDA Compatibility, *Minor Version Compatibility*)."""
        return RELEASES[max(self.compiler, self.runner or 0)]

    @property
    def needed_by(self) -> str:
        """The package that needs :attr:`needed`: cupy's, or NVRTC's."""
        if self.runner_package is not None and self.runner == self.needed.major:
            return self.runner_package
        return RELEASES[self.compiler].compiler[0]


def installed_cuda() -> InstalledCuda:
    """Decide which CUDA this environment uses.

    The compiler follows cupy, so that an environment for drivers of CUDA 12 uses CUDA 12 throughout, unless only
    another compiler is complete; without a cupy of known CUDA, it is the first complete one of :data:`RELEASES`. Of two
    installed cupys the newer counts."""
    package, runner = _cupy()
    preferred = next(iter(RELEASES)) if runner is None else runner
    compiler = next((major for major in (preferred, *RELEASES) if not RELEASES[major].missing()), preferred)
    return InstalledCuda(compiler, runner, package)


def _cupy() -> tuple[str | None, int | None]:
    """The installed distribution of cupy, and its major version of CUDA."""
    for major, release in RELEASES.items():
        if is_installed(release.cupy):
            return release.cupy, major
    return ("cupy", _conda_cuda()) if is_installed("cupy") else (None, None)


def _conda_cuda() -> int | None:
    """The major version of CUDA of a conda environment; None outside of one.

    conda's cupy does not name it, but depends on the package ``cuda-version``, whose record is in ``conda-meta``.
    """
    for record in Path(sys.prefix, "conda-meta").glob("cuda-version-*.json"):
        match = re.match(r"cuda-version-(\d+)\.", record.name)
        if match is not None and int(match[1]) in RELEASES:
            return int(match[1])
    return None


def is_installed(distribution: str) -> bool:
    """Whether a distribution is installed, by the name that pip knows."""
    try:
        metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return False
    return True


def nvidia_folders(path: str) -> Iterator[Path]:
    """Folders of NVIDIA's wheels, links followed: one for each part of ``sys.path`` that has it.

    Args:
        path: Under ``nvidia``, as in :class:`CudaRelease`.
    """
    return _package_folders("nvidia", path)


def _package_folders(*path: str) -> Iterator[Path]:
    for entry in sys.path:
        folder = Path(entry or ".", *path)
        if folder.is_dir():
            yield folder.resolve()


def header_wheels(major: int) -> tuple[HeaderWheel, ...]:
    """Installed wheels of :data:`HEADER_WHEELS`."""
    return tuple(wheel for wheel in HEADER_WHEELS[major] if is_installed(wheel.distribution))


def cuda_include_folders(major: int) -> tuple[Path, ...]:
    """Installed folders of headers for one major version of CUDA, from NVIDIA's wheels; CUDA's own come first.

    Wheels of one version may lie in several parts of ``sys.path``, as after ``pip install --user``: each has its
    folder.

    Args:
        major: A key of :data:`RELEASES`.
    """
    own = (folder for path in RELEASES[major].headers for folder in nvidia_folders(path))
    further = (folder for wheel in header_wheels(major) for folder in _package_folders(*wheel.folder))
    return tuple(dict.fromkeys((*own, *further)))
