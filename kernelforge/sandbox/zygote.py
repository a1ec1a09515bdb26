"""Handles in the parent: a warm, trusted zygote process, and the confined children it forks."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import cached_property
from typing import Any, Self

from kernelforge import errors
from kernelforge.errors import ChildDied, ChildTimeout, SandboxError
from kernelforge.sandbox import gpu_access
from kernelforge.sandbox.channel import Channel, Frame
from kernelforge.sandbox.jail import Tier
from kernelforge.sandbox.policy import ExitReport, Limits, RolePolicy, extra_environment, import_path, role_policy
from kernelforge.sandbox.resource_monitor import open_proc, tree_bytes, tree_cpu_ticks
from kernelforge.sandbox.shared_memory import SMALLEST_FILE, Blob
from kernelforge.sandbox.syscalls import Process
from kernelforge.utils.tree_cleanup import remove_tree

_START = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[2]); "
    "from kernelforge.sandbox.zygote_main import main; main(int(sys.argv[1]))"
)
_WARM_UP_S, _SPAWN_S = 1800.0, 300.0
"""Far above the need of a machine that has little else to do: a busy one is no reason to give up a task."""
_MAX_JSON_BYTES = 16 << 20
_MAX_TRACE = 8000
_LOOKS = 12
"""At a child's CPU time, in the time after which it counts as hanging, or else in a minute."""
_LOOK_S = 60.0
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class ZygoteProcess:
    """One warm, trusted process that forks confined children of one role in a few milliseconds.

    It starts on first use, in its own session (Ctrl-C does not reach it), with the environment of its role and no
    descriptor but its control socket. The next :meth:`spawn` restarts a zygote that died. Safe to use from several
    threads.

    Args:
        role: A table of ``sandbox/jail.toml``: ``compiler``, ``runner``, ``oracle``, ``gpu-runner``...
        tier: Returns the jail tier of the children; called at the first start.
        options: Passed to the role's ``warm_up``.
        environment: Variables added to the role's own, of those that it ``passes``: ``CUDA_VISIBLE_DEVICES`` with
            the UUID of a GPU gives the children that GPU's device node alone.
        policy: Grants to use instead of the role's own.
    """

    def __init__(
        self,
        role: str,
        tier: Callable[[], Tier],
        *,
        options: Mapping[str, Any] | None = None,
        environment: Mapping[str, str] | None = None,
        policy: RolePolicy | None = None,
    ) -> None:
        self.role = role
        self._options = dict(options or {})
        self._find_tier = tier
        self._policy = policy or role_policy(role)
        self._environment = self._policy.environment | extra_environment(self._policy, environment or {})
        self._lock = threading.Lock()
        self._requests = 0
        self._control: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._children: weakref.WeakSet[Child] = weakref.WeakSet()
        self._children_lock = threading.Lock()

    @cached_property
    def tier(self) -> Tier:
        """The jail tier of the children.

        Raises:
            SandboxError: no tier works here and running unconfined was not allowed.
        """
        return self._find_tier()

    @property
    def pid(self) -> int | None:
        """Process id of the running zygote."""
        return None if self._process is None else self._process.pid

    def start(self) -> None:
        """Start and warm up now rather than at the first :meth:`spawn`; no effect if it is running."""
        with self._lock:
            self._running()

    def spawn(self, limits: Limits | None = None) -> Child:
        """Fork one confined child.

        Raises:
            SandboxError: the zygote does not start, or the jail cannot be built. Also any
                :class:`~kernelforge.errors.KernelForgeError` that the role's ``warm_up`` raised.
        """
        limits = limits or Limits()
        tmp = tempfile.mkdtemp(prefix="kernelforge-") if self.tier != "namespaces" else None
        try:
            child = self._fork(limits, tmp)
        except BaseException:
            if tmp is not None:
                remove_tree(tmp)
            raise
        with self._children_lock:
            self._children.add(child)
        try:
            child.await_jail(_SPAWN_S)
        except BaseException:
            child.close()
            raise
        return child

    def interrupt(self) -> None:
        """End the children's calls that other threads wait for: see :meth:`Child.interrupt`."""
        with self._children_lock:
            children = tuple(self._children)
        for child in children:
            child.interrupt()

    def close(self) -> None:
        """End the zygote and its remaining children."""
        with self._lock:
            self._stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _fork(self, limits: Limits, tmp: str | None) -> Child:
        with self._lock:
            self._requests += 1
            request = json.dumps({"id": self._requests, "limits": asdict(limits), "tmp": tmp}).encode()
            for last in (False, True):
                control = self._running()
                try:
                    control.send(request)
                    pid, channel_fd, status_fd = self._reply(control)
                    leads_group = tmp is not None and self._policy.programs
                    files_from = SMALLEST_FILE if self._policy.gpu or self._policy.files else None
                    return Child(
                        self.role,
                        pid,
                        channel_fd,
                        status_fd,
                        limits,
                        tmp,
                        leads_group=leads_group,
                        files_from=files_from,
                    )
                except OSError as error:
                    reason = str(error)
                self._stop()
                if last:
                    raise SandboxError(f"the {self.role} zygote died twice while forking a child: {reason}")
        raise AssertionError("unreachable")

    def _reply(self, control: socket.socket) -> tuple[int, int, int]:
        """Process id and descriptors of the latest child; closes those of one that Ctrl-C left unclaimed."""
        while True:
            data, fds, _, _ = socket.recv_fds(control, 4096, 2)
            if not data or len(fds) != 2:
                raise ConnectionResetError("it closed its control socket")
            reply = json.loads(data)
            if reply["id"] == self._requests:
                return reply["pid"], fds[0], fds[1]
            for fd in fds:
                os.close(fd)

    def _running(self) -> socket.socket:
        """The control socket of a warm zygote. The lock is held."""
        if self._control is not None and self._process is not None and self._process.poll() is None:
            return self._control
        self._stop()
        parent_end, child_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-c", _START, str(child_end.fileno()), json.dumps(import_path())],
                env={name: value.replace("{tmp}", "/tmp") for name, value in self._environment.items()},
                pass_fds=[child_end.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd="/",
                start_new_session=True,
            )
        except OSError as error:
            parent_end.close()
            raise SandboxError(f"cannot start the {self.role} zygote: {error}") from error
        finally:
            child_end.close()
        self._control = parent_end
        policy = self._policy
        visible = self._environment.get("CUDA_VISIBLE_DEVICES", "")
        grants = {
            "tier": self.tier,
            "mounts": policy.mounts,
            "devices": policy.devices,
            "headroom_bytes": policy.headroom_bytes,
            "gpu_nodes": gpu_access.device_nodes(visible) if policy.gpu else (),
            "gpu": policy.gpu,
            "programs": policy.programs,
            "files": policy.files,
            "processes": policy.processes,
            "tmp_environment": {name: value for name, value in self._environment.items() if "{tmp}" in value},
        }
        setup = {
            "module": policy.module,
            "grants": grants,
            "python": role_policy("oracle").mounts,
            "options": self._options,
        }
        try:
            parent_end.settimeout(_WARM_UP_S)
            parent_end.send(json.dumps(setup).encode())
            reply = json.loads(parent_end.recv(256 << 10) or b"{}")
            parent_end.settimeout(_SPAWN_S)
        except TimeoutError as error:
            self._stop()
            raise SandboxError(
                f"the {self.role} zygote was not warm in {_WARM_UP_S:g} s: the machine has too much to do, or "
                "something like libfaketime speeds the clock up; try again without it"
            ) from error
        except (OSError, ValueError) as error:
            self._stop()
            raise SandboxError(f"the {self.role} zygote did not warm up: {error}") from error
        except KeyboardInterrupt:
            self._stop()
            raise
        if not reply.get("ready"):
            code = self._stop()
            kind = getattr(errors, str(reply.get("error")), SandboxError)
            message = reply.get("message") or f"it ended with status {code} before it was warm"
            if not issubclass(kind, errors.KernelForgeError):
                kind = SandboxError
            raise kind(message if kind is not SandboxError else f"the {self.role} zygote failed: {message}")
        return parent_end

    def _stop(self) -> int | None:
        control, process = self._control, self._process
        self._control = self._process = None
        if control is not None:
            control.close()
        if process is None:
            return None
        try:
            return process.wait(timeout=2.0)
        except subprocess.TimeoutExpired:
            process.kill()
            return process.wait()


class Child:
    """One confined, disposable child: a channel, and the means to end it."""

    def __init__(
        self,
        role: str,
        pid: int,
        channel_fd: int,
        status_fd: int,
        limits: Limits,
        tmp: str | None,
        *,
        leads_group: bool = False,
        files_from: int | None = None,
    ) -> None:
        self.role = role
        self.pid = pid
        """Process id of the child's monitor; the child dies with it."""
        self.limits = limits
        self.layers: tuple[str, ...] = ()
        """Layers of the jail in force, outermost first."""
        sock = socket.socket(fileno=channel_fd)
        self.channel = Channel(
            sock,
            max_blob_bytes=limits.reply_bytes,
            max_json_bytes=_MAX_JSON_BYTES,
            forwards=True,
            files_from=files_from,
        )
        self._status_fd: int | None = status_fd
        self._tmp = tmp
        self._killed = False
        self._waited_for = False
        self._over = False
        """Whether it was killed. Earlier replies may still be in the channel and must not be read."""
        self._ending = threading.Lock()
        self._leads_group = leads_group
        self._death: ExitReport | None = None
        self._process: Process | None = None
        """None after its end."""
        with contextlib.suppress(ProcessLookupError):
            self._process = Process(pid)

    def call(
        self,
        data: dict[str, Any],
        blobs: Sequence[Blob] = (),
        *,
        timeout_s: float | None = None,
        reply_bytes: int | None = None,
    ) -> Frame:
        """Send a request and wait for its reply, at most ``timeout_s`` (default: the wall limit).

        ``reply_bytes`` caps the blobs of this reply below the child's limit.

        Raises:
            ChildTimeout: no reply in time, or no work on it; the child has been killed.
            ChildDied: the child ended first; the message says how.
            SandboxError: the reply breaks the frame format; the child has been killed.
        """
        if self._over:
            raise self._died()
        wait = self.limits.wall_s if timeout_s is None else timeout_s
        self._waited_for, over = True, ""
        try:
            cap = self.limits.reply_bytes
            self.channel.max_blob_bytes = cap if reply_bytes is None else min(cap, reply_bytes)
            self.channel.send(data, blobs, timeout_s=wait)
            until = time.monotonic() + wait
            over = self._await_reply(until)
            frame = self.channel.receive(timeout_s=0.0 if over else until - time.monotonic())
        except ChildTimeout as error:
            self.kill()
            how = over or f"gave no answer in {wait:g} s"
            raise ChildTimeout(f"the {self.role} child {how} and was killed") from error
        except ChildDied as error:
            raise self._died() from error
        except BaseException:
            # Also after Ctrl-C: the reply to come would be taken for that of the next request.
            self.kill()
            raise
        finally:
            self._waited_for = False
        if "crash" in frame.data:
            raise self._died(str(frame.data["crash"]))
        return frame

    def _await_reply(self, until: float) -> str:
        """Wait for the beginning of a reply, at most ``until``, or as long as the limits of CPU time allow: then what
        the child did is returned."""
        idle_s, most_s = self.limits.idle_s, self.limits.answer_cpu_s
        if idle_s is None and most_s is None:
            return ""
        proc = open_proc()
        try:
            first = used = tree_cpu_ticks(self.pid, proc)
            since = time.monotonic()
            while not self.channel.has_data(min((idle_s or _LOOK_S) / _LOOKS, until - time.monotonic())):
                before, used = used, tree_cpu_ticks(self.pid, proc)
                now = time.monotonic()
                if now >= until:
                    return ""
                if used is None or used != before:
                    since = now
                elif idle_s is not None and now - since >= idle_s:
                    return f"used no processor for {idle_s:g} s"
                if most_s is not None and used is not None and used - (first or 0) > most_s * _TICKS_PER_S:
                    return f"gave no answer in {most_s:g} s of CPU time"
        finally:
            os.close(proc)
        return ""

    @property
    def ended(self) -> bool:
        """Whether it ended or was killed, so that it answers no further request."""
        return self._over or self.channel.closed

    @property
    def gone(self) -> bool:
        """Whether its monitor has ended, without which the kernel ends the child."""
        return self._process is None or self._process.ended()

    def memory_bytes(self) -> int:
        """Resident memory of the child and its processes, including pages shared with its zygote; 0 after its end."""
        proc = open_proc()
        try:
            return tree_bytes(self.pid, proc, exactly=False)
        finally:
            os.close(proc)

    def await_jail(self, timeout_s: float) -> None:
        """Wait until the child reports that it is confined.

        Raises:
            SandboxError: its jail could not be built.
        """
        try:
            frame = self.channel.receive(timeout_s=timeout_s)
        except ChildDied as error:
            raise SandboxError(f"the {self.role} child died while its jail was built: {self.death()}") from error
        if "layers" not in frame.data:
            raise SandboxError(f"the jail of the {self.role} child cannot be built: {frame.data.get('jail_error')}")
        self.layers = tuple(frame.data["layers"])

    def kill(self) -> None:
        """Kill the child and its processes; returns after their end."""
        self._over = True
        if self._process is None:
            return
        if self._death is None:
            self._signal()
            self.death()
        # Also for a child that reported its end: its processes end after that.
        self._await_exit()

    def interrupt(self) -> None:
        """Kill the child if another thread is in :meth:`call`, which then raises :class:`ChildDied`.

        The only method that may be called from any thread. Without a waiting thread it does nothing.
        """
        if self._waited_for:
            self._signal()

    def _signal(self) -> None:
        with self._ending:
            if self._process is None:
                return
            self._killed = True
            if self._leads_group:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self.pid, signal.SIGKILL)
            self._process.kill()

    def _await_exit(self, timeout_s: float = 5.0) -> None:
        """Wait for the end of the child's processes. A dying process closes its files, by which its death is seen,
        before the kernel ends its children: until then, one of them could still answer a request."""
        if self._process is not None:
            self._process.ended(timeout_s)

    def death(self, timeout_s: float = 5.0) -> ExitReport | None:
        """Report on the child's end; None if it still runs after ``timeout_s``."""
        if self._death is None and self._status_fd is not None:
            poller = select.poll()
            poller.register(self._status_fd, select.POLLIN)
            if not poller.poll(timeout_s * 1000):
                return None
            text = os.read(self._status_fd, 4096)
            facts = json.loads(text) if text else {"cause": "signal", "signal": int(signal.SIGKILL)}
            if self._killed and not text:
                facts = {"cause": "killed", "signal": int(signal.SIGKILL)}
            self._death = ExitReport(**facts)
        return self._death

    def close(self) -> None:
        """Kill the child if it still runs, and free its resources."""
        self.kill()
        self.channel.close()
        with self._ending:
            if self._status_fd is not None:
                os.close(self._status_fd)
            if self._process is not None:
                self._process.close()
            self._status_fd = self._process = None
        if self._tmp is not None:
            remove_tree(self._tmp)
            self._tmp = None

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _died(self, trace: str = "") -> ChildDied:
        death = self.death()
        message = f"the {self.role} child ended without an answer: {death or 'still running, channel closed'}"
        if trace:
            message = f"the {self.role} child failed: {_raised(trace)}"
        error = ChildDied(
            message,
            signal=None if death is None else death.signal,
            exit_code=None if death is None else death.exit_code,
        )
        if trace:
            error.add_note(f"In the child:\n{trace.rstrip()[-_MAX_TRACE:]}")  # for --debug and logs
        return error


def _raised(trace: str) -> str:
    """The exception in a traceback: the first line after its last frame."""
    lines = trace.rstrip().split("\n")
    last = max((at for at, line in enumerate(lines) if line.startswith("  ")), default=-1)
    return (lines[last + 1] if last + 1 < len(lines) else lines[-1])[:500]
