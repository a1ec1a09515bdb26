"""Connections that are bounded in number, and in the time and size that a request's head may take.

Where there are as many as there may be, a new one takes the place of the one that has kept the server waiting longest:
first of those without a request, then of those whose request's body has not come. So nobody is locked out by opening
connections and sending nothing, however many. Whoever waits for an answer keeps its connection.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.auto import AutoHTTPProtocol

from kernelforge.server.http.limits import Limits

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
