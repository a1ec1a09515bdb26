"""OpenAI's models, and those of compatible servers, through OpenAI's SDK.

At OpenAI the Responses API is used; compatible servers (vLLM, SGLang, Ollama) are spoken to by chat completions, which
all of them have.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import httpx2
import openai

from kernelforge.llm.base import ChatReply, ChatRequest, Ended
from kernelforge.llm.http import (
    BrokenReply,
    Count,
    Gathered,
    RemoteModel,
    ReportedFailure,
    Shown,
    Wire,
    read_wire,
    strict_schema,
)
from kernelforge.records import Usage, content_hash

OPENAI_URL = "https://api.openai.com/v1"

MAX_CACHE_KEY_CHARS = 64
"""Longest ``prompt_cache_key`` that OpenAI takes; longer ones are hashed."""

_REFUSAL_CODES = frozenset({"bio_policy", "misalignment_policy_violation"})
"""Failures of a response that are a filter's refusal."""


class OpenAIModel(RemoteModel[openai.AsyncOpenAI]):
    """A model behind OpenAI's protocols."""

    default_url = OPENAI_URL
    sdk_client = openai.AsyncOpenAI
    sdk_http_client = openai.DefaultAsyncHttpxClient
    sdk_errors = (openai.OpenAIError, httpx2.HTTPError, httpx2.StreamError)

    @property
    def hosted(self) -> bool:
        """Whether the server is OpenAI's own."""
        return self.base_url.rstrip("/") == OPENAI_URL

    @property
    def api(self) -> Literal["responses", "chat"]:
        """The interface of OpenAI's that is called."""
        return self.spec.api or ("responses" if self.hosted else "chat")

    def body(self, request: ChatRequest) -> dict[str, Any]:
        turns = [{"role": turn.role, "content": turn.text} for turn in request.turns]
        body: dict[str, Any] = {"model": self.spec.model}
        if self.spec.temperature is not None:
            body["temperature"] = self.spec.temperature
        if (self.hosted or self.api == "responses") and request.cache_key:
            key = request.cache_key
            body["prompt_cache_key"] = key if len(key) <= MAX_CACHE_KEY_CHARS else content_hash(key)
        return body | (self._responses_body if self.api == "responses" else self._chat_body)(request, turns)

    def _responses_body(self, request: ChatRequest, turns: list[dict[str, str]]) -> dict[str, Any]:
        body: dict[str, Any] = {"input": turns, "store": False}
        summary = self.spec.summary if self.keeps_reasoning else None
        reasoning = {"effort": self.spec.effort, "summary": summary}
        if reasoning := {name: value for name, value in reasoning.items() if value is not None}:
            body["reasoning"] = reasoning
        if self.spec.max_output_tokens is not None:
            body["max_output_tokens"] = self.spec.max_output_tokens
        if request.schema is not None:
            body["text"] = {"format": {"type": "json_schema", **_form(request)}}
        return body

    def _chat_body(self, request: ChatRequest, turns: list[dict[str, str]]) -> dict[str, Any]:
        body: dict[str, Any] = {"messages": turns}
        if self.spec.effort is not None:
            body["reasoning_effort"] = self.spec.effort
        if self.spec.max_output_tokens is not None:
            # Compatible servers know the older name; OpenAI's reasoning models refuse it.
            body["max_completion_tokens" if self.hosted else "max_tokens"] = self.spec.max_output_tokens
        if request.schema is not None:
            body["response_format"] = {"type": "json_schema", "json_schema": _form(request)}
        return body

    def read(self, body: Mapping[str, Any], *, seconds: float, batch: bool = False) -> ChatReply:
        if self.api == "chat":
            return _read_completion(read_wire(_Completion, body), seconds=seconds, batch=batch)
        response = read_wire(_Response, body)
        if response.error is not None and response.error.code not in _REFUSAL_CODES:
            raise ReportedFailure(response.error.model_dump())
        return _read_response(response, seconds=seconds, batch=batch)

    async def _stream(self, body: Mapping[str, Any]) -> dict[str, Any]:
        return await (self._stream_response if self.api == "responses" else self._stream_completion)(body)

    async def _stream_response(self, body: Mapping[str, Any]) -> dict[str, Any]:
        async with await self._events("/responses", {**body, "stream": True}) as events:
            async for data in events:
                event = read_wire(_Event, data)
                if event.type == "error":
                    raise ReportedFailure(event.model_dump())
                if event.type in ("response.completed", "response.incomplete", "response.failed"):
                    return event.response or {}
        raise BrokenReply("the stream ended before the reply was whole")

    async def _stream_completion(self, body: Mapping[str, Any]) -> dict[str, Any]:
        text, refused, reasoning = Gathered(), Gathered(), Gathered()
        finish: str | None = None
        completion: dict[str, Any] = {"model": body["model"]}
        options = {"stream": True, "stream_options": {"include_usage": True}}
        async with await self._events("/chat/completions", {**body, **options}) as events:
            async for data in events:
                chunk = read_wire(_Chunk, data)
                if chunk.error is not None:
                    raise ReportedFailure({"error": chunk.error})
                completion["model"] = chunk.model or completion["model"]
                completion["usage"] = chunk.usage or completion.get("usage")
                for choice in chunk.choices or ():
                    finish = choice.finish_reason or finish
                    if choice.delta is not None:
                        text.add(choice.delta.content)
                        refused.add(choice.delta.refusal)
                        reasoning.add(choice.delta.shown_reasoning)
                if text.full or refused.full or reasoning.full:
                    finish = "length"
                    break
        if finish is None:
            raise BrokenReply("the stream ended before the reply was whole")
        message = {"content": str(text), "refusal": str(refused) or None, "reasoning_content": str(reasoning)}
        return {**completion, "choices": [{"message": message, "finish_reason": finish}]}

    async def _events(self, path: str, body: Mapping[str, Any]) -> openai.AsyncStream[object]:
        # As plain JSON: to make the SDK's objects of a reply's thousands of pieces takes six times as long.
        return await self.client.post(
            path, cast_to=object, body=body, stream=True, stream_cls=openai.AsyncStream[object]
        )


def _form(request: ChatRequest) -> dict[str, Any]:
    assert request.schema is not None
    return {"name": request.schema.__name__, "schema": strict_schema(request.schema), "strict": True}


class _Event(Wire):
    """An event of a streamed response."""

    type: str
    response: dict[str, Any] | None = None
    code: str | None = None
    message: str | None = None
    error: dict[str, Any] | None = None


class _Part(Wire):
    type: str
    text: str | None = None
    refusal: str | None = None


class _Item(Wire):
    type: str
    content: list[_Part] | None = None
    summary: list[_Part] | None = None
    """Of an item of type ``reasoning``; its ``content``, if any, is the reasoning itself."""


class _InputDetails(Wire):
    cached_tokens: Count = None
    cache_write_tokens: Count = None


class _OutputDetails(Wire):
    reasoning_tokens: Count = None


class _ResponseUsage(Wire):
    input_tokens: Count = None
    input_tokens_details: _InputDetails | None = None
    output_tokens: Count = None
    output_tokens_details: _OutputDetails | None = None


class _Error(Wire):
    code: str | None = None
    message: str | None = None


class _Incomplete(Wire):
    reason: str | None = None


class _Response(Wire):
    model: str
    status: str
    output: list[_Item]
    usage: _ResponseUsage | None = None
    error: _Error | None = None
    incomplete_details: _Incomplete | None = None


def _read_response(response: _Response, *, seconds: float, batch: bool) -> ChatReply:
    parts = [part for item in response.output if item.type == "message" for part in item.content or ()]
    refusal = "".join(part.refusal or "" for part in parts)
    text = "".join(part.text or "" for part in parts if part.type == "output_text")
    reason = response.incomplete_details.reason if response.incomplete_details else None
    ended: Ended = "complete"
    if response.error is not None:
        ended, text = "refused", text or response.error.message or ""
    elif refusal or reason == "content_filter":
        ended, text = "refused", refusal or text
    elif response.status == "incomplete":
        ended = "length"
    elif response.status != "completed":
        raise BrokenReply(f"it has the status {response.status!r}")
    used = response.usage or _ResponseUsage()
    usage = _usage(
        response.model,
        (used.input_tokens, used.input_tokens_details),
        (used.output_tokens, used.output_tokens_details),
        seconds=seconds,
        batch=batch,
    )
    thoughts = [item.content or item.summary or () for item in response.output if item.type == "reasoning"]
    reasoning = "\n\n".join(part.text for parts in thoughts for part in parts if part.text)
    return ChatReply(text, usage, ended, reasoning)


class _Message(Wire):
    content: str | None = None
    refusal: str | None = None
    reasoning_content: Shown = None
    """As DeepSeek, SGLang and older versions of vLLM name it."""
    reasoning: Shown = None
    """As vLLM and Ollama name it; some servers send both."""

    @property
    def shown_reasoning(self) -> str:
        return self.reasoning_content or self.reasoning or ""


class _ChunkChoice(Wire):
    delta: _Message | None = None
    finish_reason: str | None = None


class _Chunk(Wire):
    """An event of a streamed completion; servers leave out what they like."""

    model: str | None = None
    choices: list[_ChunkChoice] | None = None
    usage: dict[str, Any] | None = None
    error: dict[str, Any] | str | None = None


class _Choice(Wire):
    message: _Message
    finish_reason: str


class _CompletionUsage(Wire):
    prompt_tokens: Count = None
    prompt_tokens_details: _InputDetails | None = None
    completion_tokens: Count = None
    completion_tokens_details: _OutputDetails | None = None


class _Completion(Wire):
    model: str
    choices: tuple[_Choice]
    usage: _CompletionUsage | None = None


def _read_completion(completion: _Completion, *, seconds: float, batch: bool) -> ChatReply:
    (choice,) = completion.choices
    ended: Ended = "complete"
    if choice.message.refusal or choice.finish_reason == "content_filter":
        ended = "refused"
    elif choice.finish_reason == "length":
        ended = "length"
    used = completion.usage or _CompletionUsage()
    usage = _usage(
        completion.model,
        (used.prompt_tokens, used.prompt_tokens_details),
        (used.completion_tokens, used.completion_tokens_details),
        seconds=seconds,
        batch=batch,
    )
    text = choice.message.refusal or choice.message.content or ""
    return ChatReply(text, usage, ended, choice.message.shown_reasoning)


def _usage(
    model: str,
    inputs: tuple[int | None, _InputDetails | None],
    outputs: tuple[int | None, _OutputDetails | None],
    *,
    seconds: float,
    batch: bool,
) -> Usage:
    """OpenAI counts cached tokens in the input and reasoning in the output, as our record does."""
    details, reasoning = inputs[1] or _InputDetails(), outputs[1] or _OutputDetails()
    return Usage(
        model=model,
        input_tokens=inputs[0],
        cached_tokens=details.cached_tokens,
        cache_write_tokens=details.cache_write_tokens,
        output_tokens=outputs[0],
        reasoning_tokens=reasoning.reasoning_tokens,
        seconds=seconds,
        batch=batch,
    )
