"""Lists with commas between their parts, in the text of a program."""

from __future__ import annotations

import re
from typing import Final

_MARK: Final = re.compile(r"[{}()\[\],]")
_MARK_OR_ANGLE: Final = re.compile(r"[{}()\[\]<,]|(?<!-)>")


def comma_parts(text: str, *, angles: bool = False) -> list[str]:
    """The parts between commas that stand in no bracket, without the blanks around them.

    What follows a bracket that the text closes and does not open belongs to the last part.

    Args:
        angles: whether ``<`` and ``>`` are brackets too, as around the arguments of a template.
    """
    parts: list[str] = []
    depth = start = 0
    for match in (_MARK_OR_ANGLE if angles else _MARK).finditer(text):
        mark = match[0]
        if mark != ",":
            depth += 1 if mark in "{[(<" else -1
            if depth < 0:
                break
        elif not depth:
            parts.append(text[start : match.start()].strip())
            start = match.end()
    return [*parts, text[start:].strip()]
