"""The oracle host: a process of a machine that keeps the oracles which all its workers share.

Each worker has a connection for each task that it works on. Of each task there is one *main* oracle: it describes and
admits the task, and keeps the draws that evaluations share in training, with what must come out. Each answer about the
task and each kept draw is made once for all workers. An evaluation's own draws are made by a *spare* oracle that no
other evaluation uses until they are released, so that no worker waits for another's draws, and each has the memory that
it would have alone. All are forked from one warm process, whose memory they share.

The host runs no task and no candidate, and has no expected outputs: those stay in the oracles' confined processes. A
worker is sent inputs alone. An oracle is sent what it always was: outputs to compare, never a candidate's source.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
import select
import signal
import socket
import struct
import sys
import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from os import getuid
from typing import Any, Final

from kernelforge.errors import ChildDied, ChildTimeout, KernelForgeError, SandboxError
from kernelforge.evaluation.oracle.shared import GREETING, Batch
from kernelforge.sandbox import Child, Zygote, syscalls
from kernelforge.sandbox.channel import Channel, Frame
from kernelforge.sandbox.policy import Limits
from kernelforge.sandbox.shared_memory import SMALLEST_FILE, Blob, MemoryFile, seal

IDLE_TASKS: Final = 4
"""Tasks without a connection whose oracles are kept for the next."""
CACHED_TASKS: Final = 1024
"""Tasks whose answers are kept: some ten kilobytes each, or some hundred for the operators of a whole network."""

_CACHED: Final = frozenset({"facts", "trace", "operators", "families", "has_slices", "is_mean", "admit"})
"""Requests whose answers are the same for every evaluation of a task, unless they are about a drawn size."""
_OWN: Final = frozenset({"size", "draw", "check", "check_part", "choose", "release", "try", "tested"})
"""Requests that an evaluation's own oracle answers."""
_PEER = struct.Struct("3i")
_REPEAT_S = 0.05
_LOG = logging.getLogger(__name__)

_Answer = tuple[Mapping[str, Any], Sequence[Blob]]


class _SharedOracle:
    """The confined process of one oracle, which has loaded its task."""

    def __init__(self, child: Child, load: dict[str, Any], timeout_s: float) -> None:
        self._child = child
        self._lock = threading.Lock()
        self._handles = itertools.count(1)
        self.alive = True
        self.size: dict[str, Any] | None = None
        """The request that gave it a further size."""
        self.scales: dict[str, Any] = load["scales"]
        self.loaded = self.call(load, (), timeout_s)
        self._initial_bytes = child.memory_bytes()
        self.kept_bytes = 0
        """Memory that it holds beyond what it began with, when it was used last."""

    def call(self, request: dict[str, Any], blobs: Sequence[Blob], timeout_s: float) -> Frame:
        """Ask the oracle. Any failure ends it.

        Raises:
            ChildDied: it ended, or did before.
            ChildTimeout: it gave no answer in time.
            SandboxError: it gave a broken one.
        """
        with self._lock:
            if not self.alive:
                raise ChildDied("the oracle child ended before the request")
            try:
                return self._child.call(request, blobs, timeout_s=timeout_s)
            except BaseException:
                self._end()
                raise

    def draw(self, request: dict[str, Any], timeout_s: float) -> tuple[int, Frame]:
        """Make a draw; its handle here, and the reply."""
        handle = next(self._handles)
        return handle, self.call({**request, "handle": handle}, (), timeout_s)

    def measure(self) -> None:
        """Measure :attr:`kept_bytes`."""
        self.kept_bytes = max(self._child.memory_bytes() - self._initial_bytes, 0)

    def interrupt(self) -> None:
        """End it if a thread waits for its answer."""
        self._child.interrupt()

    def close(self) -> None:
        with self._lock:
            self._end()

    def _end(self) -> None:
        if self.alive:
            self.alive = False
            with contextlib.suppress(SandboxError):
                self._child.close()


@dataclass(eq=False)
class _KeptDraw:
    """A draw that the evaluations of a batch share."""

    request: dict[str, Any]
    oracle: _SharedOracle
    handle: int
    reply: Frame
    """What a worker is sent: inputs and weights. Large ones are in memory files, which all workers map."""
    users: int = 0


@dataclass(eq=False)
class _TaskState:
    """Oracles of one task, and what they answered."""

    lock: threading.RLock = field(default_factory=threading.RLock)
    """Held while its main oracle is used."""
    main: _SharedOracle | None = None
    spare: list[_SharedOracle] = field(default_factory=list)
    """Oracles that no evaluation uses, the last used one last."""
    connections: int = 0
    answers: dict[str, Frame] = field(default_factory=dict)
    scales: dict[str, Any] = field(default_factory=dict)
    """Of its input families, by size."""
    batch: Batch = field(default_factory=Batch)
    kept: dict[tuple[str, str, str], _KeptDraw] = field(default_factory=dict)
    """By size, family and seed."""
    unanswered: dict[str, tuple[int, str]] = field(default_factory=dict)
    """Questions to which a main oracle gave no answer in time: how often, and what was said."""

    @contextlib.contextmanager
    def turn(self, question: str) -> Iterator[None]:
        """Use of the main oracle for a question. Those that wait for it while the same question gets no answer share
        its failure: put again for each of them, it might hang as often.

        Raises:
            ChildTimeout: the question got no answer while this turn was waited for.
        """
        before = self.unanswered.get(question, (0, ""))
        with self.lock:
            now = self.unanswered.get(question, (0, ""))
            if now != before:
                raise ChildTimeout(now[1])
            try:
                yield
            except ChildTimeout as error:
                self.unanswered[question] = before[0] + 1, str(error)
                raise


class OracleHost:
    """Serves workers until its process is ended.

    Args:
        listener: socket that workers connect to.
        zygote: forks the oracles.
        most_bytes: memory that spare oracles may hold together beyond what they began with.
    """

    def __init__(self, listener: socket.socket, zygote: Zygote, *, most_bytes: int) -> None:
        self._listener = listener
        self._most_bytes = most_bytes
        self.zygote = zygote
        self._tasks: OrderedDict[str, _TaskState] = OrderedDict()
        self._lock = threading.Lock()

    def serve(self) -> None:
        """Serve connections, each in a thread of its own, until the listener is closed."""
        threading.Thread(target=self._warm_up, name="warm-up", daemon=True).start()
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            _, user, _ = _PEER.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
            if user != getuid():
                sock.close()
                continue
            connection = _Connection(self, sock)
            threading.Thread(target=connection.serve, name="connection", daemon=True).start()

    def _warm_up(self) -> None:
        with contextlib.suppress(KernelForgeError):  # the first request raises it
            self.zygote.start()

    def state_of(self, load: Mapping[str, Any]) -> _TaskState:
        """The state of a task, for one more connection, which gives it back with :meth:`done`."""
        key = json.dumps({name: value for name, value in load.items() if name != "scales"}, sort_keys=True)
        with self._lock:
            state = self._tasks.setdefault(key, _TaskState())
            self._tasks.move_to_end(key)
            state.connections += 1
            state.scales = {**load["scales"], **state.scales}
            while len(self._tasks) > CACHED_TASKS and not next(iter(self._tasks.values())).connections:
                self._tasks.popitem(last=False)
        return state

    def started(self, state: _TaskState, load: dict[str, Any], limits: Limits, timeout_s: float) -> _SharedOracle:
        """A new oracle of a task.

        Raises:
            SandboxError: it does not start.
        """
        return _SharedOracle(self.zygote.spawn(limits), {**load, "scales": state.scales}, timeout_s)

    def put_back(self, state: _TaskState, oracle: _SharedOracle) -> None:
        """Keep an oracle without draws for the next evaluation, unless spare ones hold too much memory."""
        oracle.measure()
        closing = []
        with self._lock:
            state.spare.append(oracle)
            # Those of the task that was used longest ago go first.
            spare = [(owner, item) for owner in self._tasks.values() for item in owner.spare]
            total = sum(item.kept_bytes for _, item in spare)
            for owner, item in spare:
                if total > self._most_bytes and item.kept_bytes:
                    total -= item.kept_bytes
                    owner.spare.remove(item)
                    closing.append(item)
        for item in closing:
            item.close()

    def spare_of(self, state: _TaskState, before: _SharedOracle | None) -> _SharedOracle | None:
        """An oracle of a task that no evaluation uses: the one used before, if it can be had, else the one that was
        used longest ago, which no other evaluation is in the midst of; None if there is none."""
        with self._lock:
            if before in state.spare:
                state.spare.remove(before)
                return before
            while state.spare:
                oracle = state.spare.pop(0)
                if oracle.alive:
                    return oracle
        return None

    def done(self, state: _TaskState) -> None:
        """Give the state of a task back; the oracles of those that were not used for longest are closed."""
        closing: list[_SharedOracle] = []
        with self._lock:
            state.connections -= 1
            idle = [each for each in self._tasks.values() if not each.connections and (each.main or each.spare)]
            for each in idle[: max(len(idle) - IDLE_TASKS, 0)]:
                closing += [*each.spare, *([each.main] if each.main else [])]
                each.spare, each.main = [], None
        for oracle in closing:
            oracle.close()


class _Connection:
    """A worker's connection, for one task."""

    _state: _TaskState
    _load: dict[str, Any]
    _limits: Limits

    def __init__(self, host: OracleHost, sock: socket.socket) -> None:
        self._host = host
        self._channel = Channel(sock, files_from=SMALLEST_FILE)
        self._socket = sock
        self._loaded = False
        self._own: _SharedOracle | None = None
        """The oracle that this evaluation has for itself; changed under the guard."""
        self._guard = threading.Lock()
        self._before: _SharedOracle | None = None
        """The one that it had last, which has worked out most of what the next request needs."""
        self._draws: dict[int, int] = {}
        """Handles of its own draws in that oracle, by the worker's."""
        self._kept: dict[int, _KeptDraw] = {}
        self._size: dict[str, Any] | None = None
        self._finished = threading.Event()

    def serve(self) -> None:
        """Answer the worker until it closes the connection. It sends nothing before the greeting."""
        threading.Thread(target=self._watch, name="watch", daemon=True).start()
        try:
            self._channel.send(dict(GREETING))
            for frame in self._channel.requests():
                data, blobs = self._answer(frame)
                self._channel.send(dict(data), blobs)
        except (ChildDied, SandboxError, OSError):
            pass  # the worker is gone, or does not speak this protocol
        finally:
            self._finished.set()
            self._give_back()
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)  # for the thread that watches
            self._channel.close()

    def _watch(self) -> None:
        """End what an abandoned evaluation waits for, unless others use it too."""
        poller = select.poll()
        with contextlib.suppress(OSError, ValueError):
            poller.register(self._socket, select.POLLRDHUP)
            poller.poll()
        while not self._finished.wait(_REPEAT_S):
            with self._guard:
                if self._own is not None:
                    self._own.interrupt()

    def _give_back(self) -> None:
        with self._guard:
            own, self._own = self._own, None
        if own is not None:
            own.close()  # it has draws that are released by no request
        if self._loaded:
            with self._state.lock:
                for kept in self._kept.values():
                    kept.users -= 1
                self._release_unused()
            self._host.done(self._state)

    def _answer(self, frame: Frame) -> _Answer:
        request, timeout_s = frame.data["request"], float(frame.data["timeout_s"])
        try:
            reply = self._replied(request, frame.blobs, timeout_s, Limits(**frame.data["limits"]))
        except KernelForgeError as error:
            return {"failure": type(error).__name__, "message": str(error)}, ()
        return {"reply": reply.data}, reply.blobs

    def _replied(self, request: dict[str, Any], blobs: Sequence[Blob], timeout_s: float, limits: Limits) -> Frame:
        op = request["op"]
        if op == "start":
            self._host.zygote.start()
            return Frame({"ok": True})
        if op == "load":
            self._load, self._limits = request, limits
            self._state, self._loaded = self._host.state_of(request), True
            with self._state.turn("load"):
                return self._main(timeout_s).loaded
        state = self._state
        if op == "begin":
            with state.lock:
                return Frame({"ok": True, "seed": str(state.batch.begin(int(request["seed"])))})
        if op == "end":
            with state.lock:
                state.batch.end()
            return Frame({"ok": True})
        if op in _CACHED and not self._is_about_further_size(request):
            return self._cached(request, timeout_s)
        if request.get("kept") or request.get("handle") in self._kept:
            return self._on_kept(request, blobs, timeout_s)
        if op in _OWN or op in _CACHED:
            return self._on_own(request, blobs, timeout_s)
        raise SandboxError(f"an oracle that is shared does not answer {op!r}")

    def _is_about_further_size(self, request: Mapping[str, Any]) -> bool:
        name = self._size["size"]["name"] if self._size else None
        return name is not None and name in (request.get("size"), *request.get("sizes", ()))

    def _main(self, timeout_s: float) -> _SharedOracle:
        """The task's main oracle, started if there is none. The task's lock is held."""
        state = self._state
        if state.main is None or not state.main.alive:
            state.main = self._host.started(state, self._load, self._limits, timeout_s)
        return state.main

    def _cached(self, request: dict[str, Any], timeout_s: float) -> Frame:
        """The answer to a question about the task, which is put to an oracle once."""
        state, key = self._state, json.dumps(request, sort_keys=True)
        with state.turn(key):
            if key not in state.answers:
                frame = self._main(timeout_s).call(request, (), timeout_s)
                if not frame.data.get("ok"):
                    return frame
                state.answers[key] = frame
                if request["op"] == "families":
                    state.scales = {**state.scales, request["size"]: frame.data["scales"]}
            return state.answers[key]

    def _on_kept(self, request: dict[str, Any], blobs: Sequence[Blob], timeout_s: float) -> Frame:
        """Make, compare with or release a draw of a batch, in the main oracle."""
        state, handle = self._state, request["handle"]
        if request["op"] == "draw":
            key = request["size"], request["family"], request["seed"]
            with state.turn("/".join(key)):
                if key not in state.kept:
                    main = self._main(timeout_s)
                    number, reply = main.draw(request, timeout_s)
                    if not reply.data.get("ok"):
                        return reply
                    state.kept[key] = _KeptDraw(request, main, number, Frame(reply.data, _in_files(reply.blobs)))
                self._kept[handle] = state.kept[key]
                state.kept[key].users += 1
                return state.kept[key].reply
        with state.lock:
            if request["op"] == "release":
                self._kept.pop(handle).users -= 1
                self._release_unused()
                return Frame({"ok": True})
            kept, main = self._kept[handle], self._main(timeout_s)
            if kept.oracle is not main:  # its process ended with the request of another evaluation
                kept.handle, reply = main.draw(kept.request, timeout_s)
                kept.oracle = main
                if not reply.data.get("ok"):
                    return reply
            return main.call({**request, "handle": kept.handle}, blobs, timeout_s)

    def _release_unused(self) -> None:
        """Release kept draws of which no evaluation is left. The task's lock is held."""
        state = self._state
        for key in [key for key, kept in state.kept.items() if not kept.users]:
            kept = state.kept.pop(key)
            if kept.oracle.alive:
                with contextlib.suppress(SandboxError):
                    kept.oracle.call({"op": "release", "handle": kept.handle}, (), self._limits.wall_s)

    def _on_own(self, request: dict[str, Any], blobs: Sequence[Blob], timeout_s: float) -> Frame:
        """Ask the oracle that this evaluation has for itself while it has draws."""
        state, op = self._state, request["op"]
        if op == "release" and request["handle"] not in self._draws:
            return Frame({"ok": True})  # it went with its process
        own = self._own or self._host.spare_of(state, self._before)
        if own is None:
            own = self._host.started(state, self._load, self._limits, timeout_s)
        with self._guard:
            self._own = self._before = own
        try:
            return self._own_reply(own, request, blobs, timeout_s)
        finally:
            if not own.alive:
                self._draws = {}
            if not self._draws:
                with self._guard:
                    self._own = None
            if not self._draws and own.alive:
                self._host.put_back(state, own)

    def _own_reply(self, own: _SharedOracle, request: dict[str, Any], blobs: Sequence[Blob], timeout_s: float) -> Frame:
        op = request["op"]
        if not own.loaded.data.get("ok"):
            own.close()
            return own.loaded
        if op == "size":
            self._size = own.size = request
        elif self._size is not None and own.size != self._size and self._is_about_further_size(request):
            own.call(self._size, (), timeout_s)
            own.size = self._size
        if op == "draw":
            if own.scales != self._state.scales:
                own.scales = self._state.scales
                own.call({"op": "scales", "scales": own.scales}, (), timeout_s)
            number, reply = own.draw(request, timeout_s)
            if reply.data.get("ok"):
                self._draws[request["handle"]] = number
            return reply
        if "handle" not in request:
            return own.call(request, blobs, timeout_s)
        number = self._draws.pop(request["handle"], 0) if op == "release" else self._draws.get(request["handle"], 0)
        return own.call({**request, "handle": number}, blobs, timeout_s)


def _in_files(blobs: Sequence[Blob]) -> tuple[Blob, ...]:
    """Blobs of which the large ones are in memory files, so that every receiver maps the same pages."""
    kept: list[Blob] = []
    for blob in blobs:
        descriptor = seal(memoryview(blob)) if len(blob) >= SMALLEST_FILE else None
        kept.append(blob if descriptor is None else MemoryFile.map(descriptor, len(blob), keep=True))
    return tuple(kept)


def main(fd: int, settings: str) -> None:
    """Serve the workers that connect to the listening socket ``fd``; ends with the process that started it.

    Args:
        fd: a listening socket.
        settings: ``allow_unconfined`` and ``most_bytes`` as JSON.
    """
    syscalls.prctl("prctl(PDEATHSIG)", syscalls.PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr, format="%(name)s: %(message)s")
    options = json.loads(settings)
    zygote = Zygote("oracle", allow_unconfined=options["allow_unconfined"])
    OracleHost(socket.socket(fileno=fd), zygote, most_bytes=options["most_bytes"]).serve()


if __name__ == "__main__":
    sys.exit("this module is started by kernelforge.workers.pool.LocalEngine")
