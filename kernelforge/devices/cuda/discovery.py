"""Discovery of GPUs: their list, missing packages, and reasons for not using one.

Needs neither CUDA in this process nor its packages.
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
"""Device nodes that NVIDIA's driver needs: of the Linux driver, and of WSL 2, which uses Windows' driver (NVIDIA, *CUDA
on WSL User Guide*)."""
UVM = Path("/dev/nvidia-uvm")
"""Node of the Linux driver that every CUDA context opens. After a boot, the first process that starts CUDA makes it by
the driver's setuid helper ``nvidia-modprobe``, if it may start programs."""

_RELEASE = Path("/sys/module/nvidia/version")
_WAIT_S = 30.0
_MPS_FOLDER = "/tmp/nvidia-mps"
"""Default folder of the pipes of MPS, without ``CUDA_MPS_PIPE_DIRECTORY`` (NVIDIA, *Multi-Process Service*)."""

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
"""Advice by error for a CUDA that does not start (CUDA driver API, *CUresult*)."""

_PACKAGES: dict[Runtime, dict[str, str]] = {
    "cupy": {"cupy": "cupy-cuda13x", "cuda.bindings": "cuda-bindings", "pynvml": "nvidia-ml-py"},
    "pycuda": {"pycuda": "pycuda", "pynvml": "nvidia-ml-py"},
}
"""Packages by their modules."""

_EXTRAS: dict[Runtime, tuple[str, ...]] = {"cupy": ("gpu",), "pycuda": ("gpu", "pycuda")}


def gpus() -> tuple[GpuInfo, ...]:
    """GPUs that CUDA would see in a child of this process, by ordinal; empty on a machine without a driver.

    ``CUDA_VISIBLE_DEVICES`` is honoured. NVML, which is quicker, lists them if it can. CUDA does, in a separate
    process, if only CUDA can tell: MIG instances, the order of different GPUs, and the version of CUDA of a library
    that is newer than the driver's own (forward compatibility).

    Raises:
        DeviceError: the driver fails.
    """
    if not any(node.exists() for node in CONTROL):
        return ()
    listed = nvml.gpus()
    if listed is None or not _in_bus_order(listed, os.environ):
        return _from_cuda()
    selected = visible(listed, os.environ.get("CUDA_VISIBLE_DEVICES"))
    if selected is None:
        return _from_cuda()
    if any(_too_old(gpu) for gpu in selected):
        return _with_cuda_version(selected)
    return selected


def _with_cuda_version(listed: tuple[GpuInfo, ...]) -> tuple[GpuInfo, ...]:
    """GPUs with the CUDA version of the library that the linker finds; the driver's own version if CUDA does not
    start."""
    try:
        versions = {gpu.uuid: gpu.cuda for gpu in _from_cuda()}
    except DeviceError:
        return listed
    return tuple(replace(gpu, cuda=versions.get(gpu.uuid, gpu.cuda)) for gpu in listed)


def _in_bus_order(listed: Sequence[GpuInfo], environment: Mapping[str, str]) -> bool:
    """Whether CUDA numbers the GPUs as NVML does; its default for different GPUs is the fastest first.

    Source: CUDA C++ Programming Guide, *CUDA Environment Variables*.
    """
    alike = len({gpu.name for gpu in listed}) <= 1
    return alike or environment.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID"


def visible(listed: Sequence[GpuInfo], setting: str | None) -> tuple[GpuInfo, ...] | None:
    """GPUs that ``CUDA_VISIBLE_DEVICES`` selects, renumbered in its order.

    Args:
        listed: Every GPU, in CUDA's order.
        setting: Numbers, or beginnings of UUIDs, between commas; None selects all. The first that names no GPU ends the
            list (CUDA C++ Programming Guide, *CUDA Environment Variables*).

    Returns:
        None if only CUDA can tell: for MIG instances, and entries of any other form.
    """
    if setting is None:
        return tuple(listed)
    entries = [entry.strip() for entry in setting.split(",")]
    if not all(re.fullmatch(r"-?[0-9]*|GPU-[0-9a-f-]*", entry) for entry in entries):
        return None
    selected: list[GpuInfo] = []
    for entry in entries:
        if entry.isdecimal():
            named = [listed[int(entry)]] if int(entry) < len(listed) else []
        else:
            named = [gpu for gpu in listed if entry.startswith("GPU-") and gpu.uuid.startswith(entry)]
        if len(named) != 1:
            break
        if named[0] in selected:
            # A GPU that is named twice is an error for CUDA, which then lists none.
            return ()
        selected += named
    return tuple(replace(gpu, ordinal=ordinal) for ordinal, gpu in enumerate(selected))


def _from_cuda() -> tuple[GpuInfo, ...]:
    """GPUs that CUDA lists in a process with this environment; cached by environment.

    Raises:
        DeviceError: CUDA does not start.
    """
    names = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "LD_LIBRARY_PATH")
    return _listed_by_cuda(tuple(os.environ.get(name) for name in names))


@cache
def _listed_by_cuda(environment: tuple[str | None, ...]) -> tuple[GpuInfo, ...]:
    command = [sys.executable, "-I", libcuda.__file__]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=_WAIT_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise DeviceError(f"CUDA did not say within {_WAIT_S:.0f} s which GPUs there are. See `nvidia-smi`.") from error
    if answer.returncode:
        message = answer.stderr.strip()
        cure = next((what for error, what in _CURES.items() if error in message), "See `nvidia-smi`.")
        raise DeviceError(f"CUDA cannot list the GPUs: {message}. {cure}")
    release = _RELEASE.read_text().strip() if _RELEASE.exists() else nvml.driver_release()
    listed = []
    for raw in json.loads(answer.stdout):
        mode = compute_mode(raw.pop("compute_mode"))
        listed.append(GpuInfo.from_wire({**raw, "driver": release, "compute_mode": mode}))
    return tuple(listed)


def unusable(gpu: GpuInfo, runtime: Runtime | None = None) -> str | None:
    """Reason for not using a GPU, with advice, in one sentence without its name; None if there is none.

    Its driver must support the CUDA of the installed packages, their compiler must support its architecture, it must
    allow contexts of several processes, no MPS daemon may share it, and the driver's nodes must exist.

    Args:
        gpu: One of :func:`gpus`.
        runtime: Runtime whose packages must be installed, too.
    """
    packages = None if runtime is None else _missing_message(runtime)
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
    """End of a sentence: the packages of an older CUDA that support a GPU; empty if there are none."""
    for release in RELEASES.values():
        supported = _version(gpu.cuda) >= (release.major,)
        built_for = gpu.compute_capability is None or gpu.compute_capability >= release.compute_capability
        if release.major >= installed.needed.major or not supported or not built_for:
            continue
        if installed.runner == release.major:  # cupy is of that CUDA, whose compiler is incomplete
            return f", or install the compiler of CUDA {release.major}: {release.install(release.missing())}"
        return f", or install the packages of CUDA {release.major} (the extra {release.extra})"
    return ""


def _exclusive(gpu: GpuInfo) -> str | None:
    if gpu.compute_mode == "default":
        return None
    allowed = "one process" if gpu.compute_mode == "exclusive process" else "no process"
    return (
        f"its compute mode is '{gpu.compute_mode}', which lets {allowed} use it, and a candidate and its reference are "
        f"two: run `nvidia-smi -c 0 -i {gpu.uuid}` as root, or ask the administrator for the default mode"
    )


def _shared_by_mps() -> str | None:
    folder = os.environ.get("CUDA_MPS_PIPE_DIRECTORY") or _MPS_FOLDER
    try:
        # Opens only if a daemon reads at the other end: a killed daemon leaves its pipe.
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
    """Make the node that CUDA needs if it is missing; the reason if it cannot be made."""
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
    """Make the node, once per process: by CUDA outside a jail, which starts the helper, then by the helper itself."""
    _listed_by_cuda.cache_clear()
    with suppress(DeviceError):  # the caller checks for the node
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
    """Packages that a runtime needs and that are not installed, by their names for pip."""
    return tuple(package for module, package in _PACKAGES[runtime].items() if not _installed(module))


def _installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        # Its parent package is missing.
        return False


def require_packages(runtime: Runtime) -> None:
    """Check that a runtime can be imported.

    Raises:
        DeviceError: a package is missing; the message says how to install it.
    """
    message = _missing_message(runtime)
    if message is not None:
        raise DeviceError(message)


def _missing_message(runtime: Runtime) -> str | None:
    """Message on the missing packages of a runtime, without NVML's, which only reads clocks; None if there are none."""
    missing = [name for name in missing_packages(runtime) if name != "nvidia-ml-py"]
    return f"{runtime} needs {', '.join(missing)}: {install_hint(*_EXTRAS[runtime])}" if missing else None
