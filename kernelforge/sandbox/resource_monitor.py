"""Monitor for quantities without a resource limit: the size of a folder, the memory of a process tree.

``RLIMIT_DATA`` counts neither shared memory nor memory files, and every limit counts one process, not its children.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import Literal

from kernelforge.sandbox.jail import JailSpec
from kernelforge.sandbox.syscalls import Process
from kernelforge.utils.tree_cleanup import folder_bytes

SPARE_BYTES = 1 << 30
"""Disk space that a child without a ``/tmp`` of limited size leaves free, at most half of the free space."""
_FOLDER_EVERY_S, _MEMORY_EVERY_S = 0.05, 0.2


def open_proc() -> int:
    """Open the machine's ``/proc``, before the child changes the root of its mount namespace."""
    return os.open("/proc", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)


def watch(pid: int, grant: JailSpec, proc: int) -> Literal["disk", "memory"] | None:
    """Wait until ``pid`` has ended, and kill it if it exceeds a limit; returns that limit.

    Args:
        pid: The child.
        grant: Its limits.
        proc: From :func:`open_proc`.
    """
    tree, reserved = grant.gpu or grant.programs, grant.limits.reserved_bytes > 0
    if grant.tmp is None and not tree and not reserved:
        return None
    process = Process(pid, proc)
    spare = 0 if grant.tmp is None else min(_free(grant.tmp) // 2, SPARE_BYTES)
    try:
        while not process.ended(_FOLDER_EVERY_S if grant.tmp is not None else _MEMORY_EVERY_S):
            over: Literal["disk", "memory"] | None = None
            if grant.tmp is not None and (folder_bytes(grant.tmp) > grant.limits.tmp_bytes or _short(grant.tmp, spare)):
                over = "disk"
            elif tree:
                adopted = _children(os.getpid(), proc) if grant.leaves_orphans else ()
                if tree_bytes(pid, proc, adopted) > grant.limits.memory_bytes + grant.headroom_bytes:
                    over = "memory"
            elif reserved and _exceeds(pid, grant.limits.memory_bytes, proc):
                over = "memory"
            if over:
                process.kill()
                return over
    finally:
        process.close()
    return None


def _exceeds(pid: int, allowed: int, proc: int) -> bool:
    """Whether a process holds more memory; a page that it maps several times counts once."""
    return _resident(pid, proc) > allowed and _resident_once(pid, proc) > allowed


def _free(folder: str) -> int:
    """Free bytes on the file system of ``folder``."""
    facts = os.statvfs(folder)
    return facts.f_bavail * facts.f_frsize


def _short(folder: str, spare: int) -> bool:
    """Whether fewer than ``spare`` bytes are free. Deleted files that are still open appear in no listing."""
    return _free(folder) < spare


def tree_bytes(pid: int, proc: int, adopted: Iterable[int] = (), *, exactly: bool = True) -> int:
    """Resident memory of ``pid`` and its descendants, without files of the disk.

    ``adopted`` are descendants whose parent ended, with their own. Pages shared by a fork count once if the kernel
    reports ``Pss`` to this process, else for each process. Reading it takes 20 ms for a process with torch; without
    ``exactly`` it is not read.
    """
    tree = list(dict.fromkeys(member for head in (pid, *adopted) for member in _tree(head, proc)))
    if len(tree) == 1 or not exactly:
        return sum(_resident(member, proc) for member in tree)
    return sum(_resident_once(member, proc) for member in tree)


def tree_cpu_ticks(pid: int, proc: int) -> int | None:
    """Clock ticks of CPU time of the descendants of ``pid``; None where the kernel does not show them."""
    # proc(5): behind the name, which may hold anything, the fields begin with the third; 14 to 17 are CPU times.
    stats = (_read(f"{member}/stat", proc).rpartition(")")[2].split() for member in _tree(pid, proc) if member != pid)
    times = [sum(map(int, fields[11:15])) for fields in stats if fields]
    return sum(times) if times else None


def _resident_once(pid: int, proc: int) -> int:
    """Resident memory of a process by its shares of pages that are mapped several times, if the kernel reports them."""
    # Shares first: a process that ends in between then counts as nothing rather than in full.
    return _sum(f"{pid}/smaps_rollup", ("Pss_Anon:", "Pss_Shmem:"), proc) or _resident(pid, proc)


def _resident(pid: int, proc: int) -> int:
    return _sum(f"{pid}/status", ("RssAnon:", "RssShmem:"), proc)


def _tree(pid: int, proc: int) -> Iterator[int]:
    pending = [pid]
    while pending:
        yield pending[-1]
        pending += _children(pending.pop(), proc)


def _children(pid: int, proc: int) -> list[int]:
    tasks = _listing(f"{pid}/task", proc)
    return [int(child) for task in tasks for child in _read(f"{pid}/task/{task}/children", proc).split()]


def _sum(path: str, names: tuple[str, ...], proc: int) -> int:
    """Bytes of the lines that begin with ``names``; 0 if the file cannot be read."""
    return sum(int(line.split()[1]) * 1024 for line in _read(path, proc).splitlines() if line.startswith(names))


def _read(path: str, proc: int) -> str:
    try:
        with open(os.open(path, os.O_RDONLY, dir_fd=proc)) as file:
            return file.read()
    except OSError:
        return ""


def _listing(path: str, proc: int) -> list[str]:
    try:
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY, dir_fd=proc)
    except OSError:
        return []
    try:
        return os.listdir(folder)
    finally:
        os.close(folder)
