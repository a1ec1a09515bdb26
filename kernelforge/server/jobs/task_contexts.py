"""Task contexts for agents, requested from the workers once per task."""

from __future__ import annotations

import asyncio

from kernelforge.agents.base import TaskContext
from kernelforge.errors import KernelForgeError, TaskError
from kernelforge.hardware.specs import SPECS
from kernelforge.records import Task
from kernelforge.server.base import LRUCache, RequestRejected
from kernelforge.workers.base import Engine, WorkerDied

_CACHED = 512
_TRIES = 3


class TaskContexts:
    """Task contexts, cached by task. Concurrent callers share one request."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._contexts: LRUCache[str, TaskContext] = LRUCache(_CACHED)
        self._requests: dict[str, asyncio.Task[TaskContext]] = {}

    async def get(self, task: Task) -> TaskContext:
        """The context of a task.

        Raises:
            RequestRejected: 422: the task cannot be evaluated here; 503: workers died of it.
        """
        digest = task.digest
        cached = self._contexts.get(digest)
        if cached is not None:
            return cached
        request = self._requests.get(digest)
        if request is None:
            request = self._requests[digest] = asyncio.create_task(self._request(task, digest))
            request.add_done_callback(lambda _: self._requests.pop(digest, None))
        return await asyncio.shield(request)

    async def close(self) -> None:
        for request in list(self._requests.values()):
            request.cancel()
        await asyncio.gather(*self._requests.values(), return_exceptions=True)

    async def _request(self, task: Task, digest: str) -> TaskContext:
        for _ in range(_TRIES):
            try:
                data = await self._engine.task_context(task)
            except TaskError as error:
                raise RequestRejected(422, "task_unusable", str(error)) from error
            except WorkerDied:
                continue
            except KernelForgeError as error:
                raise RequestRejected(503, "engine", f"the engine cannot describe this task now: {error}") from error
            context = TaskContext(
                task=task,
                facts=data.facts,
                shared=data.shared,
                graph=data.graph,
                device=data.device,
                spec=SPECS[data.spec],
            )
            self._contexts.put(digest, context)
            return context
        raise RequestRejected(
            503, "worker_died", f"{_TRIES} workers died of {task.suite}/{task.name}; see the log", retry_after_s=30.0
        )
