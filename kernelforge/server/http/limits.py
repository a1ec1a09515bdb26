"""What one request, and all of them together, may take of the server."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from kernelforge.server.base import Refusal
from kernelforge.server.http.problems import problem_response

BATCH_PATH = "/v1/jobs/batch"
_MiB = 1 << 20


@dataclass(frozen=True)
class Limits:
    """Bounds of the HTTP side. Those of single fields are in :mod:`kernelforge.client.wire`."""

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


class Bodies:
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
    def __init__(self, bodies: Bodies, receive: Receive, most: int, seconds: float) -> None:
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


def _too_large(most: int) -> Refusal:
    return Refusal(413, "too_large", f"a body has at most {most} bytes here")
