"""A worker process: one with a device, or one that only compiles.

It exchanges frames over one inherited socket: settings in, ``ready`` out; then one order at a time, with ``interrupt``
at any time. It ends when the engine closes the socket or dies, and ends every process that it started.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import signal
import socket
import sys
import threading
import time
from typing import Any, BinaryIO

from kernelforge.errors import EvaluationCancelled, KernelForgeError
from kernelforge.records import Task
from kernelforge.sandbox import syscalls
from kernelforge.utils.frames import error_frame, packed, receive
from kernelforge.workers.base import EvaluationOrder, Prepared
from kernelforge.workers.roles import CompileWorker, DeviceWorker, WorkerSettings

CLOSING_S = 5.0
"""Longest time to end helper processes in order once the engine is gone; then they are killed."""

_RETRY_S = 0.01
_LOG = logging.getLogger(__name__)


class _Server:
    """Serves one engine. A thread reads frames, so that an interrupt is received while an order runs."""

    def __init__(self, sock: socket.socket, frames: BinaryIO, worker: CompileWorker) -> None:
        self._sock = sock
        self._frames = frames
        self._worker = worker
        self._orders: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._current: int | None = None
        self._interrupted: set[int] = set()

    def serve(self) -> None:
        """Serve orders until the engine is gone."""
        threading.Thread(target=self._read, name="orders", daemon=True).start()
        while (order := self._orders.get()) is not None:
            with self._lock:
                self._current = order["id"]
            reply = self._answer(order)
            with self._lock:
                self._current = None
                self._interrupted.discard(order["id"])
            try:
                self._sock.sendall(packed({"id": order["id"], "warm": sorted(self._worker.cached_tasks), **reply}))
            except OSError:
                return

    def _read(self) -> None:
        while (frame := receive(self._frames)) is not None:
            if frame["op"] != "interrupt":
                self._orders.put(frame)
                continue
            with self._lock:
                self._interrupted.add(frame["id"])
            threading.Thread(target=self._interrupt, args=(frame["id"],), daemon=True).start()
        ending = threading.Timer(CLOSING_S, os._exit, (1,))
        ending.daemon = True
        ending.start()
        self._orders.put(None)
        self._worker.interrupt()

    def _interrupt(self, order: int) -> None:
        """Interrupt an order that runs or is about to start."""
        while True:
            with self._lock:
                if self._current != order or self._worker.interrupt():
                    return
            time.sleep(_RETRY_S)

    def _answer(self, frame: dict[str, Any]) -> dict[str, Any]:
        try:
            with self._lock:
                if frame["id"] in self._interrupted:
                    raise EvaluationCancelled("the order was interrupted before it started")
            return self._execute(frame)
        except EvaluationCancelled:
            return {"interrupted": True}
        except KernelForgeError as error:
            return {"error": error_frame(error)}

    def _execute(self, frame: dict[str, Any]) -> dict[str, Any]:
        if frame["op"] == "brief":
            return {"brief": self._worker.task_context(Task.model_validate(frame["task"])).model_dump(mode="json")}
        if frame["op"] == "tests":
            task = Task.model_validate(frame["task"])
            return {"tests": self._worker.score_tests(task, frame["reply"], frame["most"]).model_dump(mode="json")}
        order = EvaluationOrder.model_validate(frame["order"])
        if frame["op"] == "evaluate" and isinstance(self._worker, DeviceWorker):
            return {"report": self._worker.evaluate(order).model_dump(mode="json")}
        result = self._worker.prepare(order)
        return {"prepared" if isinstance(result, Prepared) else "report": result.model_dump(mode="json")}


def main(fd: int) -> None:
    """Serve the engine at the other end of the socket ``fd``."""
    syscalls.prctl("prctl(PDEATHSIG)", syscalls.PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr, format="%(name)s: %(message)s")
    sock = socket.socket(fileno=fd)
    sock.set_inheritable(False)
    frames = sock.makefile("rb")
    first = receive(frames)
    if first is None:
        return
    settings = WorkerSettings.model_validate(first)
    try:
        worker = CompileWorker.alone(settings) if settings.role == "cpu" else DeviceWorker(settings)
    except KernelForgeError as error:
        sock.sendall(packed({"failed": error_frame(error)}))
        return
    with contextlib.closing(worker):
        sock.sendall(packed({"ready": worker.target.model_dump(mode="json")}))
        _Server(sock, frames, worker).serve()


if __name__ == "__main__":
    sys.exit("this module is started by kernelforge.workers.pool.LocalEngine")
