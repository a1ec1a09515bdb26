"""Atomic file replacement: write to a hidden sibling, then rename it over the target; and locks between processes."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import re
import secrets
import shutil
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

_HERE = -100
"""``AT_FDCWD``"""
_RENAME_EXCHANGE = 2


@contextlib.contextmanager
def atomic_write(path: Path, *, folder: bool = False, ours: Callable[[Path], bool] = lambda _: True) -> Iterator[Path]:
    """An empty file or folder beside ``path``, hidden, of which nothing is left afterwards.

    Args:
        ours: whether a part that a dead process left may be removed; asked of those that this user owns.
    """
    _remove_dead(path, ours)
    try:
        part, descriptor = _make(path, folder)
    except OSError as error:
        _name(error, path)
        raise
    try:
        yield part
    except OSError as error:
        if error.filename is None or str(part) in str(error.filename):  # a full disk names no file
            _name(error, path)
        raise
    finally:
        try:
            _remove(part)
        finally:
            os.close(descriptor)


def temporary_name(path: Path) -> Path:
    """A name beside ``path`` that a part may have. One that can be guessed could be somebody's link."""
    return path.with_name(f".{path.name}.kernelforge-{secrets.token_hex(4)}.part")


def locked(path: Path) -> int:
    """A descriptor that holds the lock of what lies at a path, until it is closed here and in all forks since.
    Without a lock where the file system has none: parts are never removed there.

    Raises:
        BlockingIOError: somebody else holds it.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        _lock(descriptor)
    except BlockingIOError:
        os.close(descriptor)
        raise
    except OSError:
        pass
    return descriptor


@contextlib.contextmanager
def exclusive(file: Path | None) -> Iterator[None]:
    """Let one process after the other into the block, by the lock of a file that is made for it. Where it cannot be
    made or locked, or there is none, they come in as they are."""
    handle: int | None = None
    with contextlib.suppress(OSError):
        if file is not None:
            file.parent.mkdir(parents=True, exist_ok=True)
            handle = os.open(file, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o644)
            fcntl.flock(handle, fcntl.LOCK_EX)
    try:
        yield
    finally:
        if handle is not None:
            os.close(handle)


def rename_exchange(one: Path, other: Path) -> bool:
    """Have two files or folders trade places in one step; False where the file system cannot."""
    libc = ctypes.CDLL(None, use_errno=True)
    try:
        done = libc.renameat2(_HERE, os.fsencode(one), _HERE, os.fsencode(other), _RENAME_EXCHANGE)
    except AttributeError:
        return False
    if done == 0:
        return True
    if (number := ctypes.get_errno()) in (errno.EINVAL, errno.ENOSYS):
        return False
    raise OSError(number, os.strerror(number), str(other))


def _lock(descriptor: int) -> None:
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _name(error: OSError, path: Path) -> None:
    """Have an error say what the user named."""
    error.filename, error.filename2 = str(path), None


def _make(path: Path, folder: bool) -> tuple[Path, int]:
    while True:
        part = temporary_name(path)
        if folder:
            part.mkdir()
        else:
            part.touch(exist_ok=False)
        with contextlib.suppress(BlockingIOError, FileNotFoundError):  # taken for a dead one before it was locked
            descriptor = locked(part)
            if _lies_at(part, descriptor):
                return part, descriptor
            os.close(descriptor)


def _lies_at(path: Path, descriptor: int) -> bool:
    try:
        there, opened = path.lstat(), os.fstat(descriptor)
    except FileNotFoundError:
        return False
    return (there.st_dev, there.st_ino) == (opened.st_dev, opened.st_ino)


def _remove_dead(path: Path, ours: Callable[[Path], bool]) -> None:
    """Remove parts of ``path`` that no living process writes. What cannot be told or removed stays."""
    name = re.compile(rf"\.{re.escape(path.name)}\.kernelforge-[0-9a-f]{{8}}\.part")
    with contextlib.suppress(OSError):
        for part in [one for one in path.parent.iterdir() if name.fullmatch(one.name)]:
            with contextlib.suppress(OSError):
                _remove_if_dead(part, ours)


def _remove_if_dead(part: Path, ours: Callable[[Path], bool]) -> None:
    descriptor = os.open(part, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        found = os.fstat(descriptor)
        if found.st_uid != os.geteuid() or stat.S_IFMT(found.st_mode) not in (stat.S_IFDIR, stat.S_IFREG):
            return
        _lock(descriptor)
        if _lies_at(part, descriptor) and ours(part):
            _remove(part)
    finally:
        os.close(descriptor)


def _remove(part: Path) -> None:
    try:
        if part.is_dir() and not part.is_symlink():
            shutil.rmtree(part)
        else:
            part.unlink(missing_ok=True)
    except OSError as error:
        if error.errno != errno.ENOENT:  # somebody else removes it, too
            raise
        shutil.rmtree(part, ignore_errors=True)
