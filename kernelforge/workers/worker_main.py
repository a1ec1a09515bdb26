"""A worker process: one with a device, or one that only compiles.

It speaks frames over one inherited socket: settings in, ``ready`` out; then one order at a time, with ``interrupt``
at any time. It ends when the engine closes the socket or dies, and takes every process that it started with it.
"""

from __future__ import annotations

import logging
import os
import queue
import signal
import socket
import sys
import threading
import time
from pathlib import Path
from typing import Any, Literal

from kernelforge.errors import EvaluationCancelled, KernelForgeError
from kernelforge.evaluation.warm_evaluators import WARM_BYTES, WARM_TASKS
from kernelforge.records import MeasureSettings, Record, Task
from kernelforge.sandbox import syscalls
from kernelforge.workers.base import EvaluationOrder, Prepared
from kernelforge.workers.compile_worker import CompileWorker, Target
from kernelforge.workers.device_worker import DeviceWorker
from kernelforge.workers.framing import packed, receive

CLOSING_S = 5.0
"""How long a worker may take to end its helpers once the engine is gone; they end with it in any case."""

_RETRY_S = 0.01
_LOG = logging.getLogger(__name__)


class WorkerSettings(Record):
    """What a worker is started with."""

    role: Literal["device", "cpu"]
    """``device``: evaluates on a device of its own. ``cpu``: prepares and briefs, and opens none."""
    device: str = ""
    threads: int = 1
    measure: MeasureSettings | None = None
    allow_unconfined: bool = False
    warm_tasks: int = WARM_TASKS
    warm_bytes: int = WARM_BYTES
    cache: str | None = None
    run_limit_s: float | None = None
    compile_limit_s: float | None = None
    target: Target | None = None
    """What a worker without a device prepares for."""


class _Server:
    """Serves one engine. Frames are read in a thread of their own, so that an interrupt is heard while work goes on."""

    def __init__(self, sock: socket.socket, bench: DeviceWorker | CompileWorker) -> None:
        self._sock = sock
        self._bench = bench
        self._orders: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._current: int | None = None
        self._unwanted: set[int] = set()

    def serve(self) -> None:
        """Work until the engine is gone."""
        threading.Thread(target=self._read, name="orders", daemon=True).start()
        while (order := self._orders.get()) is not None:
            with self._lock:
                self._current = order["id"]
            reply = self._answered(order)
            with self._lock:
                self._current = None
                self._unwanted.discard(order["id"])
            warm = sorted(self._bench.warm) if isinstance(self._bench, DeviceWorker) else []
            try:
                self._sock.sendall(packed({"id": order["id"], "warm": warm, **reply}))
            except OSError:
                return

    def _read(self) -> None:
        while (frame := receive(self._sock)) is not None:
            if frame["op"] != "interrupt":
                self._orders.put(frame)
                continue
            with self._lock:
                self._unwanted.add(frame["id"])
            threading.Thread(target=self._interrupt, args=(frame["id"],), daemon=True).start()
        ending = threading.Timer(CLOSING_S, os._exit, (1,))
        ending.daemon = True
        ending.start()
        self._orders.put(None)
        self._bench.interrupt()

    def _interrupt(self, order: int) -> None:
        """End an order, also one that is about to begin."""
        while True:
            with self._lock:
                if self._current != order or self._bench.interrupt():
                    return
            time.sleep(_RETRY_S)

    def _answered(self, frame: dict[str, Any]) -> dict[str, Any]:
        try:
            with self._lock:
                if frame["id"] in self._unwanted:
                    raise EvaluationCancelled("it was interrupted before it began")
            return self._done(frame)
        except EvaluationCancelled:
            return {"interrupted": True}
        except KernelForgeError as error:
            return {"error": {"kind": type(error).__name__, "message": str(error)}}

    def _done(self, frame: dict[str, Any]) -> dict[str, Any]:
        if frame["op"] == "brief":
            return {"brief": self._bench.brief(Task.model_validate(frame["task"])).model_dump(mode="json")}
        order = EvaluationOrder.model_validate(frame["order"])
        if frame["op"] == "evaluate" and isinstance(self._bench, DeviceWorker):
            return {"report": self._bench.evaluate(order).model_dump(mode="json")}
        ended = self._bench.prepare(order)
        return {"prepared" if isinstance(ended, Prepared) else "report": ended.model_dump(mode="json")}


def main(fd: int) -> None:
    """Serve the engine at the other end of the socket ``fd``."""
    syscalls.prctl("prctl(PDEATHSIG)", syscalls.PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr, format="%(name)s: %(message)s")
    sock = socket.socket(fileno=fd)
    sock.set_inheritable(False)
    first = receive(sock)
    if first is None:
        return
    settings = WorkerSettings.model_validate(first)
    try:
        bench = _open(settings)
    except KernelForgeError as error:
        sock.sendall(packed({"failed": {"kind": type(error).__name__, "message": str(error)}}))
        return
    with bench:
        sock.sendall(packed({"ready": bench.target.model_dump(mode="json")}))
        _Server(sock, bench).serve()


def _open(settings: WorkerSettings) -> DeviceWorker | CompileWorker:
    cache = None if settings.cache is None else Path(settings.cache)
    if settings.role == "cpu":
        assert settings.target is not None
        return CompileWorker.alone(
            settings.target,
            threads=settings.threads,
            allow_unconfined=settings.allow_unconfined,
            cache=cache,
            compile_limit_s=settings.compile_limit_s,
        )
    return DeviceWorker(
        settings.device,
        threads=settings.threads,
        measure=settings.measure,
        allow_unconfined=settings.allow_unconfined,
        warm_tasks=settings.warm_tasks,
        warm_bytes=settings.warm_bytes,
        cache=cache,
        run_limit_s=settings.run_limit_s,
        compile_limit_s=settings.compile_limit_s,
    )


if __name__ == "__main__":
    sys.exit("this module is started by kernelforge.workers.local.LocalEngine")
