"""Finding the JSON object in a reply that may hold prose around it."""

from __future__ import annotations

import json

MAX_CHARS = 32_768
"""How much of a reply's end is searched: looking costs the square of the length, and the object is short."""
MAX_DEPTH = 32
"""Deepest nesting of an object that counts; what goes on with it may use Python's own stack."""


def last_object(text: str) -> dict[str, object] | None:
    """The last top-level JSON object in the end of a text, or None."""
    text = text[-MAX_CHARS:]
    decoder, found, at = json.JSONDecoder(), None, 0
    while (at := text.find("{", at)) >= 0:
        try:
            value, end = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            at += 1
            continue
        if isinstance(value, dict) and _is_flat(value):
            found = value
        at = end
    return found


def _is_flat(value: object) -> bool:
    """Whether a JSON value is nested no deeper than :data:`MAX_DEPTH`."""
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [
            inner
            for one in level
            if isinstance(one, dict | list)
            for inner in (one.values() if isinstance(one, dict) else one)
        ]
        if not level:
            return True
    return False
