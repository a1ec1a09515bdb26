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
def atomic_write(
    path: Path, *, folder: bool = False, removable: Callable[[Path], bool] = lambda _: True
) -> Iterator[Path]:
    """Yield an empty hidden file or folder next to ``path``, to rename over it; removed at the end if still there.

    Args:
        removable: whether a part left by a dead process may be removed; called for parts of this user.
    """
    _remove_dead(path, removable)
    try:
        part, descriptor = _create(path, folder)
    except OSError as error:
        _set_path(error, path)
        raise
    try:
        yield part
    except OSError as error:
        if error.filename is None or str(part) in str(error.filename):  # the error of a full disk names no file
            _set_path(error, path)
        raise
    finally:
        try:
            _remove(part)
        finally:
            os.close(descriptor)


def temporary_name(path: Path) -> Path:
    """Random name for a part next to ``path``: at a predictable name, another user could place a link."""
    return path.with_name(f".{path.name}.kernelforge-{secrets.token_hex(4)}.part")


def locked(path: Path) -> int:
    """Open and lock a file or folder; the lock ends when the descriptor is closed here and in all later forks.

    The descriptor is not locked on a file system without locks; parts are never removed there.

    Raises:
        BlockingIOError: another descriptor holds the lock.
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
    """Lock ``file``, created if missing, for one process at a time; without a lock if that fails or it is None."""
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


def rename_exchange(first: Path, second: Path) -> bool:
    """Exchange two files or folders atomically; False if the file system cannot."""
    libc = ctypes.CDLL(None, use_errno=True)
    try:
        done = libc.renameat2(_HERE, os.fsencode(first), _HERE, os.fsencode(second), _RENAME_EXCHANGE)
    except AttributeError:
        return False
    if done == 0:
        return True
    if (number := ctypes.get_errno()) in (errno.EINVAL, errno.ENOSYS):
        return False
    raise OSError(number, os.strerror(number), str(second))


def _lock(descriptor: int) -> None:
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _set_path(error: OSError, path: Path) -> None:
    """Put the path that the user named into an error."""
    error.filename, error.filename2 = str(path), None


def _create(path: Path, folder: bool) -> tuple[Path, int]:
    while True:
        part = temporary_name(path)
        if folder:
            part.mkdir()
        else:
            part.touch(exist_ok=False)
        with contextlib.suppress(BlockingIOError, FileNotFoundError):  # another process removed it before it was locked
            descriptor = locked(part)
            if _is_at(part, descriptor):
                return part, descriptor
            os.close(descriptor)


def _is_at(path: Path, descriptor: int) -> bool:
    try:
        there, opened = path.lstat(), os.fstat(descriptor)
    except FileNotFoundError:
        return False
    return (there.st_dev, there.st_ino) == (opened.st_dev, opened.st_ino)


def _remove_dead(path: Path, removable: Callable[[Path], bool]) -> None:
    """Remove parts of ``path`` that no live process writes, as far as possible."""
    name = re.compile(rf"\.{re.escape(path.name)}\.kernelforge-[0-9a-f]{{8}}\.part")
    with contextlib.suppress(OSError):
        for part in [sibling for sibling in path.parent.iterdir() if name.fullmatch(sibling.name)]:
            with contextlib.suppress(OSError):
                _remove_if_dead(part, removable)


def _remove_if_dead(part: Path, removable: Callable[[Path], bool]) -> None:
    descriptor = os.open(part, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        status = os.fstat(descriptor)
        if status.st_uid != os.geteuid() or stat.S_IFMT(status.st_mode) not in (stat.S_IFDIR, stat.S_IFREG):
            return
        _lock(descriptor)
        if _is_at(part, descriptor) and removable(part):
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
        if error.errno != errno.ENOENT:  # another process removes it too
            raise
        shutil.rmtree(part, ignore_errors=True)
