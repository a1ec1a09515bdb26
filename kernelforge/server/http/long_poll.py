"""Long-polling: limit and cancel requests that wait for a job."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import suppress
from types import TracebackType
from typing import Literal, cast

from starlette.requests import Request

from kernelforge.client.models import Job, JobRequest
from kernelforge.errors import KernelForgeError
from kernelforge.server.base import Caller, RequestRejected
from kernelforge.server.jobs.service import JobService

WATCH_AFTER_S = 0.05
"""Time after which a request is watched for a client that disconnects; for faster answers it costs too much."""
RETRY_AFTER_S = 1.0


class ClientGone(KernelForgeError):
    """The client disconnected before the answer."""


class LongPollLimiter:
    """The open requests that wait for jobs.

    Args:
        most: largest number at the same time.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._holds: set[LongPoll] = set()
        self._closed = asyncio.Event()

    def __len__(self) -> int:
        return len(self._holds)

    def waiting(self, request: Request, *, watched: bool = True) -> LongPoll:
        """A context in which a request waits.

        Args:
            watched: cancel the body of the context when the client disconnects; the request body must be complete.

        Raises:
            RequestRejected: 503, on entry: too many requests wait; at any time: the server closes.
            ClientGone: on exit.
        """
        return LongPoll(self, request, watched)

    def close(self) -> None:
        """End all waiting requests, and accept no more."""
        self._closed.set()
        for hold in tuple(self._holds):
            hold.end("closed")

    def enter(self, hold: LongPoll) -> None:
        if self._closed.is_set():
            raise _closing()
        if len(self._holds) >= self._most:
            raise RequestRejected(
                503, "too_many_held", f"{self._most} requests wait already", retry_after_s=RETRY_AFTER_S
            )
        self._holds.add(hold)

    def leave(self, hold: LongPoll) -> None:
        self._holds.discard(hold)

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
            if upcoming is not None and not upcoming.done():
                upcoming.cancel()
                with suppress(asyncio.CancelledError, StopAsyncIteration):
                    await upcoming
            if isinstance(jobs, AsyncGenerator):  # otherwise it runs until it is garbage-collected
                await jobs.aclose()


class LongPoll:
    """One waiting request as an asynchronous context manager, created by :meth:`LongPollLimiter.waiting`."""

    def __init__(self, limiter: LongPollLimiter, request: Request, watched: bool) -> None:
        self._limiter = limiter
        self._request = request
        self._watched = watched
        self._reason: Literal["gone", "closed"] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._watcher: asyncio.Task[None] | None = None
        self._task: asyncio.Task[object] | None = None

    async def __aenter__(self) -> None:
        self._limiter.enter(self)
        self._task = asyncio.current_task()
        if self._watched:
            self._timer = asyncio.get_running_loop().call_later(WATCH_AFTER_S, self._watch)

    def end(self, reason: Literal["gone", "closed"]) -> None:
        """Cancel the body of the context. An unwatched one is ended by :meth:`LongPollLimiter.until_closed`."""
        if self._watched and self._reason is None and self._task is not None:
            self._reason = reason
            self._task.cancel()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._limiter.leave(self)
        if self._timer is not None:
            self._timer.cancel()
        if self._watcher is not None:
            self._watcher.cancel()
        if self._reason is None or self._task is None:
            return
        self._task.uncancel()
        if isinstance(error, asyncio.CancelledError):
            raise (ClientGone("the client went away") if self._reason == "gone" else _closing()) from error

    def _watch(self) -> None:
        self._watcher = asyncio.get_running_loop().create_task(self._until_gone())

    async def _until_gone(self) -> None:
        while (await self._request.receive())["type"] != "http.disconnect":
            pass
        self.end("gone")


def _closing() -> RequestRejected:
    return RequestRejected(503, "draining", "this server is shutting down", retry_after_s=RETRY_AFTER_S)


def limiter_of(request: Request) -> LongPollLimiter:
    """The limiter of a request's application."""
    return cast(LongPollLimiter, request.app.state.long_polls)


def service_of(request: Request) -> JobService:
    """The job service of a request's application."""
    return cast(JobService, request.app.state.service)


async def score_and_wait(
    request: Request, service: JobService, job: JobRequest, caller: Caller, *, timeout_s: float, key: str | None = None
) -> Job:
    """Submit a job and wait for its end. The job is cancelled when the client disconnects.

    Raises:
        RequestRejected: the job was not accepted, too many requests wait, or the server closes.
        ClientGone: the client disconnected.
    """
    async with limiter_of(request).waiting(request):
        return await service.score(job, caller, timeout_s=timeout_s, key=key)
