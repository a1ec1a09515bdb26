"""Damage: to bytes, to texts, to JSON."""

from __future__ import annotations

import json
import random
from typing import Any

_VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2**31, 2**63, -(2**63), 10**400, 0.5, -0.0, 1e308, -1e308, 1e-320, float("nan"),
    float("inf"), float("-inf"), "", "NaN", "x", "\x00", "\ud800", "\u202e", "1e999", "a" * 5_000, [], {}, [[]], [None],
    [1, 2, 3, 4], [1], {"": None}, {"x": []},
)  # fmt: skip
NESTED = "[" * 100_000 + "]" * 100_000
"""Deeper than any reader that calls itself can follow."""


def of_bytes(data: bytes, rng: random.Random) -> bytes:
    """Bytes with a few of them changed, moved, doubled, or cut off."""
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 8))):
        at = rng.randrange(len(changed)) if changed else 0
        size = rng.choice((1, 1, 2, 16, 512, 4096))
        kind = rng.randrange(6)
        if kind == 0:
            changed[at : at + 1] = bytes([rng.randrange(256)])
        elif kind == 1:
            changed[at : at + size] = rng.randbytes(min(size, len(changed) - at))
        elif kind == 2:
            changed[at : at + size] = bytes([rng.choice((0, 0xFF, 0x80))]) * min(size, len(changed) - at)
        elif kind == 3:
            del changed[at : at + size]
        elif kind == 4:
            changed[at:at] = changed[at : at + size]
        else:
            del changed[at if rng.random() < 0.2 else max(len(changed) - size, 0) :]
    return bytes(changed)


def of_text(text: str, rng: random.Random, pieces: tuple[str, ...]) -> str:
    """Text with pieces put in, and parts of it gone, doubled or exchanged."""
    for _ in range(rng.choice((1, 1, 2, 3, 6))):
        at, size = rng.randrange(len(text) + 1), rng.choice((1, 3, 20, 200))
        other = rng.randrange(len(text) + 1)
        kind = rng.randrange(5)
        if kind <= 1:
            text = text[:at] + rng.choice(pieces) + text[at:]
        elif kind == 2:
            text = text[:at] + text[at + size :]
        elif kind == 3:
            text = text[:at] + text[other : other + size] + text[at:]
        else:
            text = text[:at] + rng.choice(pieces) + text[at + size :]
    return text


def of_json(text: str, rng: random.Random) -> str:
    """JSON with one value in it replaced, left out or doubled; or brackets too deep to follow."""
    if rng.random() < 0.05:
        return NESTED
    try:
        document = json.loads(text)
    except ValueError:
        return json.dumps(rng.choice(_VALUES))
    places: list[tuple[Any, Any]] = []
    waiting = [document]
    while waiting:
        node = waiting.pop()
        inner = (
            list(node.items()) if isinstance(node, dict) else list(enumerate(node)) if isinstance(node, list) else []
        )
        places += [(node, key) for key, _ in inner]
        waiting += [value for _, value in inner]
    if not places:
        return json.dumps(rng.choice(_VALUES))
    where, key = rng.choice(places)
    kind = rng.randrange(5)
    if kind == 0:
        del where[key]
    elif kind == 1 and isinstance(where, list):
        where.extend(where[key : key + 1] * rng.choice((1, 3, 100)))
    elif kind == 2 and isinstance(where, dict):
        where[str(rng.choice(_VALUES))[:40]] = rng.choice(_VALUES)
    else:
        where[key] = rng.choice(_VALUES)
    return json.dumps(document)
