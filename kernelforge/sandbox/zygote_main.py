"""The zygote process: warms up once, then forks a confined, disposable child per request.

Each child is two processes: a *monitor*, which makes the namespaces, waits and reports how the child ended; and the
child proper, process 1 of its own namespace. The monitor dies with the zygote, the child with its monitor, and the
zygote when its parent closes the control socket.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import importlib
import json
import os
import signal
import socket
import sys
import traceback
import warnings
from types import ModuleType
from typing import Any, NoReturn

from kernelforge.errors import KernelForgeError, SandboxError
from kernelforge.sandbox import jail, syscalls
from kernelforge.sandbox.channel import Channel
from kernelforge.sandbox.policy import Limits
from kernelforge.sandbox.resource_monitor import open_proc, watch
from kernelforge.sandbox.shared_memory import SMALLEST_FILE

EXIT_CRASH, EXIT_MEMORY, EXIT_DISK, EXIT_JAIL = 70, 71, 72, 73
MAX_CONTROL_BYTES = 256 << 10
_SOCKET_BUFFER_BYTES = 4 << 20


def main(control_fd: int) -> NoReturn:
    """Serve the parent until it closes the control socket."""
    control = socket.socket(fileno=control_fd)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # monitors are reaped by the kernel
    warnings.simplefilter("ignore", DeprecationWarning)
    setup = json.loads(control.recv(MAX_CONTROL_BYTES))
    gc.disable()  # imports stay: searching them for garbage takes a sixth of torch's start
    try:
        grants: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in setup["grants"].items()
        }
        grants["reads_as_root"] = _reads_as_root(grants["tier"], setup["python"])
        worker = importlib.import_module(setup["module"])
        worker.warm_up(setup["options"])
        _check_forkable(grants["gpu_nodes"])
        gc.enable()
        gc.freeze()  # without a last search, which takes 0.4 s, for pages that children share in any case
        reply: dict[str, Any] = {"ready": True}
    except BaseException as error:
        text = str(error) if isinstance(error, KernelForgeError) else traceback.format_exc()[-8000:]
        reply = {"error": type(error).__name__, "message": text}
    control.send(json.dumps(reply).encode())
    if "ready" not in reply:
        os._exit(1)
    while request := control.recv(MAX_CONTROL_BYTES):
        _spawn(control, json.loads(request), grants, worker)
    os._exit(0)


def _reads_as_root(tier: str, python: list[str]) -> bool:
    """Whether children of root must keep the right to read any file, to read the granted Python.

    Without a private root they open files at their paths, and Python may be under ``/root``, which no other user can
    enter. Landlock lets them read granted files only. All roles are equal in this, so that the self-test covers the
    others.

    Raises:
        SandboxError: they could not read Python.
    """
    if tier != "landlock" or os.geteuid() != 0 or not syscalls.has_capabilities():
        return False
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    try:
        if jail.others_can_read(python):
            return False
    finally:
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    if syscalls.reading_capability() is None:
        raise SandboxError(
            f"processes in the jail are other users here, and cannot read {sys.prefix}: install Python and KernelForge "
            "where every user can read them, outside /root"
        )
    return True


def _check_forkable(gpu_nodes: tuple[str, ...]) -> None:
    """Check that no GPU is open: a CUDA context does not survive a fork, and its children could not use the GPU.

    Raises:
        SandboxError: the warm-up has opened a GPU.
    """
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            target = os.readlink(f"/proc/self/fd/{fd}")
            if target.removeprefix("/dev/") in gpu_nodes:
                raise SandboxError(f"its warm_up opened {target}: CUDA must not be used before the child is forked")


def _spawn(control: socket.socket, request: dict[str, Any], grants: dict[str, Any], worker: ModuleType) -> None:
    parent_end, child_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    for end in (parent_end, child_end):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SOCKET_BUFFER_BYTES)
    status_read, status_write = os.pipe()
    grant = jail.JailSpec(limits=Limits(**request["limits"]), tmp=request["tmp"], **grants)
    pid = os.fork()
    if pid == 0:
        _monitor(grant, child_end, status_write, worker)
    with contextlib.suppress(BrokenPipeError):
        socket.send_fds(
            control, [json.dumps({"id": request["id"], "pid": pid}).encode()], [parent_end.fileno(), status_read]
        )
    parent_end.close()
    child_end.close()
    os.close(status_read)
    os.close(status_write)


def _monitor(grant: jail.JailSpec, child_end: socket.socket, status: int, worker: ModuleType) -> NoReturn:
    """Fork the child into its namespaces, wait for it, and report its end."""
    report: dict[str, Any] = {"cause": "exit", "exit_code": EXIT_JAIL}
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        if grant.leaves_orphans:
            _lead_group()
        else:
            syscalls.prctl("prctl(PDEATHSIG)", syscalls.PR_SET_PDEATHSIG, signal.SIGKILL)
        syscalls.close_all_but({child_end.fileno(), status})
        outer_pid = os.getpid()
        proc = open_proc()
        failure = ""
        if grant.tier == "namespaces":
            try:
                jail.enter_namespaces()
            except OSError as error:
                failure = str(error)
        pid = os.fork()
        if pid == 0:
            os.close(status)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            _child(grant, child_end, outer_pid, failure, worker)
        child_end.close()
        report = _wait(pid, grant, proc)
    finally:
        with contextlib.suppress(OSError):
            os.write(status, json.dumps(report).encode())
        if grant.leaves_orphans:
            os.killpg(0, signal.SIGKILL)
        os._exit(0)


def _lead_group() -> None:
    """Lead a process group of the child and its processes that ends with this process."""
    os.setsid()
    # Orphans become children of this process, so that their memory counts.
    syscalls.prctl("prctl(CHILD_SUBREAPER)", syscalls.PR_SET_CHILD_SUBREAPER, 1)
    signal.signal(signal.SIGTERM, lambda *_: os.killpg(0, signal.SIGKILL))
    syscalls.prctl("prctl(PDEATHSIG)", syscalls.PR_SET_PDEATHSIG, signal.SIGTERM)


def _child(
    grant: jail.JailSpec, child_end: socket.socket, outer_pid: int, failure: str, worker: ModuleType
) -> NoReturn:
    """Confine the process, report it, and serve."""
    code = EXIT_CRASH
    try:
        channel = Channel(child_end, files_from=SMALLEST_FILE if grant.gpu or grant.files else None, trusts=grant.files)
        try:
            if failure:
                raise OSError(failure)
            layers = jail.confine(grant, {child_end.fileno()}, outer_pid)
        except BaseException as error:
            channel.send({"jail_error": f"{type(error).__name__}: {error}"}, timeout_s=5)
            os._exit(EXIT_JAIL)
        channel.send({"layers": layers}, timeout_s=5)
        code = _serve(channel, worker)
    finally:
        os._exit(code)


def _serve(channel: Channel, worker: ModuleType) -> int:
    """Do the role's work; returns the exit code."""
    try:
        worker.serve(channel)
        return 0
    except MemoryError:
        return EXIT_MEMORY
    except Exception as error:
        if isinstance(error, OSError) and error.errno == errno.ENOSPC:
            return EXIT_DISK
        channel.send({"crash": traceback.format_exc()[-8000:]}, timeout_s=5)
        return EXIT_CRASH


def _wait(pid: int, grant: jail.JailSpec, proc: int) -> dict[str, Any]:
    """Wait for the child and report its end."""
    over = watch(pid, grant, proc)
    _, status, usage = os.wait4(pid, 0)
    report: dict[str, Any] = {
        "max_rss_bytes": usage.ru_maxrss * 1024,
        "cpu_s": usage.ru_utime + usage.ru_stime,
        "exit_code": None,
        "signal": None,
    }
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        spent = report["cpu_s"] >= grant.limits.cpu_s
        if over:
            cause = str(over)
        elif number == signal.SIGXCPU or (number == signal.SIGKILL and spent):
            cause = "cpu"
        else:
            cause = "memory" if number == signal.SIGKILL else "signal"
        return {**report, "cause": cause, "signal": number}
    code = os.WEXITSTATUS(status)
    if code == signal.SIGABRT:
        return {**report, "cause": "signal", "signal": code}
    cause = {EXIT_MEMORY: "memory", EXIT_DISK: "disk"}.get(code, "exit")
    return {**report, "cause": cause, "exit_code": code}


if __name__ == "__main__":
    sys.exit("this module is started by kernelforge.sandbox.Zygote")
