"""Live runs: the lock that a run's process holds, and its status for other processes.

A lock is a POSIX record lock on a small file in the folder of the database. The kernel drops it when its process ends
in any way, so there are no stale locks; forked children do not inherit it.

The journal holds the past of a run, its status the present: one small file next to the lock, replaced atomically. It is
removed when the run ends; one that a killed run left is ignored, because no process holds the lock.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import struct
import threading
from collections.abc import Iterator
from pathlib import Path

from kernelforge.errors import StoreError

MAX_BYTES = 1 << 20
"""Longest file to read. A view of a thousand workers has 200 kB."""
_FLOCK = struct.Struct("hhqqi")
"""Linux's ``struct flock`` with 64-bit offsets: kind, whence, start, length, process."""
_locked_here: set[str] = set()
"""Lock files held by this process. Closing any descriptor of such a file would drop its lock: never reopen them."""
_locked_here_guard = threading.Lock()


def _lock_path(folder: Path, run_id: str) -> Path:
    name = run_id if re.fullmatch(r"[A-Za-z0-9._-]{1,100}", run_id) else hashlib.sha256(run_id.encode()).hexdigest()
    return folder / "locks" / f"{name}.lock"


@contextlib.contextmanager
def run_lock(folder: Path, run_id: str) -> Iterator[None]:
    """Hold the lock of a run.

    Args:
        folder: folder of the database.

    Raises:
        StoreError: a live process holds it, or the lock file can't be made.
    """
    path = _lock_path(folder, run_id)
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


def is_locked(folder: Path, run_id: str) -> bool:
    """Whether a live process, this one included, holds the lock of a run. Takes no lock."""
    path = _lock_path(folder, run_id)
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


def _status_path(folder: Path, run_id: str) -> Path:
    return _lock_path(folder, run_id).with_suffix(".live.json")


def write_status(folder: Path, run_id: str, text: str) -> None:
    """Replace the status of a run.

    Args:
        folder: folder of the database.

    Raises:
        OSError: the file cannot be written.
    """
    path = _status_path(folder, run_id)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(f".{os.getpid()}.part")
    try:
        part.write_text(text, encoding="utf-8")
        part.replace(path)
    except OSError:
        part.unlink(missing_ok=True)
        raise


def read_status(folder: Path, run_id: str) -> str | None:
    """Status of a live run; None if there is none, or no process works on the run."""
    try:
        with _status_path(folder, run_id).open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except OSError:
        return None
    if len(content) > MAX_BYTES or not is_locked(folder, run_id):
        return None
    return content.decode("utf-8", errors="replace")


def remove_status(folder: Path, run_id: str) -> None:
    """Remove the status of a run that has ended."""
    with contextlib.suppress(OSError):
        _status_path(folder, run_id).unlink()
