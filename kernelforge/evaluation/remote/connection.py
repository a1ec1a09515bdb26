"""A process of another machine that answers requests.

After a cut the connection is made again, and what was under way is done once more.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any, TypedDict, TypeVar, Unpack

from pydantic import ValidationError

from kernelforge.devices.remote.address import parse_address
from kernelforge.devices.remote.relay import BEAT, BEAT_S
from kernelforge.devices.remote.ssh import RemoteProcess
from kernelforge.errors import DeviceError, KernelForgeError, SandboxError
from kernelforge.evaluation.remote.settings import FarSettings
from kernelforge.records import Fingerprint, MeasureSettings
from kernelforge.utils.closing import Closing
from kernelforge.utils.frames import error_from, packed, receive

RECONNECT_S = (0.0, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0)
"""Pauses before the tries to connect again after a cut."""

LOST_S = 60.0
"""Time for which a machine that could not be reached again is not tried: its other tasks need not wait for it too."""

TRIES = 2
"""How often a request is made: once more after a cut, so that one that ends the connection does not go round."""

_CLOSING_S = 10.0
_STOP_POLL_S = 0.5

T = TypeVar("T")


class ConnectionCut(Exception):
    """The connection ended before the reply."""


class Connection:
    """Requests and replies of several threads over one process of the other machine."""

    def __init__(self, process: RemoteProcess, settings: FarSettings, tell: Callable[[str], None]) -> None:
        self._process = process
        self._frames = process.connection.makefile("rb")
        self._tell = tell
        self._lock = threading.Lock()
        self._waiting: dict[int, SimpleQueue[dict[str, Any] | None]] = {}
        """Frames of each request; None where the connection has ended."""
        self._numbers = itertools.count(1)
        self._ended = threading.Event()
        beat = threading.Thread(target=self._beat, name="connection", daemon=True)
        beat.start()
        try:
            self._send(packed(settings.model_dump(mode="json")))
            first = self._frame()
            while first is not None and "tell" in first:
                self._tell(first["tell"])
                first = self._frame()
            if first is None:
                raise ConnectionCut
            if "failed" in first:
                raise error_from(first["failed"])
            self.ready: dict[str, Any] = first["ready"]
            """What the process said of itself when it was ready."""
        except BaseException:
            self.close()
            raise
        threading.Thread(target=self._receive, name="replies", daemon=True).start()

    @property
    def alive(self) -> bool:
        return not self._ended.is_set()

    def request(
        self,
        op: str,
        *,
        stopped: Callable[[], bool] | None = None,
        on_part: Callable[[Any], None] | None = None,
        **content: Any,
    ) -> dict[str, Any]:
        """Send a request and wait for its reply.

        Args:
            op: what is requested.
            stopped: asked while waiting; once it says True, the other side tries nothing further.
            on_part: called with each part of the work, in this thread.
            content: of the request.

        Raises:
            ConnectionCut: the connection ended first.
            KernelForgeError: the error of the other side.
        """
        frames = SimpleQueue[dict[str, Any] | None]()
        with self._lock:
            number = next(self._numbers)
            self._waiting[number] = frames
        if not self.alive:
            raise ConnectionCut
        self._send(packed({"id": number, "op": op, **content}))
        waits = stopped is None
        while True:
            try:
                answer = frames.get(timeout=None if waits else _STOP_POLL_S)
            except Empty:
                if stopped is not None and stopped():
                    waits = True
                    self._send(packed({"id": number, "op": "stop"}))
                continue
            if answer is None:
                raise ConnectionCut
            if "error" in answer:
                raise error_from(answer["error"])
            if "part" not in answer:
                return answer
            if on_part is not None:
                on_part(answer["part"])

    def close(self, wait_s: float = 0.0) -> None:
        self._end()
        self._process.close(wait_s)

    def _send(self, data: bytes) -> None:
        with self._lock:
            try:
                self._process.connection.sendall(data)
            except OSError:
                self._ended.set()
                raise ConnectionCut from None

    def _beat(self) -> None:
        while not self._ended.wait(BEAT_S):
            with suppress(ConnectionCut):
                self._send(BEAT)

    def _frame(self) -> dict[str, Any] | None:
        try:
            return receive(self._frames)
        except (OSError, ValueError):
            return None

    def _receive(self) -> None:
        while (frame := self._frame()) is not None:
            if "tell" in frame:
                self._tell(frame["tell"])
                continue
            number = frame.get("id", 0)
            with self._lock:
                frames = self._waiting.get(number) if "part" in frame else self._waiting.pop(number, None)
            if frames is not None:
                frames.put(frame)
        self._end()

    def _end(self) -> None:
        self._ended.set()
        with self._lock:
            waiting, self._waiting = list(self._waiting.values()), {}
        for frames in waiting:
            frames.put(None)


class MachineOptions(TypedDict, total=False):
    """Options of a process of another machine."""

    jobs: int
    """Tasks that are worked on at a time."""
    measure: MeasureSettings | None
    allow_unconfined: bool
    tell: Callable[[str], None] | None
    """These three as of :class:`~kernelforge.evaluation.pool.EvaluatorPool`."""


class RemoteMachine(Closing):
    """A process of another machine that answers requests, started again after a cut. Safe to share between threads.

    Args:
        url: of devices of one machine, as in ``ssh://user@host:2222/cuda:0``.
        entry: module whose ``main`` serves there.
        options: of the process.

    Raises:
        UsageError: it is no such address.
        DeviceError: the machine cannot be reached, lacks something or has no such device.
        SandboxError: no jail works there and ``allow_unconfined`` is false.
    """

    def __init__(self, url: str, entry: str, **options: Unpack[MachineOptions]) -> None:
        self._address, device = parse_address(url)
        self._entry = entry
        self.name = self._address.url(device)
        self.allow_unconfined = options.get("allow_unconfined", False)
        self.settings = options.get("measure") or MeasureSettings()
        self._settings = FarSettings(
            device=device,
            jobs=options.get("jobs", 1),
            measure=self.settings,
            allow_unconfined=self.allow_unconfined,
        )
        self._tell = options.get("tell") or (lambda message: None)
        self._closed = threading.Event()
        self._lock = threading.Lock()
        self._lost: DeviceError | None = None
        """Why the latest connection could not be made again."""
        self._lost_until = 0.0
        self._connection = self._connected(())
        self.ready = self._connection.ready
        """What the process said of itself when it was first ready."""
        self.fingerprint = Fingerprint.model_validate(self.ready["fingerprint"])
        """Fingerprint of evaluations there, which is that of a run on that machine."""

    def connection(self) -> Connection:
        """The connection, made again after a cut.

        Raises:
            DeviceError: it cannot be made, or could not be a moment ago.
            SandboxError: the pool was closed.
        """
        with self._lock:
            if self._closed.is_set():
                raise SandboxError(f"{self.name}: the connection was closed")
            if not self._connection.alive:
                if self._lost is not None and time.monotonic() < self._lost_until:
                    raise DeviceError(str(self._lost)) from self._lost
                self._connection.close()
                self._tell(f"the connection to {self.name} was cut: connecting again")
                try:
                    connection = self._connected(RECONNECT_S)
                    if connection.ready["fingerprint"] != self.ready["fingerprint"]:
                        connection.close()
                        raise DeviceError(f"{self.name} is not what it was before the connection was cut")
                except DeviceError as error:
                    self._lost, self._lost_until = error, time.monotonic() + LOST_S
                    raise
                self._connection = connection
            return self._connection

    def request_if_alive(self, op: str, **content: Any) -> None:
        """Make a request that is for nothing once the process there has ended."""
        if self._connection.alive:
            self._connection.request(op, **content)

    def retry(self, call: Callable[[Connection], T]) -> T:
        """The result of a call, which is made again after a cut.

        Raises:
            DeviceError: it was cut again, or there is no connection any more.
            SandboxError: the pool was closed, or the reply cannot be read.
        """
        for _ in range(TRIES):
            connection = self.connection()
            try:
                return call(connection)
            except ConnectionCut:
                continue
            except (LookupError, TypeError, ValidationError) as error:
                first = str(error).split("\n")[0][:300]
                raise SandboxError(f"{self.name} sent a reply that cannot be read: {first}") from error
        if self._closed.is_set():
            raise SandboxError(f"{self.name}: the connection was closed")
        raise DeviceError(
            f"the connection to {self.name} was cut {TRIES} times under the same evaluation: see that the network and "
            "the machine are well, then go on with `kernelforge resume`"
        )

    def close(self) -> None:
        """End the process there and the connection."""
        self._closed.set()
        self._connection.close(_CLOSING_S)

    def _connected(self, pauses: Sequence[float]) -> Connection:
        """A new connection; tries again after each of the pauses."""
        failure: DeviceError | None = None
        gpu = self._settings.device.startswith("cuda")
        for pause in pauses or (0.0,):
            if self._closed.wait(pause):
                raise SandboxError(f"{self.name}: the connection was closed")
            try:
                process = RemoteProcess(self._address, self._entry, gpu=gpu, tell=self._tell)
            except DeviceError as error:
                failure = error
                continue
            try:
                return Connection(process, self._settings, self._tell)
            except ConnectionCut:
                why = process.last_message() or "no reason was given"
                failure = DeviceError(f"{self.name} cannot be used: its process ended before it was ready: {why[:300]}")
            except KernelForgeError as error:
                raise type(error)(f"{self.name}: {error}") from error
        assert failure is not None
        raise failure
