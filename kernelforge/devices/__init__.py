"""Devices, by name: ``cuda:0`` is a GPU of this machine, ``emulated:h100`` needs none, nor does
``emulated:my_gpu.toml``, of whose GPU a file has the figures."""

from __future__ import annotations

import logging
from contextlib import closing
from difflib import get_close_matches
from functools import cache
from typing import TYPE_CHECKING

from kernelforge.devices.base import Device
from kernelforge.devices.cuda import discovery
from kernelforge.devices.remote.address import CPU, is_remote, parse_address
from kernelforge.errors import DeviceError, SandboxError, UsageError
from kernelforge.hardware.specs import (
    EMULATED,
    PARAMETER_FILE,
    SPECS,
    DeviceSpec,
    NearestSpec,
    nearest_spec,
    spec_by_key,
)

if TYPE_CHECKING:
    from kernelforge.devices.cuda.target import GpuInfo
    from kernelforge.records import MeasureSettings

__all__ = [
    "Device", "best_device", "check_device", "default_device", "device_list", "device_names", "make_device",
    "screen_for", "unused_gpu", "usable_device",
]  # fmt: skip

_LOG = logging.getLogger(__name__)

_CUDA = "cuda:"
_SHOWN = 3
"""Number of emulated devices that a message names, of dozens."""


def device_names() -> tuple[str, ...]:
    """Names of the devices that can be used here, the best first, without GPUs whose driver fails."""
    return (*(_name(gpu) for gpu in _gpus_that_answer() if discovery.unusable(gpu) is None), *_emulated_names())


def best_device() -> str:
    """Name of the default device: the first GPU that can be used with the installed packages, else the first emulated
    device."""
    return next((_name(gpu) for gpu in _default_gpus()), _emulated_names()[0])


def _default_gpus() -> tuple[GpuInfo, ...]:
    """GPUs that can be used with the installed packages; the first is the default device."""
    return tuple(gpu for gpu in _gpus_that_answer() if discovery.unusable(gpu, "cupy") is None)


def unused_gpu() -> str | None:
    """Reason for not using the first GPU of this machine by default; None if it is used."""
    try:
        gpus = discovery.gpus()
    except DeviceError as error:
        return f"no GPU is used, for its driver fails: {error}"
    for gpu in gpus:
        why = discovery.unusable(gpu, "cupy")
        return None if why is None else f"{_name(gpu)} is there and not used: {why}"
    return None


def usable_device(measure: MeasureSettings | None = None, *, allow_unconfined: bool = False) -> tuple[str, str | None]:
    """The default device, and the reason for not using the first GPU, if there is one.

    Unlike :func:`best_device` this opens GPUs until one starts, which takes seconds: a driver may list a GPU that no
    confined process can start. Each GPU is opened once per process; the outcome is cached.
    """
    from kernelforge.records import MeasureSettings

    why = unused_gpu()
    for gpu in _default_gpus():
        failure = _start_failure(gpu, measure or MeasureSettings(), allow_unconfined)
        if failure is None:
            return _name(gpu), why
        why = why or f"{_name(gpu)} is there and not used: {failure}"
    return _emulated_names()[0], why


@cache
def _start_failure(gpu: GpuInfo, measure: MeasureSettings, allow_unconfined: bool) -> str | None:
    """Error of a GPU that does not start; None for one that does."""
    try:
        with closing(make_device(_name(gpu), measure=measure, allow_unconfined=allow_unconfined)) as device:
            device.start()
    except (DeviceError, SandboxError) as error:
        return str(error)
    return None


def default_device(measure: MeasureSettings | None = None, *, allow_unconfined: bool = False) -> str:
    """The default device, for callers from Python: see :func:`usable_device`.

    The reason for not using a GPU is logged as a warning, once per process.
    """
    name, why = usable_device(measure, allow_unconfined=allow_unconfined)
    if why is not None:
        _warn_once(why)
    return name


@cache
def _warn_once(message: str) -> None:
    _LOG.warning("%s", message)


def check_device(name: str) -> str:
    """Full name of a device; ``cuda`` is the first GPU that can be used, ``emulated`` the first emulated device.

    Whether another machine has the GPU that an address names is seen when it is opened.

    Raises:
        DeviceError: there is no such device, or it cannot be used here; the message gives the reason and alternatives.
    """
    if is_remote(name):
        address, device = parse_address(name)
        if device == CPU:
            raise UsageError(f"{name!r}: {CPU} runs ModelNew classes alone; name a GPU or an emulated device there")
        return address.url(check_device(device) if device.startswith(EMULATED) else device)
    full = name.strip().lower()
    if full.startswith(EMULATED) and full.endswith(PARAMETER_FILE):
        path = name.strip()[len(EMULATED) :]
        lack = _no_compiler(spec_by_key(path).arch)
        if lack is not None:
            raise DeviceError(f"{EMULATED}{path} is not available: {lack}")
        return EMULATED + path
    any_gpu = full in ("cuda", "gpu")
    if any_gpu:
        full = _CUDA + "0"
    elif full == "emulated":
        full = _emulated_names()[0]
    choice = f"Choose one of: {_shortened(device_names())}."
    if full.startswith("pycuda"):
        raise DeviceError(
            f"{name!r} is not the name of a device: pycuda is a runtime. Use --device cuda:0 --runtime pycuda."
        )
    if full.startswith(_CUDA):
        gpus = {_name(gpu): discovery.unusable(gpu) for gpu in discovery.gpus()}
        if not gpus:
            raise DeviceError(f"{name!r} is not available: this machine has no NVIDIA driver that works. {choice}")
        if any_gpu:
            full = next((gpu for gpu, why in gpus.items() if why is None), full)
        if full not in gpus:
            raise DeviceError(f"{name!r} is not available: this machine has {', '.join(gpus)}. {choice}")
        if gpus[full] is not None:
            raise DeviceError(f"{full} cannot be used: {gpus[full]}. {choice}")
    elif full not in _emulated_names():
        raise DeviceError(_no_emulated(name, full.removeprefix(EMULATED), choice))
    return full


def _no_emulated(name: str, key: str, choice: str) -> str:
    """Message for an unknown emulated device."""
    spec = SPECS.get(key)
    if spec is None:
        alike = get_close_matches(key, [emulated.removeprefix(EMULATED) for emulated in _emulated_names()], n=3)
        meant = f" Did you mean {' or '.join(EMULATED + emulated for emulated in alike)}?" if alike else ""
        return f"there is no device {name!r}.{meant} {choice}"
    lack = _no_compiler(spec.arch)
    if lack is not None:
        return f"{EMULATED}{key} is not available: {lack}. {choice}"
    return f"there is no device {name!r}. Did you mean {EMULATED}{key}? {choice}"


def _no_compiler(arch: str) -> str | None:
    """Reason why nothing can be built for an architecture; None if it can."""
    if _builds_for(arch):
        return None
    from kernelforge.compile import installed_toolchain

    return f"{installed_toolchain().name} does not build for {arch}"


def device_list() -> str:
    """The devices of this machine as text: ``cuda:0; emulated:NAME, where NAME is h100, h200...``."""
    names = device_names()
    keys = [name.removeprefix(EMULATED) for name in names if name.startswith(EMULATED)]
    gpus = "".join(f"{name}; " for name in names if name.startswith(_CUDA))
    return f"{gpus}{EMULATED}NAME, where NAME is {', '.join(keys)}"


def _shortened(names: tuple[str, ...]) -> str:
    """GPUs, the first emulated devices, and the number of others."""
    emulated = [name for name in names if name.startswith(EMULATED)]
    listed = ", ".join([*(name for name in names if name.startswith(_CUDA)), *emulated[:_SHOWN]])
    more = len(emulated) - _SHOWN
    return f"{listed} and {more} more emulated ones, which kernelforge doctor lists" if more > 0 else listed


def make_device(
    name: str, *, threads: int = 1, measure: MeasureSettings | None = None, allow_unconfined: bool = False
) -> Device:
    """Open a device by name; the caller closes it.

    Args:
        name: As in :func:`device_names`.
        threads: Threads that one run on an emulated device may use.
        measure: Settings for a GPU; the defaults if absent.
        allow_unconfined: Run untrusted code without a jail where none works.

    Raises:
        DeviceError: there is no such device, or a package that it needs is not installed.
        UsageError: it is on another machine.
    """
    full = check_device(name)
    if is_remote(full):
        raise UsageError(
            f"{full} is on another machine, and this is about the machine that it runs on: start it there, with ssh"
        )
    # Imported here: naming devices must not load what runs them.
    if full.startswith(EMULATED):
        from kernelforge.devices.emulated.device import EmulatedDevice

        spec = spec_by_key(full.removeprefix(EMULATED))
        return EmulatedDevice(spec, threads=threads, allow_unconfined=allow_unconfined)
    from kernelforge.devices.cuda.device import CudaDevice
    from kernelforge.devices.cuda.tools.sanitizer import MISSING
    from kernelforge.devices.cuda.tools.tool_process import find_tool
    from kernelforge.records import MeasureSettings

    settings = measure or MeasureSettings()
    discovery.require_packages(settings.runtime)
    if settings.sanitizer and find_tool("compute-sanitizer") is None:
        raise DeviceError(f"--sanitizer cannot be had: {MISSING}")
    return CudaDevice(
        int(full.removeprefix(_CUDA)),
        runtime=settings.runtime,
        counters=settings.counters,
        allow_unconfined=allow_unconfined,
    )


def screen_for(arch: str, gpu_name: str = "") -> NearestSpec:
    """Figures of the emulated device that runs a GPU's candidates before it does: the nearest to it."""
    return nearest_spec(gpu_name, arch, among=_emulated_specs())


def _builds_for(arch: str) -> bool:
    """Whether the compiler supports an architecture (``sm_90a`` counts as 90). Without a compiler, all count."""
    supported = _known_architectures()
    return supported is None or int(arch.removeprefix("sm_").rstrip("af")) in supported


@cache
def _known_architectures() -> frozenset[int] | None:
    """Architectures that the compiler supports; None without a compiler, which the next build reports."""
    from kernelforge.compile import supported_architectures

    try:
        return frozenset(supported_architectures())
    except DeviceError:
        return None


def _emulated_specs() -> tuple[DeviceSpec, ...]:
    return tuple(spec for spec in SPECS.values() if _builds_for(spec.arch))


def _emulated_names() -> tuple[str, ...]:
    return tuple(EMULATED + spec.key for spec in _emulated_specs())


def _gpus_that_answer() -> tuple[GpuInfo, ...]:
    """The GPUs of this machine; none where the driver fails."""
    try:
        return discovery.gpus()
    except DeviceError:
        return ()


def _name(gpu: GpuInfo) -> str:
    return f"{_CUDA}{gpu.ordinal}"
