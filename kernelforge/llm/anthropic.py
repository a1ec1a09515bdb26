"""Anthropic's models, through Anthropic's SDK and its messages API."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import anthropic
import httpx2

from kernelforge.llm.base import ChatReply, ChatRequest, Ended, Turn
from kernelforge.llm.http import (
    BrokenReply,
    Count,
    Gathered,
    RemoteModel,
    Wire,
    read_wire,
    strict_schema,
    well_formed,
)
from kernelforge.records import Usage

ANTHROPIC_URL = "https://api.anthropic.com"

DEFAULT_MAX_TOKENS = 32_000
"""``max_tokens`` where the specification gives none; the API insists on one. The smallest output limit among the models
of the Claude 4 families and later; thinking counts towards it."""

MIN_CACHED_CHARS = 4_096
"""Shortest prefix worth a cache breakpoint: no model caches fewer than 1,024 tokens (Anthropic, "Prompt caching"), and
one of text and CUDA is about four characters."""

_BLANK = "(nothing)"
"""Stands for a turn without text, which the API refuses."""


class AnthropicModel(RemoteModel[anthropic.AsyncAnthropic]):
    """A model behind Anthropic's messages API."""

    default_url = ANTHROPIC_URL
    sdk_client = anthropic.AsyncAnthropic
    sdk_http_client = anthropic.DefaultAsyncHttpxClient
    sdk_errors = (anthropic.AnthropicError, httpx2.HTTPError, httpx2.StreamError)

    def body(self, request: ChatRequest) -> dict[str, Any]:
        first, *others = request.turns
        body: dict[str, Any] = {
            "model": self.spec.model,
            "max_tokens": self.spec.max_output_tokens or DEFAULT_MAX_TOKENS,
            "messages": [
                {"role": first.role, "content": _first_content(first, request.stable)},
                *({"role": turn.role, "content": _content(turn)} for turn in others),
            ],
        }
        config: dict[str, Any] = {}
        if self.spec.effort is not None:
            config["effort"] = self.spec.effort
        if request.schema is not None:
            config["format"] = {"type": "json_schema", "schema": strict_schema(request.schema)}
        if config:
            body["output_config"] = config
        if self.spec.thinking is not None:
            body["thinking"] = _thinking(self.spec.thinking, visible=self.keeps_reasoning)
        if self.spec.temperature is not None:
            body["temperature"] = self.spec.temperature
        return body

    def read(self, body: Mapping[str, Any], *, seconds: float, batch: bool = False) -> ChatReply:
        message = read_wire(_Message, body)
        text = "".join(block.text or "" for block in message.content if block.type == "text")
        ended: Ended = "complete"
        if message.stop_reason == "refusal":
            ended = "refused"
            text = text or (message.stop_details and message.stop_details.explanation) or ""
        elif message.stop_reason in ("max_tokens", "model_context_window_exceeded"):
            ended = "length"
        thoughts = [block for block in message.content if block.type in _THOUGHTS]
        reasoning = "\n\n".join(block.thinking for block in thoughts if block.thinking)
        signed = tuple(block.model_dump(exclude_unset=True) for block in thoughts if block.can_be_sent_back)
        return ChatReply(text, _read_usage(message, seconds=seconds, batch=batch), ended, reasoning, signed)

    async def _stream(self, body: Mapping[str, Any]) -> dict[str, Any]:
        message: dict[str, Any] = {}
        text = Gathered()
        thoughts: dict[int, _GatheredThought] = {}
        # As plain JSON, which is cheaper than the SDK's objects, and lets events pass that the SDK does not know.
        stream = await self.client.post(
            "/v1/messages",
            cast_to=object,
            body={**body, "stream": True},
            stream=True,
            stream_cls=anthropic.AsyncStream[object],
        )
        async with stream:
            async for data in stream:
                event = read_wire(_Event, data)
                if event.type == "message_start":
                    message = event.message or {}
                elif event.type == "content_block_start" and (event.content_block or {}).get("type") in _THOUGHTS:
                    thoughts[event.index or 0] = _GatheredThought(event.content_block or {})
                elif event.type == "content_block_delta" and event.delta is not None:
                    text.add(event.delta.text if event.delta.type == "text_delta" else "")
                    thought = thoughts.get(event.index or 0)
                    if thought is not None:
                        thought.add(event.delta)
                    if text.full or (thought is not None and thought.full):
                        return {**message, "stop_reason": "max_tokens", "content": _blocks(thoughts, text)}
                elif event.type == "message_delta" and event.delta is not None:
                    message |= {"stop_reason": event.delta.stop_reason, "stop_details": event.delta.stop_details}
                    # Counts are cumulative; those that are left out stay as the start gave them.
                    counts = {name: count for name, count in (event.usage or {}).items() if count is not None}
                    message["usage"] = {**(message.get("usage") or {}), **counts}
                elif event.type == "message_stop":
                    return {**message, "content": _blocks(thoughts, text)}
        raise BrokenReply("the stream ended before the reply was whole")


class _GatheredThought:
    """A block of thinking, piece by piece."""

    def __init__(self, start: Mapping[str, Any]) -> None:
        self._start = start
        self._thinking, self._signature = Gathered(), Gathered()

    def add(self, delta: _Delta) -> None:
        self._thinking.add(delta.thinking)
        self._signature.add(delta.signature)

    @property
    def full(self) -> bool:
        return self._thinking.full or self._signature.full

    @property
    def block(self) -> dict[str, Any]:
        """The whole block; a redacted one comes in its start alone."""
        pieces = {"thinking": str(self._thinking), "signature": str(self._signature)}
        return {**self._start, **{name: text for name, text in pieces.items() if text}}


def _blocks(thoughts: Mapping[int, _GatheredThought], text: Gathered) -> list[dict[str, Any]]:
    return [*(thought.block for thought in thoughts.values()), {"type": "text", "text": str(text)}]


_THOUGHTS = frozenset({"thinking", "redacted_thinking"})
"""Blocks of reasoning; the text of a redacted one is encrypted."""


def _thinking(choice: str, *, visible: bool) -> dict[str, Any]:
    """A choice as the API spells it. Newer models show their thinking only where that is asked for."""
    if choice == "disabled":
        return {"type": choice}
    display = {"display": "summarized" if visible else "omitted"}
    kind = {"type": "enabled", "budget_tokens": int(choice)} if choice.isdecimal() else {"type": choice}
    return kind | display


def _text(turn: Turn) -> str:
    return turn.text if turn.text.strip() else _BLANK


def _content(turn: Turn) -> str | list[dict[str, Any]]:
    """The content of a later turn: a reply goes back with its signed thinking before it."""
    return [*map(dict, turn.blocks), {"type": "text", "text": _text(turn)}] if turn.blocks else _text(turn)


def _first_content(turn: Turn, stable: int) -> list[dict[str, Any]]:
    """The first turn as blocks: what stays the same, marked for the cache, and the rest."""
    head, rest = turn.text[:stable], turn.text[stable:]
    if len(head) < MIN_CACHED_CHARS or not head.strip() or not rest.strip():
        return [{"type": "text", "text": _text(turn)}]
    return [
        {"type": "text", "text": head, "cache_control": {"type": "ephemeral"}},
        {"type": "text", "text": rest},
    ]


class _Delta(Wire):
    type: str | None = None
    text: str = ""
    thinking: str = ""
    signature: str = ""
    stop_reason: str | None = None
    stop_details: dict[str, Any] | None = None


class _Event(Wire):
    """An event of a streamed message."""

    type: str
    index: int | None = None
    message: dict[str, Any] | None = None
    content_block: dict[str, Any] | None = None
    delta: _Delta | None = None
    usage: dict[str, Any] | None = None


class _Block(Wire):
    type: str
    text: str | None = None
    thinking: str | None = None
    signature: str | None = None
    data: str | None = None
    """Encrypted thinking."""

    @property
    def can_be_sent_back(self) -> bool:
        """Whether it is a signed or encrypted thought whose text can be sent as it came."""
        thinking = self.thinking or ""
        return bool(self.signature or self.data) and thinking == well_formed(thinking)


class _OutputDetails(Wire):
    thinking_tokens: Count = None


class _Usage(Wire):
    input_tokens: Count = None
    cache_read_input_tokens: Count = None
    cache_creation_input_tokens: Count = None
    output_tokens: Count = None
    output_tokens_details: _OutputDetails | None = None


class _StopDetails(Wire):
    explanation: str | None = None


class _Message(Wire):
    model: str
    content: list[_Block]
    stop_reason: str
    stop_details: _StopDetails | None = None
    usage: _Usage | None = None


def _read_usage(message: _Message, *, seconds: float, batch: bool) -> Usage:
    """Anthropic's input tokens leave out those read from and written to the cache; our record counts them all."""
    used = message.usage or _Usage()
    input_tokens = used.input_tokens
    if input_tokens is not None:
        input_tokens += (used.cache_read_input_tokens or 0) + (used.cache_creation_input_tokens or 0)
    return Usage(
        model=message.model,
        input_tokens=input_tokens,
        cached_tokens=used.cache_read_input_tokens,
        cache_write_tokens=used.cache_creation_input_tokens,
        output_tokens=used.output_tokens,
        reasoning_tokens=used.output_tokens_details.thinking_tokens if used.output_tokens_details else None,
        seconds=seconds,
        batch=batch,
    )
