"""A slot and its worker process: started with only a socket, one request at a time, restarted when it dies."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import logging
import os
import secrets
import socket
import stat
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from kernelforge.devices.remote.address import HostAddress
from kernelforge.devices.remote.relay import BEAT, BEAT_S
from kernelforge.devices.remote.ssh import ConnectionEnded, client_command, client_environment, greet, why_ended
from kernelforge.errors import EvaluationCancelled, KernelForgeError
from kernelforge.sandbox.policy import import_path
from kernelforge.utils.frames import error_from, packed, read
from kernelforge.utils.tree_cleanup import remove_tree
from kernelforge.workers.base import Slot, SlotState, WorkerDied
from kernelforge.workers.roles import Target, WorkerSettings
from kernelforge.workers.worker_main import CLOSING_S

ENVIRONMENT = (
    "PATH", "HOME", "XDG_CACHE_HOME", "TMPDIR", "LANG", "LC_ALL",
    "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "CUDA_HOME", "CUDA_PATH", "LD_LIBRARY_PATH",
)  # fmt: skip
"""Environment variables that a worker inherits: paths and locale, no keys and no tokens."""

START_S = 1800.0
"""Longest warm-up of a worker; on a busy machine one takes minutes."""

_LOG = logging.getLogger(__name__)
_START = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[2]); "
    "from kernelforge.workers.worker_main import main; main(int(sys.argv[1]))"
)


_FAR_MODULE = "kernelforge.workers.worker_main"
"""What another machine starts."""


class WorkerHandle(ABC):
    """A worker process: :class:`Worker`, or a proxy of one on another node. It is usable while :attr:`alive`."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.target: Target | None = None
        """Device of its candidates; None until it is ready."""
        self.cached_tasks: frozenset[str] = frozenset()
        """Digests of the tasks whose oracles are warm."""
        self._ids = itertools.count(1)
        self._ended = asyncio.Event()

    @property
    @abstractmethod
    def alive(self) -> bool: ...

    async def ended(self) -> None:
        """Return when the process has ended or is out of reach."""
        await self._ended.wait()

    @abstractmethod
    def send(self, op: str, **content: Any) -> tuple[int, asyncio.Future[dict[str, Any]]]:
        """Send a request. Returns its number and a future of its reply.

        The future raises :class:`WorkerDied` if the process ends first, :class:`EvaluationCancelled` after
        :meth:`interrupt`, or the worker's error.
        """

    @abstractmethod
    def interrupt(self, number: int) -> None:
        """End an abandoned request."""

    @abstractmethod
    def kill(self) -> None:
        """Kill the process; its jailed children die with it."""

    @abstractmethod
    async def close(self) -> None:
        """End the process; kill it if it does not end by itself."""

    def _checked(self, reply: dict[str, Any]) -> dict[str, Any]:
        """A reply, unless it is an error, which is raised."""
        self.cached_tasks = frozenset(reply["warm"])
        if "interrupted" in reply:
            raise EvaluationCancelled("the order was interrupted")
        if "error" in reply:
            raise error_from(reply["error"])
        return reply


class Worker(WorkerHandle):
    """One worker process of this machine, or of one that ``ssh`` reaches, created by :meth:`start`."""

    def __init__(self, name: str, process: Process, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        super().__init__(name)
        self._process = process
        self._reader = reader
        self._writer = writer
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._tasks = [asyncio.create_task(self._log())]
        self._beats: asyncio.Task[None] | None = None
        self._killed = False

    @classmethod
    async def start(cls, name: str, settings: WorkerSettings, address: HostAddress | None = None) -> Worker:
        """Start a worker and wait until it is warm.

        Args:
            name: of its slot.
            settings: the worker's.
            address: of another machine that it is to run on; the process here is then the client of ``ssh``.

        Raises:
            KernelForgeError: it does not start; the worker's own error type.
        """
        own_end, worker_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            if address is None:
                process = await asyncio.create_subprocess_exec(
                    sys.executable, "-I", "-c", _START, str(worker_end.fileno()), json.dumps(import_path()),
                    env={variable: os.environ[variable] for variable in ENVIRONMENT if variable in os.environ},
                    pass_fds=[worker_end.fileno()],
                    stdin=DEVNULL,
                    stdout=DEVNULL,
                    stderr=PIPE,
                    cwd="/",
                    start_new_session=True,
                )  # fmt: skip
            else:
                process = await asyncio.create_subprocess_exec(
                    *client_command(address),
                    env=client_environment(address),
                    stdin=worker_end.fileno(),
                    stdout=worker_end.fileno(),
                    stderr=PIPE,
                    start_new_session=True,
                )
        except OSError as error:
            own_end.close()
            raise KernelForgeError(f"worker {name} cannot be started: {error}") from error
        finally:
            worker_end.close()
        try:
            if address is not None:
                await cls._reach(process, own_end, settings, address)
            reader, writer = await asyncio.open_connection(sock=own_end)
        except BaseException:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
            own_end.close()
            raise
        worker = cls(name, process, reader, writer)
        if address is not None:
            worker._beats = asyncio.create_task(worker._beat())
        try:
            await worker._greet(settings)
        except BaseException:
            worker.kill()
            await worker.close()
            raise
        return worker

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return not (self._killed or self._ended.is_set())

    def send(self, op: str, **content: Any) -> tuple[int, asyncio.Future[dict[str, Any]]]:
        number = next(self._ids)
        future: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        if not self.alive:
            future.set_exception(self._died())
            return number, future
        self._waiting[number] = future
        self._writer.write(packed({"id": number, "op": op, **content}))
        return number, future

    def interrupt(self, number: int) -> None:
        if self.alive:
            self._writer.write(packed({"id": number, "op": "interrupt"}))

    def kill(self) -> None:
        self._killed = True
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()

    @staticmethod
    async def _reach(
        process: Process, connection: socket.socket, settings: WorkerSettings, address: HostAddress
    ) -> None:
        """Have another machine become the worker, whose frames follow on the connection.

        Raises:
            DeviceError: it cannot be reached, or lacks something.
        """
        on_gpu = settings.device.startswith("cuda")
        try:
            await asyncio.to_thread(greet, connection, address, _FAR_MODULE, gpu=on_gpu, tell=_LOG.warning)
        except ConnectionEnded:
            assert process.stderr is not None
            messages = (await process.stderr.read()).decode(errors="replace")
            raise why_ended(address, messages.splitlines()) from None

    async def _beat(self) -> None:
        """Tell the other machine that this side is there."""
        while self.alive:
            self._writer.write(BEAT)
            await asyncio.sleep(BEAT_S)

    async def close(self) -> None:
        if self._beats is not None:
            self._beats.cancel()
        self._writer.close()
        try:
            async with asyncio.timeout(CLOSING_S + 1.0):
                await self._process.wait()
        except TimeoutError:
            self.kill()
            await self._process.wait()
        await asyncio.wait(self._tasks)

    async def _greet(self, settings: WorkerSettings) -> None:
        self._writer.write(packed(settings.model_dump(mode="json")))
        try:
            async with asyncio.timeout(START_S):
                reply = await read(self._reader)
        except TimeoutError:
            raise KernelForgeError(f"worker {self.name} was not warm after {START_S:g} s") from None
        if reply is None:
            status = await self._process.wait()
            raise KernelForgeError(f"worker {self.name} ended with status {status} before it was warm; see the log")
        if "failed" in reply:
            raise error_from(reply["failed"])
        self.target = Target.model_validate(reply["ready"])
        self._tasks.append(asyncio.create_task(self._receive()))

    async def _receive(self) -> None:
        try:
            while (reply := await read(self._reader)) is not None:
                future = self._waiting.pop(reply["id"])
                try:
                    future.set_result(self._checked(reply))
                except KernelForgeError as error:
                    future.set_exception(error)
        finally:
            self.kill()
            self._ended.set()
            for future in self._waiting.values():
                future.set_exception(self._died())
            self._waiting.clear()
            self._writer.close()

    def _died(self) -> WorkerDied:
        return WorkerDied(f"worker {self.name} (process {self.pid}) ended during an order")

    async def _log(self) -> None:
        assert self._process.stderr is not None
        rest = b""
        while piece := await self._process.stderr.read(1 << 16):
            *lines, rest = (rest + piece)[-(1 << 16) :].split(b"\n")
            for line in lines:
                _LOG.warning("worker %s: %s", self.name, line.decode(errors="replace"))
        if rest:
            _LOG.warning("worker %s: %s", self.name, rest.decode(errors="replace"))


_HOST_START = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[2]); "
    "from kernelforge.evaluation.oracle.host import main; main(int(sys.argv[1]), sys.argv[3])"
)


_FOLDER = "kernelforge-oracles-"
_OPENING_S = 60.0
"""Age from which a folder whose socket has no listener is that of a dead server; a live one listens at once."""


def remove_dead_folders() -> None:
    """Remove what killed servers of this user left in the folder for temporary files."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_FOLDER}*"):
        with contextlib.suppress(OSError):  # another server is faster, or it holds something else
            facts, address = folder.lstat(), folder / "socket"
            own = stat.S_ISDIR(facts.st_mode) and facts.st_uid == os.getuid()
            if own and time.time() - facts.st_mtime > _OPENING_S and not _listens(address):
                address.unlink(missing_ok=True)
                folder.rmdir()


def _listens(address: Path) -> bool:
    """Whether a process listens at a socket, or may do so."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.setblocking(False)
        try:
            sock.connect(str(address))
        except (ConnectionRefusedError, FileNotFoundError):
            return False
        except OSError:
            return True  # such as one with more connections than it takes at a time
    return True


def oracle_address() -> Path:
    """A new address for an oracle host, relative to its machine's folder for temporary files."""
    return Path(f"{_FOLDER}{secrets.token_hex(8)}", "socket")


def resolved_address(address: Path) -> Path:
    """An address of :func:`oracle_address` on this machine."""
    return Path(tempfile.gettempdir()) / address


class OracleHostProcess:
    """Keeps the process running whose oracles the workers of this machine share. Its socket outlives it: workers that
    connect while it is replaced wait for the next.

    Args:
        address: its socket, from :func:`oracle_address`; what an earlier process left there is replaced.
        allow_unconfined: run oracles without a jail if none works.
        most_bytes: memory that oracles without work may hold together.
    """

    def __init__(self, address: Path, *, allow_unconfined: bool, most_bytes: int) -> None:
        self._settings = json.dumps({"allow_unconfined": allow_unconfined, "most_bytes": most_bytes})
        self.address = address
        self.process: Process | None = None
        self._supervisor: asyncio.Task[None] | None = None

    def open(self) -> None:
        """Start the process, and a new one whenever it ends."""
        remove_dead_folders()
        remove_tree(str(self.address.parent))
        self.address.parent.mkdir(mode=0o700)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(str(self.address))
        listener.listen(socket.SOMAXCONN)
        self._supervisor = asyncio.create_task(self._supervise(listener))

    async def close(self) -> None:
        """End the process and its oracles."""
        if self._supervisor is not None:
            self._supervisor.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._supervisor
        remove_tree(str(self.address.parent))

    async def _supervise(self, listener: socket.socket) -> None:
        try:
            while True:
                self.process = await asyncio.create_subprocess_exec(
                    sys.executable, "-I", "-c", _HOST_START, str(listener.fileno()), json.dumps(import_path()),
                    self._settings,
                    env={variable: os.environ[variable] for variable in ENVIRONMENT if variable in os.environ},
                    pass_fds=[listener.fileno()],
                    stdin=DEVNULL,
                    stdout=DEVNULL,
                    cwd="/",
                    start_new_session=True,
                )  # fmt: skip
                status = await self.process.wait()
                _LOG.warning("the host of the oracles ended with status %d and is replaced", status)
                await asyncio.sleep(_BACKOFF_S)
        finally:
            listener.close()
            if self.process is not None and self.process.returncode is None:
                self.process.kill()
                await self.process.wait()


SETTLE_S = 3.0
"""Longest time a worker may take to stop a cancelled order; then it is replaced."""

SETTLE_GPU_S = 15.0
"""The same on a GPU, which is probed after a runner was killed; starting a new worker would take longer."""

QUARANTINE_AFTER = 3
"""Failed starts in a row after which a slot is quarantined. It is retried with growing pauses."""

_BACKOFF_S, _LONGEST_BACKOFF_S = 1.0, 300.0


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
        self.state: SlotState = "starting"
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
        self._resumed = asyncio.Event()
        self._resumed.set()

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

    @property
    def drained(self) -> bool:
        """Whether it takes no further request, and has or will have no worker."""
        return not self._resumed.is_set()

    def drain(self) -> None:
        """End the worker once its request is answered, and start none until :meth:`resume`."""
        if self.drained:
            return
        self._resumed.clear()
        if self.worker is None:
            self._set_state("drained")
        elif self.state == "idle":
            self._retire(self.worker)
        self._changed()

    def resume(self) -> None:
        """Start a worker again after :meth:`drain`."""
        self._resumed.set()

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
        if self.worker is not worker or not worker.alive:
            return
        if self.drained:
            self._retire(worker)
        else:
            self._set_state("idle")

    def _retire(self, worker: WorkerHandle) -> None:
        """End a worker that has no request, for a slot that is drained."""
        self._set_state("drained")
        retiring = asyncio.create_task(worker.close())
        self._settling.add(retiring)
        retiring.add_done_callback(self._settling.discard)

    async def _supervise(self) -> None:
        failures = 0
        while True:
            if self.drained:
                self._set_state("drained")
                await self._resumed.wait()
                self._set_state("starting")
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
            self._free(self.worker)
            await self.worker.ended()
            self._ended_worker, self.worker = self.worker, None
            if not self.drained:
                self.restarts += 1
                self._set_state("starting", "its worker ended and is replaced")
            await self._ended_worker.close()
            self._ended_worker = None

    def _set_state(self, state: SlotState, why: str = "") -> None:
        self.state, self.why = state, why
        self._changed()
