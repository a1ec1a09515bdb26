"""Pools of worker processes: the common part of all engines, and the engine on one machine."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Literal, TypedDict, Unpack

from kernelforge.devices.gpu_locks import parse_devices
from kernelforge.devices.remote.address import HostAddress, is_remote, parse_address
from kernelforge.errors import KernelForgeError, UsageError
from kernelforge.evaluation.stages.full_size_measured import check_measure
from kernelforge.records import Fingerprint, MeasureSettings, Task
from kernelforge.utils.machine import installed_memory_bytes
from kernelforge.workers.base import (
    Engine,
    EvaluationOrder,
    EvaluationReport,
    Health,
    Prepared,
    ScoredTests,
    Slot,
    TaskContextData,
    WorkerDied,
)
from kernelforge.workers.roles import Target, WorkerSettings
from kernelforge.workers.slot import (
    OracleHostProcess,
    Worker,
    WorkerHandle,
    WorkerSlot,
    oracle_address,
    resolved_address,
)


class WorkerOptions(TypedDict, total=False):
    """Options of every engine for its workers."""

    measure: MeasureSettings | None
    """Settings of timing on a GPU."""
    allow_unconfined: bool
    """Run children without a jail if none works."""
    threads: int | None
    """Threads of one emulated run, and of an oracle; None for the engine's default."""
    warm_tasks: int
    """Oracles that each slot keeps. Between orders those of all slots of a machine together hold at most a third of
    its memory; while it runs, one may take 8 GiB."""
    cache: Path | None
    """Folder of the build cache, which all workers of a machine share; None for the user's cache."""
    run_limit_s: float | None
    """Longest run of a candidate's plan, in wall seconds; a longer one is ``TIMEOUT``. None for 20 s, which a run at
    the full size may need on an emulated device."""
    compile_limit_s: float | None
    """Longest compilation, in seconds of wall and of CPU time; None for 60 s."""
    modelnew: bool
    """Run candidates of lane ``modelnew``: on the GPU, or, where devices are emulated, with torch on the CPU."""


class WorkerPoolEngine(Engine):
    """Common part of all engines. Subclasses add and remove worker slots, also while the engine runs.

    Args:
        device: of the workers.
        threads: default number of threads of a worker.
        counts: numbers of slots and compile workers, None where the engine decides.
        options: of :class:`WorkerOptions`.

    Raises:
        UsageError: a number is below 1, or a limit is not above 0.
    """

    def __init__(self, device: str, *, threads: int, counts: Mapping[str, int | None], options: WorkerOptions) -> None:
        for name, count in {**counts, "threads": options.get("threads")}.items():
            if count is not None and count < 1:
                raise UsageError(f"an engine needs at least one of its {name}; {count} were requested")
        for limit in ("run_limit_s", "compile_limit_s"):
            seconds = options.get(limit)
            if isinstance(seconds, float | int) and not seconds > 0:
                raise UsageError(f"{limit} is a number of seconds above 0; {seconds:g} was requested")
        cache = options.get("cache")
        measure = check_measure(options.get("measure") or MeasureSettings(), device)
        self._settings = WorkerSettings(
            role="device",
            device=device,
            **{
                **options,
                "measure": measure,
                "threads": options.get("threads") or threads,
                "cache": cache and cache.resolve(),
            },
        )
        """Of a worker with a device."""
        self._change, self._compile_change = asyncio.Event(), asyncio.Event()
        self._worker_slots: dict[str, WorkerSlot] = {}
        self._compile_slots: dict[str, WorkerSlot] = {}
        self._target: Target | None = None
        self._drained: set[str] = set()
        """Patterns of names that were drained."""

    @property
    def fingerprint(self) -> Fingerprint:
        if self._target is None:
            raise KernelForgeError("the engine has not started; its devices are unknown")
        return self._target.fingerprint

    @property
    def modelnew(self) -> Fingerprint | None:
        return None if self._target is None else self._target.modelnew

    def slots(self) -> Sequence[Slot]:
        return [worker_slot.slot() for worker_slot in self._worker_slots.values()]

    def health(self) -> Health:
        worker_slots = [*self._worker_slots.values(), *self._compile_slots.values()]
        return Health(
            workers=sum(item.worker is not None for item in worker_slots),
            restarts=sum(item.restarts for item in worker_slots),
            notes=tuple(f"{item.name} is {item.state}: {item.why}" for item in worker_slots if item.why),
            extra={"warm_tasks": float(sum(len(slot.cached_tasks) for slot in self.slots()))},
        )

    def worker_states(self) -> Sequence[Slot]:
        compile_slots = (replace(item.slot(), compiles=True) for item in self._compile_slots.values())
        return [*self.slots(), *compile_slots]

    def drain(self, pattern: str) -> int:
        matching = self._matching(pattern)
        if matching:
            self._drained.add(pattern)
        for worker_slot in matching:
            worker_slot.drain()
        return len(matching)

    def resume(self, pattern: str) -> int:
        self._drained = {drained for drained in self._drained if not fnmatchcase(drained, pattern)}
        matching = self._matching(pattern)
        for worker_slot in matching:
            worker_slot.resume()
        return len(matching)

    def demand(self, jobs: int) -> None:
        """The machine has what it has."""

    def _matching(self, pattern: str) -> list[WorkerSlot]:
        worker_slots = {**self._worker_slots, **self._compile_slots}
        return [worker_slot for name, worker_slot in worker_slots.items() if fnmatchcase(name, pattern)]

    def _open(self, worker_slot: WorkerSlot) -> None:
        """Start the worker of a new slot, unless slots of its name were drained."""
        if self._is_drained(worker_slot.name):
            worker_slot.drain()
        worker_slot.open()

    def _is_drained(self, name: str) -> bool:
        """Whether an operator has drained workers of this name."""
        return any(fnmatchcase(name, pattern) for pattern in self._drained)

    @property
    def preparing(self) -> int:
        """One for each compile worker."""
        return sum(not worker_slot.drained for worker_slot in self._compile_slots.values())

    async def changed(self) -> None:
        await self._change.wait()
        self._change.clear()

    async def prepare(self, order: EvaluationOrder) -> EvaluationReport | Prepared:
        """Resolve and compile in a compile worker. If none starts, the slot compiles during the evaluation."""
        compile_slot = await self._idle_compile_slot()
        if compile_slot is None:
            return Prepared(order=order.id)
        reply = await compile_slot.ask("prepare", order=order.model_dump(mode="json"))
        if "prepared" in reply:
            return Prepared.model_validate(reply["prepared"])
        return EvaluationReport.model_validate(reply["report"])

    async def evaluate(self, order: EvaluationOrder, slot: str) -> EvaluationReport:
        worker_slot = self._worker_slots.get(slot)
        if worker_slot is None:
            raise WorkerDied(f"slot {slot} no longer exists")
        reply = await worker_slot.ask("evaluate", order=order.model_dump(mode="json"))
        report = EvaluationReport.model_validate(reply["report"])
        if report.trouble is not None and report.trouble.code == "device":
            worker_slot.replace(report.trouble.message)
        return report

    async def task_context(self, task: Task) -> TaskContextData:
        reply = await (await self._oracle_slot()).ask("brief", task=task.model_dump(mode="json"))
        return TaskContextData.model_validate(reply["brief"])

    async def score_tests(self, task: Task, reply: str, most: int) -> ScoredTests:
        compile_slot = await self._oracle_slot()
        answer = await compile_slot.ask("tests", task=task.model_dump(mode="json"), reply=reply, most=most)
        return ScoredTests.model_validate(answer["tests"])

    async def _oracle_slot(self) -> WorkerSlot:
        """Wait for an idle compile worker, which can open a task's oracle.

        Raises:
            KernelForgeError: none of them starts.
        """
        compile_slot = await self._idle_compile_slot()
        if compile_slot is None:
            why = next((compile_slot.why for compile_slot in self._compile_slots.values()), "there is none")
            raise KernelForgeError(f"no worker describes tasks: {why}")
        return compile_slot

    async def close(self) -> None:
        await asyncio.gather(
            *(worker_slot.close() for worker_slot in [*self._worker_slots.values(), *self._compile_slots.values()])
        )

    def _compile_settings(self, target: Target) -> WorkerSettings:
        """Settings of a compile worker."""
        return self._settings.model_copy(update={"role": "cpu", "device": "", "target": target})

    async def _first_target(self) -> Target:
        """The target of the first worker that is ready.

        Raises:
            KernelForgeError: no worker starts.
        """
        worker_slots = self._worker_slots.values()
        while True:
            for worker_slot in worker_slots:
                if worker_slot.worker is not None and worker_slot.worker.target is not None:
                    return worker_slot.worker.target
            errors = [item.first_error for item in worker_slots if item.first_error is not None]
            if len(errors) == len(worker_slots):
                raise errors[0]
            await self.changed()

    async def _idle_compile_slot(self) -> WorkerSlot | None:
        """Wait for an idle compile worker; None if none of them starts."""
        while True:
            for compile_slot in self._compile_slots.values():
                if compile_slot.state == "idle":
                    return compile_slot
            if all(compile_slot.state in ("quarantined", "drained") for compile_slot in self._compile_slots.values()):
                return None
            self._compile_change.clear()
            await self._compile_change.wait()


_CORES_PER_COMPILER = 4
_SLOTS_PER_COMPILER = 2
"""Small tasks take about as long to compile as to evaluate: with four slots, two compilers gave 1.4 to 1.6 times as
many new replies a second as one (``benchmarks/vector_env.py --part vector``, 28 November 2026)."""


class LocalEngine(WorkerPoolEngine):
    """Workers of this machine, or of others that ``ssh`` reaches.

    Args:
        device: ``emulated:h100``; or GPUs, as in ``cuda`` (all of them) or ``cuda:0,cuda:1``: each is a slot. Or
            devices of other machines, as in ``ssh://host/cuda:0,cuda:1,ssh://other/cuda:0``, whose slots and compile
            workers are there.
        slots: candidates evaluated at a time on an emulated device, on each machine; None for the number of cores, or
            for one on another machine.
        compilers: compile workers; None for one per four cores, but at least one per two slots.
        options: ``threads`` are an equal share of the cores per slot by default.

    Raises:
        UsageError: options that contradict each other.
        DeviceError: there is no such device.
    """

    name: Literal["local", "ray"] = "local"

    def __init__(
        self, device: str, *, slots: int | None = None, compilers: int | None = None, **options: Unpack[WorkerOptions]
    ) -> None:
        places = _places(device)
        remote = places[0][0] is not None
        # How many processors another machine has is not known here.
        cores = 1 if remote else os.cpu_count() or 1
        names = [name for _, name in places]
        on_gpu = names[0].startswith("cuda:")
        if on_gpu and slots not in (None, len(places)):
            raise UsageError(
                f"{device} has one slot per GPU, {len(places)} in all: concurrent runs would distort the times"
            )
        share = 1 if on_gpu else slots or cores
        slot_count = share * len(places)
        super().__init__(
            names[0],
            threads=max(cores // slot_count, 1),
            counts={"slots": slots, "compilers": compilers},
            options=options,
        )
        self.oracles: OracleHostProcess | None = None
        """What the workers share; None on other machines, where each has its own."""
        if not remote:
            host_bytes, slot_bytes = kept_memory(installed_memory_bytes(), slot_count, on_gpu=on_gpu)
            self.oracles = OracleHostProcess(
                resolved_address(oracle_address()),
                allow_unconfined=self._settings.allow_unconfined,
                most_bytes=host_bytes,
            )
            shared = {"oracles": self.oracles.address, "warm_bytes": slot_bytes}
            self._settings = self._settings.model_copy(update=shared)
        self._addresses: dict[str, HostAddress | None] = {}
        """Machine of each worker, by its name; None for this one."""
        for address, device_name in places:
            settings = self._settings.model_copy(update={"device": device_name})
            for number in range(share):
                label = device_name if on_gpu else f"{device_name}#{number + 1}"
                name = label if address is None else replace(address, python="").url(label)
                self._addresses[name] = address
                self._worker_slots[name] = WorkerSlot(name, settings, self._change.set, self._start)
        count = compilers or max(cores // _CORES_PER_COMPILER, slot_count // _SLOTS_PER_COMPILER, 1)
        self._compilers = [f"compiler#{n + 1}" for n in range(count)]
        machines = list(dict.fromkeys(address for address, _ in places))
        self._addresses |= {name: machines[n % len(machines)] for n, name in enumerate(self._compilers)}

    async def start(self) -> None:
        if self.oracles is not None:
            self.oracles.open()
        for worker_slot in self._worker_slots.values():
            self._open(worker_slot)
        try:
            self._target = await self._first_target()
        except BaseException:
            await self.close()
            raise
        settings = self._compile_settings(self._target)
        self._compile_slots = {
            name: WorkerSlot(name, settings, self._compile_change.set, self._start) for name in self._compilers
        }
        for compile_slot in self._compile_slots.values():
            self._open(compile_slot)
        self._change.set()

    async def _start(self, name: str, settings: WorkerSettings) -> WorkerHandle:
        return await Worker.start(name, settings, self._addresses[name])

    async def close(self) -> None:
        await super().close()
        if self.oracles is not None:
            await self.oracles.close()

    @property
    def preparing(self) -> int:
        """One for each worker that prepares."""
        return len(self._compilers)


def _places(device: str) -> list[tuple[HostAddress | None, str]]:
    """Machine and name of each device; None for this machine.

    Raises:
        UsageError: the GPUs of another machine are not named one by one.
    """
    if not is_remote(device):
        return [(None, name) for name in parse_devices(device)]
    places: list[tuple[HostAddress | None, str]] = []
    for url in parse_devices(device):
        address, names = parse_address(url)
        if address.modal:
            raise UsageError(
                f"{url}: each process of a reward server would rent a sandbox of its own; start the server on a "
                "machine with GPUs, or reach one over ssh://"
            )
        if names == "cuda":
            raise UsageError(
                f"{url} is every GPU there, and how many these are is not known here: name them, as in "
                f"{address.url('cuda:0,cuda:1')}"
            )
        places += [(address, name) for name in names.split(",")]
    return places


def kept_memory(machine_bytes: int, slots: int, *, on_gpu: bool) -> tuple[int, int]:
    """Memory that a machine's oracles may hold between orders: those that its slots share, and those of each slot.

    Together a third of the machine. On GPUs a slot has an oracle on its device, apart from those of the emulated
    device in front of it, which are shared.
    """
    share = machine_bytes // 3
    return (share // 2, share // 2 // max(slots, 1)) if on_gpu else (share, share // max(slots, 1))
