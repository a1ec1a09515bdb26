"""Common part of hosted models: one timed call, its failures translated."""

from __future__ import annotations

import asyncio
import functools
import ssl
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from dataclasses import replace
from typing import Annotated, Any, ClassVar, TypeVar

import httpx2
from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError

from kernelforge.llm.base import ChatReply, ChatRequest
from kernelforge.llm.event_loop_thread import BackgroundLoop, Ending
from kernelforge.llm.failures import BrokenReply, Remote, ReportedFailure, failure
from kernelforge.llm.spec import AgentSpec

CONNECT_SECONDS = 20.0
"""Longest wait for a connection; waiting for bytes has a limit of its own."""
LONGEST_CALL_SECONDS = 2 * 3600.0
"""Longest time that one call may take, however often its server gives a sign of life."""
MAX_MODEL_CHARS = 200
"""Longest name of a model that is kept."""
MAX_REPLY_CHARS = 4 << 20
"""Longest text of a reply; what is longer is cut and counts as cut at the output limit."""
MAX_EVENT_BYTES = 32 << 20
"""Longest stretch of a body without a line feed: an event of a stream, or an error without any."""
MAX_BODY_BYTES = 256 << 20
"""Longest body. A piece of a streamed reply has a few letters, and some 200 bytes around them."""


@functools.cache
def tls() -> ssl.SSLContext:
    """The settings of encrypted connections, for all clients: reading the list of authorities takes some 20 ms."""
    return httpx2.create_ssl_context()


def client_options(timeout_seconds: float) -> dict[str, Any]:
    """How every SDK's HTTP client is made."""
    timeout = httpx2.Timeout(timeout_seconds, connect=min(CONNECT_SECONDS, timeout_seconds))
    return {
        # A redirect could carry the key to a server that nobody named.
        "follow_redirects": False,
        "timeout": timeout,
        "verify": tls(),
        # A few compressed bytes can become gigabytes before anybody counts them.
        "headers": {"accept-encoding": "identity"},
        "event_hooks": {"response": [_bound]},
    }


async def _bound(response: httpx2.Response) -> None:
    """Have the body of a response end with an error where it grows beyond what any reply needs."""
    encoding = response.headers.get("content-encoding", "identity")
    if encoding.strip().lower() not in ("", "identity"):
        raise httpx2.DecodingError(f"the body is compressed ({encoding[:40]!r}), though that was not asked for")
    assert isinstance(response.stream, httpx2.AsyncByteStream)
    response.stream = _Bounded(response.stream)


class _Bounded(httpx2.AsyncByteStream):
    """A body that is given up when it, or a line of it, is too long."""

    def __init__(self, stream: httpx2.AsyncByteStream) -> None:
        self._stream = stream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        total = line = 0
        async for piece in self._stream:
            total += len(piece)
            last = piece.rfind(b"\n")
            line = line + len(piece) if last < 0 else len(piece) - last - 1
            if total > MAX_BODY_BYTES or line > MAX_EVENT_BYTES:
                raise BrokenReply("it is far longer than any reply can be")
            yield piece

    async def aclose(self) -> None:
        await self._stream.aclose()


class Gathered:
    """The text of a streamed reply, piece by piece."""

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._chars = 0

    def add(self, piece: str | None) -> None:
        if piece:
            self._pieces.append(piece)
            self._chars += len(piece)

    @property
    def full(self) -> bool:
        """Whether no more can be taken in: nobody needs to wait for the rest."""
        return self._chars > MAX_REPLY_CHARS

    def __str__(self) -> str:
        return "".join(self._pieces)


def well_formed(text: str) -> str:
    """``text`` with halves of surrogate pairs joined, or replaced: servers cut characters between pieces of a stream,
    and JSON lets halves through that no encoding takes."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


_OURS = (BrokenReply, ReportedFailure, ValueError, RecursionError)
"""JSON that cannot be read is a ValueError, a number of too many digits among it, or a RecursionError."""

MAX_COUNT = 10**12
"""Largest count of tokens that is believed."""


def _believable(count: object) -> object:
    return None if isinstance(count, int) and not 0 <= count <= MAX_COUNT else count


Count = Annotated[int | None, BeforeValidator(_believable)]
"""Tokens as a server counts them; what no call can take is unknown."""


class Wire(BaseModel):
    """Base of the parts of a provider's reply that are read. Providers add fields and values at any time, and
    compatible servers leave some out, so only what is used is named, and the rest is ignored."""

    model_config = ConfigDict(extra="ignore", frozen=True)


_T = TypeVar("_T")
_W = TypeVar("_W", bound=Wire)


def read_wire(kind: type[_W], data: object) -> _W:
    """``data`` as ``kind``.

    Raises:
        BrokenReply: it is not of that form.
    """
    try:
        return kind.model_validate(data)
    except ValidationError as error:
        place = ".".join(str(part) for part in error.errors()[0]["loc"])
        raise BrokenReply(f"{place or 'its body'} is missing or malformed") from None


class RemoteModel(ABC):
    """A model behind an HTTP server: a :class:`~kernelforge.llm.base.ChatModel`.

    Args:
        spec: which model and how it is asked.
        remote: who is called.
        stopped: looked at while waiting; true gives the call up.
    """

    sdk_errors: ClassVar[tuple[type[Exception], ...]] = ()
    """What the SDK and what lies below it raise."""

    def __init__(self, spec: AgentSpec, remote: Remote, *, stopped: Callable[[], bool]) -> None:
        self.name = spec.name
        self.spec = spec
        self.remote = remote
        self.stopped = stopped
        self.loop = BackgroundLoop()

    def complete(self, request: ChatRequest) -> ChatReply:
        """Make one call, without retries.

        Raises:
            BudgetExhausted: stopped meanwhile.
            ProviderError: it failed; ``passing`` says whether trying again may help.
        """
        work = self.guarded(lambda: self._complete(request))
        return self.loop.run(work, self.stopped, f"waiting for {self.name}")

    def close(self, *, first: Ending | None = None) -> None:
        """Give up whatever waits, after ``first``, and close connections."""
        self.loop.close(first=first, last=self._close_client)

    async def guarded(self, call: Callable[[], Coroutine[Any, Any, _T]]) -> _T:
        """What ``call`` returns, with what the SDK raises put into a ProviderError that holds nothing of the SDK's."""
        theirs: tuple[type[Exception], ...] = (*self.sdk_errors, *_OURS)
        try:
            return await call()
        except theirs as error:
            failed = failure(error, self.remote)
        # Outside the handler, so that the SDK's exception, whose request carries the key, is not its context.
        raise failed

    async def _complete(self, request: ChatRequest) -> ChatReply:
        started = time.monotonic()
        try:
            async with asyncio.timeout(LONGEST_CALL_SECONDS):
                final = await self._stream(self.body(request))
        except TimeoutError:
            raise BrokenReply(f"it was not whole after {LONGEST_CALL_SECONDS:.0f} s") from None
        return self.reply(final, seconds=time.monotonic() - started)

    def reply(self, body: Mapping[str, Any], *, seconds: float, batch: bool = False) -> ChatReply:
        """:meth:`read`, with text that can be stored and sent on: well formed, of bounded length, without the key."""
        reply = self.read(body, seconds=seconds, batch=batch)
        usage = reply.usage.model_copy(update={"model": self.remote.hide(reply.usage.model)[:MAX_MODEL_CHARS]})
        text = self.remote.hide(well_formed(reply.text))
        if len(text) > MAX_REPLY_CHARS:
            return ChatReply(text[:MAX_REPLY_CHARS], usage, "length")
        return replace(reply, text=text, usage=usage)

    @abstractmethod
    def body(self, request: ChatRequest) -> dict[str, Any]:
        """The request as the protocol spells it, streaming left out."""

    @abstractmethod
    def read(self, body: Mapping[str, Any], *, seconds: float, batch: bool = False) -> ChatReply:
        """A whole reply of the protocol.

        Raises:
            BrokenReply: it is none.
            ReportedFailure: it reports a failure.
        """

    @abstractmethod
    async def _stream(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Send a request and gather its streamed reply into the whole one.

        Raises:
            BrokenReply: the stream ended early.
            ReportedFailure: it reports a failure.
        """

    @abstractmethod
    async def _close_client(self) -> None: ...


def plain(value: object) -> dict[str, Any]:
    """An SDK's object as JSON would have it, or an empty one where the server sent something else."""
    return value.model_dump(mode="json", exclude_unset=True, warnings=False) if isinstance(value, BaseModel) else {}
