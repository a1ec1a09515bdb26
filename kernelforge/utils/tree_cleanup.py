"""Measure and remove a folder filled by a hostile child, at any depth and with any modes and names."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import sys
import uuid

MAX_DEPTH = 100
"""Deeper than this no compiler's cache goes. A child could hide files where paths are too long to be looked at."""


def folder_bytes(folder: str) -> int:
    """What the files in ``folder`` take on disk; the largest number there is if it is deeper than :data:`MAX_DEPTH`, or
    deeper than paths can be long."""
    total, left = 0, [(folder, 0)]
    while left:
        path, depth = left.pop()
        try:
            with os.scandir(path) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        if depth == MAX_DEPTH:
                            return sys.maxsize
                        left.append((entry.path, depth + 1))
                    else:
                        with contextlib.suppress(OSError):
                            total += entry.stat(follow_symlinks=False).st_blocks * 512
        except OSError as error:
            # Removed meanwhile, or a path that is too long to be looked at: files could hide behind it.
            if error.errno == errno.ENAMETOOLONG:
                return sys.maxsize
    return total


def remove_tree(folder: str) -> None:
    """Remove ``folder`` as far as this process may. Nothing in it may be at work any more.

    Folders are moved up before they are emptied: ``shutil.rmtree`` recurses, before Python 3.13, and a child chooses
    how deep.
    """
    with contextlib.suppress(OSError):
        top = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            names = _emptied(top, top)
            while names:
                name = names.pop()
                with contextlib.suppress(OSError):
                    inner = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=top)
                    try:
                        names += _emptied(inner, top)
                    finally:
                        os.close(inner)
                    os.rmdir(name, dir_fd=top)
        finally:
            os.close(top)
        os.rmdir(folder)


def _emptied(fd: int, top: int) -> list[str]:
    """Remove the files of the folder ``fd`` and move its folders to ``top``; the names they have there."""
    moved: list[str] = []
    for name in os.listdir(fd):
        with contextlib.suppress(OSError):
            if not stat.S_ISDIR(os.stat(name, dir_fd=fd, follow_symlinks=False).st_mode):
                os.unlink(name, dir_fd=fd)
                continue
            os.chmod(name, 0o700, dir_fd=fd)  # one without rights cannot be opened or moved, but by root
            there = uuid.uuid4().hex
            os.rename(name, there, src_dir_fd=fd, dst_dir_fd=top)
            moved.append(there)
    return moved
