"""Task contexts for agents, requested from the workers once per task."""

from __future__ import annotations

import asyncio

from kernelforge.agents.base import TaskContext
from kernelforge.errors import KernelForgeError, TaskError
from kernelforge.hardware.specs import SPECS
from kernelforge.records import Task
from kernelforge.server.base import RequestRejected
from kernelforge.server.jobs.cache import Recent
from kernelforge.workers.base import Engine, WorkerDied

_MOST_KEPT = 512
_TRIES = 3


class Briefs:
    """Briefs by task; several who ask at once share one call."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._known: Recent[str, TaskContext] = Recent(_MOST_KEPT)
        self._asked: dict[str, asyncio.Task[TaskContext]] = {}

    async def get(self, task: Task) -> TaskContext:
        """
        Raises:
            RequestRejected: 422: the task cannot be judged here; 503: workers died of it.
        """
        digest = task.digest
        known = self._known.get(digest)
        if known is not None:
            return known
        asked = self._asked.get(digest)
        if asked is None:
            asked = self._asked[digest] = asyncio.create_task(self._ask(task, digest))
            asked.add_done_callback(lambda _: self._asked.pop(digest, None))
        return await asyncio.shield(asked)

    async def close(self) -> None:
        for asked in list(self._asked.values()):
            asked.cancel()
        await asyncio.gather(*self._asked.values(), return_exceptions=True)

    async def _ask(self, task: Task, digest: str) -> TaskContext:
        for _ in range(_TRIES):
            try:
                told = await self._engine.brief(task)
            except TaskError as error:
                raise RequestRejected(422, "task_unusable", str(error)) from error
            except WorkerDied:
                continue
            except KernelForgeError as error:
                raise RequestRejected(503, "engine", f"the engine cannot tell of this task now: {error}") from error
            brief = TaskContext(
                task=task,
                facts=told.facts,
                shared=told.shared,
                graph=told.graph,
                device=told.device,
                spec=SPECS[told.spec],
            )
            self._known.put(digest, brief)
            return brief
        raise RequestRejected(
            503, "worker_died", f"{_TRIES} workers died of {task.suite}/{task.name}; see the log", retry_after_s=30.0
        )
