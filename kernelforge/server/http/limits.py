"""Limits on HTTP requests: sizes of bodies and headers, idle connections, strict JSON, requests that wait for jobs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, Literal, cast

from fastapi import APIRouter, Request, Response
from fastapi.routing import APIRoute
from pydantic import BaseModel
from pydantic_core import from_json
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.auto import AutoHTTPProtocol

from kernelforge.client.models import Job
from kernelforge.errors import KernelForgeError
from kernelforge.server.base import RequestRejected
from kernelforge.server.http.errors import problem_response
from kernelforge.server.jobs.service import JobService

_HANDSHAKE = (b"sec-websocket-key", b"sec-websocket-version")
_BODY = {b"content-length", b"transfer-encoding"}


def bounded_protocol(limits: Limits) -> type[asyncio.Protocol]:
    """uvicorn's protocol with limits on connections that send nothing, which uvicorn would keep for ever."""
    base: Any = AutoHTTPProtocol
    silent: dict[Any, None] = {}
    """Connections without a request, in the order in which their last one ended."""
    sending: dict[Any, None] = {}
    """Connections whose request body is incomplete, oldest first."""

    class Bounded(base):  # type: ignore[misc]
        """One connection."""

        def connection_made(self, transport: asyncio.Transport) -> None:
            self._head_bytes, self._timer = 0, None
            super().connection_made(transport)
            if len(self.connections) > limits.connections and not _abort_oldest(silent, sending):
                transport.abort()
                return
            silent[self] = None
            self._await_head()

        def connection_lost(self, error: Exception | None) -> None:
            self._head_received()
            silent.pop(self, None)
            sending.pop(self, None)
            super().connection_lost(error)

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self._update_queues()
            if self.transport.get_protocol() is not self:
                self._head_received()
                self.loop.call_later(limits.head_s, self._end_unless_greeted)
                return
            if self.cycle is not None and not self.cycle.response_complete:
                self._head_received()
                return
            self._head_bytes += len(data)
            if self._head_bytes > limits.head_bytes:
                self.transport.abort()
            elif self._timer is None:
                self._await_head()

        def _should_upgrade(self) -> bool:
            # Otherwise the WebSocket implementation would neither answer nor close the connection.
            names = {name for name, _ in self.headers}
            complete = self.parser.get_method() == b"GET" and names.issuperset(_HANDSHAKE) and not names & _BODY
            return complete and bool(super()._should_upgrade())

        def _end_unless_greeted(self) -> None:
            if not getattr(self.transport.get_protocol(), "handshake_complete", True):
                self.transport.abort()

        def on_headers_complete(self) -> None:
            super().on_headers_complete()
            if not self.url.startswith(b"/"):
                self.scope["raw_path"] = (
                    self.url
                )  # httptools keeps only the path of an absolute URL, which AuthMiddleware refuses

        def on_response_complete(self) -> None:
            self._head_bytes = 0
            super().on_response_complete()
            self._update_queues()

        def _update_queues(self) -> None:
            """Update ``silent`` and ``sending``. Further bytes do not change a connection's position."""
            answered = self.cycle is None or self.cycle.response_complete
            is_http = self.transport.get_protocol() is self and not self.transport.is_closing()
            for waiting, applies in ((silent, answered), (sending, not answered and self.cycle.more_body)):
                if applies and is_http:
                    waiting.setdefault(self)
                else:
                    waiting.pop(self, None)

        def _await_head(self) -> None:
            self._timer = self.loop.call_later(limits.head_s, self._too_slow)

        def _head_received(self) -> None:
            self._head_bytes = 0
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

        def _too_slow(self) -> None:
            # A WebSocket has another protocol, with its own pings.
            if self.transport.get_protocol() is self:
                self.transport.abort()

    return Bounded


def _abort_oldest(*waiting: dict[Any, None]) -> bool:
    """Close the connection that has waited longest for its client; False if there is none."""
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
    """Limits of HTTP requests. Limits of single fields are in :mod:`kernelforge.client.models`."""

    body_bytes: int = 16 * _MiB
    """A completion of 2 Mi characters that are all escaped needs 12 MiB."""
    batch_bytes: int = 64 * _MiB
    """Size of the body of a batch."""
    bodies_bytes: int = 512 * _MiB
    """Size of all bodies together that are being received or answered."""
    body_s: float = 60.0
    """Time in which a body must have arrived."""
    head_s: float = 15.0
    """Time in which the first byte and all headers of a request must have arrived."""
    head_bytes: int = 64 << 10
    connections: int = 4_096
    long_polls: int = 4_000
    """Requests that wait for jobs: long polls, event streams, rewards."""


class BodyLimit:
    """Limits size, memory and time of request bodies, also without a length header. Pure ASGI.

    It replaces the framework's size limit, so that all refusals have the same format.
    """

    def __init__(self, app: ASGIApp, limits: Limits) -> None:
        self._app = app
        self._limits = limits
        self._used_bytes = 0

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
            self._used_bytes -= body.size

    def take(self, size: int) -> None:
        """Reserve memory for a part of a body.

        Raises:
            HTTPException: 503: all bodies together are too large.
        """
        if self._used_bytes + size > self._limits.bodies_bytes:
            raise HTTPException(503, "too many large requests at a time", {"Retry-After": "1", "Connection": "close"})
        self._used_bytes += size


class _Body:
    def __init__(self, bodies: BodyLimit, receive: Receive, most: int, seconds: float) -> None:
        self._bodies = bodies
        self._receive = receive
        self._most = most
        self._deadline = asyncio.get_running_loop().time() + seconds
        self._complete = False
        self.size = 0

    async def receive(self) -> Message:
        if self._complete:
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
        self._complete = not message.get("more_body", False)
        return message


def _announced(scope: Scope) -> int | None:
    """Announced bytes of the body; None if unknown, 0 if there is no body."""
    for name, value in scope["headers"]:
        if name == b"transfer-encoding":
            return None
        if name == b"content-length":
            return int(value) if value.isdigit() and len(value) < 20 else None
    return 0


def _too_large(most: int) -> RequestRejected:
    return RequestRejected(413, "too_large", f"a body has at most {most} bytes here")


MAX_VALUES = 1_000_000
"""Most values in one text. In 16 MiB there could be eight million, which take seconds and gigabytes to parse."""


class StrictRequest(Request):
    """Request that parses JSON with pydantic's parser, which is fast and limits depth and digits."""

    async def json(self) -> Any:
        body = await self.body()
        if has_too_many_values(body):
            raise HTTPException(413, f"the body has more than {MAX_VALUES:,} values")
        try:
            return from_json(body, allow_inf_nan=False)
        except ValueError as error:
            raise HTTPException(400, f"the body is not JSON: {error}") from error


def has_too_many_values(text: bytes) -> bool:
    """Whether JSON holds more than :data:`MAX_VALUES` values, counted quickly and before it is parsed."""
    if len(text) < 2 * MAX_VALUES:  # a value and its separator take two characters at least
        return False
    unescaped = text.replace(rb"\\", b"").replace(rb"\"", b"")
    if unescaped.count(b'"') > 4 * MAX_VALUES:  # two around each string, which is a value or a key
        return True
    outside = b"".join(unescaped.split(b'"')[::2])
    return sum(outside.count(mark) for mark in (b",", b"[", b"{")) >= MAX_VALUES


class StrictRoute(APIRoute):
    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def read_strictly(request: Request) -> Response:
            return await handle(StrictRequest(request.scope, request.receive))

        return read_strictly


def api_router(tag: str) -> APIRouter:
    """A router of strict routes under one tag of the OpenAPI page."""
    return APIRouter(route_class=StrictRoute, tags=[tag])


def json_answer(answer: BaseModel, status: int = 200) -> Response:
    """Serialise an already validated model."""
    return Response(answer.model_dump_json(), status, media_type="application/json")


WATCH_AFTER_S = 0.05
"""Time after which a request is watched for a client that disconnects; for faster answers it costs too much."""
_RETRY_AFTER_S = 1.0


class ClientGone(KernelForgeError):
    """The client disconnected before the answer."""


_ENDING_S = 0.1


class OpenRequests:
    """Every request in progress, so that those that do not end with the jobs have an answer when the server closes."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()
        self._closed = False

    @asynccontextmanager
    async def answering(self) -> AsyncIterator[None]:
        """A context in which a request is answered.

        Raises:
            RequestRejected: 503: the server closed in the meantime.
        """
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            yield
        except asyncio.CancelledError as error:
            if not self._closed:
                raise
            task.uncancel()
            raise _closing() from error
        finally:
            self._tasks.discard(task)

    async def close(self, timeout_s: float) -> None:
        """End the requests in progress, and wait until they are answered."""
        self._closed = True
        if self._tasks:  # those that waited for jobs are ending by themselves
            await asyncio.wait(self._tasks, timeout=_ENDING_S)
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=timeout_s)


class LongPollLimiter:
    """The open requests that wait for jobs.

    Args:
        most: largest number at the same time.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._open: set[_LongPoll] = set()
        self._closed = asyncio.Event()

    def __len__(self) -> int:
        return len(self._open)

    @asynccontextmanager
    async def waiting(self, request: Request, *, watched: bool = True) -> AsyncIterator[None]:
        """A context in which a request waits.

        Args:
            watched: cancel the body of the context when the client disconnects; the request body must be complete.

        Raises:
            RequestRejected: 503, on entry: too many requests wait; at any time: the server closes.
            ClientGone: on exit.
        """
        if self._closed.is_set():
            raise _closing()
        if len(self._open) >= self._most:
            raise RequestRejected(
                503, "too_many_held", f"{self._most} requests wait already", retry_after_s=_RETRY_AFTER_S
            )
        poll = _LongPoll(request, asyncio.current_task() if watched else None)
        self._open.add(poll)
        try:
            yield
        except asyncio.CancelledError as error:
            if poll.reason is None:
                raise
            raise (ClientGone("the client went away") if poll.reason == "gone" else _closing()) from error
        finally:
            self._open.discard(poll)
            poll.stop()

    def close(self) -> None:
        """End all waiting requests, and accept no more."""
        self._closed.set()
        for poll in tuple(self._open):
            poll.end("closed")

    async def until_closed(self, jobs: AsyncIterator[Job]) -> AsyncIterator[Job]:
        """The same jobs, ending early when the server closes."""
        closed = asyncio.ensure_future(self._closed.wait())
        upcoming: asyncio.Future[Job] | None = None
        try:
            while True:
                upcoming = asyncio.ensure_future(cast("asyncio.Future[Job]", anext(jobs)))
                await asyncio.wait((upcoming, closed), return_when=asyncio.FIRST_COMPLETED)
                if not upcoming.done():
                    return
                try:
                    yield upcoming.result()
                except StopAsyncIteration:
                    return
        finally:
            closed.cancel()
            if upcoming is not None and upcoming.done() and not upcoming.cancelled():
                upcoming.exception()  # mark it as retrieved: a cancelled wait does not see the end of the jobs
            elif upcoming is not None:
                upcoming.cancel()
                with suppress(asyncio.CancelledError, StopAsyncIteration):
                    await upcoming
            if isinstance(jobs, AsyncGenerator):  # otherwise it runs until it is garbage-collected
                await jobs.aclose()


class _LongPoll:
    """One waiting request; ``task`` is cancelled when its client disconnects. One without is ended by
    :meth:`LongPollLimiter.until_closed`."""

    def __init__(self, request: Request, task: asyncio.Task[object] | None) -> None:
        self.reason: Literal["gone", "closed"] | None = None
        self._request = request
        self._task = task
        self._watcher: asyncio.TimerHandle | asyncio.Task[None] | None = None
        if task is not None:
            self._watcher = asyncio.get_running_loop().call_later(WATCH_AFTER_S, self._watch)

    def end(self, reason: Literal["gone", "closed"]) -> None:
        if self._task is not None and self.reason is None:
            self.reason = reason
            self._task.cancel()

    def stop(self) -> None:
        """Watch the client no more, and take the cancellation back."""
        if self._watcher is not None:
            self._watcher.cancel()
        if self._task is not None and self.reason is not None:
            self._task.uncancel()

    def _watch(self) -> None:
        self._watcher = asyncio.get_running_loop().create_task(self._until_gone())

    async def _until_gone(self) -> None:
        while (await self._request.receive())["type"] != "http.disconnect":
            pass
        self.end("gone")


def _closing() -> RequestRejected:
    return RequestRejected(503, "draining", "this server is shutting down", retry_after_s=_RETRY_AFTER_S)


def limiter_of(request: Request) -> LongPollLimiter:
    """The limiter of a request's application."""
    return cast(LongPollLimiter, request.app.state.long_polls)


def service_of(request: Request) -> JobService:
    """The job service of a request's application."""
    return cast(JobService, request.app.state.service)
