"""Status of a live run for other processes: one small file beside its lock, replaced atomically.

The journal has everything that has happened; this file has what is going on. It is no record: it goes when its run
ends, and what a killed run left behind counts for nothing, because nobody holds the lock beside it.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from kernelforge.utils.file_locks import is_locked, lock_path

MAX_BYTES = 1 << 20
"""Longest file that is read. A view of a thousand workers has 200 kB."""


def _live_path(folder: Path, run_id: str) -> Path:
    return lock_path(folder, run_id).with_suffix(".live.json")


def write_status(folder: Path, run_id: str, text: str) -> None:
    """Replace what a run tells of itself.

    Args:
        folder: that of the database.

    Raises:
        OSError: it cannot be written.
    """
    path = _live_path(folder, run_id)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(f".{os.getpid()}.part")
    try:
        part.write_text(text, encoding="utf-8")
        part.replace(path)
    except OSError:
        part.unlink(missing_ok=True)
        raise


def read_status(folder: Path, run_id: str) -> str | None:
    """What a live run tells of itself; None where it tells nothing, or no process is at work on it."""
    try:
        with _live_path(folder, run_id).open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except OSError:
        return None
    if len(content) > MAX_BYTES or not is_locked(lock_path(folder, run_id)):
        return None
    return content.decode("utf-8", errors="replace")


def end_live(folder: Path, run_id: str) -> None:
    """A run is over: it tells nothing any more."""
    with contextlib.suppress(OSError):
        _live_path(folder, run_id).unlink()
