"""Calls of hosted models over HTTP: one timed call, bounded replies, and failures turned into ``ProviderError``."""

from __future__ import annotations

import asyncio
import functools
import ssl
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from concurrent.futures import CancelledError, Future, wait
from dataclasses import replace
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Annotated, Any, ClassVar, Generic, Protocol, TypeVar

import httpx2
from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError

from kernelforge.candidate import split_reasoning
from kernelforge.errors import BudgetExhausted, ProviderError
from kernelforge.llm.base import ChatReply, ChatRequest
from kernelforge.llm.rate_limits import LOOK_S
from kernelforge.llm.spec import AgentSpec, Remote

_KEPT = ("type", "enum", "const", "description")
_LIMITS = (
    "minLength", "maxLength", "pattern", "format", "minItems", "maxItems", "minimum", "maximum", "exclusiveMinimum",
    "exclusiveMaximum", "multipleOf",
)  # fmt: skip


def strict_schema(model: type[BaseModel]) -> dict[str, Any]:
    """The schema of ``model`` in the subset that both OpenAI's and Anthropic's structured outputs take.

    Every property is required and no other is allowed (OpenAI, "Structured model outputs", supported schemas: what may
    be missing is null instead). Limits of strings, numbers and arrays, of which each provider and each compatible
    server takes others, go into the description; the reader of the reply checks them.
    """
    return _strict(model.model_json_schema())


def _strict(schema: dict[str, Any]) -> dict[str, Any]:
    if "$ref" in schema:
        # OpenAI takes no other key together with a reference.
        return {"$ref": schema["$ref"]}
    result: dict[str, Any] = {key: schema[key] for key in _KEPT if key in schema}
    limits = ", ".join(f"{key} {schema[key]}" for key in _LIMITS if key in schema)
    if limits:
        result["description"] = f"{result['description']} ({limits})" if "description" in result else limits
    if "items" in schema:
        result["items"] = _strict(schema["items"])
    if variants := schema.get("anyOf", schema.get("oneOf")):
        result["anyOf"] = [_strict(variant) for variant in variants]
    if schema.get("type") == "object":
        properties = schema.get("properties", {})
        result["properties"] = {name: _strict(value) for name, value in properties.items()}
        result |= {"required": list(properties), "additionalProperties": False}
    if "$defs" in schema:
        result["$defs"] = {name: _strict(value) for name, value in schema["$defs"].items()}
    return result


Ending = Callable[[], Coroutine[Any, Any, None]]
"""Something to await before the thread ends."""

_T = TypeVar("_T")


class BackgroundLoop:
    """Runs coroutines for callers in any thread. Its thread starts with the first of them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._closed = False

    def run(self, work: Coroutine[Any, Any, _T], stopped: Callable[[], bool], what: str) -> _T:
        """Wait for ``work``; give it up, cancelled, as soon as ``stopped`` says so.

        Raises:
            BudgetExhausted: stopped, or the loop was closed; ``what`` says in words what was given up.
        """
        future = None if stopped() else self._submit(work)
        if future is None:
            work.close()
            raise BudgetExhausted(f"stopped before {what}")
        try:
            while not wait([future], LOOK_S).done:
                if stopped():
                    raise BudgetExhausted(f"stopped while {what}")
            return future.result()
        except CancelledError:
            raise BudgetExhausted(f"stopped while {what}") from None
        finally:
            future.cancel()

    def close(self, *, first: Ending | None = None, last: Ending) -> None:
        """Await ``first``, cancel all running work, await ``last``, and end the thread. A second call does nothing."""
        with self._lock:
            self._closed = True
            loop, self._loop = self._loop, None
            if loop is None or self._thread is None:
                return
            ending = asyncio.run_coroutine_threadsafe(_wind_up(first, last), loop)
        ending.result()
        loop.call_soon_threadsafe(loop.stop)
        self._thread.join()
        loop.close()

    def _submit(self, work: Coroutine[Any, Any, _T]) -> Future[_T] | None:
        """Start ``work``; None once the loop is closed."""
        with self._lock:
            if self._closed:
                return None
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=self._loop.run_forever, name="llm", daemon=True)
                self._thread.start()
            return asyncio.run_coroutine_threadsafe(work, self._loop)


async def _wind_up(first: Ending | None, last: Ending) -> None:
    if first is not None:
        await first()
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    await last()
    await asyncio.get_running_loop().shutdown_asyncgens()


PASSING_STATUS = frozenset({408, 409, 425, 429})
"""With all of 5xx (Anthropic's 529 "overloaded" among them), the statuses that both providers document as worth
another try."""

_BILLING_CODES = frozenset(
    {"insufficient_quota", "billing_not_active", "billing_hard_limit_reached", "account_deactivated", "billing_error"}
)
"""Codes that make a 429 lasting: waiting does not fill an account."""

_LASTING_CODES = _BILLING_CODES | {
    "invalid_request_error", "authentication_error", "permission_error", "not_found_error", "request_too_large",
    "invalid_prompt", "context_length_exceeded", "model_not_found", "data_residency_mismatch",
}  # fmt: skip
"""Codes of errors inside a reply, where there is no status, that waiting does not resolve."""


class BrokenReply(Exception):
    """A reply that arrived whole by HTTP's rules and is not one by the protocol's."""


class ReportedFailure(Exception):
    """A failure that a provider reports inside a reply; ``body`` is its error object, with all that it repeats."""

    def __init__(self, body: Mapping[str, Any]) -> None:
        super().__init__("the provider reports a failure")
        self.body = body


def failure(error: Exception, remote: Remote) -> ProviderError:
    """Translate an error of an SDK. The SDK's own exception holds the request and its headers: never chain it."""
    status = getattr(error, "status_code", None)
    if isinstance(error, BrokenReply):
        return ProviderError(f"{remote.server} sent a broken reply: {remote.redact(str(error))}", passing=True)
    if isinstance(status, int) and status != 200:
        response = getattr(error, "response", None)
        return status_failure(
            status, getattr(error, "body", None), remote, headers=getattr(response, "headers", None) or {}
        )
    if isinstance(body := getattr(error, "body", None), Mapping):
        return code_failure(body, remote)
    if "Timeout" in type(error).__name__:
        return ProviderError(f"{remote.server} sent nothing for too long; the call was given up", passing=True)
    if isinstance(error, ValueError | RecursionError):
        return ProviderError(f"{remote.server} sent a broken reply: it is not JSON that can be read", passing=True)
    cause = error.__cause__ or error
    return ProviderError(
        f"the connection to {remote.server} failed: {remote.redact(str(cause)) or type(cause).__name__}", passing=True
    )


def status_failure(
    status: int, body: object, remote: Remote, *, headers: Mapping[str, str] | None = None
) -> ProviderError:
    """Translate an HTTP status and the error object that came with it."""
    code, message = _code_and_message(body)
    detail = f": {remote.redact(message)}" if message else ""
    if status == 401:
        # The message repeats parts of the key.
        return ProviderError(f"{remote.server} refused the key in {remote.key_name} (401); check it")
    if status == 403:
        return ProviderError(f"{remote.server} does not let the key in {remote.key_name} do this (403){detail}")
    if status == 404:
        return ProviderError(f"{remote.server} has no model {remote.model!r}, or not at this address (404){detail}")
    passing = status >= 500 or (status in PASSING_STATUS and code not in _BILLING_CODES)
    if not passing:
        return ProviderError(f"{remote.server} refused the call ({status}){detail}")
    return ProviderError(
        f"{remote.server} could not answer now ({status}){detail}",
        passing=True,
        retry_after_s=retry_after_s(headers or {}),
    )


def code_failure(body: object, remote: Remote) -> ProviderError:
    """Translate an error object inside a reply: there is no status, so its code decides."""
    code, message = _code_and_message(body)
    detail = f": {remote.redact(message)}" if message else ""
    if code in _LASTING_CODES:
        return ProviderError(f"{remote.server} refused the call ({code}){detail}")
    return ProviderError(f"{remote.server} failed while answering ({code or 'no code'}){detail}", passing=True)


def retry_after_s(headers: Mapping[str, str]) -> float | None:
    """The wait that a server asks for, in seconds: ``retry-after-ms``, or ``Retry-After`` as seconds or as a date
    (RFC 9110, section 10.2.3)."""
    for name, scale in (("retry-after-ms", 1e-3), ("retry-after", 1.0)):
        try:
            seconds = float(headers[name]) * scale
        except (KeyError, ValueError):
            continue
        if 0 <= seconds < float("inf"):
            return seconds
    try:
        date = parsedate_to_datetime(headers["retry-after"])
    except (KeyError, ValueError):
        return None
    if date.tzinfo is None:
        date = date.replace(tzinfo=UTC)
    return max(0.0, (date - datetime.now(UTC)).total_seconds())


def _code_and_message(body: object) -> tuple[str | None, str]:
    """From OpenAI's ``{"error": {"code", "type", "message"}}``, with or without its wrapping, or Anthropic's."""
    inner: Any = (body.get("error") or body) if isinstance(body, Mapping) else None
    if isinstance(inner, str):
        return None, inner
    if not isinstance(inner, Mapping):
        return None, ""
    codes = [code for code in (inner.get("code"), inner.get("type")) if isinstance(code, str)]
    code = next((code for code in codes if code in _LASTING_CODES), codes[0] if codes else None)
    message = inner.get("message")
    return code, message if isinstance(message, str) else ""


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
    """Options of the HTTP client of every SDK."""
    timeout = httpx2.Timeout(timeout_seconds, connect=min(CONNECT_SECONDS, timeout_seconds))
    return {
        # A redirect could carry the key to a server that the user did not name.
        "follow_redirects": False,
        "timeout": timeout,
        "verify": tls(),
        # A few compressed bytes can become gigabytes before they are counted.
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
        """Whether the text is at its limit, so that the rest need not be waited for."""
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


def _text_only(value: object) -> object:
    return value if isinstance(value, str) else None


Shown = Annotated[str | None, BeforeValidator(_text_only)]
"""Text in a field that no protocol defines, so that servers may send anything there; what is no text is left out."""


class Wire(BaseModel):
    """Base of the parts of a provider's reply that are read. Providers add fields and values at any time, and
    compatible servers leave some out, so only what is used is named, and the rest is ignored."""

    model_config = ConfigDict(extra="ignore", frozen=True)


_W = TypeVar("_W", bound=Wire)


def read_wire(kind: type[_W], data: object) -> _W:
    """``data`` as ``kind``.

    Raises:
        BrokenReply: it is not of that form.
    """
    try:
        return kind.model_validate(data)
    except ValidationError as error:
        location = ".".join(str(part) for part in error.errors()[0]["loc"])
        raise BrokenReply(f"{location or 'its body'} is missing or malformed") from None


class _Client(Protocol):
    async def close(self) -> None: ...


ClientT = TypeVar("ClientT", bound=_Client)


class RemoteModel(ABC, Generic[ClientT]):
    """A model behind an HTTP server: a :class:`~kernelforge.llm.base.ChatModel`.

    Args:
        spec: the model and how it is asked.
        remote: the server, for messages, and its key.
        base_url: address of the server; None for the provider's own.
        timeout_seconds: longest wait for the next bytes of a reply.
        stopped: polled while waiting; true gives the call up.
        keeps_reasoning: whether the model's reasoning is asked for, where the specification lets it reason, and given.
    """

    default_url: ClassVar[str]
    """Address of the provider's own server."""
    sdk_client: ClassVar[Callable[..., Any]]
    sdk_http_client: ClassVar[Callable[..., Any]]
    sdk_errors: ClassVar[tuple[type[Exception], ...]] = ()
    """Exceptions of the SDK and of the libraries below it."""

    def __init__(
        self,
        spec: AgentSpec,
        remote: Remote,
        *,
        base_url: str | None,
        timeout_seconds: float,
        stopped: Callable[[], bool],
        keeps_reasoning: bool = True,
    ) -> None:
        self.name = spec.name
        self.keeps_reasoning = keeps_reasoning
        self.spec = spec
        self.remote = remote
        self.stopped = stopped
        self.base_url = base_url or self.default_url
        self.loop = BackgroundLoop()
        options = client_options(timeout_seconds)
        self.client: ClientT = self.sdk_client(
            api_key=remote.key.get_secret_value(),
            base_url=self.base_url,
            timeout=options["timeout"],
            max_retries=0,
            http_client=self.sdk_http_client(**options),
        )

    def complete(self, request: ChatRequest) -> ChatReply:
        """Make one call, without retries.

        Raises:
            BudgetExhausted: stopped while waiting.
            ProviderError: it failed; ``passing`` says whether trying again may help.
        """
        work = self.guarded(lambda: self._complete(request))
        return self.loop.run(work, self.stopped, f"waiting for {self.name}")

    def close(self, *, first: Ending | None = None) -> None:
        """Give up all waiting calls, after ``first``, and close connections."""
        self.loop.close(first=first, last=self.client.close)

    async def guarded(self, call: Callable[[], Coroutine[Any, Any, _T]]) -> _T:
        """Await ``call``; errors of the SDK become a ProviderError that holds no object of the SDK."""
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
        """:meth:`read`, with texts that can be stored and sent on: well formed, of bounded length, without the key, and
        thinking inside the text apart from it."""
        reply = self.read(body, seconds=seconds, batch=batch)
        usage = reply.usage.model_copy(update={"model": self.remote.hide(reply.usage.model)[:MAX_MODEL_CHARS]})
        text, separate = (self.remote.hide(well_formed(part)) for part in (reply.text, reply.reasoning))
        ended = "length" if len(text) > MAX_REPLY_CHARS else reply.ended
        inline, text = split_reasoning(text[:MAX_REPLY_CHARS])
        reasoning = "\n\n".join(filter(None, (separate, inline)))[:MAX_REPLY_CHARS] if self.keeps_reasoning else ""
        return replace(reply, text=text, usage=usage, ended=ended, reasoning=reasoning)

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


def plain(value: object) -> dict[str, Any]:
    """An SDK's object as JSON would have it, or an empty one where the server sent something else."""
    return value.model_dump(mode="json", exclude_unset=True, warnings=False) if isinstance(value, BaseModel) else {}
