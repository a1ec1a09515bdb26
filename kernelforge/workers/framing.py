"""Frames between a pool and its workers: a length, then JSON."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from typing import Any

_LENGTH = struct.Struct("<I")
MAX_FRAME_BYTES = 256 << 20
"""Larger than any order or report; a longer frame is a bug."""


def packed(data: dict[str, Any]) -> bytes:
    """One frame as bytes.

    Raises:
        ValueError: it is too large.
    """
    text = json.dumps(data, separators=(",", ":")).encode()
    if len(text) > MAX_FRAME_BYTES:
        raise ValueError(f"a frame of {len(text)} bytes exceeds the limit of {MAX_FRAME_BYTES}")
    return _LENGTH.pack(len(text)) + text


def receive(sock: socket.socket) -> dict[str, Any] | None:
    """The next frame of a blocking socket; None if the other side has closed."""
    head = _exactly(sock, _LENGTH.size)
    if head is None:
        return None
    text = _exactly(sock, _length(head))
    return None if text is None else _object(text)


async def read(reader: asyncio.StreamReader) -> dict[str, Any] | None:
    """The next frame; None if the other side has closed."""
    try:
        return _object(await reader.readexactly(_length(await reader.readexactly(_LENGTH.size))))
    except (asyncio.IncompleteReadError, ConnectionError):
        return None


def _exactly(sock: socket.socket, count: int) -> bytes | None:
    pieces = bytearray()
    while len(pieces) < count:
        try:
            piece = sock.recv(min(count - len(pieces), 1 << 20))
        except ConnectionError:
            return None
        if not piece:
            return None
        pieces += piece
    return bytes(pieces)


def _length(head: bytes) -> int:
    length: int = _LENGTH.unpack(head)[0]
    if length > MAX_FRAME_BYTES:
        raise ValueError(f"a frame of {length} bytes was announced; the limit is {MAX_FRAME_BYTES}")
    return length


def _object(text: bytes) -> dict[str, Any]:
    data: dict[str, Any] = json.loads(text)
    return data
