"""A client's settings: address, token, time-outs, retries with their waits."""

from __future__ import annotations

import asyncio
import functools
import ipaddress
import os
import ssl
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import httpx2
from pydantic import BaseModel, ValidationError

from kernelforge.client.flow import Broken, Limits, Send, new_key
from kernelforge.client.models import Job, JobRequest, WaitAnswer
from kernelforge.client.requests import ResponseData
from kernelforge.errors import ServerError, UsageError
from kernelforge.version import __version__

IDS_PER_REQUEST = 64
"""Few, because a request is repeated with its ids whenever one of them has ended."""
HOLD_S = 20.0
BUSY_HOLD_S = 1.0
"""While all requests are in use, some must soon come back for the jobs that none of them asks for yet."""

Ask = Callable[[Sequence[str], float], Awaitable[WaitAnswer]]
"""Wait until one of some jobs has ended, or for so many seconds."""


class SharedWait:
    """Waits for jobs on behalf of any number of tasks.

    Args:
        requests: at most so many at once.
    """

    def __init__(self, ask: Ask, *, requests: int) -> None:
        self._ask = ask
        self._requests = requests
        self._callers: dict[str, set[asyncio.Future[Job]]] = {}
        self._unasked: deque[str] = deque()
        self._polls: set[asyncio.Task[None]] = set()

    async def wait(self, job_id: str, seconds: float) -> Job | None:
        """The job once it has ended; None where it has not in time.

        Raises:
            ServerError: the server does not know it, or is gone.
        """
        mine: asyncio.Future[Job] = asyncio.get_running_loop().create_future()
        if job_id not in self._callers:
            self._callers[job_id] = set()
            self._unasked.append(job_id)
        self._callers[job_id].add(mine)
        self._start()
        try:
            async with asyncio.timeout(seconds):
                return await mine
        except TimeoutError:
            return None
        finally:
            self._leave(job_id, mine)

    async def aclose(self) -> None:
        """Stop polling and notify the callers that still wait."""
        self._fail(list(self._callers), ServerError("the client was closed while it waited for a job", code="closed"))
        for poll in self._polls:
            poll.cancel()
        await asyncio.gather(*self._polls, return_exceptions=True)

    def _leave(self, job_id: str, mine: asyncio.Future[Job]) -> None:
        callers = self._callers.get(job_id, set())
        callers.discard(mine)
        if not callers:
            self._callers.pop(job_id, None)
        if not self._callers:
            for poll in self._polls:
                poll.cancel()

    def _start(self) -> None:
        if self._unasked and len(self._polls) < self._requests:
            poll = asyncio.create_task(self._poll())
            self._polls.add(poll)
            poll.add_done_callback(self._ended)

    def _ended(self, poll: asyncio.Task[None]) -> None:
        self._polls.discard(poll)
        if not poll.get_loop().is_closed():
            self._start()

    async def _poll(self) -> None:
        """Ask for some jobs again and again, until all of them have ended; take more on as there is room."""
        ids: list[str] = []
        while ids := self._with_more([job_id for job_id in ids if job_id in self._callers]):
            busy = len(self._polls) >= self._requests
            try:
                answer = await self._ask(ids, BUSY_HOLD_S if busy else HOLD_S)
            except ServerError as error:
                if error.status == 404 and len(ids) > 1:
                    await self._one_by_one(ids)
                    continue
                self._fail(ids, error)
                return
            self._tell(answer.ended)

    def _with_more(self, ids: list[str]) -> list[str]:
        while self._unasked and len(ids) < IDS_PER_REQUEST:
            job_id = self._unasked.popleft()
            if job_id in self._callers and job_id not in ids:
                ids.append(job_id)
        return ids

    async def _one_by_one(self, ids: list[str]) -> None:
        """A server that does not know one of them refuses all; only that one's callers must hear of it."""
        for job_id in ids:
            try:
                self._tell((await self._ask([job_id], 0.0)).ended)
            except ServerError as error:
                self._fail([job_id], error)

    def _tell(self, jobs: Sequence[Job]) -> None:
        for job in jobs:
            for caller in self._callers.pop(job.id, ()):
                if not caller.done():
                    caller.set_result(job)

    def _fail(self, ids: Sequence[str], error: ServerError) -> None:
        for job_id in ids:
            for caller in self._callers.pop(job_id, ()):
                if not caller.done():
                    caller.set_exception(error.again())


DEFAULT_URL = "http://127.0.0.1:8765"
URL_VARIABLE = "KERNELFORGE_SERVER"
TOKEN_VARIABLE = "KERNELFORGE_TOKEN"
CONNECT_S = 10.0
KEEPALIVE_S = 4.0
"""Less than servers keep an idle connection (uvicorn: 5 s), so that none is used just when it is closed."""
SHORTEST_DEADLINE_S = 0.001
LONGEST_DEADLINE_S = 86_400.0
NEVER_SENT = (
    httpx2.ConnectError,
    httpx2.ConnectTimeout,
    httpx2.PoolTimeout,
    httpx2.ProxyError,
    httpx2.UnsupportedProtocol,
)

Model = TypeVar("Model", bound=BaseModel)


@dataclass(frozen=True)
class Settings:
    """What a client was made with.

    Raises:
        UsageError: the URL is none.
    """

    url: str
    token: str | None = field(repr=False)
    timeout_s: float
    connections: int
    retries: int

    def __post_init__(self) -> None:
        try:
            parsed = httpx2.URL(self.url)
        except httpx2.InvalidURL as error:
            raise UsageError(f"the server's address {self.url!r} is no URL: {error}") from None
        if parsed.scheme not in ("http", "https") or not parsed.host:
            raise UsageError(f"the server's address {self.url!r} is no URL such as {DEFAULT_URL}")
        if self.token is not None and not (self.token.isascii() and self.token.isprintable()):
            raise UsageError("the token holds a character that no token has: was it copied with a line feed?")
        if self.timeout_s <= 0 or self.connections < 2 or self.retries < 0:
            raise UsageError("a client needs a timeout above 0 s, at least 2 connections, and retries of 0 or more")

    @classmethod
    def of(cls, url: str | None, token: str | None, timeout_s: float, connections: int, retries: int) -> Settings:
        """What is None comes from the environment."""
        url = url or os.environ.get(URL_VARIABLE) or DEFAULT_URL
        token = token or os.environ.get(TOKEN_VARIABLE) or None
        return cls(url.rstrip("/"), token, timeout_s, connections, retries)

    def limits(self, timeout_s: float | None) -> Limits:
        return Limits(self.url, self.retries, time.monotonic() + self.time_s(timeout_s))

    def time_s(self, timeout_s: float | None) -> float:
        return self.timeout_s if timeout_s is None else timeout_s

    def http(self) -> dict[str, Any]:
        """How the HTTP client of either kind is made."""
        headers = {"user-agent": f"kernelforge/{__version__}", "accept": "application/json"}
        if self.token is not None:
            headers["authorization"] = f"Bearer {self.token}"
        return {
            "base_url": self.url,
            "headers": headers,
            # A redirect could carry the token to a server that nobody named.
            "follow_redirects": False,
            "limits": httpx2.Limits(
                max_connections=self.connections,
                max_keepalive_connections=self.connections,
                keepalive_expiry=KEEPALIVE_S,
            ),
            "verify": _tls(self.url.startswith("https:")),
            # A proxy for the world is none for this machine.
            "trust_env": not _loopback(httpx2.URL(self.url).host),
        }


@functools.cache
def _tls(encrypted: bool) -> ssl.SSLContext:
    """Reading the list of authorities takes some 20 ms. A plain connection needs none; no other is trusted by it."""
    return httpx2.create_ssl_context() if encrypted else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


def _loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def checked(model: type[Model], fields: Mapping[str, Any] | BaseModel) -> Model:
    """A request as the server will read it.

    Raises:
        UsageError: it would be refused; says which field is wrong and why.
    """
    if isinstance(fields, model):
        return fields
    try:
        return model.model_validate(fields)
    except ValidationError as error:
        flaw = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, flaw["loc"]))
        raise UsageError(f"{place}: {flaw['msg']}" if place else flaw["msg"]) from None


def checked_job(fields: Mapping[str, Any] | JobRequest) -> JobRequest:
    """A job. Fields that are None are as good as left out."""
    if not isinstance(fields, JobRequest):
        fields = {name: value for name, value in fields.items() if value is not None}
    return checked(JobRequest, fields)


def job_request(fields: Mapping[str, Any] | JobRequest, limit_s: float | None) -> JobRequest:
    """A job that nobody waits for longer than ``limit_s``, which is its deadline where it has none: a client that is
    killed leaves nothing behind."""
    request = checked_job(fields)
    if limit_s is None or request.deadline_s is not None:
        return request
    return request.model_copy(update={"deadline_s": min(max(limit_s, SHORTEST_DEADLINE_S), LONGEST_DEADLINE_S)})


def job_requests(
    requests: Sequence[Mapping[str, Any] | JobRequest], limit_s: float | None
) -> tuple[list[JobRequest], list[str]]:
    """Requests with an idempotency key each."""
    made = []
    for number, request in enumerate(requests, 1):
        try:
            made.append(job_request(request, limit_s))
        except UsageError as error:
            raise UsageError(f"request {number} of {len(requests)}: {error}") from None
    return made, [new_key() for _ in made]


def httpx_timeout(step: Send) -> httpx2.Timeout:
    return httpx2.Timeout(step.timeout_s, connect=min(CONNECT_S, step.timeout_s))


def received(response: httpx2.Response) -> ResponseData:
    return ResponseData(
        response.status_code, {name.lower(): value for name, value in response.headers.items()}, response.content
    )


def broken(error: httpx2.HTTPError | httpx2.StreamError) -> Broken:
    what = str(error) or type(error).__name__
    return Broken(what, sent=not isinstance(error, NEVER_SENT))
