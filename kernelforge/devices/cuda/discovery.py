"""Which GPUs there are and what is missing to use them, found without CUDA in this process and without its packages."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

from kernelforge.commands import install_hint
from kernelforge.devices.cuda import libcuda, nvml
from kernelforge.devices.cuda.gpu import GpuInfo
from kernelforge.errors import DeviceError

Runtime = Literal["cupy", "pycuda"]

CONTROL = Path("/dev/nvidiactl")
"""Without it nothing of NVIDIA's driver answers."""

_RELEASE = Path("/sys/module/nvidia/version")
_WAIT_S = 30.0

_PACKAGES: dict[Runtime, dict[str, str]] = {
    "cupy": {"cupy": "cupy-cuda13x", "cuda.bindings": "cuda-bindings", "pynvml": "nvidia-ml-py"},
    "pycuda": {"pycuda": "pycuda", "pynvml": "nvidia-ml-py"},
}
"""Packages by the modules that they bring."""

_EXTRAS: dict[Runtime, tuple[str, ...]] = {"cupy": ("gpu",), "pycuda": ("gpu", "pycuda")}


def gpus() -> tuple[GpuInfo, ...]:
    """GPUs that CUDA would see in a child of this process, by ordinal; empty on a machine without a driver.

    ``CUDA_VISIBLE_DEVICES`` is honoured.

    Raises:
        DeviceError: there is a driver, and it fails.
    """
    if not CONTROL.exists():
        return ()
    found = nvml.gpus()
    if found is not None and _in_bus_order(found, os.environ):
        chosen = visible(found, os.environ.get("CUDA_VISIBLE_DEVICES"))
        if chosen is not None:
            return chosen
    return _from_cuda()


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
        None where only CUDA can say: MIG instances are named.
    """
    if setting is None:
        return tuple(found)
    chosen: list[GpuInfo] = []
    for entry in setting.split(","):
        name = entry.strip()
        if name.startswith("MIG"):
            return None
        if name.isdecimal():
            named = [found[int(name)]] if int(name) < len(found) else []
        else:
            named = [gpu for gpu in found if name.startswith("GPU-") and gpu.uuid.startswith(name)]
        if len(named) != 1:
            break
        if named[0] in chosen:
            # A GPU named twice is an error to CUDA, which then shows none.
            return ()
        chosen += named
    return tuple(replace(gpu, ordinal=ordinal) for ordinal, gpu in enumerate(chosen))


def _from_cuda() -> tuple[GpuInfo, ...]:
    """Ask the driver's own library, in a process of its own."""
    command = [sys.executable, "-I", libcuda.__file__]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=_WAIT_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise DeviceError(f"CUDA did not say within {_WAIT_S:.0f} s which GPUs there are. See `nvidia-smi`.") from error
    if answer.returncode:
        raise DeviceError(f"CUDA cannot list the GPUs: {answer.stderr.strip()}. See `nvidia-smi`.")
    release = _RELEASE.read_text().strip() if _RELEASE.exists() else ""
    return tuple(GpuInfo(driver=release, **raw) for raw in json.loads(answer.stdout))


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
    missing = [name for name in missing_packages(runtime) if name != "nvidia-ml-py"]
    if missing:
        raise DeviceError(f"{runtime} needs {', '.join(missing)}: {install_hint(*_EXTRAS[runtime])}")
