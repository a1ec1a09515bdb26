"""Bytes from a jailed child, read as frames by the side that must not believe them."""

from __future__ import annotations

import contextlib
import json
import os
import random
import socket
import threading
from array import array
from pathlib import Path

from fuzz_parts.damage import NESTED, of_bytes, of_json
from kernelforge.errors import SandboxError
from kernelforge.sandbox.channel import _HEADER, _MAGIC, Channel

_DATA = json.dumps({"op": "run", "verdict": "OK", "times": [1.0, 2.5], "shape": {"x": [1, 2]}, "text": "a\u00e9"})
_LARGEST = 1 << 20


class Cases:
    """See above."""

    def __init__(self, folder: Path) -> None:
        self._file = os.memfd_create("fuzz")
        os.write(self._file, b"x" * 4096)

    def close(self) -> None:
        os.close(self._file)

    def case(self, rng: random.Random) -> bool:
        files = [self._file] * rng.choice((0, 0, 0, 1, 2, 70))
        sent = _frame(rng, len(files))
        local, remote = socket.socketpair()
        channel = Channel(local, max_blob_bytes=_LARGEST, max_json_bytes=_LARGEST, files_from=rng.choice((None, 1024)))
        before = len(os.listdir("/proc/self/fd"))
        writer = threading.Thread(target=_send, args=(remote, sent, files, rng.random() < 0.5))
        writer.start()
        try:
            frame = channel.receive(timeout_s=5.0)
            json.dumps(frame.data).encode()
            for blob in frame.blobs:
                if len(blob):
                    bytes(blob[:1])
            del frame
            return True
        except SandboxError:
            return False
        finally:
            channel.close()
            writer.join()
            remote.close()
            if len(os.listdir("/proc/self/fd")) > before - 1:
                raise AssertionError("a descriptor that came with a frame was left open")


def _send(sock: socket.socket, data: bytes, files: list[int], in_pieces: bool) -> None:
    """All of it, and then the end of the stream."""
    with contextlib.suppress(OSError):
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", files))] if files else []
        first = sock.sendmsg([data[: 7 if in_pieces else None] or b"\0"], rights)
        sock.sendall(data[first:])
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_WR)


def _frame(rng: random.Random, passed: int) -> bytes:
    """A frame that is right but for a little, or whose announcements are lies."""
    text = rng.choice((_DATA, of_json(_DATA, rng), NESTED, "[]", "\ufeff{}", '{"a": "\\ud800"}', '{"\\udc00": 1e999}'))
    content = text.encode("utf-8", "surrogatepass")
    blobs = [rng.randbytes(rng.choice((0, 1, 100, 5000))) for _ in range(rng.choice((0, 1, 3)))]
    marks = bytes(at < passed for at in range(len(blobs)))
    lengths = [len(blob) for blob in blobs]
    numbers = [len(content), len(blobs), min(passed, len(blobs)), sum(lengths)]
    if rng.random() < 0.4:
        numbers[rng.randrange(4)] = rng.choice((0, 1, 2**16, 2**31, 2**32 - 1))
    if lengths and rng.random() < 0.2:
        lengths[rng.randrange(len(lengths))] = rng.choice((0, 1, 2**63, 2**64 - 1, 4096))
    words = b"".join(length.to_bytes(8, "little") for length in lengths)
    head = _HEADER.pack(_MAGIC, *numbers)
    data = head + words + marks + content + b"".join(blob for at, blob in enumerate(blobs) if at >= passed)
    return of_bytes(data, rng) if rng.random() < 0.5 else data
