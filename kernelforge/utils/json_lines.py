"""Files of JSON lines, whose rows are on the disk before the next one is paid for."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pydantic import BaseModel


def json_lines(rows: Iterable[BaseModel | Mapping[str, Any]]) -> bytes:
    """A line of JSON for each record or row.

    Raises:
        ValueError: a row holds a number that JSON has not.
    """
    return "".join(map(_line, rows)).encode("utf-8", "backslashreplace")


def append_rows(rows: Iterable[BaseModel | Mapping[str, Any]], path: Path) -> None:
    """Add a line for each row to a file; they are on the disk when this returns.

    After a crash the last line may lack its end; every earlier one is complete.

    Raises:
        OSError: the file cannot be written.
        ValueError: a row holds a number that JSON has not; nothing is written then.
    """
    lines = json_lines(rows)
    with path.open("ab") as file:
        file.write(lines)
        file.flush()
        os.fsync(file.fileno())


def _line(row: BaseModel | Mapping[str, Any]) -> str:
    text = json.dumps(row, ensure_ascii=False, allow_nan=False) if isinstance(row, Mapping) else row.model_dump_json()
    return f"{text}\n"
