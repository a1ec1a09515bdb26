"""Length-capped binary frames over a socket: the only way in and out of a confined child.

A frame is a fixed header (magic, JSON length, blob count), the blob lengths, the JSON text, the blobs. Nothing is
pickled; a frame over the caps or with a wrong header is an error of the channel, never of the parser.
"""

from __future__ import annotations

import json
import re
import select
import socket
import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kernelforge.errors import ChildDied, ChildTimeout, SandboxError

_HEADER = struct.Struct("<4sIIQ")
_MAGIC = b"KFF1"
MAX_JSON_BYTES = 64 << 20
MAX_BLOBS = 4096
_LARGE = 1 << 20
_TIMEVAL = struct.Struct("@ll")
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


@dataclass(frozen=True)
class Frame:
    """One message: JSON data and raw blobs."""

    data: dict[str, Any]
    blobs: tuple[bytes, ...] = ()


class Channel:
    """One end of a stream socket, speaking frames.

    ``max_blob_bytes`` caps the sum of a received frame's blobs, ``max_json_bytes`` its text.
    """

    def __init__(
        self, sock: socket.socket, *, max_blob_bytes: int = 8 << 30, max_json_bytes: int = MAX_JSON_BYTES
    ) -> None:
        self._sock = sock
        self._sock.setblocking(False)
        self.max_blob_bytes = max_blob_bytes
        self.max_json_bytes = max_json_bytes

    def fileno(self) -> int:
        return self._sock.fileno()

    def close(self) -> None:
        self._sock.close()

    def send(
        self, data: dict[str, Any], blobs: Sequence[bytes | memoryview] = (), *, timeout_s: float | None = None
    ) -> None:
        """Send one frame.

        Raises:
            ChildTimeout: the other side did not read in time.
            ChildDied: the other side is gone.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        text = json.dumps(data, separators=(",", ":")).encode()
        views = [memoryview(blob).cast("B") for blob in blobs]
        lengths = struct.pack(f"<{len(views)}Q", *(view.nbytes for view in views))
        total = sum(view.nbytes for view in views)
        self._write(memoryview(_HEADER.pack(_MAGIC, len(text), len(views), total) + lengths + text), deadline)
        for view in views:
            self._write(view, deadline)

    def receive(self, *, timeout_s: float | None = None) -> Frame:
        """Receive one frame.

        Raises:
            ChildTimeout: nothing complete came in time.
            ChildDied: the other side closed the channel.
            SandboxError: the frame breaks the format or a cap.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        magic, text_bytes, count, total = _HEADER.unpack(self._read(_HEADER.size, deadline))
        if magic != _MAGIC or text_bytes > self.max_json_bytes or count > MAX_BLOBS or total > self.max_blob_bytes:
            raise SandboxError("a confined child broke the frame format or a size cap")
        lengths = struct.unpack(f"<{count}Q", self._read(8 * count, deadline))
        if sum(lengths) != total:
            raise SandboxError("a confined child announced blobs that do not add up")
        text = self._read(text_bytes, deadline)
        blobs = tuple(self._read(length, deadline) for length in lengths)
        try:
            # As text: of bytes, ``json`` would take UTF-16 and halves of surrogate pairs too.
            data = json.loads(text.decode())
            if _SURROGATE.search(text):
                data = _writable(data)
        except (ValueError, RecursionError) as error:
            raise SandboxError("a confined child sent a frame that is not JSON") from error
        if not isinstance(data, dict):
            raise SandboxError("a confined child sent a frame that is not an object")
        return Frame(data, blobs)

    def _wait(self, read: bool, deadline: float | None) -> None:
        remaining = None if deadline is None else deadline - time.monotonic()
        if remaining is not None and remaining <= 0:
            raise ChildTimeout("no answer in time")
        poller = select.poll()
        poller.register(self._sock, select.POLLIN if read else select.POLLOUT)
        if not poller.poll(None if remaining is None else remaining * 1000):
            raise ChildTimeout("no answer in time")

    def _write(self, view: memoryview, deadline: float | None) -> None:
        while view.nbytes:
            try:
                view = view[self._sock.send(view) :]
            except BlockingIOError:
                self._wait(False, deadline)
            except (BrokenPipeError, ConnectionResetError) as error:
                raise ChildDied("the child is gone") from error

    def _read(self, count: int, deadline: float | None) -> bytes:
        if count >= _LARGE:
            return self._read_large(count, deadline)
        buffer = bytearray(count)
        view, done = memoryview(buffer), 0
        while done < count:
            try:
                got = self._sock.recv_into(view[done:])
            except BlockingIOError:
                self._wait(True, deadline)
                continue
            except ConnectionResetError as error:
                raise ChildDied("the child is gone") from error
            if got == 0:
                raise ChildDied("the child closed its channel")
            done += got
        return bytes(buffer)

    def _read_large(self, count: int, deadline: float | None) -> bytes:
        """Let the kernel fill one block: no copy, and an announced length takes memory only as bytes really come."""
        pieces: list[bytes] = []
        self._sock.setblocking(True)
        try:
            while count:
                remaining = 0.0 if deadline is None else deadline - time.monotonic()
                if deadline is not None and remaining <= 0:
                    raise ChildTimeout("no answer in time")
                seconds = int(remaining)
                limit = _TIMEVAL.pack(seconds, int((remaining - seconds) * 1e6) + (deadline is not None))
                self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
                try:
                    piece = self._sock.recv(count, socket.MSG_WAITALL)
                except BlockingIOError:
                    continue
                except ConnectionResetError as error:
                    raise ChildDied("the child is gone") from error
                if not piece:
                    raise ChildDied("the child closed its channel")
                pieces.append(piece)
                count -= len(piece)
        finally:
            self._sock.setblocking(False)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _writable(value: Any) -> Any:
    """``value`` with ``?`` for every half of a surrogate pair: JSON can hold one, and no file or terminal can."""
    if isinstance(value, str):
        return value.encode(errors="replace").decode()
    if isinstance(value, list):
        return [_writable(item) for item in value]
    if isinstance(value, dict):
        return {_writable(key): _writable(item) for key, item in value.items()}
    return value
