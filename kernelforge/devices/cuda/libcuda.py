"""The CUDA driver library by ctypes: GPUs and names of errors, without a context or any package.

Standard library only, so that it can be run as a script: ``python libcuda.py`` prints the GPUs as JSON. CUDA that was
started in a process cannot be used in processes forked from it (CUDA driver API, *Initialization*), and the process
that lists the GPUs forks."""

from __future__ import annotations

import ctypes
import json
import sys
from typing import Any

SONAME = "libcuda.so.1"

_SUCCESS, _NO_DEVICE = 0, 100
_MAJOR, _MINOR, _COMPUTE_MODE = 75, 76, 20
"""``CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR``, ``..._MINOR`` and ``CU_DEVICE_ATTRIBUTE_COMPUTE_MODE``."""
_MIG_NAME = " MIG "
"""CUDA's name of a MIG instance contains its profile: ``NVIDIA A100-SXM4-40GB MIG 3g.20gb``."""
_ERRORS = range(1, 1000)
"""Range of error numbers."""


def library() -> ctypes.CDLL | None:
    """The driver's library; None if there is none."""
    try:
        return ctypes.CDLL(SONAME)
    except OSError:
        return None


def _text(function: Any, code: int) -> str | None:
    text = ctypes.c_char_p()
    if function(code, ctypes.byref(text)) != _SUCCESS or text.value is None:
        return None
    return text.value.decode()


def error_name(cuda: ctypes.CDLL, code: int) -> str:
    """CUDA's name of an error."""
    return _text(cuda.cuGetErrorName, code) or f"CUDA_ERROR_{code}"


def error_names(cuda: ctypes.CDLL) -> dict[str, str]:
    """CUDA's names of its errors, by their texts."""
    names: dict[str, str] = {}
    for code in _ERRORS:
        name, text = _text(cuda.cuGetErrorName, code), _text(cuda.cuGetErrorString, code)
        if name is not None and text is not None:
            names.setdefault(text, name)
    return names


def uuid_text(raw: bytes, *, instance: bool = False) -> str:
    """A UUID as NVML, nvidia-smi and ``CUDA_VISIBLE_DEVICES`` write it.

    Args:
        raw: Its 16 bytes.
        instance: Whether it is a MIG instance's, which begins with ``MIG-`` (since driver release 470) instead of
            ``GPU-``. Source: NVIDIA Multi-Instance GPU User Guide, *CUDA Device Enumeration*.
    """
    text = raw.hex()
    prefix = "MIG" if instance else "GPU"
    return f"{prefix}-{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def version_text(version: int) -> str:
    """``13.0`` of CUDA's number 13000."""
    return f"{version // 1000}.{version % 1000 // 10}"


def uuid(cuda: ctypes.CDLL, device: int) -> str:
    """UUID of a device, as NVML writes it: of the GPU (``GPU-...``), or of the MIG instance (``MIG-...``).

    ``cuDeviceGetUuid_v2`` gives the UUID of the MIG instance where the device is one, and ``cuDeviceGetUuid`` that of
    the GPU (CUDA driver API, *Device Management*): if the two differ, the device is an instance. Its name tells, too,
    if the older call is missing or gives the same.

    Args:
        cuda: The library, with CUDA started.
        device: ``CUdevice``.

    Raises:
        RuntimeError: CUDA refused, by its name of the error.
    """
    raw, of_gpu = (ctypes.c_ubyte * 16)(), (ctypes.c_ubyte * 16)()
    _check(cuda, cuda.cuDeviceGetUuid_v2(ctypes.byref(raw), device), f"asking for the UUID of GPU {device}")
    older = getattr(cuda, "cuDeviceGetUuid", None)
    differs = older is not None and older(ctypes.byref(of_gpu), device) == _SUCCESS and bytes(of_gpu) != bytes(raw)
    return uuid_text(bytes(raw), instance=differs or _MIG_NAME in _name(cuda, device))


def _name(cuda: ctypes.CDLL, device: int) -> str:
    name = ctypes.create_string_buffer(256)
    _check(cuda, cuda.cuDeviceGetName(name, len(name), device), f"asking for the name of GPU {device}")
    return name.value.decode()


def _check(cuda: ctypes.CDLL, status: int, doing: str) -> None:
    if status != _SUCCESS:
        raise RuntimeError(f"{error_name(cuda, status)} while {doing}")


def devices() -> list[dict[str, Any]]:
    """GPUs and MIG instances in CUDA's order, as ``CUDA_VISIBLE_DEVICES`` has them.

    This starts CUDA in the process, without a context. If the node ``/dev/nvidia-uvm`` is missing, the driver's setuid
    helper makes it (README of NVIDIA's driver, *nvidia-modprobe*).

    Returns:
        For each: ordinal, name, uuid, memory_bytes, cuda, compute_capability and compute_mode, CUDA's number of it.

    Raises:
        RuntimeError: CUDA refused, by its name of the error.
    """
    cuda = library()
    if cuda is None:
        return []
    status = cuda.cuInit(0)
    if status == _NO_DEVICE:
        return []
    _check(cuda, status, "starting CUDA")
    count, version = ctypes.c_int(), ctypes.c_int()
    _check(cuda, cuda.cuDeviceGetCount(ctypes.byref(count)), "counting GPUs")
    _check(cuda, cuda.cuDriverGetVersion(ctypes.byref(version)), "asking for the driver's version")
    return [_device(cuda, ordinal, version.value) for ordinal in range(count.value)]


def _device(cuda: ctypes.CDLL, ordinal: int, version: int) -> dict[str, Any]:
    device, memory = ctypes.c_int(), ctypes.c_size_t()
    _check(cuda, cuda.cuDeviceGet(ctypes.byref(device), ordinal), f"looking for GPU {ordinal}")
    _check(cuda, cuda.cuDeviceTotalMem_v2(ctypes.byref(memory), device), f"asking for the memory of GPU {ordinal}")

    def attribute(number: int) -> int:
        value = ctypes.c_int()
        status = cuda.cuDeviceGetAttribute(ctypes.byref(value), number, device)
        _check(cuda, status, f"asking for attribute {number} of GPU {ordinal}")
        return value.value

    return {
        "ordinal": ordinal,
        "name": _name(cuda, device.value),
        "uuid": uuid(cuda, device.value),
        "memory_bytes": memory.value,
        "cuda": version_text(version),
        "compute_capability": [attribute(_MAJOR), attribute(_MINOR)],
        "compute_mode": attribute(_COMPUTE_MODE),
    }


if __name__ == "__main__":
    try:
        json.dump(devices(), sys.stdout)
    except RuntimeError as error:
        sys.exit(str(error))
