"""Frames between processes of this package: JSON objects, each behind its length."""

from __future__ import annotations

import asyncio
import json
import struct
from typing import Any, BinaryIO

from kernelforge import errors
from kernelforge.errors import KernelForgeError

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


def receive(frames: BinaryIO) -> dict[str, Any] | None:
    """The next frame of a blocking socket's file; None if the other side has closed."""
    try:
        head = frames.read(_LENGTH.size)
        if len(head) < _LENGTH.size:
            return None
        length = _length(head)
        text = frames.read(length)
    except ConnectionError:
        return None
    return _object(text) if len(text) == length else None


async def read(reader: asyncio.StreamReader) -> dict[str, Any] | None:
    """The next frame; None if the other side has closed."""
    try:
        return _object(await reader.readexactly(_length(await reader.readexactly(_LENGTH.size))))
    except (asyncio.IncompleteReadError, ConnectionError):
        return None


def _length(head: bytes) -> int:
    length: int = _LENGTH.unpack(head)[0]
    if length > MAX_FRAME_BYTES:
        raise ValueError(f"a frame of {length} bytes was announced; the limit is {MAX_FRAME_BYTES}")
    return length


def _object(text: bytes) -> dict[str, Any]:
    data: dict[str, Any] = json.loads(text)
    return data


def error_frame(error: KernelForgeError) -> dict[str, str]:
    """An error as part of a reply."""
    return {"kind": type(error).__name__, "message": str(error)}


def error_from(reply: dict[str, str]) -> KernelForgeError:
    """The error of :func:`error_frame`."""
    kind = getattr(errors, reply["kind"], KernelForgeError)
    return kind(reply["message"]) if issubclass(kind, KernelForgeError) else KernelForgeError(reply["message"])
