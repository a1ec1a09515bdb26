"""Warm evaluators of the MCP server: one per task, kept between calls."""

from __future__ import annotations

import secrets
from collections import OrderedDict
from dataclasses import dataclass
from types import TracebackType

from kernelforge.agents.base import TaskContext
from kernelforge.errors import DeviceError, SandboxError, TaskError, UnsupportedError
from kernelforge.evaluation.evaluator import EvaluationResult, Evaluator
from kernelforge.evaluation.oracle.task_context import require_admitted
from kernelforge.evaluation.pool import EvaluatorPool
from kernelforge.evaluation.stages.compile_stage import BuildState, StageFailed
from kernelforge.records import Candidate, Task
from kernelforge.run.acceptance import infra
from kernelforge.run.task_loop import make_task_context

WARM_TASKS = 4
"""Tasks whose oracles are kept; the one that waited longest goes first."""


@dataclass(frozen=True)
class Place:
    """A task made ready."""

    evaluator: Evaluator
    brief: TaskContext


class Bench:
    """Judges candidates. For one thread at a time; close it when done.

    Raises:
        SandboxError: no jail works here and ``allow_unconfined`` is false.
        DeviceError: there is no such device.
    """

    def __init__(self, device: str, *, threads: int, allow_unconfined: bool = False) -> None:
        self.device = device
        self.allow_unconfined = allow_unconfined
        self._workshop = EvaluatorPool(device, threads=threads, allow_unconfined=allow_unconfined)
        self._places: OrderedDict[str, Place] = OrderedDict()

    @property
    def jail(self) -> str:
        return self._workshop.jail

    def at(self, task: Task) -> Place:
        """The place of a task, made ready if need be.

        Raises:
            TaskError: its reference does not run, or wrong answers to it could earn a reward.
        """
        place = self._places.pop(task.digest, None)
        if place is None:
            while len(self._places) >= WARM_TASKS:
                _, oldest = self._places.popitem(last=False)
                oldest.evaluator.oracle.close()
            evaluator = self._workshop.evaluator(task)
            try:
                with evaluator.lease():
                    require_admitted(evaluator.oracle)
                place = Place(evaluator, make_task_context(evaluator))
            except BaseException:
                evaluator.oracle.close()
                raise
        self._places[task.digest] = place
        return place

    def prepare(self, task: Task, candidate: Candidate) -> tuple[BuildState, StageFailed | None]:
        """Resolve and compile a candidate at every size, and run nothing."""
        work = BuildState()
        try:
            self.at(task).evaluator.prepare(candidate, work)
        except StageFailed as failure:
            return work, failure
        return work, None

    def evaluate(self, task: Task, candidate: Candidate) -> EvaluationResult:
        """What a candidate comes to, on inputs from a fresh secret. Trouble of ours is verdict ``INFRA``."""
        evaluator = self.at(task).evaluator
        try:
            return evaluator.evaluate(candidate, seed=secrets.randbits(63))
        except (SandboxError, TaskError, UnsupportedError, DeviceError) as error:
            if isinstance(error, DeviceError):
                self._workshop.quarantine(evaluator.device, error)
            self._places.pop(task.digest).evaluator.oracle.close()
            return EvaluationResult(infra(evaluator, candidate, str(error)), None)

    def close(self) -> None:
        """End every helper process."""
        for place in self._places.values():
            place.evaluator.oracle.close()
        self._places.clear()
        self._workshop.close()

    def __enter__(self) -> Bench:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
