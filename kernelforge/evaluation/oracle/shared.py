"""Oracles that several workers of a machine share, seen from a worker: :mod:`kernelforge.evaluation.oracle.host` has
them."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
import weakref
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from kernelforge.errors import ChildDied, ChildTimeout, SandboxError
from kernelforge.sandbox.channel import Channel, Frame
from kernelforge.sandbox.policy import Limits
from kernelforge.sandbox.shared_memory import SMALLEST_FILE, Blob

BATCH: Final = 32
"""Evaluations that share draws at most."""
BATCH_S: Final = 600.0
"""Seconds that they share them at most."""

REACHED_S: Final = 120.0
"""Longest wait for a host that another process starts, or starts again."""

GREETING: Final = {"host": True}
"""What a host sends when it takes a connection. Before it, the connection may end with the process that listened."""

_REPEAT_S = 0.1
_FAILURES: dict[str, type[SandboxError]] = {"ChildDied": ChildDied, "ChildTimeout": ChildTimeout}
"""Ends of an oracle's process that the host reports; any other is a :class:`SandboxError`."""


class Batch:
    """Evaluations of a task that share draws. Their seeds are secret."""

    def __init__(self) -> None:
        self.seed = 0
        """Of the draws."""
        self._left, self._end = 0, 0.0

    def begin(self, seed: int) -> int:
        """Begin an evaluation; its secret seed is that of a new batch, if the last one has ended. Gives the batch's."""
        if not self._left or time.monotonic() > self._end:
            self.seed, self._left, self._end = seed, BATCH, time.monotonic() + BATCH_S
        self._left -= 1
        return self.seed

    def end(self) -> None:
        """End the batch; the next evaluation begins another."""
        self._left = 0


class SharedChild:
    """A connection to the oracles of one task. It is used as a confined child is, and is the worker's own: what ends
    it leaves those of other workers alone."""

    def __init__(self, channel: Channel, sock: socket.socket, limits: Limits) -> None:
        self._channel = channel
        self._socket = sock
        self._limits = limits
        self._waited_for = False

    def call(self, data: dict[str, Any], blobs: Sequence[Blob] = (), *, timeout_s: float | None = None) -> Frame:
        """Send a request to an oracle of the task and wait for its reply.

        Raises:
            ChildTimeout: no reply in time; the oracle's process has been ended.
            ChildDied: it ended first, or so did the host, or :meth:`interrupt` was called.
            SandboxError: its reply breaks the frame format.
        """
        wait = self._limits.wall_s if timeout_s is None else timeout_s
        self._waited_for = True
        try:
            # No time limit here: the host's begins when it is the request's turn.
            self._channel.send({"request": data, "timeout_s": wait, "limits": asdict(self._limits)}, blobs)
            frame = self._channel.receive()
        except ChildDied as error:
            raise ChildDied("the oracle child was given up, or its host ended") from error
        finally:
            self._waited_for = False
        if "failure" in frame.data:
            raise _FAILURES.get(frame.data["failure"], SandboxError)(frame.data["message"])
        return Frame(frame.data["reply"], frame.blobs)

    @property
    def ended(self) -> bool:
        """Whether the host has ended the connection, or has ended itself."""
        return self._channel.closed

    def taken(self, wait_s: float) -> bool | None:
        """Wait at most ``wait_s`` seconds for the host to take the connection: None if it has not, False if the
        connection ended instead.

        Raises:
            SandboxError: what took it is no host.
        """
        if not self._channel.has_data(wait_s):
            return None
        try:
            greeting = self._channel.receive().data
        except ChildDied:
            return False
        if greeting != GREETING:
            raise SandboxError("what listens at the socket of the oracles is no host of this version")
        return True

    def memory_bytes(self) -> int:
        """Nothing: the host bounds the memory of its oracles."""
        return 0

    def interrupt(self) -> None:
        """End a call that another thread waits for, which then raises :class:`ChildDied`; without one nothing."""
        if self._waited_for:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """End the connection; the host releases the draws that were made through it."""
        self._channel.close()


class SharedOracles:
    """The oracles of a machine's host, in the role of a zygote. Safe to use from several threads.

    Args:
        address: the host's socket.
    """

    def __init__(self, address: Path) -> None:
        self._address = address
        self._interrupts = 0
        self._children: weakref.WeakSet[SharedChild] = weakref.WeakSet()
        self._lock = threading.Lock()

    def start(self) -> None:
        """Wait until the host is warm.

        Raises:
            SandboxError: it does not start.
        """
        child = self.spawn()
        try:
            child.call({"op": "start"})
        finally:
            child.close()

    def spawn(self, limits: Limits | None = None) -> SharedChild:
        """Connect to the host, or to the next one while it is replaced. A host that listens but is not yet warm is
        waited for without a time limit.

        Raises:
            SandboxError: it cannot be reached.
            ChildDied: :meth:`interrupt` was called.
        """
        end, interrupts = time.monotonic() + REACHED_S, self._interrupts
        while True:
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                sock.connect(str(self._address))
            except OSError as error:
                sock.close()
                if not isinstance(error, FileNotFoundError | ConnectionRefusedError):
                    raise SandboxError(f"the host of the oracles cannot be reached: {error.strerror}") from error
                why = str(error.strerror)
            else:
                since = time.monotonic()
                child = SharedChild(Channel(sock, files_from=SMALLEST_FILE), sock, limits or Limits())
                if self._is_taken(child, interrupts):
                    return child
                why, end = "it ended before it took the connection", end + time.monotonic() - since
            if time.monotonic() > end:
                raise SandboxError(f"the host of the oracles cannot be reached: {why}")
            time.sleep(_REPEAT_S)
            self._go_on(interrupts)

    def _is_taken(self, child: SharedChild, interrupts: int) -> bool:
        """Wait until the host takes a connection; False if the process that listened has ended, and no host did: a
        dying process listens for a moment after its connections are closed."""
        taken: bool | None = None
        try:
            while (taken := child.taken(_REPEAT_S)) is None:
                self._go_on(interrupts)
        finally:
            if not taken:
                child.close()
        with self._lock:
            self._children.add(child)
        return taken

    def _go_on(self, interrupts: int) -> None:
        if self._interrupts != interrupts:
            raise ChildDied("the oracle child was given up before its host was there")

    def interrupt(self) -> None:
        """End the calls that other threads wait for."""
        with self._lock:
            self._interrupts += 1
            children = tuple(self._children)
        for child in children:
            child.interrupt()

    def close(self) -> None:
        """Nothing: the host ends with the engine, and each connection with its oracle."""
