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
"""A request that is answered sooner is not watched for its client's going away: that costs more than the answer."""
RETRY_AFTER_S = 1.0


class ClientGone(KernelForgeError):
    """Nobody waits for the answer any more."""


class LongPollLimiter:
    """The held requests of a server.

    Args:
        most: how many there may be at a time.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._holds: set[LongPoll] = set()
        self._closed = asyncio.Event()

    def __len__(self) -> int:
        return len(self._holds)

    def waiting(self, request: Request, *, watched: bool = True) -> LongPoll:
        """A context in which a request is held.

        Args:
            watched: cancel what is done inside when the client goes away; for a request whose body was read whole.

        Raises:
            RequestRejected: 503, on entering: too many are held; at any time: the server closes.
            ClientGone: on leaving.
        """
        return LongPoll(self, request, watched)

    def close(self) -> None:
        """End all that are held, and hold no more."""
        self._closed.set()
        for hold in tuple(self._holds):
            hold.end("closed")

    def enter(self, hold: LongPoll) -> None:
        if self._closed.is_set():
            raise _closing()
        if len(self._holds) >= self._most:
            raise RequestRejected(
                503, "too_many_held", f"{self._most} requests are held open already", retry_after_s=RETRY_AFTER_S
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
            if isinstance(jobs, AsyncGenerator):  # else it would be followed until somebody collects the garbage
                await jobs.aclose()


class LongPoll:
    """One held request, as an asynchronous context manager. Made by :meth:`LongPollLimiter.waiting`."""

    def __init__(self, held: LongPollLimiter, request: Request, watched: bool) -> None:
        self._held = held
        self._request = request
        self._watched = watched
        self._why: Literal["gone", "closed"] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._watcher: asyncio.Task[None] | None = None
        self._task: asyncio.Task[object] | None = None

    async def __aenter__(self) -> None:
        self._held.enter(self)
        self._task = asyncio.current_task()
        if self._watched:
            self._timer = asyncio.get_running_loop().call_later(WATCH_AFTER_S, self._watch)

    def end(self, why: Literal["gone", "closed"]) -> None:
        """Cancel what is done inside. A hold that is not watched ends by :meth:`LongPollLimiter.until_closed`."""
        if self._watched and self._why is None and self._task is not None:
            self._why = why
            self._task.cancel()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._held.leave(self)
        if self._timer is not None:
            self._timer.cancel()
        if self._watcher is not None:
            self._watcher.cancel()
        if self._why is None or self._task is None:
            return
        self._task.uncancel()
        if isinstance(error, asyncio.CancelledError):
            raise (ClientGone("the client went away") if self._why == "gone" else _closing()) from error

    def _watch(self) -> None:
        self._watcher = asyncio.get_running_loop().create_task(self._until_gone())

    async def _until_gone(self) -> None:
        while (await self._request.receive())["type"] != "http.disconnect":
            pass
        self.end("gone")


def _closing() -> RequestRejected:
    return RequestRejected(503, "draining", "this server is shutting down", retry_after_s=RETRY_AFTER_S)


def held_by(request: Request) -> LongPollLimiter:
    """The held requests of the application that a request came to."""
    return cast(LongPollLimiter, request.app.state.held)


def core_of(request: Request) -> JobService:
    """The gateway behind the application that a request came to."""
    return cast(JobService, request.app.state.service)


async def held_score(
    request: Request, service: JobService, job: JobRequest, caller: Caller, *, timeout_s: float, key: str | None = None
) -> Job:
    """Submit a job and hold the request until it ends. The job is cancelled when the client goes away.

    Raises:
        RequestRejected: the job was not accepted, too many requests are held, or the server closes.
        ClientGone: nobody would hear the answer.
    """
    async with held_by(request).waiting(request):
        return await service.score(job, caller, timeout_s=timeout_s, key=key)
