"""Base class of worker pools: evaluation slots with a device, compile workers without."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from kernelforge.errors import KernelForgeError, UsageError
from kernelforge.records import Fingerprint, Task
from kernelforge.workers.base import BriefFacts, EvaluationOrder, EvaluationReport, Health, Prepared, Slot, WorkerDied
from kernelforge.workers.compile_worker import Target
from kernelforge.workers.slot import WorkerSlot


class WorkerPoolEngine:
    """Everything of an engine but how its seats come and go, which may happen while it runs."""

    def __init__(self) -> None:
        self._change, self._desk_change = asyncio.Event(), asyncio.Event()
        self._seats: dict[str, WorkerSlot] = {}
        self._desks: dict[str, WorkerSlot] = {}
        self._target: Target | None = None

    @property
    def fingerprint(self) -> Fingerprint:
        """What makes the numbers on this engine's devices."""
        if self._target is None:
            raise KernelForgeError("the engine has not started, so its devices are not known yet")
        return self._target.fingerprint

    def slots(self) -> Sequence[Slot]:
        return [seat.slot() for seat in self._seats.values()]

    def health(self) -> Health:
        seats = [*self._seats.values(), *self._desks.values()]
        return Health(
            workers=sum(seat.worker is not None for seat in seats),
            restarts=sum(seat.restarts for seat in seats),
            notes=tuple(f"{seat.name} is {seat.state}: {seat.why}" for seat in seats if seat.why),
            extra={"warm_tasks": float(sum(len(slot.warm) for slot in self.slots()))},
        )

    @property
    def preparing(self) -> int:
        """One for each worker that prepares."""
        return len(self._desks)

    async def changed(self) -> None:
        """Return when a slot may have become free, or have come or gone, since the last call. For one caller."""
        await self._change.wait()
        self._change.clear()

    async def prepare(self, order: EvaluationOrder) -> EvaluationReport | Prepared:
        """Resolve and compile in a worker without a device. Where no such worker starts, the slot's own compiler will.

        Raises:
            WorkerDied: try again.
        """
        desk = await self._desk()
        if desk is None:
            return Prepared(order=order.id)
        reply = await desk.ask("prepare", order=order.model_dump(mode="json"))
        if "prepared" in reply:
            return Prepared.model_validate(reply["prepared"])
        return EvaluationReport.model_validate(reply["report"])

    async def evaluate(self, order: EvaluationOrder, slot: str) -> EvaluationReport:
        """Evaluate on a slot that is idle.

        Raises:
            WorkerDied: try again, on any slot.
        """
        seat = self._seats.get(slot)
        if seat is None:
            raise WorkerDied(f"slot {slot} is gone")
        reply = await seat.ask("evaluate", order=order.model_dump(mode="json"))
        report = EvaluationReport.model_validate(reply["report"])
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
            why = next((desk.why for desk in self._desks.values()), "there is none")
            raise KernelForgeError(f"no worker describes tasks: {why}")
        reply = await desk.ask("brief", task=task.model_dump(mode="json"))
        return BriefFacts.model_validate(reply["brief"])

    async def close(self) -> None:
        """End every worker and all that it started."""
        await asyncio.gather(*(seat.close() for seat in [*self._seats.values(), *self._desks.values()]))

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

    async def _desk(self) -> WorkerSlot | None:
        """An idle worker that prepares, waited for; None where none of them starts."""
        while True:
            for desk in self._desks.values():
                if desk.state == "idle":
                    return desk
            if all(desk.state == "aside" for desk in self._desks.values()):
                return None
            self._desk_change.clear()
            await self._desk_change.wait()


def check_counts(**counts: int | None) -> None:
    """
    Raises:
        UsageError: an engine without one of what it needs.
    """
    for what, count in counts.items():
        if count is not None and count < 1:
            raise UsageError(f"an engine needs at least one of its {what}; {count} were asked for")


def check_limits(**limits_s: float | None) -> None:
    """
    Raises:
        UsageError: a limit that nothing keeps.
    """
    for what, seconds in limits_s.items():
        if seconds is not None and not seconds > 0:
            raise UsageError(f"{what} is a number of seconds above 0; {seconds:g} was asked for")
