"""A worker on another node, or the oracle host of its workers, reached through a Ray actor."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Mapping
from typing import Any

from kernelforge.errors import KernelForgeError
from kernelforge.utils.frames import error_from
from kernelforge.workers.base import WorkerDied
from kernelforge.workers.ray.actor import WorkerActor
from kernelforge.workers.ray.cluster import Cluster
from kernelforge.workers.roles import Target, WorkerSettings
from kernelforge.workers.slot import WorkerHandle
from kernelforge.workers.worker_main import CLOSING_S

PLACED_S = 330.0
"""Longest time until an actor has its resources and its worker is warm, in a dedicated cluster: shorter than a worker's
own start may take, so that a cluster without room is reported."""


class RayWorker(WorkerHandle):
    """One worker of a cluster, or the oracle host of a node, created by :meth:`start`."""

    def __init__(self, name: str, cluster: Cluster, actor: Any) -> None:
        super().__init__(name)
        self.pid = 0
        """Process id on its node."""
        self.toolchain: Mapping[str, str] = {}
        """Versions on its node, by the names of a fingerprint."""
        self._cluster = cluster
        self._actor = actor
        self._watch: asyncio.Task[None] | None = None

    @classmethod
    async def start(
        cls,
        name: str,
        settings: WorkerSettings,
        *,
        cluster: Cluster,
        node: str,
        cpus: float,
        gpus: int,
        actor: type = WorkerActor,
    ) -> RayWorker:
        """Start an actor on a node, and a warm worker in it.

        Args:
            name: name of the slot.
            settings: settings of the worker.
            cluster: connection to the cluster.
            node: id of the node.
            cpus: CPUs that it takes.
            gpus: GPUs that it takes.
            actor: class of the actor, which decides what runs there.

        Raises:
            KernelForgeError: the node is gone or full, or the worker does not start.
        """
        slot = actor is WorkerActor and settings.role == "device"
        worker = cls(name, cluster, cluster.start_actor(actor, node, cpus=cpus, gpus=gpus, slot=slot))
        try:
            async with asyncio.timeout(PLACED_S):
                reply = await worker._call("start", name, settings.model_dump_json())
            if "error" in reply:
                raise error_from(reply["error"])
        except TimeoutError:
            worker.kill()
            resource = "GPU" if gpus else "CPU"
            raise KernelForgeError(
                f"{name}: its node assigned no {resource} within {PLACED_S:g} s, or is too busy: see `ray status` "
                "for their users, and RAY_worker_niceness in docs/engines.md"
            ) from None
        except WorkerDied as error:
            raise KernelForgeError(str(error)) from None
        except BaseException:
            worker.kill()
            raise
        worker.target = Target.model_validate(reply["ready"]) if actor is WorkerActor else None
        worker.toolchain, worker.pid = reply["toolchain"], reply["pid"]
        worker._watch = asyncio.create_task(worker._watch_actor())
        return worker

    @property
    def alive(self) -> bool:
        return not self._ended.is_set()

    def send(self, op: str, **content: Any) -> tuple[int, asyncio.Future[dict[str, Any]]]:
        number = next(self._ids)
        return number, asyncio.create_task(self._reply(number, op, json.dumps(content)))

    def interrupt(self, number: int) -> None:
        if self.alive:
            self._actor.interrupt.remote(number)

    def kill(self) -> None:
        """End the actor; its worker and the jailed children die with it."""
        self._cluster.kill(self._actor)
        self._ended.set()

    async def close(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
        if self.alive:
            with contextlib.suppress(WorkerDied, TimeoutError):
                async with asyncio.timeout(CLOSING_S + 2.0):
                    await self._call("close")
        self.kill()

    async def _reply(self, number: int, op: str, content: str) -> dict[str, Any]:
        if not self.alive:
            raise WorkerDied(f"worker {self.name} is gone")
        reply = await self._call("ask", number, op, content)
        if "died" in reply:
            self.kill()
            raise WorkerDied(reply["died"])
        return self._checked(reply)

    async def _call(self, method: str, *arguments: Any) -> dict[str, Any]:
        """Call a method of the actor.

        Raises:
            WorkerDied: the actor is gone, or failed unexpectedly.
        """
        try:
            text: str = await getattr(self._actor, method).remote(*arguments)
        except self._cluster.error as error:
            self.kill()
            first = next(iter(str(error).strip().splitlines()), type(error).__name__)
            raise WorkerDied(f"worker {self.name} is gone: {first}") from None
        answer: dict[str, Any] = json.loads(text)
        return answer

    async def _watch_actor(self) -> None:
        with contextlib.suppress(WorkerDied):
            await self._call("ended")
        if self.alive:
            self.kill()
