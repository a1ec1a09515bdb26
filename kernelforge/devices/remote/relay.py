"""The far end of a connection, as a socket: for a process that was started over SSH.

Frames come on standard input and go to standard output. An empty frame says that the other side is there. Where the
connection ends, or is silent for too long, the process gets the end of its socket, and a limited time to end in order.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import struct
import threading
from contextlib import suppress

SILENCE_S = 60.0
"""Longest time without a frame: the network between may be gone without a word."""

BEAT_S = 10.0
"""Time between empty frames."""

BEAT = struct.pack("<I", 0)
"""An empty frame."""

ENDING_S = 15.0
"""Longest time to end in order; then the process is ended, and its children with it."""

_CHUNK = 1 << 16


def frames_socket() -> int:
    """Descriptor of a socket that carries the frames of the connection, without the empty ones.

    What anything here prints on standard output goes to standard error.
    """
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # the end of input says the same, and in order
    incoming, outgoing = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    inner, outer = socket.socketpair()
    threading.Thread(target=_inwards, args=(incoming, inner), name="frames in", daemon=True).start()
    threading.Thread(target=_outwards, args=(inner, outgoing), name="frames out", daemon=True).start()
    return outer.detach()


def _inwards(incoming: int, inner: socket.socket) -> None:
    with suppress(OSError):  # the process has closed its end
        while (head := _exactly(incoming, 4)) is not None:
            (length,) = struct.unpack("<I", head)
            if length == 0:
                continue
            inner.sendall(head)
            while length and (part := _some(incoming, length)):
                inner.sendall(part)
                length -= len(part)
            if length:
                break
    ending = threading.Timer(ENDING_S, os._exit, (1,))
    ending.daemon = True
    ending.start()
    with suppress(OSError):
        inner.shutdown(socket.SHUT_WR)


def _exactly(descriptor: int, count: int) -> bytes | None:
    data = b""
    while len(data) < count:
        part = _some(descriptor, count - len(data))
        if not part:
            return None
        data += part
    return data


def _some(descriptor: int, most: int) -> bytes:
    """Some bytes; none at the end of the connection, or when it has been silent for too long."""
    readable, _, _ = select.select([descriptor], [], [], SILENCE_S)
    return os.read(descriptor, min(most, _CHUNK)) if readable else b""


def _outwards(inner: socket.socket, outgoing: int) -> None:
    with suppress(OSError):  # the other side reads no more
        while part := inner.recv(_CHUNK):
            while part:
                part = part[os.write(outgoing, part) :]
    os.close(outgoing)
