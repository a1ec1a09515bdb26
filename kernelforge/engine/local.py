"""The engine of one machine: a worker process per GPU or per slot of an emulated device, and some that only prepare."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from kernelforge.devices.leases import parse_devices
from kernelforge.engine.base import BriefFacts, Health, Order, Report, Slot
from kernelforge.engine.bench import WARM_TASKS
from kernelforge.engine.preparing import Target
from kernelforge.engine.seat import Seat
from kernelforge.engine.worker import WorkerSettings
from kernelforge.errors import KernelForgeError, UsageError
from kernelforge.evaluate.settings import check_measure
from kernelforge.records import Fingerprint, MeasureSettings, Task

_CORES_PER_COMPILER = 4


class LocalEngine:
    """See :class:`kernelforge.engine.base.Engine`.

    Args:
        device: ``emulated:h100``; or GPUs, as in ``cuda`` (all of them) or ``cuda:0,cuda:1``: each is a slot.
        slots: candidates evaluated at a time on an emulated device; None for the number of cores.
        compilers: workers that prepare candidates and brief agents; None for one per four cores, at least one.
        measure: how a device that measures is used.
        allow_unconfined: run children without a jail where none works.
        threads: threads that one emulated run, and an oracle, may use; None for the cores shared out among slots.
        warm_tasks: oracles that each slot keeps. Each is a process that holds its task's tensors: from 0.1 GB to
            8 GiB, so machines with little memory keep few.
        cache: folder of the build cache, which all workers share; None for the user's own.

    Raises:
        UsageError: options that do not go together.
        DeviceError: there is no such device.
    """

    name: Literal["local", "ray"] = "local"

    def __init__(
        self,
        device: str,
        *,
        slots: int | None = None,
        compilers: int | None = None,
        measure: MeasureSettings | None = None,
        allow_unconfined: bool = False,
        threads: int | None = None,
        warm_tasks: int = WARM_TASKS,
        cache: Path | None = None,
    ) -> None:
        names = parse_devices(device)
        on_gpu = names[0].startswith("cuda:")
        cores = os.cpu_count() or 1
        if on_gpu and slots not in (None, len(names)):
            raise UsageError(
                f"{device} has one slot per GPU, {len(names)} in all: times beside another run mean nothing"
            )
        for what, count in (("slots", slots), ("compilers", compilers), ("threads", threads)):
            if count is not None and count < 1:
                raise UsageError(f"an engine needs at least one of its {what}; {count} were asked for")
        many = len(names) if on_gpu else slots or cores
        self._common: dict[str, Any] = {
            "threads": threads or max(cores // many, 1),
            "allow_unconfined": allow_unconfined,
            "cache": None if cache is None else str(cache.resolve()),
        }
        labels = names if on_gpu else [f"{names[0]}#{number + 1}" for number in range(many)]
        settings = {"measure": check_measure(measure or MeasureSettings(), names[0]), "warm_tasks": warm_tasks}
        self._change, self._desk_change = asyncio.Event(), asyncio.Event()
        self._seats: dict[str, Seat] = {
            label: Seat(
                label,
                WorkerSettings(role="device", device=label.partition("#")[0], **settings, **self._common),
                self._change.set,
            )
            for label in labels
        }
        self._compilers = [f"compiler#{n + 1}" for n in range(compilers or max(cores // _CORES_PER_COMPILER, 1))]
        self._desks: list[Seat] = []
        self._target: Target | None = None

    async def start(self) -> None:
        """Start the workers and return when a slot can be used.

        Raises:
            KernelForgeError: no worker starts: no jail, no such device.
        """
        for seat in self._seats.values():
            seat.open()
        try:
            self._target = await self._first_target()
        except BaseException:
            await self.close()
            raise
        settings = WorkerSettings(role="cpu", target=self._target, **self._common)
        self._desks = [Seat(name, settings, self._desk_change.set) for name in self._compilers]
        for desk in self._desks:
            desk.open()
        self._change.set()

    @property
    def fingerprint(self) -> Fingerprint:
        """What makes the numbers on this engine's devices."""
        if self._target is None:
            raise KernelForgeError("the engine has not started, so its devices are not known yet")
        return self._target.fingerprint

    def slots(self) -> Sequence[Slot]:
        return [seat.slot() for seat in self._seats.values()]

    def health(self) -> Health:
        seats = [*self._seats.values(), *self._desks]
        return Health(
            workers=sum(seat.worker is not None for seat in seats),
            restarts=sum(seat.restarts for seat in seats),
            notes=tuple(f"{seat.name} is {seat.state}: {seat.why}" for seat in seats if seat.why),
            extra={"warm_tasks": float(sum(len(slot.warm) for slot in self.slots()))},
        )

    @property
    def preparing(self) -> int:
        """One for each worker that prepares."""
        return len(self._compilers)

    async def changed(self) -> None:
        """Return when a slot may have become free, or have come or gone, since the last call. For one caller."""
        await self._change.wait()
        self._change.clear()

    async def prepare(self, order: Order) -> Report | None:
        """Resolve and compile in a worker without a device; None where no such worker starts: the slot's own compiler
        then does it.

        Raises:
            WorkerDied: try again.
        """
        desk = await self._desk()
        if desk is None:
            return None
        reply = await desk.ask("prepare", order=order.model_dump(mode="json"))
        return None if reply["report"] is None else Report.model_validate(reply["report"])

    async def evaluate(self, order: Order, slot: str) -> Report:
        """Evaluate on a slot that is idle.

        Raises:
            WorkerDied: try again, on any slot.
        """
        seat = self._seats[slot]
        reply = await seat.ask("evaluate", order=order.model_dump(mode="json"))
        report = Report.model_validate(reply["report"])
        if report.trouble is not None and report.trouble.code == "device":
            seat.replace(report.trouble.message)
        return report

    async def brief(self, task: Task) -> BriefFacts:
        """What agents may be told of a task; takes no slot.

        Raises:
            TaskError: its reference does not run, or it cannot be judged.
            WorkerDied: try again.
        """
        desk = await self._desk()
        if desk is None:
            raise KernelForgeError(f"no worker describes tasks: {self._desks[0].why}")
        reply = await desk.ask("brief", task=task.model_dump(mode="json"))
        return BriefFacts.model_validate(reply["brief"])

    async def close(self) -> None:
        """End every worker and all that it started."""
        await asyncio.gather(*(seat.close() for seat in [*self._seats.values(), *self._desks]))

    async def _first_target(self) -> Target:
        """What the first worker that is ready works for.

        Raises:
            KernelForgeError: none of them starts.
        """
        seats = self._seats.values()
        while True:
            for seat in seats:
                if seat.worker is not None and seat.worker.target is not None:
                    return seat.worker.target
            errors = [seat.first_error for seat in seats if seat.first_error is not None]
            if len(errors) == len(seats):
                raise errors[0]
            await self.changed()

    async def _desk(self) -> Seat | None:
        """An idle worker that prepares, waited for; None where none of them starts."""
        while True:
            for desk in self._desks:
                if desk.state == "idle":
                    return desk
            if all(desk.state == "aside" for desk in self._desks):
                return None
            self._desk_change.clear()
            await self._desk_change.wait()
