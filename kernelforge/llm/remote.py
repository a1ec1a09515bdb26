"""What all hosted models share: one call at a time per caller, measured, its failures put into our terms."""

from __future__ import annotations

import functools
import json
import ssl
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import replace
from typing import Any, ClassVar, TypeVar

import httpx2
from pydantic import BaseModel, ConfigDict, ValidationError

from kernelforge.llm.background import BackgroundLoop, Ending
from kernelforge.llm.base import ChatReply, ChatRequest
from kernelforge.llm.failures import BrokenReply, Remote, ReportedFailure, failure
from kernelforge.llm.spec import AgentSpec

CONNECT_SECONDS = 20.0
"""Longest wait for a connection; waiting for bytes has a limit of its own."""


@functools.cache
def tls() -> ssl.SSLContext:
    """The settings of encrypted connections, for all clients: reading the list of authorities takes some 20 ms."""
    return httpx2.create_ssl_context()


def client_options(timeout_seconds: float) -> dict[str, Any]:
    """How every SDK's HTTP client is made."""
    timeout = httpx2.Timeout(timeout_seconds, connect=min(CONNECT_SECONDS, timeout_seconds))
    # A redirect could carry the key to a server that nobody named.
    return {"follow_redirects": False, "timeout": timeout, "verify": tls()}


def well_formed(text: str) -> str:
    """``text`` with halves of surrogate pairs joined, or replaced: servers cut characters between pieces of a stream,
    and JSON lets halves through that no encoding takes."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


_OURS = (BrokenReply, ReportedFailure, json.JSONDecodeError, UnicodeDecodeError, RecursionError)


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
        final = await self._stream(self.body(request))
        return self.reply(final, seconds=time.monotonic() - started)

    def reply(self, body: Mapping[str, Any], *, seconds: float, batch: bool = False) -> ChatReply:
        """:meth:`read`, with text that can be stored and sent on."""
        reply = self.read(body, seconds=seconds, batch=batch)
        return replace(reply, text=well_formed(reply.text))

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
