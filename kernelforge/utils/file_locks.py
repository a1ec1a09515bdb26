"""File locks that end with their process: one per live run, and the lookup of a lock's holder.

A run lock is a POSIX record lock on a small file in the folder of the database. The kernel drops it when its process
ends in any way, so there are no stale locks; forked children do not inherit it.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import struct
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

from kernelforge.errors import StoreError

_FLOCK = struct.Struct("hhqqi")
"""Linux's ``struct flock`` with 64-bit offsets: kind, whence, start, length, process."""
_locked_here: set[str] = set()
"""Lock files held by this process. Closing any descriptor of such a file would drop its lock: never reopen them."""
_locked_here_guard = threading.Lock()


def lock_path(folder: Path, run_id: str) -> Path:
    """Path of a run's lock file, inside the folder of the database."""
    name = run_id if re.fullmatch(r"[A-Za-z0-9._-]{1,100}", run_id) else hashlib.sha256(run_id.encode()).hexdigest()
    return folder / "locks" / f"{name}.lock"


@contextlib.contextmanager
def run_lock(path: Path, run_id: str) -> Iterator[None]:
    """Hold the lock of a run.

    Raises:
        StoreError: a live process holds it, or the lock file can't be made.
    """
    name = str(path.resolve())
    with _locked_here_guard:
        if name in _locked_here:
            raise StoreError(f"run {run_id} is already going on in this process")
        _locked_here.add(name)
    try:
        descriptor = _acquire(path, run_id)
        try:
            yield
        finally:
            with contextlib.suppress(OSError):
                path.unlink()
            os.close(descriptor)
    finally:
        with _locked_here_guard:
            _locked_here.discard(name)


def _acquire(path: Path, run_id: str) -> int:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        while True:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except (BlockingIOError, PermissionError):
                holder = os.pread(descriptor, 20, 0).decode(errors="replace").strip()
                os.close(descriptor)
                by = f" (process {holder})" if holder.isdigit() else ""
                raise StoreError(
                    f"run {run_id} is already going on in another process{by}: wait for it, or stop it there"
                ) from None
            if _is_at(path, descriptor):
                break
            os.close(descriptor)  # its last holder removed the file between the open and the lock
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    except OSError as error:
        raise StoreError(f"cannot lock run {run_id} with {path}: {error.strerror}") from error
    return descriptor


def _is_at(path: Path, descriptor: int) -> bool:
    try:
        current = path.stat()
    except FileNotFoundError:
        return False
    opened = os.fstat(descriptor)
    return (current.st_dev, current.st_ino) == (opened.st_dev, opened.st_ino)


def is_locked(path: Path) -> bool:
    """Whether a live process, this one included, holds the lock file. Takes no lock."""
    with _locked_here_guard:
        if str(path.resolve()) in _locked_here:
            return True
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            answer = fcntl.fcntl(descriptor, fcntl.F_GETLK, _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))
        finally:
            os.close(descriptor)
        return bool(_FLOCK.unpack(answer)[0] != fcntl.F_UNLCK)


def holders(paths: Sequence[Path]) -> list[str]:
    """Other processes with a lock on one of the files, as ``process 4711 (python)``; empty if unknown."""
    inodes = set()
    for path in paths:
        with contextlib.suppress(OSError):
            inodes.add(path.stat().st_ino)
    try:
        table = Path("/proc/locks").read_text()
    except OSError:
        return []
    names = []
    for line in table.splitlines():
        fields = line.split()
        if len(fields) < 6 or "->" in fields or not fields[4].isdigit():
            continue
        pid, inode = int(fields[4]), fields[5].rsplit(":", 1)[-1]
        if pid > 0 and pid != os.getpid() and inode.isdigit() and int(inode) in inodes:
            names.append(_describe_process(pid))
    return list(dict.fromkeys(names))


def _describe_process(pid: int) -> str:
    try:
        return f"process {pid} ({Path(f'/proc/{pid}/comm').read_text().strip()})"
    except OSError:
        return f"process {pid}"
