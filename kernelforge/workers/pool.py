"""Base class of worker pools: evaluation slots with a device, compile workers without."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from kernelforge.errors import KernelForgeError, UsageError
from kernelforge.records import Fingerprint, Task
from kernelforge.workers.base import (
    EvaluationOrder,
    EvaluationReport,
    Health,
    Prepared,
    Slot,
    TaskContextData,
    WorkerDied,
)
from kernelforge.workers.compile_worker import Target
from kernelforge.workers.slot import WorkerSlot


class WorkerPoolEngine:
    """Common part of all engines. Subclasses add and remove worker slots, also while the engine runs."""

    def __init__(self) -> None:
        self._change, self._compile_change = asyncio.Event(), asyncio.Event()
        self._worker_slots: dict[str, WorkerSlot] = {}
        self._compile_slots: dict[str, WorkerSlot] = {}
        self._target: Target | None = None

    @property
    def fingerprint(self) -> Fingerprint:
        """Device and toolchain of this engine's slots."""
        if self._target is None:
            raise KernelForgeError("the engine has not started; its devices are unknown")
        return self._target.fingerprint

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

    @property
    def preparing(self) -> int:
        """One for each compile worker."""
        return len(self._compile_slots)

    async def changed(self) -> None:
        """Return when a slot may have become free, or was added or removed, since the last call. For one caller."""
        await self._change.wait()
        self._change.clear()

    async def prepare(self, order: EvaluationOrder) -> EvaluationReport | Prepared:
        """Resolve and compile in a compile worker. If none starts, the slot compiles during the evaluation.

        Raises:
            WorkerDied: try again.
        """
        compile_slot = await self._idle_compile_slot()
        if compile_slot is None:
            return Prepared(order=order.id)
        reply = await compile_slot.ask("prepare", order=order.model_dump(mode="json"))
        if "prepared" in reply:
            return Prepared.model_validate(reply["prepared"])
        return EvaluationReport.model_validate(reply["report"])

    async def evaluate(self, order: EvaluationOrder, slot: str) -> EvaluationReport:
        """Evaluate on an idle slot.

        Raises:
            WorkerDied: try again, on any slot.
        """
        worker_slot = self._worker_slots.get(slot)
        if worker_slot is None:
            raise WorkerDied(f"slot {slot} no longer exists")
        reply = await worker_slot.ask("evaluate", order=order.model_dump(mode="json"))
        report = EvaluationReport.model_validate(reply["report"])
        if report.trouble is not None and report.trouble.code == "device":
            worker_slot.replace(report.trouble.message)
        return report

    async def task_context(self, task: Task) -> TaskContextData:
        """Facts of a task that agents may see; needs no slot.

        Raises:
            TaskError: its reference does not run, or it cannot be evaluated.
            WorkerDied: try again.
        """
        compile_slot = await self._idle_compile_slot()
        if compile_slot is None:
            why = next((compile_slot.why for compile_slot in self._compile_slots.values()), "there is none")
            raise KernelForgeError(f"no worker describes tasks: {why}")
        reply = await compile_slot.ask("brief", task=task.model_dump(mode="json"))
        return TaskContextData.model_validate(reply["brief"])

    async def close(self) -> None:
        """End every worker and its children."""
        await asyncio.gather(
            *(worker_slot.close() for worker_slot in [*self._worker_slots.values(), *self._compile_slots.values()])
        )

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
            if all(compile_slot.state == "quarantined" for compile_slot in self._compile_slots.values()):
                return None
            self._compile_change.clear()
            await self._compile_change.wait()


def check_counts(**counts: int | None) -> None:
    """Check numbers of slots, compilers or threads.

    Raises:
        UsageError: one of them is below 1.
    """
    for name, count in counts.items():
        if count is not None and count < 1:
            raise UsageError(f"an engine needs at least one of its {name}; {count} were requested")


def check_limits(**limits_s: float | None) -> None:
    """Check time limits.

    Raises:
        UsageError: one of them is not above 0.
    """
    for name, seconds in limits_s.items():
        if seconds is not None and not seconds > 0:
            raise UsageError(f"{name} is a number of seconds above 0; {seconds:g} was requested")
