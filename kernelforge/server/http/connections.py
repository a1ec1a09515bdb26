"""Connections that are bounded in number, and in the time and size that a request's head may take."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.auto import AutoHTTPProtocol

from kernelforge.server.http.limits import Limits


def bounded_protocol(limits: Limits) -> type[asyncio.Protocol]:
    """uvicorn's protocol with the limits that it lacks: it would hold a silent connection for ever."""
    base: Any = AutoHTTPProtocol

    class Bounded(base):  # type: ignore[misc]
        """One connection."""

        def connection_made(self, transport: asyncio.Transport) -> None:
            self._head_bytes, self._timer = 0, None
            super().connection_made(transport)
            if len(self.connections) > limits.connections:
                transport.abort()
                return
            self._await_head()

        def connection_lost(self, error: Exception | None) -> None:
            self._head_came()
            super().connection_lost(error)

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if self.cycle is not None and not self.cycle.response_complete:
                self._head_came()
                return
            self._head_bytes += len(data)
            if self._head_bytes > limits.head_bytes:
                self.transport.abort()
            elif self._timer is None:
                self._await_head()

        def on_headers_complete(self) -> None:
            super().on_headers_complete()
            if not self.url.startswith(b"/"):
                self.scope["raw_path"] = self.url  # of a whole URL httptools keeps the path alone; the gate refuses it

        def on_response_complete(self) -> None:
            self._head_bytes = 0
            super().on_response_complete()

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
