"""Where candidates run. Devices are named: ``emulated:h100`` needs no GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernelforge.devices.base import Device
from kernelforge.errors import DeviceError
from kernelforge.hardware.specs import SPECS

if TYPE_CHECKING:
    from kernelforge.devices.emulated.device import EmulatedDevice

__all__ = ["Device", "best_device", "check_device", "device_names", "make_device"]

_EMULATED = "emulated:"


def device_names() -> tuple[str, ...]:
    """Names of the devices that exist here, the best first."""
    return tuple(_EMULATED + key for key in SPECS)


def best_device() -> str:
    """Name of the device that is used when none is named."""
    return device_names()[0]


def check_device(name: str) -> str:
    """The full name of a device; ``emulated`` alone is its first kind.

    Raises:
        DeviceError: there is no such device.
    """
    wanted = name.strip().lower()
    if wanted == "emulated":
        return best_device()
    if wanted in device_names():
        return wanted
    choice = f"Choose one of: {', '.join(device_names())}."
    if wanted.split(":")[0] in ("cuda", "pycuda", "gpu"):
        raise DeviceError(f"{name!r} is not available: this version runs kernels on emulated devices only. {choice}")
    raise DeviceError(f"there is no device {name!r}. {choice}")


def make_device(name: str, *, threads: int = 1, allow_unconfined: bool = False) -> EmulatedDevice:
    """Open a device by name; the caller closes it.

    Args:
        name: As in :func:`device_names`.
        threads: Threads that one run may use.
        allow_unconfined: Run untrusted code without a jail where none works.

    Raises:
        DeviceError: there is no such device.
    """
    spec = SPECS[check_device(name).removeprefix(_EMULATED)]
    # Imported here: naming devices must not load what runs them.
    from kernelforge.devices.emulated.device import EmulatedDevice

    return EmulatedDevice(spec, threads=threads, allow_unconfined=allow_unconfined)
