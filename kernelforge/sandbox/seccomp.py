"""The seccomp filter: refuses sockets, new programs and processes, tracing, namespaces and keys.

The filter names what is refused rather than what is allowed: LLVM, torch and the C library change the calls they
make between versions, and the file system, the network and other processes are closed by other layers as well.
A refused call fails with EPERM (``clone3`` with ENOSYS, so that the C library falls back to ``clone``, whose flags
can be read). A call under another ABI kills the process. :class:`Openings` are calls that some roles may make.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
from collections.abc import Mapping
from dataclasses import dataclass

from kernelforge.sandbox import syscalls

_SAME = {
    "pidfd_send_signal": 424, "io_uring_setup": 425, "io_uring_enter": 426, "io_uring_register": 427,
    "open_tree": 428, "move_mount": 429, "fsopen": 430, "fsconfig": 431, "fsmount": 432, "fspick": 433,
    "pidfd_open": 434, "pidfd_getfd": 438, "process_madvise": 440, "mount_setattr": 442, "memfd_secret": 447,
    "process_mrelease": 448, "set_mempolicy_home_node": 450, "statmount": 457, "listmount": 458,
}  # fmt: skip
_X86_64 = {
    "socket": 41, "connect": 42, "accept": 43, "bind": 49, "listen": 50, "socketpair": 53, "accept4": 288,
    "fork": 57, "vfork": 58, "execve": 59, "execveat": 322,
    "ptrace": 101, "process_vm_readv": 310, "process_vm_writev": 311, "kcmp": 312, "perf_event_open": 298,
    "rt_sigqueueinfo": 129, "rt_tgsigqueueinfo": 297, "tkill": 200,
    "shmget": 29, "shmat": 30, "semget": 64, "msgget": 68, "mq_open": 240, "memfd_create": 319,
    "unshare": 272, "setns": 308, "mount": 165, "umount2": 166, "pivot_root": 155, "chroot": 161,
    "name_to_handle_at": 303, "open_by_handle_at": 304, "swapon": 167, "swapoff": 168, "reboot": 169,
    "sethostname": 170, "setdomainname": 171, "init_module": 175, "finit_module": 313, "delete_module": 176,
    "kexec_load": 246, "kexec_file_load": 320, "acct": 163, "quotactl": 179, "bpf": 321, "userfaultfd": 323,
    "add_key": 248, "request_key": 249, "keyctl": 250, "iopl": 172, "ioperm": 173, "syslog": 103,
    "settimeofday": 164, "clock_settime": 227, "clock_adjtime": 305, "adjtimex": 159, "personality": 135,
    "mknod": 133, "mknodat": 259, "move_pages": 279, "migrate_pages": 256, "lookup_dcookie": 212, "vhangup": 153,
    "fanotify_init": 300, "setpriority": 141,
}  # fmt: skip
_AARCH64 = {
    "socket": 198, "connect": 203, "accept": 202, "bind": 200, "listen": 201, "socketpair": 199, "accept4": 242,
    "execve": 221, "execveat": 281,
    "ptrace": 117, "process_vm_readv": 270, "process_vm_writev": 271, "kcmp": 272, "perf_event_open": 241,
    "rt_sigqueueinfo": 138, "rt_tgsigqueueinfo": 240, "tkill": 130,
    "shmget": 194, "shmat": 196, "semget": 190, "msgget": 186, "mq_open": 180, "memfd_create": 279,
    "unshare": 97, "setns": 268, "mount": 40, "umount2": 39, "pivot_root": 41, "chroot": 51,
    "name_to_handle_at": 264, "open_by_handle_at": 265, "swapon": 224, "swapoff": 225, "reboot": 142,
    "sethostname": 161, "setdomainname": 162, "init_module": 105, "finit_module": 273, "delete_module": 106,
    "kexec_load": 104, "kexec_file_load": 294, "acct": 89, "quotactl": 60, "bpf": 280, "userfaultfd": 282,
    "add_key": 217, "request_key": 218, "keyctl": 219, "syslog": 116,
    "settimeofday": 170, "clock_settime": 112, "clock_adjtime": 266, "adjtimex": 171, "personality": 92,
    "mknodat": 33, "move_pages": 239, "migrate_pages": 238, "lookup_dcookie": 18, "vhangup": 58,
    "fanotify_init": 262, "setpriority": 140,
}  # fmt: skip
_MACHINES = {
    # audit architecture, refused calls, clone, kill, tgkill, first number of another ABI (x32)
    "x86_64": (0xC000003E, {**_X86_64, **_SAME}, 56, 62, 234, 0x40000000),
    "aarch64": (0xC00000B7, {**_AARCH64, **_SAME}, 220, 129, 131, None),
}
_TRUNCATION = {
    # truncate, then the calls that open a file with the offset of their flags
    "x86_64": (76, ((2, 24), (257, 32))),
    "aarch64": (45, ((56, 32),)),
}
_OPENAT2 = 437
_ATTRIBUTES = {
    # utime, setxattr and removexattr in all their forms; chmod and chown in theirs
    "x86_64": ((132, 188, 189, 190, 197, 198, 199, 235, 261, 280), (90, 91, 92, 93, 94, 260, 268)),
    "aarch64": ((5, 6, 7, 14, 15, 16, 88), (52, 53, 54, 55)),
}
_OF_PROCESSES = {
    # prlimit64, sched_setaffinity, sched_setscheduler, sched_setparam, sched_setattr; then ioprio_set
    "x86_64": ((302, 203, 144, 142, 314), 251),
    "aarch64": ((261, 122, 119, 118, 274), 30),
}
"""Calls that change what a process named by their first argument may use; the last has it as its second."""
_SETXATTRAT, _REMOVEXATTRAT, _FCHMODAT2 = 463, 466, 452
_CLONE3 = 435
_CLONE_THREAD = 0x00010000
_CLONE_APART = 0x7E028000
"""New namespaces of every kind, and CLONE_PARENT: flags of a process that would leave the jail's tree."""
_GROUPS = {"x86_64": (109, 112), "aarch64": (154, 157)}
"""``setpgid`` and ``setsid``."""
_CUDA = ("memfd_create", "socket", "bind", "listen", "accept", "accept4", "socketpair")
_PROGRAMS = ("fork", "vfork", "execve", "socketpair")
_AF_UNIX, _SOCK_STREAM, _SOCK_SEQPACKET, _SOCK_TYPE_MASK = 1, 1, 5, 0xF

_AND = 0x54
_LOAD, _JEQ, _JGE, _JSET, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _KILL, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
_EPERM, _ENOSYS = 1, 38
_OFFSET_NR, _OFFSET_ARCH, _OFFSET_ARG0, _OFFSET_ARG1 = 0, 4, 16, 24


@dataclass(frozen=True)
class Openings:
    """Calls that one child may make and others may not."""

    cuda: bool = False
    """``memfd_create``, and local sockets that listen without a possible client: CUDA makes both when it starts."""
    programs: bool = False
    """New processes and programs; never new namespaces."""
    signals: bool = False
    """Signals to others: only if another layer confines them to the jail."""
    sessions: bool = True
    """New sessions and process groups. If the group serves to end all processes of a child, a request for another
    returns success without effect: ninja and Python's ``start_new_session`` fail on a refusal."""
    truncation: bool = True
    """Truncating files that are not open for writing. Landlock refuses it since its third version."""
    attributes: bool = True
    """Changes to times and extended attributes of files, and to limits, processors, scheduling and I/O priority of
    other processes: Landlock controls neither. If closed, a change to a file returns success without effect, since
    compilers request it, and one to another process is refused; a child may always change its own."""
    modes: bool = True
    """Modes and owners of files. Closed in the same way if the child shares its user with other processes, whose files
    it could make readable for everyone; programs that it links are then not executable, libraries still load."""

    def refused(self, calls: Mapping[str, int]) -> dict[str, int]:
        """Remaining refused calls of ``calls``, with their numbers."""
        allowed = set(_CUDA if self.cuda else ()) | set(_PROGRAMS if self.programs else ())
        return {name: nr for name, nr in calls.items() if name not in allowed}


def build(pid: int, openings: Openings = Openings()) -> bytes:
    """The BPF program for a process whose own id is ``pid``: it may signal itself and, by default, no other.

    Raises:
        OSError: the processor is not supported.
    """
    if platform.machine() not in _MACHINES:
        raise OSError(_ENOSYS, f"no seccomp filter for {platform.machine()}")
    architecture, calls, clone, kill, tgkill, other_abi = _MACHINES[platform.machine()]
    deny, enosys, die, allow = _ERRNO | _EPERM, _ERRNO | _ENOSYS, _KILL, _ALLOW
    program: list[tuple[int, int, int, int]] = []

    def emit(code: int, value: int, yes: int = 0, no: int = 0) -> None:
        program.append((code, yes, no, value))

    emit(_LOAD, _OFFSET_ARCH)
    emit(_JEQ, architecture, 1, 0)
    emit(_RETURN, die)
    emit(_LOAD, _OFFSET_NR)
    if other_abi is not None:
        emit(_JGE, other_abi, 0, 1)
        emit(_RETURN, die)
    if openings.cuda:
        emit(_JEQ, calls["socket"], 0, 8)
        emit(_LOAD, _OFFSET_ARG0)
        emit(_JEQ, _AF_UNIX, 0, 5)
        emit(_LOAD, _OFFSET_ARG1)
        emit(_AND, _SOCK_TYPE_MASK)
        emit(_JEQ, _SOCK_STREAM, 1, 0)
        emit(_JEQ, _SOCK_SEQPACKET, 0, 1)
        emit(_RETURN, allow)
        emit(_RETURN, deny)
    for nr in sorted(openings.refused(calls).values()):
        emit(_JEQ, nr, 0, 1)
        emit(_RETURN, deny)
    if not openings.truncation:
        truncate, opening = _TRUNCATION[platform.machine()]
        emit(_JEQ, truncate, 0, 1)
        emit(_RETURN, deny)
        emit(_JEQ, _OPENAT2, 0, 1)
        emit(_RETURN, enosys)
        for nr, flags in opening:
            emit(_JEQ, nr, 0, 8)
            emit(_LOAD, flags)
            emit(_AND, os.O_ACCMODE)
            emit(_JEQ, os.O_WRONLY, 4, 0)
            emit(_JEQ, os.O_RDWR, 3, 0)
            emit(_LOAD, flags)
            emit(_JSET, os.O_TRUNC, 0, 1)
            emit(_RETURN, deny)
            emit(_RETURN, allow)
    attributes, modes = _ATTRIBUTES[platform.machine()]
    unchanged = () if openings.attributes else (*attributes, _SETXATTRAT, _REMOVEXATTRAT)
    for nr in (*unchanged, *(() if openings.modes else (*modes, _FCHMODAT2))):
        emit(_JEQ, nr, 0, 1)
        emit(_RETURN, _ERRNO | 0)
    if not openings.attributes:
        by_first, by_second = _OF_PROCESSES[platform.machine()]
        for nr, argument in (*((nr, _OFFSET_ARG0) for nr in by_first), (by_second, _OFFSET_ARG1)):
            emit(_JEQ, nr, 0, 5)
            emit(_LOAD, argument)
            emit(_JEQ, 0, 1, 0)
            emit(_JEQ, pid, 0, 1)
            emit(_RETURN, allow)
            emit(_RETURN, deny)
    for nr in () if openings.sessions else _GROUPS[platform.machine()]:
        emit(_JEQ, nr, 0, 1)
        emit(_RETURN, _ERRNO | 0)
    emit(_JEQ, _CLONE3, 0, 1)
    emit(_RETURN, enosys)
    emit(_JEQ, clone, 0, 4)
    emit(_LOAD, _OFFSET_ARG0)
    emit(*((_JSET, _CLONE_APART, 1, 0) if openings.programs else (_JSET, _CLONE_THREAD, 0, 1)))
    emit(_RETURN, allow)
    emit(_RETURN, deny)
    for nr in () if openings.signals else (kill, tgkill):
        emit(_JEQ, nr, 0, 4)
        emit(_LOAD, _OFFSET_ARG0)
        emit(_JEQ, pid, 0, 1)
        emit(_RETURN, allow)
        emit(_RETURN, deny)
    emit(_RETURN, allow)
    return b"".join(struct.pack("<HBBI", *step) for step in program)


class _Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("steps", ctypes.c_char_p)]


def install(openings: Openings = Openings()) -> None:
    """Filter every thread of the calling process, irrevocably; ``no_new_privs`` must be set already.

    Raises:
        OSError: the kernel or the processor has no seccomp filters, or refused this one.
    """
    steps = build(os.getpid(), openings)
    program = _Program(len(steps) // 8, steps)
    set_mode_filter, tsync = 1, 1
    syscalls.syscall(
        "seccomp",
        syscalls.number("seccomp"),
        ctypes.c_uint(set_mode_filter),
        ctypes.c_uint(tsync),
        ctypes.byref(program),
    )
