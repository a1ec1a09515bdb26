"""A worker process as its pool sees it: started with only a socket, one request at a time."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import logging
import os
import socket
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from typing import Any

from kernelforge import errors
from kernelforge.errors import EvaluationCancelled, KernelForgeError
from kernelforge.sandbox.policy import import_path
from kernelforge.workers.base import WorkerDied
from kernelforge.workers.compile_worker import Target
from kernelforge.workers.framing import packed, read
from kernelforge.workers.worker_main import CLOSING_S, WorkerSettings

ENVIRONMENT = (
    "PATH", "HOME", "XDG_CACHE_HOME", "TMPDIR", "LANG", "LC_ALL",
    "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "CUDA_HOME", "CUDA_PATH", "LD_LIBRARY_PATH",
)  # fmt: skip
"""Environment variables that a worker inherits: paths and locale, no keys and no tokens."""

START_S = 300.0
"""Longest warm-up of a worker."""

_START = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[2]); "
    "from kernelforge.workers.worker_main import main; main(int(sys.argv[1]))"
)
_LOG = logging.getLogger(__name__)


class Worker:
    """One worker process, created by :meth:`start` and usable while :attr:`alive`."""

    def __init__(self, name: str, process: Process, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.name = name
        self.target: Target | None = None
        """Device of its candidates; None until it is ready."""
        self.cached_tasks: frozenset[str] = frozenset()
        """Digests of the tasks whose oracles are warm."""
        self._process = process
        self._reader = reader
        self._writer = writer
        self._ids = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._tasks = [asyncio.create_task(self._log())]
        self._ended = asyncio.Event()
        self._killed = False

    @classmethod
    async def start(cls, name: str, settings: WorkerSettings) -> Worker:
        """Start a worker and wait until it is warm.

        Raises:
            KernelForgeError: it does not start; the worker's own error type.
        """
        own_end, worker_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
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
        except OSError as error:
            own_end.close()
            raise KernelForgeError(f"worker {name} cannot be started: {error}") from error
        finally:
            worker_end.close()
        try:
            reader, writer = await asyncio.open_connection(sock=own_end)
        except BaseException:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
            raise
        worker = cls(name, process, reader, writer)
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

    async def ended(self) -> None:
        """Return when the process has ended or closed its socket."""
        await self._ended.wait()

    def send(self, op: str, **content: Any) -> tuple[int, asyncio.Future[dict[str, Any]]]:
        """Send a request. Returns its number and a future of its reply.

        The future raises :class:`WorkerDied` if the process ends first, :class:`EvaluationCancelled` after
        :meth:`interrupt`, or the worker's error.
        """
        number = next(self._ids)
        future: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        if not self.alive:
            future.set_exception(self._died())
            return number, future
        self._waiting[number] = future
        self._writer.write(packed({"id": number, "op": op, **content}))
        return number, future

    def interrupt(self, number: int) -> None:
        """End an abandoned request."""
        if self.alive:
            self._writer.write(packed({"id": number, "op": "interrupt"}))

    def kill(self) -> None:
        """Kill the process; its jailed children die with it."""
        self._killed = True
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()

    async def close(self) -> None:
        """End the process; kill it if it does not end by itself."""
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
                self.cached_tasks = frozenset(reply["warm"])
                future = self._waiting.pop(reply["id"])
                if "interrupted" in reply:
                    future.set_exception(EvaluationCancelled("the order was interrupted"))
                elif "error" in reply:
                    future.set_exception(error_from(reply["error"]))
                else:
                    future.set_result(reply)
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


def error_from(reply: dict[str, str]) -> KernelForgeError:
    """The error in a worker's reply."""
    kind = getattr(errors, reply["kind"], KernelForgeError)
    return kind(reply["message"]) if issubclass(kind, KernelForgeError) else KernelForgeError(reply["message"])
