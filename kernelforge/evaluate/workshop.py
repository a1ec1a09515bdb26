"""Everything an evaluation needs, started once and shared: warm processes, compiler cache, device, fingerprint."""

from __future__ import annotations

import platform
import threading
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import TracebackType

from platformdirs import user_cache_path

from kernelforge.compile import Compiler
from kernelforge.devices import make_device
from kernelforge.devices.base import Device
from kernelforge.evaluate.evaluator import EVALUATOR_VERSION, Evaluator
from kernelforge.evaluate.oracle import Oracle
from kernelforge.records import Fingerprint, InputGenerator, MeasureSettings, Task
from kernelforge.sandbox import Zygote, probe
from kernelforge.version import __version__


class Workshop:
    """The parent's handles on its helpers. Safe to share between threads; close it when done.

    Args:
        device: name as in ``emulated:h100``.
        threads: threads that one emulated run may use.
        cache: folder of the build cache; None for the user's cache folder.
        measure: how a device that measures is used.
        allow_unconfined: run children without a jail where none works. Recorded in every fingerprint as ``none``.

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
    ) -> None:
        self.jail = probe().usable_tier(allow_unconfined)
        folder = cache or user_cache_path("kernelforge") / "builds"
        self.compiler = Compiler(folder, allow_unconfined=allow_unconfined)
        self.device: Device = make_device(device, threads=threads, allow_unconfined=allow_unconfined)
        self.settings = measure or MeasureSettings()
        self._threads = threads
        self._allow_unconfined = allow_unconfined
        self._oracle_zygote: Zygote | None = None
        self._lock = threading.Lock()

    @property
    def fingerprint(self) -> Fingerprint:
        """What makes the numbers on this machine."""
        return Fingerprint(
            device=self.device.name,
            device_kind=self.device.kind,
            arch=self.device.arch,
            toolchain=self.compiler.toolchain.name,
            kernelforge=__version__,
            evaluator=EVALUATOR_VERSION,
            torch=_version_of("torch"),
            python=platform.python_version(),
            host=f"{platform.system().lower()}-{platform.machine()}",
            jail=self.jail,
            **self.device.identity(),
        )

    def oracle(self, task: Task) -> Oracle:
        """A fresh oracle child for one task; the caller closes it."""
        with self._lock:
            if self._oracle_zygote is None:
                self._oracle_zygote = Zygote("oracle", allow_unconfined=self._allow_unconfined)
        return Oracle(self._oracle_zygote, task, threads=self._threads)

    def evaluator(self, task: Task, generators: Sequence[InputGenerator] = ()) -> Evaluator:
        """An evaluator with an oracle of its own; the caller closes ``evaluator.oracle``.

        ``generators`` are further tests that were agreed on; those not admitted are left out.
        """
        evaluator = Evaluator(task, self.oracle(task), self.compiler, self.device, self.fingerprint)
        if generators:
            evaluator.use_generators(generators)
        return evaluator

    def close(self) -> None:
        """End every helper process."""
        self.compiler.close()
        self.device.close()
        with self._lock:
            if self._oracle_zygote is not None:
                self._oracle_zygote.close()
                self._oracle_zygote = None

    def __enter__(self) -> Workshop:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _version_of(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "absent"
