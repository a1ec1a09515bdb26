"""Shared resources of evaluations: warm processes and evaluators, compiler cache, devices, fingerprints."""

from __future__ import annotations

import platform
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Generic, Protocol, Self, TypeVar

from platformdirs import user_cache_path

from kernelforge.compile import Compiler
from kernelforge.compile.compiler import COMPILE_LIMITS
from kernelforge.devices import make_device, screen_for
from kernelforge.devices.base import RUN_LIMIT_S, Device
from kernelforge.devices.gpu_locks import GpuLocks, parse_devices
from kernelforge.errors import DeviceError, EvaluationCancelled
from kernelforge.evaluation.evaluator import EVALUATOR_VERSION, CandidateEvaluator, DeviceFacts, Evaluator
from kernelforge.evaluation.oracle.client import KnownTasks, Oracle, OracleFacts
from kernelforge.evaluation.oracle.shared import SharedOracles
from kernelforge.evaluation.stages.screening import Screen
from kernelforge.hardware.specs import EMULATED, SPECS, figures_digest
from kernelforge.prediction.correction import ModelErrors
from kernelforge.records import Fingerprint, InputGenerator, MeasureSettings, Task
from kernelforge.sandbox import Zygote, select_tier
from kernelforge.sandbox.self_test import gpu_tier
from kernelforge.utils.closing import Closing
from kernelforge.version import __version__

WARM_TASKS = 4
"""Oracles kept by default, so that the next candidate for their task starts at once."""

WARM_BYTES = 4 << 30
"""Memory that they may hold together between two evaluations, by default. An oracle keeps the memory of its largest
draw, up to its limit of 8 GiB; during an evaluation only that limit applies."""


class TaskEvaluator(Protocol):
    """An evaluator of one task, which holds the task's oracle."""

    task: Task

    def close(self) -> None: ...

    def held_bytes(self) -> int:
        """Memory that its oracles hold."""


EvaluatorT_co = TypeVar("EvaluatorT_co", bound=TaskEvaluator, covariant=True)


@dataclass
class _WarmEvaluator(Generic[EvaluatorT_co]):
    evaluator: EvaluatorT_co
    initial_bytes: int
    """Memory of the oracle before it has drawn anything; most of it is shared with all others."""
    kept_bytes: int = 0
    """Memory that it kept beyond that."""


class WarmEvaluators(Generic[EvaluatorT_co]):
    """Keeps one evaluator per task digest. For one thread, except :attr:`digests`.

    Args:
        open_evaluator: opens the evaluator of a task.
        on_close: called with the task once its evaluator is closed.
        max_tasks: evaluators kept, at least one.
        max_bytes: memory that their oracles may hold together between two evaluations.
    """

    def __init__(
        self,
        open_evaluator: Callable[[Task], EvaluatorT_co],
        on_close: Callable[[Task], None] | None = None,
        *,
        max_tasks: int = WARM_TASKS,
        max_bytes: int = WARM_BYTES,
    ) -> None:
        self._open = open_evaluator
        self._on_close = on_close
        self._max_tasks, self._max_bytes = max(max_tasks, 1), max_bytes
        self._warm: OrderedDict[str, _WarmEvaluator[EvaluatorT_co]] = OrderedDict()

    @property
    def digests(self) -> frozenset[str]:
        """Digests of the tasks whose evaluators are kept."""
        return frozenset(tuple(self._warm))

    def of(self, task: Task) -> EvaluatorT_co:
        """The evaluator of a task, opened if it is not warm.

        Raises:
            TaskError: the task cannot be judged.
            DeviceError: no device can be used.
        """
        warm = self._warm.pop(task.digest, None)
        if warm is None:
            while len(self._warm) >= self._max_tasks:
                self._close(next(iter(self._warm)))
            evaluator = self._open(task)
            warm = _WarmEvaluator(evaluator, evaluator.held_bytes())
        self._warm[task.digest] = warm
        return warm.evaluator

    @contextmanager
    def using(self, task: Task) -> Iterator[EvaluatorT_co]:
        """The evaluator of a task for one evaluation. An error closes it, so that the next one gets a fresh oracle;
        cancellation does not. Afterwards oracles are closed until the others hold at most ``max_bytes``.

        Raises:
            TaskError: the task cannot be judged.
            DeviceError: no device can be used.
        """
        evaluator = self.of(task)
        try:
            yield evaluator
        except EvaluationCancelled:
            raise
        except Exception:
            self._close(task.digest)
            raise
        used = self._warm[task.digest]
        used.kept_bytes = max(evaluator.held_bytes() - used.initial_bytes, 0)
        while sum(warm.kept_bytes for warm in self._warm.values()) > self._max_bytes:
            self._close(next(iter(self._warm)))

    def close(self) -> None:
        """Close every evaluator."""
        while self._warm:
            self._close(next(iter(self._warm)))

    def _close(self, digest: str) -> None:
        warm = self._warm.pop(digest)
        warm.evaluator.close()
        if self._on_close is not None:
            self._on_close(warm.evaluator.task)


class RunPool(Protocol):
    """Interface of pools to a run: an :class:`EvaluatorPool` here, or one of other machines. Its methods are those of
    :class:`EvaluatorPool`."""

    name: str
    allow_unconfined: bool

    @property
    def device(self) -> DeviceFacts: ...

    @property
    def fingerprint(self) -> Fingerprint: ...

    @property
    def evaluators(self) -> WarmEvaluators[CandidateEvaluator]: ...

    def evaluator(
        self, task: Task, generators: Sequence[InputGenerator] = (), errors: ModelErrors | None = None
    ) -> CandidateEvaluator: ...

    def done(self, task: Task) -> None: ...

    def quarantine(self, device: DeviceFacts, error: DeviceError) -> None: ...

    def is_quarantined(self, device: DeviceFacts) -> bool: ...

    def interrupt(self, *, oracles: bool) -> None: ...

    def close(self) -> None: ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *error: object) -> None: ...


CandidateEvaluatorT_co = TypeVar("CandidateEvaluatorT_co", bound=CandidateEvaluator, covariant=True)


class _Opening(Protocol[CandidateEvaluatorT_co]):
    """A pool, as far as opening evaluators needs one."""

    def evaluator(self, task: Task) -> CandidateEvaluatorT_co: ...

    def done(self, task: Task) -> None: ...


def open_admitted(pool: _Opening[CandidateEvaluatorT_co], task: Task) -> CandidateEvaluatorT_co:
    """Open an evaluator of a pool, and check that its task is admitted.

    Raises:
        TaskError: the reference does not run, or wrong answers to it could earn a reward.
        DeviceError: no device is left to run on.
    """
    with ExitStack() as opened:
        opened.callback(pool.done, task)
        evaluator = pool.evaluator(task)
        opened.callback(evaluator.close)
        with evaluator.gpu_lock():
            evaluator.oracle.require_admitted()
        opened.pop_all()
    return evaluator


_PROBE_WAIT_S = 5.0
"""How long a probe waits for another process to give the GPU back."""


class EvaluatorPool(Closing):
    """Devices, oracles, compiler and GPU locks of evaluations. Safe to share between threads; close it when done.

    Args:
        device: name as in ``emulated:h100`` or ``cuda:0``; ``cuda`` or several names between commas spread tasks over
            GPUs.
        threads: threads that one emulated run may use.
        cache: folder of the build cache; None for the user's cache folder.
        measure: how a device that measures is used.
        allow_unconfined: run children without a jail where none works. Recorded in every fingerprint as ``none``.
        tell: receives a message for each wait for a GPU that another process holds, and for GPUs that are quarantined
            or used again.
        opened: devices that are open already, in place of ``device``; they are closed with the pool.
        run_limit_s: longest that one run of a candidate's plan may take; None for what is usual on its
            device.
        compile_limit_s: longest that one compilation may take, wall and CPU time each; None for what
            :data:`COMPILE_LIMITS` allows. Verdicts hang on both, so every fingerprint names what is not the default.
        warm_tasks: most tasks that :attr:`evaluators` keeps warm.
        warm_bytes: memory that their oracles may hold together between two evaluations.
        oracles: socket of the machine's oracle host, whose oracles serve emulated devices; None for oracles of its own.

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
        tell: Callable[[str], None] | None = None,
        opened: Sequence[Device] | None = None,
        run_limit_s: float | None = None,
        compile_limit_s: float | None = None,
        warm_tasks: int = WARM_TASKS,
        warm_bytes: int = WARM_BYTES,
        oracles: Path | None = None,
    ) -> None:
        self.name = device
        """The devices, as they were asked for."""
        self.allow_unconfined = allow_unconfined
        self.jail = select_tier().usable_tier(allow_unconfined)
        self.settings = measure or MeasureSettings()
        self._threads = threads
        self._tell = tell or (lambda message: None)
        self._run_limit_s = run_limit_s
        self._evaluator_version = EVALUATOR_VERSION + _limits_suffix(run_limit_s, compile_limit_s)
        self._evaluator_version += "" if self.settings.screen else "+unscreened"
        self.compiler = make_compiler(cache, allow_unconfined=allow_unconfined, limit_s=compile_limit_s)
        self._devices = {candidate_device.name: candidate_device for candidate_device in opened or self._open(device)}
        keys, unusable = _uuids(self._devices)
        self._gpu_locks = GpuLocks(tuple(self._devices), gpu_lock_folder(), keys=keys)
        for name, why in unusable.items():
            self._quarantine(name, why)
        self._screens: dict[str, Device] = {}
        self._oracle_zygotes: dict[str, Zygote | SharedOracles] = {}
        self._oracle_host = oracles
        self.known_tasks = KnownTasks()
        """Facts that oracles computed; later oracles of the same task start with them."""
        self._screened_tasks = KnownTasks()
        """The same of oracles on the CPU, for the emulated device in front of a GPU."""
        self.evaluators = WarmEvaluators(
            partial(open_admitted, self), self.done, max_tasks=warm_tasks, max_bytes=warm_bytes
        )
        """Evaluators of admitted tasks, kept open between evaluations and closed with the pool; for one thread."""
        self._lock = threading.Lock()

    @property
    def devices(self) -> tuple[Device, ...]:
        """All devices, those in quarantine too."""
        return tuple(self._devices.values())

    @property
    def device(self) -> Device:
        """The first device that is not quarantined; all devices are of one kind."""
        quarantined = self._gpu_locks.quarantined()
        able = (device for name, device in self._devices.items() if name not in quarantined)
        return next(able, next(iter(self._devices.values())))

    @property
    def fingerprint(self) -> Fingerprint:
        """Fingerprint of evaluations on the first device."""
        return self._fingerprint(self.device)

    def _fingerprint(self, device: Device) -> Fingerprint:
        # Those of the package change with its version; those of a parameter file may at any time.
        of_file = device.kind == "emulated" and device.spec.key not in SPECS
        figures = figures_digest(device.spec) if of_file else ""
        return Fingerprint(
            device=device.name,
            device_kind=device.kind,
            arch=device.arch,
            toolchain=self.compiler.toolchain.name,
            kernelforge=__version__,
            evaluator=self._evaluator_version + (f"+figures.{figures[:8]}" if figures else ""),
            torch=_version_of("torch"),
            python=platform.python_version(),
            host=f"{platform.system().lower()}-{platform.machine()}",
            # Where a GPU's runner needs another tier than the strongest, that one held the candidate.
            jail=(gpu_tier() if device.kind == "cuda" else None) or self.jail,
            **device.identity(),
        ).at_sizes(self.settings.sizes)

    def start(self) -> None:
        """Start the devices and the oracles' processes; the compiler starts on first use, since builds may be cached.

        Raises:
            DeviceError: a device cannot be used.
            SandboxError: a helper process does not start.
        """
        for device in self._devices.values():
            device.start()
            self._oracle_zygote(device).start()
            emulated = self._emulated_in_front(device)
            if emulated is not None:
                emulated.start()
                self._oracle_zygote(emulated).start()

    def oracle(self, task: Task, device: Device | None = None, cached: OracleFacts | None = None) -> Oracle:
        """A fresh oracle child for one task, on the same kind of hardware as its candidates; the caller closes it."""
        target = device or self.device
        where = "cuda:0" if target.kind == "cuda" else "cpu"
        return Oracle(self._oracle_zygote(target), task, threads=self._threads, device=where, cached=cached)

    def _oracle_zygote(self, device: Device) -> Zygote | SharedOracles:
        with self._lock:
            zygote = self._oracle_zygotes.get(device.name)
            if zygote is None and self._oracle_host is not None and device.kind == "emulated":
                zygote = self._oracle_zygotes[device.name] = SharedOracles(self._oracle_host)
            if zygote is None:
                zygote = Zygote(
                    "gpu-oracle" if device.kind == "cuda" else "oracle",
                    environment=device.environment,
                    allow_unconfined=self.allow_unconfined,
                )
                self._oracle_zygotes[device.name] = zygote
        return zygote

    def evaluator(
        self, task: Task, generators: Sequence[InputGenerator] = (), errors: ModelErrors | None = None
    ) -> Evaluator:
        """An evaluator with its own oracle, on the task's device; the caller closes it.

        A task that has no device yet, gets none from an evaluator that does not open.

        Args:
            task: the task.
            generators: further tests; those not admitted are left out.
            errors: of earlier forecasts on GPUs, which correct later ones.

        Raises:
            DeviceError: no device is left to run on.
        """
        self._probe_again()
        had_device = self._gpu_locks.has_device(task.name)
        try:
            while True:
                device = self._devices[self._gpu_locks.assign(task.name)]
                try:
                    return self._evaluator_on(device, task, generators, errors)
                except DeviceError as error:
                    self.quarantine(device, error)
        except BaseException:
            if not had_device:
                self.done(task)
            raise

    def _evaluator_on(
        self, device: Device, task: Task, generators: Sequence[InputGenerator], errors: ModelErrors | None
    ) -> Evaluator:
        gpu_lock = partial(self.hold_gpu, device, task)
        with gpu_lock(), ExitStack() as opened:
            oracle = self.oracle(task, device, self.known_tasks.of(task))
            opened.callback(oracle.close)
            evaluator = Evaluator(
                task,
                oracle,
                self.compiler,
                device,
                self._fingerprint(device),
                screen=self._screen(device, task, errors),
                settings=self.settings,
                gpu_lock=gpu_lock,
                run_limit_s=self._run_limit_s,
            )
            if generators:
                evaluator.use_generators(generators)
            opened.pop_all()
        return evaluator

    def hold_gpu(self, device: Device, task: Task) -> AbstractContextManager[None]:
        """Exclusive use of a device; an emulated one is shared."""
        return self._gpu_locks.hold(device.name, task=task.name, on_wait=self._tell)

    def done(self, task: Task) -> None:
        """Release the task's device: no evaluator of the task is needed any more."""
        self._gpu_locks.done(task.name)

    def quarantine(self, device: DeviceFacts, error: DeviceError) -> None:
        """Quarantine a device that failed its probe; its tasks get another with their next evaluator.

        Raises:
            DeviceError: it was the only one.
        """
        if len(self._devices) == 1:
            raise error
        self._quarantine(device.name, str(error))

    def is_quarantined(self, device: DeviceFacts) -> bool:
        """Whether a device is in quarantine: its tasks need another evaluator."""
        return device.name in self._gpu_locks.quarantined()

    def _quarantine(self, name: str, why: str) -> None:
        if self._gpu_locks.quarantine(name, why):
            self._tell(f"{name} is set aside: {why}")

    def _probe_again(self) -> None:
        """Probe devices whose quarantine has lasted long enough; those that pass are used again."""
        for name in self._gpu_locks.due():
            try:
                with self._gpu_locks.hold(name, task="its probe", timeout_s=_PROBE_WAIT_S):
                    if name not in self._gpu_locks.due():
                        continue  # another thread has just probed it
                    passes = self._gpu_locks.probed(name, _probed(self._devices[name]))
            except DeviceError:
                continue  # held by another process: it is tried with the next evaluator
            if passes:
                self._tell(f"{name} passes its probe again, and is used again")

    def interrupt(self, *, oracles: bool) -> None:
        """Interrupt the compilations and runs of other threads; with ``oracles``, requests to oracles too.

        An interrupted oracle loses its draws, and starts again at the next request.
        """
        self.compiler.interrupt()
        with self._lock:
            devices = [*self._devices.values(), *self._screens.values()]
            zygotes = tuple(self._oracle_zygotes.values()) if oracles else ()
        for device in devices:
            device.interrupt()
        for zygote in zygotes:
            zygote.interrupt()

    def close(self) -> None:
        """End every helper process."""
        self.evaluators.close()
        self.compiler.close()
        for device in self._devices.values():
            device.close()
        with self._lock:
            for screen in self._screens.values():
                screen.close()
            for zygote in self._oracle_zygotes.values():
                zygote.close()
            self._screens, self._oracle_zygotes = {}, {}

    def _open(self, device: str) -> list[Device]:
        how: dict[str, Any] = {"measure": self.settings, "allow_unconfined": self.allow_unconfined}
        return [make_device(name, threads=self._threads, **how) for name in parse_devices(device)]

    def _screen(self, device: Device, task: Task, errors: ModelErrors | None) -> Screen | None:
        """The emulated device in front of ``device`` for one task; None where there is none."""
        emulated = self._emulated_in_front(device)
        if emulated is None:
            return None
        return Screen(
            emulated,
            lambda: self.oracle(task, emulated, self._screened_tasks.of(task)),
            self.compiler,
            device,
            fingerprint=self._fingerprint(emulated),
            exact=self._models(emulated, device),
            errors=errors,
            run_limit_s=self._run_limit_s,
            worst_errors=self.settings.approx == "worst",
        )

    def _emulated_in_front(self, device: Device) -> Device | None:
        """The emulated device in front of a GPU, unless it is switched off."""
        if device.capabilities.checks_accesses or not self.settings.screen:
            return None
        figures = self.settings.figures or screen_for(device.arch, device.identity().get("gpu", "")).spec.key
        name = EMULATED + figures
        with self._lock:
            if name not in self._screens:
                unconfined = self.allow_unconfined
                self._screens[name] = make_device(name, threads=self._threads, allow_unconfined=unconfined)
            return self._screens[name]

    def _models(self, emulated: Device, device: Device) -> bool:
        """Whether an emulated device has the figures of a GPU, and not of one that is near to it."""
        gpu = device.identity().get("gpu", "")
        if self.settings.figures is None:
            return screen_for(device.arch, gpu).exact
        return gpu in emulated.spec.names


def make_compiler(cache: Path | None, *, allow_unconfined: bool, limit_s: float | None) -> Compiler:
    """The compiler of a pool; the arguments are those of :class:`EvaluatorPool`."""
    limits = COMPILE_LIMITS if limit_s is None else replace(COMPILE_LIMITS, wall_s=limit_s, cpu_s=limit_s)
    builds = cache or user_cache_path("kernelforge") / "builds"
    return Compiler(builds, allow_unconfined=allow_unconfined, limits=limits)


def _limits_suffix(run_limit_s: float | None, compile_limit_s: float | None) -> str:
    """Suffix of the evaluator version for limits that are not the default: ``+run.2s+compile.10s``."""
    limits = {"run": (run_limit_s, RUN_LIMIT_S), "compile": (compile_limit_s, COMPILE_LIMITS.wall_s)}
    return "".join(f"+{what}.{limit:g}s" for what, (limit, usual) in limits.items() if limit not in (None, usual))


def _uuids(devices: dict[str, Device]) -> tuple[dict[str, str], dict[str, str]]:
    """UUIDs of the GPUs by device name, and the unusable ones with the reason.

    Raises:
        DeviceError: none of them can be.
    """
    keys: dict[str, str] = {}
    unusable: dict[str, DeviceError] = {}
    for name, device in devices.items():
        if device.kind == "cuda":
            try:
                keys[name] = device.identity()["gpu_uuid"]
            except DeviceError as error:
                unusable[name] = error
    if len(unusable) == len(devices):
        raise next(iter(unusable.values()))
    return keys, {name: str(error) for name, error in unusable.items()}


def _probed(device: Device) -> str | None:
    """The error that a probe of a device found; None for an emulated one, which has nothing to probe."""
    from kernelforge.devices.cuda.device import CudaDevice

    return device.runners.probe() if isinstance(device, CudaDevice) else None


def gpu_lock_folder() -> Path:
    """Folder of the GPUs' lock files: the same for every process of this user."""
    return user_cache_path("kernelforge") / "leases"


def device_lock(device: Device, task: str, on_wait: Callable[[str], None]) -> AbstractContextManager[None]:
    """Hold a device outside a pool: no other process of this user runs on it then.

    Args:
        device: A device of this machine.
        task: What it is held for, in the words of others that wait.
        on_wait: Called with a line of text while another process has it.
    """
    uuid = device.identity().get("gpu_uuid", "")
    locks = GpuLocks((device.name,), gpu_lock_folder(), keys={device.name: uuid} if uuid else {})
    return locks.hold(device.name, task=task, on_wait=on_wait)


def _version_of(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "absent"
