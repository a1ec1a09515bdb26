"""Measure and remove a folder filled by a hostile child, at any depth and with any modes and names."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import sys
import uuid

MAX_DEPTH = 100
"""Deepest level to measure; compilers' caches stay above it. A child could hide files at paths too long to read."""


def folder_bytes(folder: str) -> int:
    """Bytes on disk of the files in ``folder``; ``sys.maxsize`` below :data:`MAX_DEPTH` or beyond the longest path."""
    total, pending = 0, [(folder, 0)]
    while pending:
        path, depth = pending.pop()
        try:
            with os.scandir(path) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        if depth == MAX_DEPTH:
                            return sys.maxsize
                        pending.append((entry.path, depth + 1))
                    else:
                        with contextlib.suppress(OSError):
                            total += entry.stat(follow_symlinks=False).st_blocks * 512
        except OSError as error:
            # Removed during the scan, or a path too long to read, which could hide files.
            if error.errno == errno.ENAMETOOLONG:
                return sys.maxsize
    return total


def remove_tree(folder: str) -> None:
    """Remove ``folder`` as far as this process may; no process may still use it.

    Folders are moved up before they are emptied: before Python 3.13, ``shutil.rmtree`` recurses, and a child chooses
    the depth.
    """
    with contextlib.suppress(OSError):
        top = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            names = _empty(top, top)
            while names:
                name = names.pop()
                with contextlib.suppress(OSError):
                    inner = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=top)
                    try:
                        names += _empty(inner, top)
                    finally:
                        os.close(inner)
                    os.rmdir(name, dir_fd=top)
        finally:
            os.close(top)
        os.rmdir(folder)


def _empty(fd: int, top: int) -> list[str]:
    """Remove the files of the folder ``fd`` and move its folders to ``top``; returns their new names."""
    moved: list[str] = []
    for name in os.listdir(fd):
        with contextlib.suppress(OSError):
            if not stat.S_ISDIR(os.stat(name, dir_fd=fd, follow_symlinks=False).st_mode):
                os.unlink(name, dir_fd=fd)
                continue
            os.chmod(name, 0o700, dir_fd=fd)  # only root can open or move a folder without permissions
            target = uuid.uuid4().hex
            os.rename(name, target, src_dir_fd=fd, dst_dir_fd=top)
            moved.append(target)
    return moved
