"""Everything an evaluation needs, started once and shared: warm processes, compiler cache, devices, fingerprints."""

from __future__ import annotations

import platform
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import TracebackType
from typing import Any

from platformdirs import user_cache_path

from kernelforge.compile import Compiler
from kernelforge.devices import make_device, screen_for
from kernelforge.devices.base import Device
from kernelforge.devices.leases import Leases, parse_devices
from kernelforge.errors import DeviceError
from kernelforge.evaluate.evaluator import EVALUATOR_VERSION, Evaluator
from kernelforge.evaluate.oracle import Oracle
from kernelforge.records import Fingerprint, InputGenerator, MeasureSettings, Task
from kernelforge.sandbox import Zygote, probe
from kernelforge.version import __version__


class Workshop:
    """The parent's handles on its helpers. Safe to share between threads; close it when done.

    Args:
        device: name as in ``emulated:h100`` or ``cuda:0``; ``cuda`` or several names between commas spread tasks over
            GPUs.
        threads: threads that one emulated run may use.
        cache: folder of the build cache; None for the user's cache folder.
        measure: how a device that measures is used.
        allow_unconfined: run children without a jail where none works. Recorded in every fingerprint as ``none``.
        on_wait: told once of each wait for a GPU that somebody else holds.
        opened: devices that are open already, in place of ``device``; they are closed with the workshop.

    Raises:
        SandboxError: no jail works here and ``allow_unconfined`` is false.
        DeviceError: there is no such device.
    """

    def __init__(
        self,
        device: str,
        *,
        threads: int = 1,
        cache: Path | None = None,
        measure: MeasureSettings | None = None,
        allow_unconfined: bool = False,
        on_wait: Callable[[str], None] | None = None,
        opened: Sequence[Device] | None = None,
    ) -> None:
        self.jail = probe().usable_tier(allow_unconfined)
        self.settings = measure or MeasureSettings()
        self._threads = threads
        self._allow_unconfined = allow_unconfined
        self._on_wait = on_wait
        folder = user_cache_path("kernelforge")
        self.compiler = Compiler(cache or folder / "builds", allow_unconfined=allow_unconfined)
        self._devices = {one.name: one for one in opened or self._open(device)}
        self._leases = Leases(tuple(self._devices), folder / "leases", keys=_uuids(self._devices))
        self._screen: Device | None = None
        self._oracle_zygotes: dict[str, Zygote] = {}
        self._lock = threading.Lock()

    @property
    def device(self) -> Device:
        """The first device: what all of them are like."""
        return next(iter(self._devices.values()))

    @property
    def fingerprint(self) -> Fingerprint:
        """What makes the numbers on the first device."""
        return self._fingerprint(self.device)

    def _fingerprint(self, place: Device) -> Fingerprint:
        return Fingerprint(
            device=place.name,
            device_kind=place.kind,
            arch=place.arch,
            toolchain=self.compiler.toolchain.name,
            kernelforge=__version__,
            evaluator=EVALUATOR_VERSION,
            torch=_version_of("torch"),
            python=platform.python_version(),
            host=f"{platform.system().lower()}-{platform.machine()}",
            jail=self.jail,
            **place.identity(),
        )

    def oracle(self, task: Task, device: Device | None = None) -> Oracle:
        """A fresh oracle child for one task, on the same kind of hardware as its candidates; the caller closes it."""
        place = device or self.device
        on_gpu = place.kind == "cuda"
        with self._lock:
            zygote = self._oracle_zygotes.get(place.name)
            if zygote is None:
                zygote = Zygote(
                    "gpu-oracle" if on_gpu else "oracle",
                    environment=place.environment,
                    allow_unconfined=self._allow_unconfined,
                )
                self._oracle_zygotes[place.name] = zygote
        return Oracle(zygote, task, threads=self._threads, device="cuda:0" if on_gpu else "cpu")

    def evaluator(self, task: Task, generators: Sequence[InputGenerator] = ()) -> Evaluator:
        """An evaluator with an oracle of its own, on the device that the task has; the caller closes its oracle.

        ``generators`` are further tests that were agreed on; those not admitted are left out.

        Raises:
            DeviceError: no device is left to run on.
        """
        device = self._devices[self._leases.assign(task.name)]
        lease = partial(self.lease, device, task)
        with lease():
            evaluator = Evaluator(
                task,
                self.oracle(task, device),
                self.compiler,
                device,
                self._fingerprint(device),
                screen=self._screen_of(device),
                settings=self.settings,
                lease=lease,
            )
            if generators:
                evaluator.use_generators(generators)
        return evaluator

    def lease(self, device: Device, task: Task) -> AbstractContextManager[None]:
        """The device for oneself; an emulated one is shared by all."""
        return self._leases.lease(device.name, task=task.name, on_wait=self._on_wait)

    def done(self, task: Task) -> None:
        """No evaluator of the task is needed any more: its device has one task less."""
        self._leases.done(task.name)

    def quarantine(self, device: Device, error: DeviceError) -> None:
        """Set a device aside after it failed its probe; its tasks get another with their next evaluator.

        Raises:
            DeviceError: it was the only one.
        """
        if len(self._devices) == 1:
            raise error
        self._leases.quarantine(device.name, str(error))

    def close(self) -> None:
        """End every helper process."""
        self.compiler.close()
        for device in self._devices.values():
            device.close()
        with self._lock:
            if self._screen is not None:
                self._screen.close()
            for zygote in self._oracle_zygotes.values():
                zygote.close()
            self._screen, self._oracle_zygotes = None, {}

    def __enter__(self) -> Workshop:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _open(self, device: str) -> list[Device]:
        how: dict[str, Any] = {"measure": self.settings, "allow_unconfined": self._allow_unconfined}
        return [make_device(name, threads=self._threads, **how) for name in parse_devices(device)]

    def _screen_of(self, device: Device) -> Device | None:
        """The emulated device that checks what a GPU does not; None beside a device that checks by itself."""
        if device.capabilities.checks_accesses:
            return None
        with self._lock:
            if self._screen is None:
                name, unconfined = screen_for(device.arch), self._allow_unconfined
                self._screen = make_device(name, threads=self._threads, allow_unconfined=unconfined)
            return self._screen


def _uuids(devices: dict[str, Device]) -> dict[str, str]:
    """What tells GPUs apart whatever their numbers; asked of those alone that are shared."""
    if not any(device.kind == "cuda" for device in devices.values()):
        return {}
    return {name: device.identity()["gpu_uuid"] for name, device in devices.items()}


def _version_of(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "absent"
