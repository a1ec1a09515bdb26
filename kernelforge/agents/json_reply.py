"""Finding the JSON object in a reply that may hold prose around it."""

from __future__ import annotations

import json

MAX_CHARS = 32_768
"""How much of a reply's end is searched: looking costs the square of the length, and the object is short."""


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
        if isinstance(value, dict):
            found = value
        at = end
    return found
