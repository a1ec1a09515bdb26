"""Length-capped binary frames over a socket: the only connection to a confined child.

A frame is a fixed header (magic, JSON length, counts of blobs and files), the blob lengths, a mark for each blob, the
JSON text, the blobs. Nothing is pickled; a frame over the caps or with a wrong header is an error of the channel, never
of the parser.

The bytes of a marked blob are in a sealed memory file (module ``shared_memory``) instead of the stream; its descriptor
comes with the header (``SCM_RIGHTS``). Any other descriptor, and every one on a channel without files, is closed and
breaks the frame.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import select
import socket
import struct
import time
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kernelforge.errors import ChildDied, ChildTimeout, SandboxError
from kernelforge.sandbox.shared_memory import Blob, MemoryFile, descriptor_of, is_open_to_writing, seal

_HEADER = struct.Struct("<4sIIIQ")
_MAGIC = b"KFF2"
MAX_JSON_BYTES = 64 << 20
MAX_BLOBS = 4096
MAX_FILES = 64
"""Memory files in one frame: a child may have 256 descriptors."""
_RIGHTS_BYTES = socket.CMSG_SPACE(MAX_FILES * array("i").itemsize)
_LARGE = 1 << 20
_TIMEVAL = struct.Struct("@ll")
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


@dataclass(frozen=True)
class Frame:
    """One message: JSON data and raw blobs. Large blobs may be read-only views of shared memory."""

    data: dict[str, Any]
    blobs: tuple[Blob, ...] = ()


class Channel:
    """One end of a stream socket, speaking frames.

    Args:
        sock: The socket; closed with the channel.
        max_blob_bytes: Largest sum of a received frame's blobs.
        max_json_bytes: Largest text of a received frame.
        forwards: Keep the descriptors of received files, so that another channel can forward them without a copy.
        files_from: Smallest blob that is sent as a file; None if neither end may use files.
        trusts: Whether received files may be open to writing: at a child's end.
    """

    def __init__(
        self,
        sock: socket.socket,
        *,
        max_blob_bytes: int = 8 << 30,
        max_json_bytes: int = MAX_JSON_BYTES,
        forwards: bool = False,
        files_from: int | None = None,
        trusts: bool = False,
    ) -> None:
        self._sock = sock
        self._sock.setblocking(False)
        self.max_blob_bytes = max_blob_bytes
        self.max_json_bytes = max_json_bytes
        self._forwards = forwards
        self._files_from = files_from
        self._trusts = trusts

    def fileno(self) -> int:
        return self._sock.fileno()

    def close(self) -> None:
        self._sock.close()

    def send(self, data: dict[str, Any], blobs: Sequence[Blob] = (), *, timeout_s: float | None = None) -> None:
        """Send one frame.

        Raises:
            ChildTimeout: the other side did not read in time.
            ChildDied: the other side is gone.
            SandboxError: a memory file that the other side is to write cannot be sent as one.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        text = json.dumps(data, separators=(",", ":")).encode()
        views = [memoryview(blob).cast("B") for blob in blobs]
        with self._files(views) as files:
            _require_files(views, files)
            try:
                self._write_head(_head(text, views, files), tuple(files.values()), deadline)
            except _TooManyInFlight:
                files.clear()
                _require_files(views, files)
                self._write_head(_head(text, views, files), (), deadline)
            inline = [view for position, view in enumerate(views) if position not in files]
        for view in inline:
            self._write(view, deadline)

    def receive(self, *, timeout_s: float | None = None) -> Frame:
        """Receive one frame.

        Raises:
            ChildTimeout: no complete frame arrived in time.
            ChildDied: the other side closed the channel.
            SandboxError: the frame breaks the format or a cap.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        files: list[int] = []
        try:
            return self._receive(files, deadline)
        finally:
            for fd in files:
                os.close(fd)

    def has_data(self, timeout_s: float) -> bool:
        """Wait until there is something to receive, or the other side has closed the channel; False if time is up."""
        poller = select.poll()
        poller.register(self._sock, select.POLLIN)
        return bool(poller.poll(max(timeout_s, 0.0) * 1000))

    @property
    def closed(self) -> bool:
        """Whether the other side has closed the channel or ended. What it sent before may still be received."""
        poller = select.poll()
        poller.register(self._sock, select.POLLRDHUP)
        return bool(poller.poll(0))

    def requests(self) -> Iterator[Frame]:
        """Every frame until the other side closes the channel: what a child answers."""
        with contextlib.suppress(ChildDied):
            while True:
                yield self.receive()

    def _receive(self, files: list[int], deadline: float | None) -> Frame:
        """The next frame. ``files`` receives its descriptors, and keeps those without an owner."""
        magic, text_bytes, count, passed, total = _HEADER.unpack(self._read_header(files, deadline))
        if magic != _MAGIC or text_bytes > self.max_json_bytes or count > MAX_BLOBS or total > self.max_blob_bytes:
            raise SandboxError("a confined child broke the frame format or a size cap")
        lengths = struct.unpack(f"<{count}Q", self._read(8 * count, deadline))
        marks = self._read(count, deadline)
        if sum(lengths) != total:
            raise SandboxError("a confined child announced blobs that do not add up")
        if passed != len(files) or marks.count(1) != passed or marks.count(0) != count - passed:
            raise SandboxError("a confined child announced other memory files than it passed")
        text = self._read(text_bytes, deadline)
        blobs = tuple(
            MemoryFile.map(files.pop(0), length, keep=self._forwards, trusted=self._trusts)
            if mark
            else self._read(length, deadline)
            for length, mark in zip(lengths, marks, strict=True)
        )
        return Frame(_object(text), blobs)

    @contextlib.contextmanager
    def _files(self, views: Sequence[memoryview]) -> Iterator[dict[int, int]]:
        """Descriptors of the largest blobs by position, ascending; closes those that it makes afterwards."""
        least = self._files_from
        large: list[int] = []
        if least is not None:
            of_files = {at for at, view in enumerate(views) if descriptor_of(view) is not None}
            large = [at for at, view in enumerate(views) if at in of_files or view.nbytes >= max(least, 1)]
        large = sorted(sorted(large, key=lambda at: views[at].nbytes)[-MAX_FILES:])
        files: dict[int, int] = {}
        made: list[int] = []
        try:
            for at in large:
                fd = descriptor_of(views[at])
                if fd is None:
                    fd = seal(views[at])
                    if fd is None:
                        continue
                    made.append(fd)
                files[at] = fd
            yield files
        finally:
            for fd in made:
                os.close(fd)

    def _wait(self, read: bool, deadline: float | None) -> None:
        remaining = None if deadline is None else deadline - time.monotonic()
        if remaining is not None and remaining <= 0:
            raise ChildTimeout("no answer in time")
        poller = select.poll()
        poller.register(self._sock, select.POLLIN if read else select.POLLOUT)
        if not poller.poll(None if remaining is None else remaining * 1000):
            raise ChildTimeout("no answer in time")

    def _write_head(self, head: bytes, files: Sequence[int], deadline: float | None) -> None:
        """Send the part before the blobs, with descriptors, which accompany the first byte."""
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", files))] if files else []
        while True:
            try:
                sent = self._sock.sendmsg([head], rights)
                break
            except BlockingIOError:
                self._wait(False, deadline)
            except (BrokenPipeError, ConnectionResetError) as error:
                raise ChildDied("the child is gone") from error
            except OSError as error:
                if error.errno == errno.ETOOMANYREFS and files:
                    raise _TooManyInFlight from error
                raise
        self._write(memoryview(head)[sent:], deadline)

    def _write(self, view: memoryview, deadline: float | None) -> None:
        while view.nbytes:
            try:
                view = view[self._sock.send(view) :]
            except BlockingIOError:
                self._wait(False, deadline)
            except (BrokenPipeError, ConnectionResetError) as error:
                raise ChildDied("the child is gone") from error

    def _read_header(self, files: list[int], deadline: float | None) -> bytes:
        """The fixed part of a frame; appends its descriptors to ``files``."""
        header, room = b"", 0 if self._files_from is None else _RIGHTS_BYTES
        while len(header) < _HEADER.size:
            try:
                piece, ancillary, flags, _ = self._sock.recvmsg(
                    _HEADER.size - len(header), room, socket.MSG_CMSG_CLOEXEC
                )
            except BlockingIOError:
                self._wait(True, deadline)
                continue
            except ConnectionResetError as error:
                raise ChildDied("the child is gone") from error
            for level, kind, content in ancillary:
                if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                    used = len(content) - len(content) % array("i").itemsize
                    files.extend(array("i", content[:used]))
            _refuse_more(flags)
            if len(files) > MAX_FILES:
                raise SandboxError(f"a confined child passed more than {MAX_FILES} descriptors")
            if not piece:
                raise ChildDied("the child closed its channel")
            header += piece
        return header

    def _read(self, count: int, deadline: float | None) -> bytes:
        """Bytes without descriptors: the kernel closes any that accompany them, and reports it."""
        if count >= _LARGE:
            return self._read_large(count, deadline)
        buffer = bytearray(count)
        view, done = memoryview(buffer), 0
        while done < count:
            try:
                got, _, flags, _ = self._sock.recvmsg_into([view[done:]])
            except BlockingIOError:
                self._wait(True, deadline)
                continue
            except ConnectionResetError as error:
                raise ChildDied("the child is gone") from error
            _refuse_more(flags)
            if got == 0:
                raise ChildDied("the child closed its channel")
            done += got
        return bytes(buffer)

    def _read_large(self, count: int, deadline: float | None) -> bytes:
        """Let the kernel fill one block: no copy, and an announced length takes memory only as bytes arrive."""
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
                    piece, _, flags, _ = self._sock.recvmsg(count, 0, socket.MSG_WAITALL)
                except BlockingIOError:
                    continue
                except ConnectionResetError as error:
                    raise ChildDied("the child is gone") from error
                _refuse_more(flags)
                if not piece:
                    raise ChildDied("the child closed its channel")
                pieces.append(piece)
                count -= len(piece)
        finally:
            self._sock.setblocking(False)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _object(text: bytes) -> dict[str, Any]:
    """The JSON object of a frame.

    Raises:
        SandboxError: the text is no JSON object.
    """
    try:
        # Decoded here: from bytes, ``json`` also accepts UTF-16 and halves of surrogate pairs.
        data = json.loads(text.decode())
        if _SURROGATE.search(text):
            data = _writable(data)
    except (ValueError, RecursionError) as error:
        raise SandboxError("a confined child sent a frame that is not JSON") from error
    if not isinstance(data, dict):
        raise SandboxError("a confined child sent a frame that is not an object")
    return data


def _writable(value: Any) -> Any:
    """``value`` with ``?`` for every half of a surrogate pair, which JSON can hold and files and terminals cannot."""
    if isinstance(value, str):
        return value.encode(errors="replace").decode()
    if isinstance(value, list):
        return [_writable(item) for item in value]
    if isinstance(value, dict):
        return {_writable(key): _writable(item) for key, item in value.items()}
    return value


class _TooManyInFlight(Exception):
    """The kernel refuses more descriptors in flight of this user."""


def _require_files(views: Sequence[memoryview], files: Mapping[int, int]) -> None:
    """Refuse to send the bytes of a file that the other side is to write: it would write to a copy.

    Raises:
        SandboxError: there is such a file, and it is not among ``files``.
    """
    if any(at not in files and is_open_to_writing(view) for at, view in enumerate(views)):
        raise SandboxError(f"memory files to write cannot be passed: over {MAX_FILES}, or too many on the way")


def _head(text: bytes, views: Sequence[memoryview], files: Mapping[int, int]) -> bytes:
    """The part before the blobs: header, lengths, marks, text."""
    lengths = [view.nbytes for view in views]
    header = _HEADER.pack(_MAGIC, len(text), len(views), len(files), sum(lengths))
    marks = bytes(position in files for position in range(len(views)))
    return header + struct.pack(f"<{len(views)}Q", *lengths) + marks + text


def _refuse_more(flags: int) -> None:
    """Refuse a message of which the kernel dropped descriptors: those of a frame accompany its header and fit.

    Raises:
        SandboxError: descriptors were dropped.
    """
    if flags & socket.MSG_CTRUNC:
        raise SandboxError(
            "descriptors that came with a frame were dropped: the sender passed some that no frame has, or this "
            "process has too many open files (ulimit -n)"
        )
