"""Status of a live run for other processes: one small file next to its lock, replaced atomically.

The journal holds the past of a run, this file its present. The file is removed when its run ends; a file left by a
killed run is ignored, because no process holds the lock.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from kernelforge.utils.file_locks import is_locked, lock_path

MAX_BYTES = 1 << 20
"""Longest file to read. A view of a thousand workers has 200 kB."""


def _status_path(folder: Path, run_id: str) -> Path:
    return lock_path(folder, run_id).with_suffix(".live.json")


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
    if len(content) > MAX_BYTES or not is_locked(lock_path(folder, run_id)):
        return None
    return content.decode("utf-8", errors="replace")


def remove_status(folder: Path, run_id: str) -> None:
    """Remove the status of a run that has ended."""
    with contextlib.suppress(OSError):
        _status_path(folder, run_id).unlink()
