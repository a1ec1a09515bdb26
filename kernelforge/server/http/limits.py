"""Limits on HTTP requests: sizes of bodies and headers, connections that send nothing."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.auto import AutoHTTPProtocol

from kernelforge.server.base import RequestRejected
from kernelforge.server.http.errors import problem_response

_HANDSHAKE = (b"sec-websocket-key", b"sec-websocket-version")
_BODY = {b"content-length", b"transfer-encoding"}


def bounded_protocol(limits: Limits) -> type[asyncio.Protocol]:
    """uvicorn's protocol with the limits that it lacks: it would hold a silent connection for ever."""
    base: Any = AutoHTTPProtocol
    silent: dict[Any, None] = {}
    """Connections without a request, that whose last one ended longest ago first."""
    sending: dict[Any, None] = {}
    """Connections whose request has a body that is still to come, the first of them first."""

    class Bounded(base):  # type: ignore[misc]
        """One connection."""

        def connection_made(self, transport: asyncio.Transport) -> None:
            self._head_bytes, self._timer = 0, None
            super().connection_made(transport)
            if len(self.connections) > limits.connections and not _give_way(silent, sending):
                transport.abort()
                return
            silent[self] = None
            self._await_head()

        def connection_lost(self, error: Exception | None) -> None:
            self._head_came()
            silent.pop(self, None)
            sending.pop(self, None)
            super().connection_lost(error)

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self._file()
            if self.transport.get_protocol() is not self:
                self._head_came()
                self.loop.call_later(limits.head_s, self._end_unless_greeted)
                return
            if self.cycle is not None and not self.cycle.response_complete:
                self._head_came()
                return
            self._head_bytes += len(data)
            if self._head_bytes > limits.head_bytes:
                self.transport.abort()
            elif self._timer is None:
                self._await_head()

        def _should_upgrade(self) -> bool:
            # Of anything else the WebSocket side would neither answer nor close the connection.
            names = {name for name, _ in self.headers}
            whole = self.parser.get_method() == b"GET" and names.issuperset(_HANDSHAKE) and not names & _BODY
            return whole and bool(super()._should_upgrade())

        def _end_unless_greeted(self) -> None:
            if not getattr(self.transport.get_protocol(), "handshake_complete", True):
                self.transport.abort()

        def on_headers_complete(self) -> None:
            super().on_headers_complete()
            if not self.url.startswith(b"/"):
                self.scope["raw_path"] = self.url  # of a whole URL httptools keeps the path alone; the gate refuses it

        def on_response_complete(self) -> None:
            self._head_bytes = 0
            super().on_response_complete()
            self._file()

        def _file(self) -> None:
            """Note whom the connection waits for. A few bytes more do not make it younger."""
            answered = self.cycle is None or self.cycle.response_complete
            ours = self.transport.get_protocol() is self and not self.transport.is_closing()  # else a WebSocket by now
            for waiting, so in ((silent, answered), (sending, not answered and self.cycle.more_body)):
                if so and ours:
                    waiting.setdefault(self)
                else:
                    waiting.pop(self, None)

        def _await_head(self) -> None:
            self._timer = self.loop.call_later(limits.head_s, self._too_slow)

        def _head_came(self) -> None:
            self._head_bytes = 0
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

        def _too_slow(self) -> None:
            # Where the connection became a WebSocket it has another protocol by now, with pings of its own.
            if self.transport.get_protocol() is self:
                self.transport.abort()

    return Bounded


def _give_way(*waiting: dict[Any, None]) -> bool:
    """Close the connection that has waited longest for its client; False where none does."""
    for connections in waiting:
        for oldest in connections:
            del connections[oldest]
            oldest.transport.abort()
            return True
    return False


BATCH_PATH = "/v1/jobs/batch"
_MiB = 1 << 20


@dataclass(frozen=True)
class Limits:
    """Bounds of the HTTP side. Those of single fields are in :mod:`kernelforge.client.models`."""

    body_bytes: int = 16 * _MiB
    """A completion of 2 Mi characters that are all escaped needs 12 MiB."""
    batch_bytes: int = 64 * _MiB
    """Of a batch."""
    bodies_bytes: int = 512 * _MiB
    """Of all bodies that are being received or answered, together."""
    body_s: float = 60.0
    """Time in which a body must have arrived."""
    head_s: float = 15.0
    """Time in which the first byte and all headers of a request must have arrived."""
    head_bytes: int = 64 << 10
    connections: int = 4_096
    held: int = 4_000
    """Requests that wait for jobs: long polls, event streams, rewards."""


class BodyLimit:
    """Bounds size, memory and time of request bodies, also of those without a length. Pure ASGI.

    One place for all three, and not the framework's limit of the size alone, so that each is refused in our format.
    """

    def __init__(self, app: ASGIApp, limits: Limits) -> None:
        self._app = app
        self._limits = limits
        self._held_bytes = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        length = _announced(scope) if scope["type"] == "http" else 0
        if length == 0:
            await self._app(scope, receive, send)
            return
        most = self._limits.batch_bytes if scope["path"] == BATCH_PATH else self._limits.body_bytes
        body = _Body(self, receive, most, self._limits.body_s)
        if length is not None and length > most:
            response = problem_response(_too_large(most), scope, {"Connection": "close"})
            await response(scope, receive, send)
            return
        try:
            await self._app(scope, body.receive, send)
        finally:
            self._held_bytes -= body.size

    def take(self, size: int) -> None:
        """
        Raises:
            HTTPException: 503: all bodies together are too large.
        """
        if self._held_bytes + size > self._limits.bodies_bytes:
            raise HTTPException(503, "too many large requests at a time", {"Retry-After": "1", "Connection": "close"})
        self._held_bytes += size


class _Body:
    def __init__(self, bodies: BodyLimit, receive: Receive, most: int, seconds: float) -> None:
        self._bodies = bodies
        self._receive = receive
        self._most = most
        self._deadline = asyncio.get_running_loop().time() + seconds
        self._whole = False
        self.size = 0

    async def receive(self) -> Message:
        if self._whole:
            return await self._receive()
        try:
            async with asyncio.timeout_at(self._deadline):
                message = await self._receive()
        except TimeoutError as error:
            raise HTTPException(408, "the body took too long to arrive", {"Connection": "close"}) from error
        size = len(message.get("body", b""))
        if self.size + size > self._most:
            raise HTTPException(413, str(_too_large(self._most)), {"Connection": "close"})
        self._bodies.take(size)
        self.size += size
        self._whole = not message.get("more_body", False)
        return message


def _announced(scope: Scope) -> int | None:
    """Bytes of the body; None where they are not told, 0 where there is none."""
    for name, value in scope["headers"]:
        if name == b"transfer-encoding":
            return None
        if name == b"content-length":
            return int(value) if value.isdigit() and len(value) < 20 else None
    return 0


def _too_large(most: int) -> RequestRejected:
    return RequestRejected(413, "too_large", f"a body has at most {most} bytes here")
