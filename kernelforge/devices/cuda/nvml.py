"""NVML: the GPUs of this machine and their current clocks, without a CUDA context.

NVML is started at the first call and stays open: starting it opens every GPU of the machine, which takes long with
several GPUs in sleep, and would disturb a measurement. It is stopped after an error, and the next call restarts it. A
forked process starts its own.
"""

from __future__ import annotations

import importlib
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from kernelforge.devices.cuda.libcuda import version_text
from kernelforge.devices.cuda.target import ComputeMode, GpuInfo, compute_mode
from kernelforge.errors import DeviceError
from kernelforge.records import Clocks

_REASONS = (
    "UserDefinedClocks",
    "SwPowerCap",
    "HwSlowdown",
    "SyncBoost",
    "SwThermalSlowdown",
    "HwThermalSlowdown",
    "HwPowerBrakeSlowdown",
    "DisplayClockSetting",
)
"""Reasons for clocks below their maximum, by NVML's names (``nvmlClocksEventReason...``), except ``GpuIdle``."""

_lock = threading.RLock()
_open: Any = None
"""The package ``pynvml`` while NVML is started in this process, else None."""


def _forget() -> None:
    """Reset the state in a forked child, where NVML and perhaps the lock belong to the parent."""
    global _open, _lock
    _open, _lock = None, threading.RLock()


os.register_at_fork(after_in_child=_forget)


@contextmanager
def _started(doing: str) -> Iterator[Any]:
    """The package with NVML started; None if the package, the library or the driver is missing.

    Args:
        doing: Action, for error messages: ``cannot {doing}``.

    Raises:
        DeviceError: NVML fails: it does not start, or the body raises one of its errors.
    """
    with _lock:
        nvml = _start()
        try:
            yield nvml
        except Exception as error:
            if nvml is None or not isinstance(error, nvml.NVMLError):
                raise
            close()
            raise DeviceError(f"NVML cannot {doing}: {error}. `nvidia-smi` says more.") from error


def _start() -> Any:
    global _open
    if _open is not None:
        return _open
    try:
        nvml = importlib.import_module("pynvml")
    except ModuleNotFoundError:
        return None
    try:
        nvml.nvmlInit()
    except (nvml.NVMLError_LibraryNotFound, nvml.NVMLError_DriverNotLoaded, nvml.NVMLError_NoPermission):
        return None
    except nvml.NVMLError as error:
        raise DeviceError(f"NVML does not start: {error}. `nvidia-smi` says more.") from error
    _open = nvml
    return nvml


def close() -> None:
    """Stop NVML if it is started; the next call restarts it."""
    global _open
    with _lock:
        nvml, _open = _open, None
        if nvml is not None:
            with suppress(nvml.NVMLError):  # it may have failed because the driver is gone
                nvml.nvmlShutdown()


def read_clocks(uuid: str) -> Clocks | None:
    """Current clocks, temperature and power of a GPU, and the reasons for throttled clocks.

    Args:
        uuid: UUID as in CUDA and NVML: ``GPU-...``, or ``MIG-...`` of an instance, whose clocks are those of its GPU.

    Returns:
        None if NVML or its package is missing, or does not report them (such as power on WSL 2 and virtual GPUs).

    Raises:
        DeviceError: NVML fails, for example because the GPU fell off the bus.
    """
    with _started(f"read the clocks of {uuid}") as nvml:
        if nvml is None:
            return None
        try:
            handle = nvml.nvmlDeviceGetHandleByUUID(uuid)
            if uuid.startswith("MIG-"):
                handle = nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle)
            sm = nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM)
            memory = nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM)
            temperature = nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)
            power_w = nvml.nvmlDeviceGetPowerUsage(handle) / 1000
            reasons = nvml.nvmlDeviceGetCurrentClocksEventReasons(handle)
        except (
            nvml.NVMLError_NotSupported,
            nvml.NVMLError_NoPermission,
            nvml.NVMLError_FunctionNotFound,
            nvml.NVMLError_NotFound,
        ):
            return None
        return Clocks(
            sm_mhz=(sm, sm),
            memory_mhz=(memory, memory),
            temperature_c=(temperature, temperature),
            power_w=(power_w, power_w),
            throttled=tuple(name for name in _REASONS if reasons & getattr(nvml, f"nvmlClocksEventReason{name}")),
        )


def read_energy(uuid: str) -> float | None:
    """Joules that a GPU took since its driver was loaded.

    Args:
        uuid: UUID as in CUDA and NVML. An instance of MIG has no counter of its own.

    Returns:
        None if NVML or its package is missing, or does not report it: GPUs before Volta, virtual ones and instances.

    Raises:
        DeviceError: NVML fails.
    """
    with _started(f"read the energy of {uuid}") as nvml:
        if nvml is None or uuid.startswith("MIG-"):
            return None
        try:
            handle = nvml.nvmlDeviceGetHandleByUUID(uuid)
            millijoules = nvml.nvmlDeviceGetTotalEnergyConsumption(handle)
        except (
            nvml.NVMLError_NotSupported,
            nvml.NVMLError_NoPermission,
            nvml.NVMLError_FunctionNotFound,
            nvml.NVMLError_NotFound,
        ):
            return None
        return float(millijoules) / 1000


def gpus() -> tuple[GpuInfo, ...] | None:
    """Every GPU of the machine, in order of PCI bus.

    Returns:
        None if only CUDA can tell which GPUs a process sees and in which order: NVML or its package is missing, a GPU
        is split into MIG instances, this user may not open one (NVML counts those nevertheless; NVML API reference,
        ``nvmlDeviceGetCount_v2``), or one does not report its memory, such as memory shared with the host.

    Raises:
        DeviceError: NVML fails.
    """
    with _started("list the GPUs") as nvml:
        if nvml is None:
            return None
        release = nvml.nvmlSystemGetDriverVersion()
        cuda = version_text(nvml.nvmlSystemGetCudaDriverVersion())
        gpus = []
        for index in range(nvml.nvmlDeviceGetCount()):
            try:
                handle = nvml.nvmlDeviceGetHandleByIndex(index)
                if _is_split(nvml, handle):
                    return None
                gpu = GpuInfo(
                    ordinal=index,
                    name=nvml.nvmlDeviceGetName(handle),
                    uuid=nvml.nvmlDeviceGetUUID(handle),
                    memory_bytes=nvml.nvmlDeviceGetMemoryInfo(handle).total,
                    driver=release,
                    cuda=cuda,
                    compute_capability=tuple(nvml.nvmlDeviceGetCudaComputeCapability(handle)),
                    compute_mode=_compute_mode(nvml, handle),
                )
            except (nvml.NVMLError_NoPermission, nvml.NVMLError_NotSupported):
                return None
            gpus.append(gpu)
        return tuple(gpus)


def driver_release() -> str:
    """Release of the driver, ``580.159.03``; empty if NVML or its package is missing, or fails."""
    try:
        with _started("tell the driver's release") as nvml:
            return "" if nvml is None else str(nvml.nvmlSystemGetDriverVersion())
    except DeviceError:
        return ""


def _is_split(nvml: Any, handle: Any) -> bool:
    try:
        current, _pending = nvml.nvmlDeviceGetMigMode(handle)
    except nvml.NVMLError_NotSupported:
        return False
    return bool(current == nvml.NVML_DEVICE_MIG_ENABLE)


def _compute_mode(nvml: Any, handle: Any) -> ComputeMode:
    try:
        return compute_mode(nvml.nvmlDeviceGetComputeMode(handle))
    except nvml.NVMLError_NotSupported:
        return "default"
