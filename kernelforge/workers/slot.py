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
"""How long a worker may take to come back from an order that was cancelled, before another takes its place."""

SETTLE_GPU_S = 15.0
"""The same on a GPU: it is probed after a runner was killed, and a new worker takes longer than that."""

ASIDE_AFTER = 3
"""Failed starts in a row after which a seat is set aside. It is tried again, ever more rarely."""

_BACKOFF_S, _LONGEST_BACKOFF_S = 1.0, 300.0
_LOG = logging.getLogger(__name__)


class WorkerHandle(Protocol):
    """A worker wherever it is: :class:`kernelforge.workers.process.Worker`, or one that speaks for such a process."""

    @property
    def target(self) -> Target | None: ...
    @property
    def warm(self) -> frozenset[str]: ...
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
        name: of the slot, or of a worker without one.
        settings: what its workers are started with.
        changed: called whenever :attr:`state` may have changed.
        start: starts a worker of that name and those settings, and raises KernelForgeError where none starts.
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
        self.state: Literal["starting", "idle", "busy", "aside"] = "starting"
        self.why = ""
        self.restarts = 0
        self.worker: WorkerHandle | None = None
        self.first_error: KernelForgeError | None = None
        """Why its first worker did not start."""
        self._changed = changed
        self._start = start
        self._settle_s = SETTLE_GPU_S if settings.device.startswith("cuda") else SETTLE_S
        self._settling: set[asyncio.Task[None]] = set()
        self._keeper: asyncio.Task[None] | None = None
        self._gone: WorkerHandle | None = None
        """A worker that ended, until nothing is left of it."""

    def slot(self) -> Slot:
        worker = self.worker
        device, warm = self.settings.device, frozenset[str]()
        if worker is not None:
            warm = worker.warm
            device = worker.target.fingerprint.device if worker.target else device
        return Slot(self.name, device, self.state, warm, self.why)

    def open(self) -> None:
        """Start a worker, and from now on another whenever it ends."""
        self._keeper = asyncio.create_task(self._keep())

    async def ask(self, op: str, **content: Any) -> dict[str, Any]:
        """Give the worker a request; the seat must be idle. Cancelled, the worker is told to stop, and the seat stays
        busy until it has.

        Raises:
            WorkerDied: the worker ended.
            KernelForgeError: what the worker raised.
        """
        worker = self.worker
        if worker is None or self.state != "idle":
            raise WorkerDied(f"{self.name} has no idle worker: it is {self.state}")
        number, reply = worker.send(op, **content)
        self._becomes("busy")
        left = False
        try:
            return await asyncio.shield(reply)
        except asyncio.CancelledError:
            left = True
            worker.interrupt(number)
            settling = asyncio.create_task(self._settle(worker, reply))
            self._settling.add(settling)
            settling.add_done_callback(self._settling.discard)
            raise
        finally:
            if not left:
                self._free(worker)

    def replace(self, why: str) -> None:
        """End the worker, so that a fresh one takes its place."""
        if self.worker is not None:
            self._kill(self.worker, why)

    async def close(self) -> None:
        """End the worker for good."""
        for task in (self._keeper, *self._settling):
            if task is not None:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task
        workers = [worker for worker in (self._gone, self.worker) if worker is not None]
        self._gone = self.worker = None
        await asyncio.gather(*(worker.close() for worker in workers))

    async def _settle(self, worker: WorkerHandle, reply: asyncio.Future[dict[str, Any]]) -> None:
        """Wait until a worker is back from an order that was cancelled, or is gone."""
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
        if self.worker is worker:  # nobody is to find the seat idle until the end of the process is noticed
            self._becomes("starting", f"its worker is replaced: {why}")

    def _free(self, worker: WorkerHandle) -> None:
        if self.worker is worker and worker.alive:
            self._becomes("idle")

    async def _keep(self) -> None:
        failures = 0
        while True:
            try:
                self.worker = await self._start(self.name, self.settings)
            except KernelForgeError as error:
                failures += 1
                self.first_error = self.first_error or error
                wait = min(_BACKOFF_S * 2 ** (failures - 1), _LONGEST_BACKOFF_S)
                self._becomes("aside" if failures >= ASIDE_AFTER else "starting", str(error))
                _LOG.warning("%s: no worker starts; tried again in %g s: %s", self.name, wait, error)
                await asyncio.sleep(wait)
                continue
            failures = 0
            self._becomes("idle")
            await self.worker.ended()
            self._gone, self.worker = self.worker, None
            self.restarts += 1
            self._becomes("starting", "its worker ended and is replaced")
            await self._gone.close()
            self._gone = None

    def _becomes(self, state: Literal["starting", "idle", "busy", "aside"], why: str = "") -> None:
        self.state, self.why = state, why
        self._changed()
