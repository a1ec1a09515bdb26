"""A worker slot: restarts its worker process when it dies."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Literal, Protocol

from kernelforge.errors import KernelForgeError
from kernelforge.workers.base import Slot, WorkerDied
from kernelforge.workers.compile_worker import Target
from kernelforge.workers.process import Worker
from kernelforge.workers.worker_main import WorkerSettings

SETTLE_S = 3.0
"""Longest time a worker may take to stop a cancelled order; then it is replaced."""

SETTLE_GPU_S = 15.0
"""The same on a GPU, which is probed after a runner was killed; starting a new worker would take longer."""

QUARANTINE_AFTER = 3
"""Failed starts in a row after which a slot is quarantined. It is retried with growing pauses."""

_BACKOFF_S, _LONGEST_BACKOFF_S = 1.0, 300.0
_LOG = logging.getLogger(__name__)


class WorkerHandle(Protocol):
    """A worker process: :class:`kernelforge.workers.process.Worker`, or a proxy of one on another node."""

    @property
    def target(self) -> Target | None: ...
    @property
    def cached_tasks(self) -> frozenset[str]: ...
    @property
    def pid(self) -> int: ...
    @property
    def alive(self) -> bool: ...
    async def ended(self) -> None: ...
    def send(self, op: str, **content: Any) -> tuple[int, asyncio.Future[dict[str, Any]]]: ...
    def interrupt(self, number: int) -> None: ...
    def kill(self) -> None: ...
    async def close(self) -> None: ...


class WorkerSlot:
    """Keeps one worker running, and gives it one request at a time.

    Args:
        name: name of the slot, or of a compile worker.
        settings: settings of its workers.
        changed: called whenever :attr:`state` may have changed.
        start: starts a worker, given its name and settings; raises KernelForgeError on failure.
    """

    def __init__(
        self,
        name: str,
        settings: WorkerSettings,
        changed: Callable[[], None],
        start: Callable[[str, WorkerSettings], Awaitable[WorkerHandle]] = Worker.start,
    ) -> None:
        self.name = name
        self.settings = settings
        self.state: Literal["starting", "idle", "busy", "quarantined"] = "starting"
        self.why = ""
        self.restarts = 0
        self.worker: WorkerHandle | None = None
        self.first_error: KernelForgeError | None = None
        """Why its first worker did not start."""
        self._changed = changed
        self._start = start
        self._settle_s = SETTLE_GPU_S if settings.device.startswith("cuda") else SETTLE_S
        self._settling: set[asyncio.Task[None]] = set()
        self._supervisor: asyncio.Task[None] | None = None
        self._ended_worker: WorkerHandle | None = None
        """A worker that ended, until its children have ended."""

    def slot(self) -> Slot:
        worker = self.worker
        device, cached_tasks = self.settings.device, frozenset[str]()
        if worker is not None:
            cached_tasks = worker.cached_tasks
            device = worker.target.fingerprint.device if worker.target else device
        return Slot(self.name, device, self.state, cached_tasks, self.why)

    def open(self) -> None:
        """Start a worker, and a new one whenever it ends."""
        self._supervisor = asyncio.create_task(self._supervise())

    async def ask(self, op: str, **content: Any) -> dict[str, Any]:
        """Send a request to the worker of an idle slot. Cancelling interrupts the worker; the slot is busy until it has
        stopped.

        Raises:
            WorkerDied: the worker ended.
            KernelForgeError: the worker's error.
        """
        worker = self.worker
        if worker is None or self.state != "idle":
            raise WorkerDied(f"{self.name} has no idle worker: it is {self.state}")
        number, reply = worker.send(op, **content)
        self._set_state("busy")
        cancelled = False
        try:
            return await asyncio.shield(reply)
        except asyncio.CancelledError:
            cancelled = True
            worker.interrupt(number)
            settling = asyncio.create_task(self._settle(worker, reply))
            self._settling.add(settling)
            settling.add_done_callback(self._settling.discard)
            raise
        finally:
            if not cancelled:
                self._free(worker)

    def replace(self, why: str) -> None:
        """Replace the worker by a new one."""
        if self.worker is not None:
            self._kill(self.worker, why)

    async def close(self) -> None:
        """End the worker without a replacement."""
        for task in (self._supervisor, *self._settling):
            if task is not None:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task
        workers = [worker for worker in (self._ended_worker, self.worker) if worker is not None]
        self._ended_worker = self.worker = None
        await asyncio.gather(*(worker.close() for worker in workers))

    async def _settle(self, worker: WorkerHandle, reply: asyncio.Future[dict[str, Any]]) -> None:
        """Wait until a worker has stopped a cancelled order, or has ended."""
        try:
            done, _ = await asyncio.wait({reply}, timeout=self._settle_s)
            if not done:
                self._kill(worker, f"it did not stop within {self._settle_s:g} s")
                await asyncio.wait({reply})
            with contextlib.suppress(KernelForgeError):
                reply.result()
        finally:
            self._free(worker)

    def _kill(self, worker: WorkerHandle, why: str) -> None:
        _LOG.warning("%s: its worker is replaced: %s", self.name, why)
        worker.kill()
        if self.worker is worker:  # not idle, although the end of the process was not noticed yet
            self._set_state("starting", f"its worker is replaced: {why}")

    def _free(self, worker: WorkerHandle) -> None:
        if self.worker is worker and worker.alive:
            self._set_state("idle")

    async def _supervise(self) -> None:
        failures = 0
        while True:
            try:
                self.worker = await self._start(self.name, self.settings)
            except KernelForgeError as error:
                failures += 1
                self.first_error = self.first_error or error
                wait = min(_BACKOFF_S * 2 ** (failures - 1), _LONGEST_BACKOFF_S)
                self._set_state("quarantined" if failures >= QUARANTINE_AFTER else "starting", str(error))
                _LOG.warning("%s: no worker starts; trying again in %g s: %s", self.name, wait, error)
                await asyncio.sleep(wait)
                continue
            failures = 0
            self._set_state("idle")
            await self.worker.ended()
            self._ended_worker, self.worker = self.worker, None
            self.restarts += 1
            self._set_state("starting", "its worker ended and is replaced")
            await self._ended_worker.close()
            self._ended_worker = None

    def _set_state(self, state: Literal["starting", "idle", "busy", "quarantined"], why: str = "") -> None:
        self.state, self.why = state, why
        self._changed()
