"""Child process of the jail self-test: attempts each escape and reports which succeeded."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from kernelforge.sandbox import syscalls
from kernelforge.sandbox.channel import Channel


def read_file(path: str) -> str:
    """Content of a file, in which the parent looks for a canary."""
    with open(path, "rb") as file:
        return file.read(65536).decode("utf-8", "replace")


def write_file(path: str) -> str:
    with open(path, "ab") as file:
        file.write(b"x")
    return "written"


def truncate_file(path: str) -> str:
    os.truncate(path, 0)
    return "truncated"


def open_truncating(path: str) -> str:
    """Open for reading with truncation, which Linux allows."""
    os.close(os.open(path, os.O_RDONLY | os.O_TRUNC))
    return "truncated"


def open_truncating_without_access(path: str) -> str:
    """Open with truncation neither for reading nor for writing, which Linux allows."""
    os.close(os.open(path, os.O_ACCMODE | os.O_TRUNC))
    return "truncated"


def change_mode(path: str) -> str:
    os.chmod(path, 0o604)
    return _changed(os.stat(path).st_mode & 0o777 == 0o604)


def change_times(path: str) -> str:
    os.utime(path, (1, 1))
    return _changed(os.stat(path).st_mtime == 1)


def change_owner(path: str) -> str:
    before = os.stat(path).st_uid
    os.chown(path, os.getuid(), os.getgid())
    return _changed(os.stat(path).st_uid != before)


def change_attributes(path: str) -> str:
    os.setxattr(path, "user.kernelforge", b"x")
    return _changed("user.kernelforge" in os.listxattr(path))


def _changed(changed: bool) -> str:
    if not changed:
        raise PermissionError("it seemed to succeed, and changed nothing")
    return "changed"


def limit_process(pid: int) -> str:
    if pid == os.getpid():
        raise ProcessLookupError("no other process has this number here")
    resource.prlimit(pid, resource.RLIMIT_CORE, resource.prlimit(pid, resource.RLIMIT_CORE))
    return "limited"


def schedule_process(pid: int) -> str:
    if pid == os.getpid():
        raise ProcessLookupError("no other process has this number here")
    os.sched_setaffinity(pid, os.sched_getaffinity(pid))
    return "given its processors"


def prioritise_process(pid: int) -> str:
    if pid == os.getpid():
        raise ProcessLookupError("no other process has this number here")
    of_process, who = ctypes.c_int(1), ctypes.c_int(pid)
    priority = syscalls.syscall("ioprio_get", syscalls.number("ioprio_get"), of_process, who)
    syscalls.syscall("ioprio_set", syscalls.number("ioprio_set"), of_process, who, ctypes.c_int(priority))
    return "given its priority"


def environment() -> str:
    return "\n".join(f"{name}={value}" for name, value in os.environ.items())


def descriptors() -> str:
    """Open descriptors that are neither /dev/null nor the channel."""
    null = os.fstat(0)
    open_fds = []
    for fd in range(3, 4096):
        with contextlib.suppress(OSError):
            facts = os.fstat(fd)
            if (facts.st_dev, facts.st_ino) != (null.st_dev, null.st_ino):
                open_fds.append(str(fd))
    return " ".join(open_fds)


def tcp(port: int) -> str:
    socket.create_connection(("127.0.0.1", port), timeout=1.0).close()
    return "connected"


def udp(port: int) -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.sendto(b"x", ("127.0.0.1", port))
    return "sent"


def unix(address: str) -> str:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.connect(address)
    return "connected"


def peek_memory(pid: int, address: int, length: int) -> str:
    """Read another process's memory by ``process_vm_readv``."""

    class Piece(ctypes.Structure):
        _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]

    buffer = ctypes.create_string_buffer(length)
    local, remote = Piece(ctypes.addressof(buffer), length), Piece(address, length)
    libc = ctypes.CDLL(None, use_errno=True)
    got = libc.process_vm_readv(
        pid, ctypes.byref(local), ctypes.c_ulong(1), ctypes.byref(remote), ctypes.c_ulong(1), ctypes.c_ulong(0)
    )
    if got < 0:
        raise OSError(ctypes.get_errno(), "process_vm_readv")
    return buffer.raw[:got].decode("utf-8", "replace")


def signal_process(pid: int) -> str:
    if pid == os.getpid():
        # The parent is process 1 of a container, and this child process 1 of its own namespace.
        raise ProcessLookupError("no other process has this number here")
    os.kill(pid, 0)
    return "signalled"


def trace_process(pid: int) -> str:
    libc = ctypes.CDLL(None, use_errno=True)
    attach, detach = 16, 17
    if libc.ptrace(ctypes.c_long(attach), pid, None, None) < 0:
        raise OSError(ctypes.get_errno(), "ptrace")
    libc.ptrace(ctypes.c_long(detach), pid, None, None)
    return "attached"


def fork() -> str:
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    return "forked"


def run_program(path: str) -> str:
    return str(subprocess.run([path], timeout=30, check=False).returncode)


def gain_privileges() -> str:
    if os.getuid() != 0:
        os.setuid(0)
    if not syscalls.has_capabilities():
        raise PermissionError("no capability")
    return f"uid {os.getuid()} with capabilities"


DOORS: dict[str, Callable[..., str]] = {
    door.__name__: door
    for door in (
        read_file, write_file, truncate_file, open_truncating, open_truncating_without_access, change_mode,
        change_times, change_owner, change_attributes, limit_process, schedule_process,
        prioritise_process, environment, descriptors, tcp, udp, unix,
        peek_memory, signal_process, trace_process, fork, run_program, gain_privileges,
    )
}  # fmt: skip


def warm_up(options: dict[str, Any]) -> None:
    """Import the modules of all attempts: the jail has no files."""
    signal.getsignal(signal.SIGTERM)
    "warm".encode("idna")
    assert sys.flags.isolated


def serve(channel: Channel) -> None:
    """Answer ``{"door": name, "arguments": [...]}`` with the result of the attempt or its error."""
    for frame in channel.requests():
        try:
            reply = {"opened": True, "gave": DOORS[frame.data["door"]](*frame.data["arguments"])}
        except Exception as error:
            reply = {"opened": False, "gave": f"{type(error).__name__}: {error}"}
        channel.send(reply)
