"""What NVML says of GPUs: which there are, and their clocks now. It makes no CUDA context.

Each call starts NVML and stops it again, so that nothing of it is alive when a process forks.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from kernelforge.devices.cuda.gpu import GpuInfo
from kernelforge.devices.cuda.libcuda import version_text
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
"""Reasons why clocks are not at their highest, by NVML's names (``nvmlClocksEventReason...``), but for ``GpuIdle``."""


@contextmanager
def _started() -> Iterator[Any]:
    """The package with NVML started; None where the package, the library or the driver is missing.

    Raises:
        DeviceError: NVML is there and fails.
    """
    try:
        nvml = importlib.import_module("pynvml")
    except ModuleNotFoundError:
        yield None
        return
    try:
        nvml.nvmlInit()
    except (nvml.NVMLError_LibraryNotFound, nvml.NVMLError_DriverNotLoaded, nvml.NVMLError_NoPermission):
        yield None
        return
    except nvml.NVMLError as error:
        raise DeviceError(f"NVML does not start: {error}. `nvidia-smi` says more.") from error
    try:
        yield nvml
    finally:
        nvml.nvmlShutdown()


def read_clocks(uuid: str) -> Clocks | None:
    """Clocks, temperature and power of a GPU now, and why its clocks are held back.

    Args:
        uuid: As CUDA and NVML write it: ``GPU-...``.

    Returns:
        None where NVML or its package is missing, or where it cannot say (a MIG instance has no clocks of its own).

    Raises:
        DeviceError: NVML is there and fails: the GPU fell off the bus, say.
    """
    with _started() as nvml:
        if nvml is None:
            return None
        try:
            handle = nvml.nvmlDeviceGetHandleByUUID(uuid)
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
        except nvml.NVMLError as error:
            raise DeviceError(f"NVML cannot read the clocks of {uuid}: {error}. `nvidia-smi` says more.") from error
        return Clocks(
            sm_mhz=(sm, sm),
            memory_mhz=(memory, memory),
            temperature_c=(temperature, temperature),
            power_w=(power_w, power_w),
            throttled=tuple(name for name in _REASONS if reasons & getattr(nvml, f"nvmlClocksEventReason{name}")),
        )


def gpus() -> tuple[GpuInfo, ...] | None:
    """Every GPU of the machine, in order of PCI bus.

    Returns:
        None where NVML or its package is missing, or where a GPU is split into MIG instances, which only CUDA numbers.

    Raises:
        DeviceError: NVML is there and fails.
    """
    with _started() as nvml:
        if nvml is None:
            return None
        try:
            release = nvml.nvmlSystemGetDriverVersion()
            cuda = version_text(nvml.nvmlSystemGetCudaDriverVersion())
            found = []
            for index in range(nvml.nvmlDeviceGetCount()):
                handle = nvml.nvmlDeviceGetHandleByIndex(index)
                if _is_split(nvml, handle):
                    return None
                found.append(
                    GpuInfo(
                        ordinal=index,
                        name=nvml.nvmlDeviceGetName(handle),
                        uuid=nvml.nvmlDeviceGetUUID(handle),
                        memory_bytes=nvml.nvmlDeviceGetMemoryInfo(handle).total,
                        driver=release,
                        cuda=cuda,
                    )
                )
        except nvml.NVMLError as error:
            raise DeviceError(f"NVML cannot list the GPUs: {error}. `nvidia-smi` says more.") from error
        return tuple(found)


def _is_split(nvml: Any, handle: Any) -> bool:
    try:
        current, _pending = nvml.nvmlDeviceGetMigMode(handle)
    except nvml.NVMLError_NotSupported:
        return False
    return bool(current == nvml.NVML_DEVICE_MIG_ENABLE)
