"""Discovery of GPUs: which there are, what is missing to use them, and why one cannot be used.

Found without CUDA in this process and without its packages.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import stat
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Literal

from kernelforge.devices.cuda import libcuda, nvml
from kernelforge.devices.cuda.target import GpuInfo, compute_mode
from kernelforge.errors import DeviceError
from kernelforge.hardware.wheels import RELEASES, InstalledCuda, installed_cuda
from kernelforge.utils.shell_hints import install_hint

Runtime = Literal["cupy", "pycuda"]

CONTROL = (Path("/dev/nvidiactl"), Path("/dev/dxg"))
"""Device nodes without which nothing of NVIDIA's driver answers: of the Linux driver, and of WSL 2, where the GPU is
reached through Windows' driver (NVIDIA, *CUDA on WSL User Guide*)."""
UVM = Path("/dev/nvidia-uvm")
"""Node of the Linux driver that every CUDA context opens. Nothing makes it before a process that may start programs
starts CUDA for the first time after a boot: such a process runs the driver's setuid helper ``nvidia-modprobe``."""

_RELEASE = Path("/sys/module/nvidia/version")
_WAIT_S = 30.0
_MPS_FOLDER = "/tmp/nvidia-mps"
"""Where MPS has its pipes unless ``CUDA_MPS_PIPE_DIRECTORY`` says otherwise (NVIDIA, *Multi-Process Service*)."""

_CURES: Mapping[str, str] = {
    "CUDA_ERROR_SYSTEM_NOT_READY": "Start nvidia-fabricmanager, which GPUs with NVSwitch need; see `nvidia-smi`.",
    "CUDA_ERROR_802": "Start nvidia-fabricmanager, which GPUs with NVSwitch need; see `nvidia-smi`.",
    "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH": "The driver was updated and its old kernel module still runs: restart the "
    "machine; a container may bring a libcuda of its own, which LD_LIBRARY_PATH must not lead to.",
    "CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE": "Remove the package cuda-compat, which is for data centre GPUs alone, "
    "from the library path, and update the driver.",
    "CUDA_ERROR_UNKNOWN": "The node /dev/nvidia-uvm may be missing, or its kernel module ill: run "
    "`nvidia-modprobe -u -c 0` as root, or restart the machine.",
}
"""What helps when CUDA does not start (CUDA driver API, *CUresult*)."""

_PACKAGES: dict[Runtime, dict[str, str]] = {
    "cupy": {"cupy": "cupy-cuda13x", "cuda.bindings": "cuda-bindings", "pynvml": "nvidia-ml-py"},
    "pycuda": {"pycuda": "pycuda", "pynvml": "nvidia-ml-py"},
}
"""Packages by the modules that they bring."""

_EXTRAS: dict[Runtime, tuple[str, ...]] = {"cupy": ("gpu",), "pycuda": ("gpu", "pycuda")}


def gpus() -> tuple[GpuInfo, ...]:
    """GPUs that CUDA would see in a child of this process, by ordinal; empty on a machine without a driver.

    ``CUDA_VISIBLE_DEVICES`` is honoured. NVML is asked where it can say, for it is quicker. CUDA is asked, in a process
    of its own, where only CUDA can: which MIG instances there are, how GPUs that differ are numbered, and which version
    of CUDA a library supports that is newer than the driver's own (forward compatibility).

    Raises:
        DeviceError: there is a driver, and it fails.
    """
    if not any(node.exists() for node in CONTROL):
        return ()
    listed = nvml.gpus()
    if listed is None or not _in_bus_order(listed, os.environ):
        return _from_cuda()
    chosen = visible(listed, os.environ.get("CUDA_VISIBLE_DEVICES"))
    if chosen is None:
        return _from_cuda()
    if any(_too_old(gpu) for gpu in chosen):
        return _as_cuda_says(chosen)
    return chosen


def _as_cuda_says(listed: tuple[GpuInfo, ...]) -> tuple[GpuInfo, ...]:
    """GPUs with the version of CUDA that the library supports which the linker finds; where it does not start, the
    driver's own version stays."""
    try:
        versions = {gpu.uuid: gpu.cuda for gpu in _from_cuda()}
    except DeviceError:
        return listed
    return tuple(replace(gpu, cuda=versions.get(gpu.uuid, gpu.cuda)) for gpu in listed)


def _in_bus_order(found: Sequence[GpuInfo], environment: Mapping[str, str]) -> bool:
    """Whether CUDA numbers the GPUs as NVML does: with different ones its default is the fastest first.

    Source: CUDA C++ Programming Guide, *CUDA Environment Variables*.
    """
    alike = len({gpu.name for gpu in found}) <= 1
    return alike or environment.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID"


def visible(found: Sequence[GpuInfo], setting: str | None) -> tuple[GpuInfo, ...] | None:
    """Those of ``found`` that ``CUDA_VISIBLE_DEVICES`` lets through, renumbered in its order.

    Args:
        found: Every GPU, in CUDA's order.
        setting: Numbers, or beginnings of UUIDs, between commas; None lets all through. The first that names no GPU
            ends the list (CUDA C++ Programming Guide, *CUDA Environment Variables*).

    Returns:
        None where only CUDA can say: MIG instances are named, or an entry has any other form than these.
    """
    if setting is None:
        return tuple(found)
    entries = [entry.strip() for entry in setting.split(",")]
    if not all(re.fullmatch(r"-?[0-9]*|GPU-[0-9a-f-]*", entry) for entry in entries):
        return None
    chosen: list[GpuInfo] = []
    for entry in entries:
        if entry.isdecimal():
            named = [found[int(entry)]] if int(entry) < len(found) else []
        else:
            named = [gpu for gpu in found if entry.startswith("GPU-") and gpu.uuid.startswith(entry)]
        if len(named) != 1:
            break
        if named[0] in chosen:
            # A GPU named twice is an error to CUDA, which then shows none.
            return ()
        chosen += named
    return tuple(replace(gpu, ordinal=ordinal) for ordinal, gpu in enumerate(chosen))


def _from_cuda() -> tuple[GpuInfo, ...]:
    """What CUDA lists in a process with this one's environment, asked once for each environment.

    Raises:
        DeviceError: CUDA does not start.
    """
    names = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "LD_LIBRARY_PATH")
    return _asked_of_cuda(tuple(os.environ.get(name) for name in names))


@cache
def _asked_of_cuda(environment: tuple[str | None, ...]) -> tuple[GpuInfo, ...]:
    command = [sys.executable, "-I", libcuda.__file__]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=_WAIT_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise DeviceError(f"CUDA did not say within {_WAIT_S:.0f} s which GPUs there are. See `nvidia-smi`.") from error
    if answer.returncode:
        said = answer.stderr.strip()
        cure = next((what for error, what in _CURES.items() if error in said), "See `nvidia-smi`.")
        raise DeviceError(f"CUDA cannot list the GPUs: {said}. {cure}")
    release = _RELEASE.read_text().strip() if _RELEASE.exists() else nvml.driver_release()
    listed = []
    for raw in json.loads(answer.stdout):
        mode = compute_mode(raw.pop("compute_mode"))
        listed.append(GpuInfo.from_wire({**raw, "driver": release, "compute_mode": mode}))
    return tuple(listed)


def unusable(gpu: GpuInfo, runtime: Runtime | None = None) -> str | None:
    """Why a GPU cannot be used here, and what to do, in one sentence without its name; None where nothing is known.

    Its driver must support the CUDA of the installed packages, their compiler must know its architecture, several
    processes must be allowed a context on it at once, no MPS daemon may share it, and the driver's nodes must exist.

    Args:
        gpu: One of :func:`gpus`.
        runtime: Whose packages must be installed, too.
    """
    packages = None if runtime is None else _lacking(runtime)
    return _too_old(gpu) or packages or _exclusive(gpu) or _shared_by_mps() or _without_uvm()


def _too_old(gpu: GpuInfo) -> str | None:
    installed = installed_cuda()
    needed, compiler = installed.needed, RELEASES[installed.compiler]
    if _version(gpu.cuda) < (needed.major,):
        release = f"{gpu.driver}, " if gpu.driver else ""
        return (
            f"its driver ({release}CUDA {gpu.cuda}) is older than {needed.driver}, the first that supports "
            f"CUDA {needed.major}, which {installed.needed_by} needs: update the driver{_older_cuda(gpu, installed)}"
        )
    if gpu.compute_capability is not None and gpu.compute_capability < compiler.compute_capability:
        return (
            f"its compute capability {_dotted(gpu.compute_capability)} is below {_dotted(compiler.compute_capability)} "
            f"({compiler.cards}), the least that the compiler of CUDA {compiler.major} builds for: use another GPU"
            f"{_older_cuda(gpu, installed)}"
        )
    return None


def _older_cuda(gpu: GpuInfo, installed: InstalledCuda) -> str:
    """The end of a sentence: which packages of an older CUDA a GPU can be used with; empty where none help."""
    for release in RELEASES.values():
        supported = _version(gpu.cuda) >= (release.major,)
        built_for = gpu.compute_capability is None or gpu.compute_capability >= release.compute_capability
        if release.major >= installed.needed.major or not supported or not built_for:
            continue
        if installed.runner == release.major:  # cupy is of that CUDA, and its compiler is not all there
            return f", or install the compiler of CUDA {release.major}: {release.install(release.missing())}"
        return f", or install the packages of CUDA {release.major} (the extra {release.extra})"
    return ""


def _exclusive(gpu: GpuInfo) -> str | None:
    if gpu.compute_mode == "default":
        return None
    allowed = "one process" if gpu.compute_mode == "exclusive process" else "no process"
    return (
        f"its compute mode is '{gpu.compute_mode}', which lets {allowed} use it, and a candidate and its reference are "
        f"two: run `nvidia-smi -c 0 -i {gpu.uuid}` as root, or ask whoever runs the machine for the default mode"
    )


def _shared_by_mps() -> str | None:
    folder = os.environ.get("CUDA_MPS_PIPE_DIRECTORY") or _MPS_FOLDER
    try:
        # Opens only where a daemon reads at the other end: one that was killed leaves its pipe behind.
        descriptor = os.open(os.path.join(folder, "control"), os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        if not stat.S_ISFIFO(os.fstat(descriptor).st_mode):
            return None
    finally:
        os.close(descriptor)
    return (
        f"an MPS daemon shares it (its pipes are in {folder}), which a jailed process cannot reach and which would "
        "spoil times: stop it (`echo quit | nvidia-cuda-mps-control`) or set CUDA_MPS_PIPE_DIRECTORY to an empty folder"
    )


def _without_uvm() -> str | None:
    """Make the node that CUDA needs where it is missing; why it cannot be had."""
    if UVM.exists() or not CONTROL[0].exists():
        return None
    _make_uvm()
    if UVM.exists():
        return None
    return (
        f"the device node {UVM} is missing, and a jailed process cannot make it: run `nvidia-modprobe -u -c 0` as "
        "root, or, in a container, start the container with --gpus all"
    )


@cache
def _make_uvm() -> None:
    """Start what makes the node, once in a process: CUDA outside a jail, whose helper does, then the helper itself."""
    _asked_of_cuda.cache_clear()
    with suppress(DeviceError):  # what counts is whether the node is there afterwards
        _from_cuda()
    helper = shutil.which("nvidia-modprobe")
    if not UVM.exists() and helper is not None:
        with suppress(OSError, subprocess.TimeoutExpired):
            subprocess.run([helper, "-u", "-c", "0"], capture_output=True, timeout=_WAIT_S, check=False)


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".") if part.isdecimal())


def _dotted(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"


def missing_packages(runtime: Runtime) -> tuple[str, ...]:
    """Packages to install before that runtime can be used, by the names that pip knows."""
    return tuple(package for module, package in _PACKAGES[runtime].items() if not _installed(module))


def _installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        # The package around it is missing.
        return False


def require_packages(runtime: Runtime) -> None:
    """Check that a runtime can be imported.

    Raises:
        DeviceError: a package is missing; the message says how to install it.
    """
    lacking = _lacking(runtime)
    if lacking is not None:
        raise DeviceError(lacking)


def _lacking(runtime: Runtime) -> str | None:
    """Which packages a runtime lacks and how to install them. It runs without NVML's, which only reads clocks."""
    missing = [name for name in missing_packages(runtime) if name != "nvidia-ml-py"]
    return f"{runtime} needs {', '.join(missing)}: {install_hint(*_EXTRAS[runtime])}" if missing else None
