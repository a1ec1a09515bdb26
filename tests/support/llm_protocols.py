"""Bodies and events of the providers' protocols, as the fake server sends them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.support.llm_server import Say

Json = dict[str, Any]


@dataclass(frozen=True)
class Protocol:
    """Messages of one protocol."""

    name: str
    complete: Callable[[Say, Mapping[str, Any]], Json]
    """A reply that is not streamed."""
    events: Callable[[Say, Mapping[str, Any]], Iterator[bytes]]
    failure: Callable[[str, str], Json]
    """Body of an error with a message and a code."""
    failure_event: Callable[[str, str], bytes]
    """An error inside a stream."""


def turns(body: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Role and text of each turn of any protocol's request."""
    texts = []
    for turn in body.get("messages") or body["input"]:
        content = turn["content"]
        text = content if isinstance(content, str) else "".join(part.get("text", "") for part in content)
        texts.append((turn["role"], text))
    return texts


def _event(data: Mapping[str, Any], named: bool = True) -> bytes:
    name = f"event: {data['type']}\n" if named else ""
    return f"{name}data: {json.dumps(data)}\n\n".encode()


def _pieces(action: Say, text: str | None = None) -> list[str]:
    text = action.text if text is None else text
    size = max(1, -(-len(text) // max(1, action.pieces)))
    return [text[at : at + size] for at in range(0, len(text), size)]


# OpenAI, Responses


def _response(action: Say, body: Mapping[str, Any], status: str = "completed") -> Json:
    kind = "refusal" if action.ended == "refused" else "output_text"
    part: Json = {"type": kind, kind.removeprefix("output_"): action.text}
    if kind == "output_text":
        part["annotations"] = []
    summary = [{"type": "summary_text", "text": action.reasoning}] if action.reasoning else []
    output: list[Json] = [{"type": "reasoning", "id": "rs_1", "summary": summary}]
    if action.text:
        output.append({"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": [part]})
    response: Json = {
        "id": "resp_1", "object": "response", "created_at": 1, "model": f"{body['model']}-2026-01-01",
        "status": status, "output": output, "parallel_tool_calls": True, "tool_choice": "auto", "tools": [],
        "error": None, "incomplete_details": None, "instructions": None, "metadata": {},
    }  # fmt: skip
    if action.ended in ("length", "filtered"):
        reason = "max_output_tokens" if action.ended == "length" else "content_filter"
        response |= {"status": "incomplete", "incomplete_details": {"reason": reason}}
    if action.count_usage:
        response["usage"] = {
            "input_tokens": action.input_tokens,
            "input_tokens_details": {
                "cached_tokens": action.cached_tokens,
                "cache_write_tokens": action.cache_write_tokens,
            },
            "output_tokens": action.output_tokens,
            "output_tokens_details": {"reasoning_tokens": action.reasoning_tokens},
            "total_tokens": action.input_tokens + action.output_tokens,
        }
    return response


def _response_events(action: Say, body: Mapping[str, Any]) -> Iterator[bytes]:
    final = _response(action, body)
    begun = {**final, "status": "in_progress", "output": [], "usage": None, "incomplete_details": None}
    kind = "refusal" if action.ended == "refused" else "output_text"
    position = {"item_id": "msg_1", "output_index": 1, "content_index": 0}
    # Providers add events; a client must look past those that it does not know.
    events: list[Json] = [{"type": "response.created", "response": begun}, {"type": "response.news", "delta": "news"}]
    events += [{"type": f"response.{kind}.delta", "delta": piece, **position} for piece in _pieces(action)]
    events.append({"type": f"response.{final['status']}", "response": final})
    for number, event in enumerate(events):
        yield _event({**event, "sequence_number": number})


def _openai_failure(message: str, code: str) -> Json:
    return {"error": {"message": message, "type": code, "code": code, "param": None}}


def _response_failure(message: str, code: str) -> bytes:
    return _event({"type": "error", "code": code, "message": message, "param": None, "sequence_number": 0})


# OpenAI, chat completions


def _chat_usage(action: Say) -> Json:
    return {
        "prompt_tokens": action.input_tokens,
        "completion_tokens": action.output_tokens,
        "total_tokens": action.input_tokens + action.output_tokens,
        "prompt_tokens_details": {"cached_tokens": action.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": action.reasoning_tokens},
    }


_FINISH = {"complete": "stop", "refused": "stop", "length": "length", "filtered": "content_filter"}


def _chat(action: Say, body: Mapping[str, Any]) -> Json:
    refused = action.ended == "refused"
    message = {
        "role": "assistant",
        "content": None if refused else action.text,
        "refusal": action.text if refused else None,
        **({action.reasoning_field: action.reasoning} if action.reasoning else {}),
    }
    choice = {"index": 0, "message": message, "finish_reason": _FINISH[action.ended], "logprobs": None}
    answer: Json = {
        "id": "chat_1",
        "object": "chat.completion",
        "created": 1,
        "model": body["model"],
        "choices": [choice],
    }
    return {**answer, "usage": _chat_usage(action)} if action.count_usage else answer


def _chat_events(action: Say, body: Mapping[str, Any]) -> Iterator[bytes]:
    head = {"id": "chat_1", "object": "chat.completion.chunk", "created": 1, "model": body["model"]}
    field = "refusal" if action.ended == "refused" else "content"
    deltas = [{action.reasoning_field: piece} for piece in _pieces(action, action.reasoning)]
    deltas += [{field: piece} for piece in _pieces(action)]
    for delta in deltas:
        yield _event({**head, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]}, named=False)
    end = {"index": 0, "delta": {}, "finish_reason": _FINISH[action.ended]}
    yield b": keep-alive\n\n" + _event({**head, "choices": [end]}, named=False)
    if action.count_usage and (body.get("stream_options") or {}).get("include_usage"):
        yield _event({**head, "choices": [], "usage": _chat_usage(action)}, named=False)
    yield b"data: [DONE]\n\n"


def _chat_failure(message: str, code: str) -> bytes:
    return _event(_openai_failure(message, code), named=False)


def openai_batch(name: str, endpoint: str, input_file: str, status: str) -> Json:
    """A batch as OpenAI describes it."""
    return {
        "id": name, "object": "batch", "endpoint": endpoint, "input_file_id": input_file, "status": status,
        "completion_window": "24h", "created_at": 1, "output_file_id": None, "error_file_id": None,
        "errors": {"object": "list", "data": [{"code": "bad", "message": "line 1 is bad"}]}
        if status == "failed" else None,
    }  # fmt: skip


# Anthropic, messages

SIGNATURE = "c2lnbmVk"
"""Of every block of thinking."""


def _usage(action: Say) -> Json:
    return {
        "input_tokens": action.input_tokens - action.cached_tokens - action.cache_write_tokens,
        "cache_read_input_tokens": action.cached_tokens,
        "cache_creation_input_tokens": action.cache_write_tokens,
        "output_tokens": action.output_tokens,
        "output_tokens_details": {"thinking_tokens": action.reasoning_tokens},
    }


_STOP = {"complete": "end_turn", "length": "max_tokens", "refused": "refusal", "filtered": "refusal"}


def _message(action: Say, body: Mapping[str, Any]) -> Json:
    content: list[Json] = [{"type": "thinking", "thinking": action.reasoning, "signature": SIGNATURE}]
    if action.text:
        content.append({"type": "text", "text": action.text})
    return {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": f"{body['model']}-20260101",
        "content": content,
        "stop_reason": _STOP[action.ended],
        "stop_sequence": None,
        "usage": _usage(action),
    }


def _message_events(action: Say, body: Mapping[str, Any]) -> Iterator[bytes]:
    message = _message(action, body)
    begun = {**message, "content": [], "stop_reason": None, "usage": {**message["usage"], "output_tokens": 1}}
    yield _event({"type": "message_start", "message": begun})
    yield _event({"type": "ping"})
    yield _event({"type": "news", "message": {"model": "news"}, "delta": {"type": "news", "text": "news"}})
    start = {"type": "thinking", "thinking": "", "signature": ""}
    yield _event({"type": "content_block_start", "index": 0, "content_block": start})
    for piece in _pieces(action, action.reasoning):
        yield _event(
            {"type": "content_block_delta", "index": 0, "delta": {"type": "thinking_delta", "thinking": piece}}
        )
    signed = {"type": "signature_delta", "signature": SIGNATURE}
    yield _event({"type": "content_block_delta", "index": 0, "delta": signed})
    yield _event({"type": "content_block_stop", "index": 0})
    if action.text:
        yield _event({"type": "content_block_start", "index": 1, "content_block": {"type": "text", "text": ""}})
        for piece in _pieces(action):
            yield _event({"type": "content_block_delta", "index": 1, "delta": {"type": "text_delta", "text": piece}})
        yield _event({"type": "content_block_stop", "index": 1})
    usage = {key: message["usage"][key] for key in ("output_tokens", "output_tokens_details")}
    delta = {"stop_reason": message["stop_reason"], "stop_sequence": None}
    yield _event({"type": "message_delta", "delta": delta, "usage": usage})
    yield _event({"type": "message_stop"})


def anthropic_failure(message: str, code: str) -> Json:
    """Body of Anthropic's errors; OpenAI's differ in their code alone."""
    return {"type": "error", "error": {"type": code, "message": message}}


def _message_failure(message: str, code: str) -> bytes:
    return _event(anthropic_failure(message, code))


def anthropic_batch(name: str, over: bool, results_url: str) -> Json:
    """A batch as Anthropic describes it."""
    return {
        "id": name, "type": "message_batch", "processing_status": "ended" if over else "in_progress",
        "created_at": "2026-01-01T00:00:00Z", "expires_at": "2026-01-02T00:00:00Z",
        "results_url": results_url if over else None,
        "request_counts": {"canceled": 0, "errored": 0, "expired": 0, "processing": 0, "succeeded": 0},
    }  # fmt: skip


PROTOCOLS: dict[str, Protocol] = {
    "responses": Protocol("responses", _response, _response_events, _openai_failure, _response_failure),
    "chat": Protocol("chat", _chat, _chat_events, _openai_failure, _chat_failure),
    "messages": Protocol("messages", _message, _message_events, anthropic_failure, _message_failure),
}
"""By the word after ``/v1/`` in their paths."""
