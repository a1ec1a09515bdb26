"""Linux system calls of the jail, by ctypes. Every failure is an OSError that names the call."""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import select
import signal
import struct
import time
from functools import cache

CLONE_NEWNS = 0x00020000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC = 1, 2, 4, 8
MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = 32, 4096, 16384, 1 << 18
MNT_DETACH = 2

PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS, PR_CAP_AMBIENT = 1, 4, 24, 38, 47
PR_CAP_AMBIENT_RAISE, PR_CAP_AMBIENT_CLEAR_ALL = 2, 4
PR_SET_KEEPCAPS = 8
CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH = 1, 2
PR_SET_CHILD_SUBREAPER = 36

_CAPABILITY_VERSION = 0x20080522

_NUMBERS = {
    "x86_64": {"pivot_root": 155, "capset": 126, "capget": 125, "seccomp": 317, "ioprio_set": 251, "ioprio_get": 252},
    "aarch64": {"pivot_root": 41, "capset": 91, "capget": 90, "seccomp": 277, "ioprio_set": 30, "ioprio_get": 31},
}
# Numbers from 424 on are the same on every architecture.
NR_CLOSE_RANGE, NR_MOUNT_SETATTR = 436, 442
NR_LANDLOCK_CREATE, NR_LANDLOCK_ADD, NR_LANDLOCK_RESTRICT = 444, 445, 446


@cache
def libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def number(name: str) -> int:
    """System call number of ``name`` here; OSError on a processor that is not supported."""
    try:
        return _NUMBERS[platform.machine()][name]
    except KeyError:
        raise OSError(38, f"{name}: unknown system call number on {platform.machine()}") from None


def syscall(what: str, nr: int, *args: object) -> int:
    call = libc().syscall
    call.restype = ctypes.c_long
    return _check(call(ctypes.c_long(nr), *args), what)


def unshare(flags: int) -> None:
    _check(libc().unshare(ctypes.c_int(flags)), "unshare")


def mount(source: str | None, target: str, kind: str | None, flags: int, data: str | None = None) -> None:
    def text(value: str | None) -> ctypes.c_char_p:
        return ctypes.c_char_p(None if value is None else os.fsencode(value))

    _check(
        libc().mount(text(source), text(target), text(kind), ctypes.c_ulong(flags), text(data)), f"mount on {target}"
    )


class _MountAttr(ctypes.Structure):
    _fields_ = [
        ("set", ctypes.c_uint64),
        ("clear", ctypes.c_uint64),
        ("propagation", ctypes.c_uint64),
        ("fd", ctypes.c_uint64),
    ]


def bind_read_only(source: str, target: str) -> None:
    """Bind ``source``, with everything mounted under it, on ``target``; not writable, no devices, no set-uid."""
    _bind(source, target, MS_NOSUID | MS_RDONLY | MS_NODEV)


def bind_device(source: str, target: str, *, executable: bool = False) -> None:
    """Bind a device node; ``executable`` allows its driver executable mappings."""
    _bind(source, target, MS_NOSUID if executable else MS_NOSUID | MS_NOEXEC)


def _bind(source: str, target: str, flags: int) -> None:
    mount(source, target, None, MS_BIND | MS_REC)
    attributes = _MountAttr(set=flags)
    at_fdcwd, at_recursive = -100, 0x8000
    try:
        syscall(
            "mount_setattr", NR_MOUNT_SETATTR, ctypes.c_int(at_fdcwd), ctypes.c_char_p(os.fsencode(target)),
            ctypes.c_uint(at_recursive), ctypes.byref(attributes), ctypes.c_size_t(ctypes.sizeof(attributes)),
        )  # fmt: skip
    except OSError as error:
        if error.errno != 38:
            raise
        # Before Linux 5.12 only the top mount can be changed; its current flags must be repeated.
        current = os.statvfs(target).f_flag & (MS_NOSUID | MS_NODEV | MS_NOEXEC | MS_RDONLY | 1024 | 2048 | 4096)
        mount(None, target, None, MS_REMOUNT | MS_BIND | flags | (current & 15))


def pivot_root_here() -> None:
    """Make the working directory the root and unmount the old root."""
    syscall("pivot_root", number("pivot_root"), ctypes.c_char_p(b"."), ctypes.c_char_p(b"."))
    _check(libc().umount2(ctypes.c_char_p(b"."), ctypes.c_int(MNT_DETACH)), "umount2")
    os.chdir("/")


def prctl(what: str, option: int, argument: int = 0) -> None:
    zero = ctypes.c_ulong(0)
    _check(libc().prctl(ctypes.c_int(option), ctypes.c_ulong(argument), zero, zero, zero), what)


def drop_capabilities(*, but: int | None = None) -> None:
    """Empty the bounding, ambient, permitted, effective and inheritable sets, except for the capability ``but``.

    Programs that are run inherit that one.
    """
    for capability in range(64):
        try:
            prctl("prctl(CAPBSET_DROP)", PR_CAPBSET_DROP, capability)
        except OSError as error:
            if error.errno == 22:
                break
            if error.errno != 1:
                raise
    prctl("prctl(CAP_AMBIENT)", PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL)
    bits = 0 if but is None else 1 << but
    header = struct.pack("<Ii", _CAPABILITY_VERSION, 0)
    sets = struct.pack("<6I", bits, bits, bits, 0, 0, 0)
    syscall("capset", number("capset"), ctypes.c_char_p(header), ctypes.c_char_p(sets))
    if but is not None:
        zero = ctypes.c_ulong(0)
        arguments = (PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, but)
        _check(libc().prctl(*map(ctypes.c_ulong, arguments), zero, zero), "prctl(CAP_AMBIENT_RAISE)")


def has_capabilities() -> bool:
    """Whether this thread may use any capability."""
    return bool(permitted_capabilities())


def permitted_capabilities() -> int:
    """This thread's permitted set, a bit each."""
    header = struct.pack("<Ii", _CAPABILITY_VERSION, 0)
    data = ctypes.create_string_buffer(24)
    syscall("capget", number("capget"), ctypes.c_char_p(header), data)
    _, low, _, _, high, _ = struct.unpack("<6I", data.raw)
    return int(low | high << 32)


def reading_capability() -> int | None:
    """The narrowest capability of this thread for reading any file; None if it has none."""
    permitted = permitted_capabilities()
    return next((bit for bit in (CAP_DAC_READ_SEARCH, CAP_DAC_OVERRIDE) if permitted >> bit & 1), None)


def exit_on_abort() -> None:
    """Make ``abort()`` end the process with exit code 6 (SIGABRT).

    Process 1 of a namespace ignores signals it sends itself, so an abort would look like an invalid access.
    """
    libc().signal(ctypes.c_int(6), ctypes.cast(libc()._exit, ctypes.c_void_p))


def close_all_but(keep: set[int]) -> None:
    """Close every descriptor outside ``keep``."""
    low = 0
    for fd in [*sorted(keep), 1 << 20]:
        if low < fd:
            os.closerange(low, fd) if fd < 1 << 20 else _close_from(low)
        low = fd + 1


def _close_from(low: int) -> None:
    try:
        syscall("close_range", NR_CLOSE_RANGE, ctypes.c_uint(low), ctypes.c_uint(0xFFFFFFFF), ctypes.c_uint(0))
    except OSError:
        os.closerange(low, os.sysconf("SC_OPEN_MAX"))


class Process:
    """A handle of a process that never refers to a later one with the same number.

    It uses a descriptor of the process (``pidfd_open``, Linux 5.3); on an older kernel, or with a Python built without
    that call, the process's folder in ``/proc``, which is empty after its end.

    Args:
        pid: Its number.
        proc: A descriptor of ``/proc``; by default it is looked up by name.

    Raises:
        ProcessLookupError: there is no such process.
    """

    _POLL_S = 0.01

    def __init__(self, pid: int, proc: int | None = None) -> None:
        self.pid = pid
        self._folder: int | None = None
        self._pidfd = _pidfd(pid)
        if self._pidfd is None:
            try:
                path = str(pid) if proc is not None else f"/proc/{pid}"
                self._folder = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=proc)
            except FileNotFoundError:
                raise ProcessLookupError(errno.ESRCH, f"no process {pid}") from None

    def ended(self, timeout_s: float = 0.0) -> bool:
        """Whether it has ended, with all its threads; waits at most ``timeout_s``."""
        if self._pidfd is not None:
            poller = select.poll()
            poller.register(self._pidfd, select.POLLIN)
            return bool(poller.poll(timeout_s * 1000))
        end = time.monotonic() + timeout_s
        while not self._dead():
            remaining = end - time.monotonic()
            if remaining <= 0:
                return False
            time.sleep(min(remaining, self._POLL_S))
        return True

    def kill(self) -> None:
        """Kill it, unless it has ended."""
        try:
            if self._pidfd is not None:
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
            elif not self._dead():
                os.kill(self.pid, signal.SIGKILL)
        except ProcessLookupError:
            return

    def close(self) -> None:
        """Close the handle."""
        for descriptor in (self._pidfd, self._folder):
            if descriptor is not None:
                os.close(descriptor)

    def _dead(self) -> bool:
        """Whether it has ended, or is a zombie without threads: fields 3 and 20 of proc_pid_stat(5)."""
        try:
            with open(os.open("stat", os.O_RDONLY | os.O_CLOEXEC, dir_fd=self._folder)) as file:
                fields = file.read().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            return True
        return fields[0] in "ZX" and int(fields[17]) <= 1


def _pidfd(pid: int) -> int | None:
    """A descriptor of a process; None if this kernel or this Python has none."""
    if not hasattr(os, "pidfd_open") or not hasattr(signal, "pidfd_send_signal"):
        return None
    try:
        return os.pidfd_open(pid)
    except OSError as error:
        if error.errno in (errno.ENOSYS, errno.EPERM):
            return None  # EPERM: the answer of an older container engine's filter to unknown calls
        raise
