"""Files that strangers submit, read as JSON within limits. Whatever is in one, an error is a line that names the file.

Python's own JSON reader takes numbers that are none, keys twice and whole numbers of any length; this one does not.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from pathlib import Path
from typing import Any, NoReturn

from kernelforge.errors import UsageError

MAX_FILE_BYTES = 64 << 20
_MAX_DIGITS = 20
"""Of a whole number: more than 64 bits need."""


class EntryError(UsageError):
    """A submitted file cannot be used; the message names the file and what is wrong in it."""


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file.

    Raises:
        EntryError: it is missing, larger than :data:`MAX_FILE_BYTES`, no UTF-8, no JSON, or no object.
    """
    try:
        if not path.is_file():
            raise EntryError(f"{path}: no such file")
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise EntryError(f"{path}: cannot be read: {error.strerror}") from error
    if len(data) > MAX_FILE_BYTES:
        raise EntryError(f"{path}: larger than {MAX_FILE_BYTES >> 20} MiB; an entry never is")
    try:
        found = json.loads(
            data.decode(),
            parse_int=_whole,
            parse_float=_number,
            parse_constant=_no_number,
            object_pairs_hook=_each_key_once,
        )
    except RecursionError:
        raise EntryError(f"{path}: brackets within brackets, too deep to be an entry") from None
    except ValueError as error:  # of the decoder, the parser, or the hooks
        raise EntryError(f"{path}: not usable JSON: {error}") from None
    if not isinstance(found, dict):
        raise EntryError(f"{path}: a JSON {type(found).__name__}, where an object belongs")
    return found


def digest_of(found: dict[str, Any]) -> str:
    """SHA-256 over canonical JSON of all but the field ``digest``.

    Over what the file says, not over records made of it: a later version with further fields still finds it the same.
    """
    rest = {name: value for name, value in found.items() if name != "digest"}
    text = json.dumps(rest, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def has_at_most(count: int, value: Any) -> bool:
    """Whether JSON holds no more values than that, those within values included."""
    waiting = [value]
    while waiting:
        one = waiting.pop()
        inner = one.values() if isinstance(one, dict) else one if isinstance(one, list) else ()
        count -= 1
        if count < len(waiting) + len(inner):
            return False
        waiting.extend(inner)
    return True


def _whole(text: str) -> int:
    if len(text) > _MAX_DIGITS:
        raise ValueError(f"a number of {len(text)} digits")
    return int(text)


def _number(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text[:_MAX_DIGITS]} is too large for a number")
    return value


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{text} is no JSON")


def _each_key_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        repeated = Counter(name for name, _ in pairs).most_common(1)[0][0]
        raise ValueError(f"the key {repeated[:80]!r} is given twice")
    return found
