"""Transports of the two clients: HTTP connections, waiting, and cleaning up after an interrupted call."""

from __future__ import annotations

import asyncio
import os
import time
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Generator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Generic, TypeVar

import httpx2

from kernelforge.client import requests as calls
from kernelforge.client.flow import HOLD_S, ConnectionFailed, Limits, ask
from kernelforge.client.models import Job, WaitAnswer
from kernelforge.client.requests import RequestSpec, ResponseData
from kernelforge.client.settings import Settings
from kernelforge.errors import ServerError

T = TypeVar("T")

CONNECT_S = 10.0
NEVER_SENT = (
    httpx2.ConnectError,
    httpx2.ConnectTimeout,
    httpx2.PoolTimeout,
    httpx2.ProxyError,
    httpx2.UnsupportedProtocol,
)
IDS_PER_REQUEST = 64
"""Few, because a request is repeated with its ids whenever one of them has ended."""
SHARED_HOLD_S = 20.0
BUSY_HOLD_S = 1.0
"""Shorter while all requests are in use, so that one of them soon takes up further jobs."""

WaitForOne = Callable[[Sequence[str], float], Awaitable[WaitAnswer]]
"""Wait until one of some jobs has ended, or for so many seconds."""


class SharedWait:
    """Waits for the jobs of any number of asyncio tasks with few requests.

    Args:
        requests: most requests at the same time.
    """

    def __init__(self, wait_for_one: WaitForOne, *, requests: int) -> None:
        self._wait_for_one = wait_for_one
        self._requests = requests
        self._callers: dict[str, set[asyncio.Future[Job]]] = {}
        self._queued: deque[str] = deque()
        self._polls: set[asyncio.Task[None]] = set()

    async def wait(self, job_id: str, seconds: float) -> Job | None:
        """The job once it has ended; None if it has not ended in time.

        Raises:
            ServerError: the server does not know it, or cannot be reached.
        """
        future: asyncio.Future[Job] = asyncio.get_running_loop().create_future()
        if job_id not in self._callers:
            self._callers[job_id] = set()
            self._queued.append(job_id)
        self._callers[job_id].add(future)
        self._start()
        try:
            async with asyncio.timeout(seconds):
                return await future
        except TimeoutError:
            return None
        finally:
            self._leave(job_id, future)

    async def aclose(self) -> None:
        """Stop polling and notify the callers that still wait."""
        self._fail(list(self._callers), ServerError("the client was closed while it waited for a job", code="closed"))
        for poll in self._polls:
            poll.cancel()
        await asyncio.gather(*self._polls, return_exceptions=True)

    def _leave(self, job_id: str, future: asyncio.Future[Job]) -> None:
        callers = self._callers.get(job_id, set())
        callers.discard(future)
        if not callers:
            self._callers.pop(job_id, None)
        if not self._callers:
            for poll in self._polls:
                poll.cancel()

    def _start(self) -> None:
        if self._queued and len(self._polls) < self._requests:
            poll = asyncio.create_task(self._poll())
            self._polls.add(poll)
            poll.add_done_callback(self._ended)

    def _ended(self, poll: asyncio.Task[None]) -> None:
        self._polls.discard(poll)
        if not poll.get_loop().is_closed():
            self._start()

    async def _poll(self) -> None:
        """Wait for some jobs until all of them have ended, and add queued jobs while there is room."""
        ids: list[str] = []
        while ids := self._with_more([job_id for job_id in ids if job_id in self._callers]):
            busy = len(self._polls) >= self._requests
            try:
                answer = await self._wait_for_one(ids, BUSY_HOLD_S if busy else SHARED_HOLD_S)
            except ServerError as error:
                if error.status == 404 and len(ids) > 1:
                    await self._one_by_one(ids)
                    continue
                self._fail(ids, error)
                return
            self._deliver(answer.ended)

    def _with_more(self, ids: list[str]) -> list[str]:
        while self._queued and len(ids) < IDS_PER_REQUEST:
            job_id = self._queued.popleft()
            if job_id in self._callers and job_id not in ids:
                ids.append(job_id)
        return ids

    async def _one_by_one(self, ids: list[str]) -> None:
        """Find the unknown job for which the server refused all, and report it to its callers only."""
        for job_id in ids:
            try:
                self._deliver((await self._wait_for_one([job_id], 0.0)).ended)
            except ServerError as error:
                self._fail([job_id], error)

    def _deliver(self, jobs: Sequence[Job]) -> None:
        for job in jobs:
            for caller in self._callers.pop(job.id, ()):
                if not caller.done():
                    caller.set_result(job)

    def _fail(self, ids: Sequence[str], error: ServerError) -> None:
        for job_id in ids:
            for caller in self._callers.pop(job_id, ()):
                if not caller.done():
                    caller.set_exception(error.copy())


@dataclass(frozen=True)
class _Connections:
    """Connections of one process and event loop."""

    http: httpx2.AsyncClient
    shared: SharedWait


class AsyncTransport:
    """Transport of the asynchronous client."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._connections: dict[tuple[int, asyncio.AbstractEventLoop], _Connections] = {}
        self._clean_ups: set[asyncio.Task[None]] = set()

    async def run(self, steps: Coroutine[Any, Any, T]) -> T:
        return await steps

    def iterate(self, items: AsyncGenerator[T, None]) -> AsyncGenerator[T, None]:
        return items

    async def send(self, call: RequestSpec[Any], timeout_s: float) -> ResponseData:
        try:
            return _received(await self._here().http.request(**_http_request(call, timeout_s)))
        except (httpx2.HTTPError, httpx2.StreamError) as error:
            raise _connection_failed(error) from error

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def poll(self, job: Job, limits: Limits) -> Job:
        return await self._here().shared.wait(job.id, limits.remaining_s) or job

    async def clean_up(self, steps: Coroutine[Any, Any, None]) -> None:
        """Run ``steps`` in an asyncio task, because the current one may be cancelled again."""
        task = asyncio.create_task(steps)
        self._clean_ups.add(task)
        task.add_done_callback(self._clean_ups.discard)
        await asyncio.shield(task)

    async def close(self) -> None:
        """Close this event loop's connections."""
        loop = asyncio.get_running_loop()
        if clean_ups := [task for task in self._clean_ups if task.get_loop() is loop]:
            await asyncio.wait(clean_ups)
        connections = self._connections.pop((os.getpid(), loop), None)
        if connections is not None:
            await connections.shared.aclose()
            await connections.http.aclose()

    def _here(self) -> _Connections:
        """Connections of this process and event loop; those of a parent or of another loop must not be used."""
        here = (os.getpid(), asyncio.get_running_loop())
        if here not in self._connections:
            self._connections = {key: value for key, value in self._connections.items() if not key[1].is_closed()}
            self._connections[here] = _Connections(
                httpx2.AsyncClient(**self._settings.http()),
                SharedWait(self._wait_for_one, requests=self._settings.connections // 2),
            )
        return self._connections[here]

    async def _wait_for_one(self, ids: Sequence[str], hold_s: float) -> WaitAnswer:
        return await ask(self, calls.wait(list(ids), 1, hold_s), self._settings.limits(None))


class SyncTransport:
    """Transport of the synchronous client. Its coroutines block and never suspend."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._http: dict[int, httpx2.Client] = {}

    def run(self, steps: Coroutine[Any, Any, T]) -> T:
        try:
            steps.send(None)
        except StopIteration as stop:
            result: T = stop.value
            return result
        raise RuntimeError("a step of the synchronous client was suspended")

    def iterate(self, items: AsyncGenerator[T, None]) -> Generator[T, None, None]:
        try:
            while True:
                try:
                    item = self.run(items.__anext__())
                except StopAsyncIteration:
                    return
                yield item
        finally:
            self.run(items.aclose())

    async def send(self, call: RequestSpec[Any], timeout_s: float) -> ResponseData:
        try:
            return _received(self._here().request(**_http_request(call, timeout_s)))
        except (httpx2.HTTPError, httpx2.StreamError) as error:
            raise _connection_failed(error) from error

    async def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    async def poll(self, job: Job, limits: Limits) -> Job:
        return await ask(self, calls.poll(job.id, min(limits.remaining_s, HOLD_S)), limits)

    async def clean_up(self, steps: Coroutine[Any, Any, None]) -> None:
        await steps

    def close(self) -> None:
        """Close this process's connections."""
        http = self._http.pop(os.getpid(), None)
        if http is not None:
            http.close()

    def _here(self) -> httpx2.Client:
        """Connections of this process. A forked child leaves those of its parent open: to read from or close them would
        disturb the parent."""
        http = self._http.get(os.getpid())
        return http or self._http.setdefault(os.getpid(), httpx2.Client(**self._settings.http()))


def _http_request(call: RequestSpec[Any], timeout_s: float) -> dict[str, Any]:
    return {
        "method": call.method,
        "url": call.path,
        "params": dict(call.query),
        "headers": call.headers(),
        "content": call.content(),
        "timeout": httpx2.Timeout(timeout_s, connect=min(CONNECT_S, timeout_s)),
    }


def _received(response: httpx2.Response) -> ResponseData:
    headers = {name.lower(): value for name, value in response.headers.items()}
    return ResponseData(response.status_code, headers, response.content)


def _connection_failed(error: httpx2.HTTPError | httpx2.StreamError) -> ConnectionFailed:
    return ConnectionFailed(str(error) or type(error).__name__, sent=not isinstance(error, NEVER_SENT))


TransportT = TypeVar("TransportT", bound="AsyncTransport | SyncTransport")


class ClientBase(Generic[TransportT]):
    """Base of both clients: their settings, and a transport of their own kind."""

    _transport_type: type[TransportT]

    def __init__(
        self,
        url: str | None = None,
        token: str | None = None,
        *,
        timeout_s: float = 1_800.0,
        connections: int = 100,
        retries: int = 8,
    ) -> None:
        self._settings = Settings.of(url, token, timeout_s, connections, retries)
        self._transport: TransportT = self._transport_type(self._settings)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._settings.url!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(type(self), **asdict(self._settings)), ()

    @property
    def url(self) -> str:
        return self._settings.url
