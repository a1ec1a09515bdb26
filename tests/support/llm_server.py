"""A local server that speaks the providers' real protocols, so that tests talk to it through the real SDKs.

OpenAI's Responses, chat completions, files and batches under ``/v1``; Anthropic's messages and message batches. What it
answers is scripted: one :data:`Action` for all calls, a sequence of them (the last repeats), or a function of the
:class:`Call`. Every call is kept, so that a test sees what was sent::

    with FakeLLM([Fail(429, headers={"retry-after": "1"}), Say("hello")]) as server:
        OpenAI(base_url=server.openai_url, api_key="test").responses.create(...)
    assert server.calls[1].body["stream"]
"""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from email import message_from_bytes
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal

from tests.support import llm_protocols


@dataclass(frozen=True)
class Say:
    """A reply, whole or broken off."""

    text: str = "ok"
    ended: Literal["complete", "length", "refused", "filtered"] = "complete"
    """``refused``: ``text`` is the model's refusal. ``filtered``: a filter cut it off."""
    input_tokens: int = 100
    """All of the prompt's, cached and written ones included, under any protocol."""
    cached_tokens: int = 0
    cache_write_tokens: int = 0
    output_tokens: int = 20
    reasoning_tokens: int = 0
    reasoning: str = ""
    """What the model shows of its reasoning: thinking, a summary, or the field below."""
    reasoning_field: Literal["reasoning_content", "reasoning"] = "reasoning_content"
    """Chat completions: DeepSeek's field, or that of newer versions of vLLM."""
    count_usage: bool = True
    """Whether the reply says what it used; compatible servers need not."""
    delay_seconds: float = 0.0
    pieces: int = 3
    """Events that carry text."""
    break_after: int | None = None
    """Break the stream off after that many events."""
    break_how: Literal["drop", "end", "garble", "hang"] = "drop"
    """Drop the connection; end the stream in good form but without its last events; send an event that is no JSON;
    send nothing more."""


@dataclass(frozen=True)
class Fail:
    """An error instead of a reply."""

    status: int = 500
    headers: Mapping[str, str] = field(default_factory=dict)
    message: str = "the server failed"
    code: str = "server_error"
    """OpenAI's ``code``, Anthropic's ``type``."""
    echo_key: bool = False
    """Repeat the caller's key in the message."""
    in_stream: bool = False
    """Answer 200 and fail inside the stream, as overloaded servers do."""
    raw: str | None = None
    """Body in place of the protocol's error object."""


@dataclass(frozen=True)
class Hang:
    """No answer, until the server closes."""


Action = Say | Fail | Hang
Script = Action | Sequence[Action] | Callable[["Call"], Action]


@dataclass(frozen=True)
class Call:
    """One request for a reply, alone or in a batch."""

    number: int
    """Counts the server's calls from 0."""
    protocol: Literal["responses", "chat", "messages"]
    headers: Mapping[str, str]
    """By lower-case name."""
    body: Mapping[str, Any]
    in_batch: bool = False

    @property
    def model(self) -> str:
        return str(self.body.get("model"))

    @property
    def turns(self) -> list[tuple[str, str]]:
        """Role and text of each turn."""
        return llm_protocols.turns(self.body)

    @property
    def prompt(self) -> str:
        """The last turn's text."""
        return self.turns[-1][1]

    @property
    def key(self) -> str:
        """The caller's key."""
        return self.headers.get("x-api-key") or self.headers.get("authorization", "").removeprefix("Bearer ")


class FakeLLM:
    """The server. Ask it for its address once it is entered.

    Args:
        script: what to answer.
        batch_polls: how often a batch is still in progress when looked at.
        accepting: a batch is accepted once this is set; at once where left out.
        batch_ends: how every batch ends; the items of one that failed or expired have no results.
    """

    def __init__(
        self,
        script: Script = Say(),
        *,
        batch_polls: int = 1,
        batch_ends: Literal["completed", "failed", "expired"] = "completed",
        accepting: threading.Event | None = None,
    ) -> None:
        self.script = script
        self.batch_polls = batch_polls
        self.batch_ends = batch_ends
        self.accepting = accepting
        self.submitting = 0
        """Batches that came in, accepted or not yet."""
        self.calls: list[Call] = []
        self.batches: dict[str, Batch] = {}
        self.failing_looks: list[int] = []
        """Statuses that the next looks at a batch get."""
        self.files: dict[str, bytes] = {}
        self.peak = 0
        """Most calls that waited for the beginning of their answer at a time."""
        self.closing = threading.Event()
        self._in_flight = 0
        self._lock = threading.Lock()
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.fake = self

    @property
    def url(self) -> str:
        """Root of the server; Anthropic's base URL."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    @property
    def openai_url(self) -> str:
        """OpenAI's base URL."""
        return f"{self.url}/v1"

    def __enter__(self) -> FakeLLM:
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.closing.set()
        self._server.shutdown()
        self._server.server_close()

    def decide(self, protocol: Any, headers: Mapping[str, str], body: Mapping[str, Any], in_batch: bool) -> Action:
        """Keep a call and look up what it gets."""
        with self._lock:
            call = Call(len(self.calls), protocol, headers, body, in_batch)
            self.calls.append(call)
        if callable(self.script):
            return self.script(call)
        if isinstance(self.script, Sequence):
            return self.script[min(call.number, len(self.script) - 1)]
        return self.script

    def entered(self) -> None:
        with self._lock:
            self._in_flight += 1
            self.peak = max(self.peak, self._in_flight)

    def finished(self) -> None:
        with self._lock:
            self._in_flight -= 1

    def store(self, content: bytes) -> str:
        """Keep a file; its id."""
        with self._lock:
            name = f"file-{len(self.files)}"
            self.files[name] = content
            return name

    def add_batch(self, results: list[dict[str, Any]], endpoint: str, input_file: str = "") -> Batch:
        with self._lock:
            batch = Batch(f"batch-{len(self.batches)}", results, endpoint, input_file)
            self.batches[batch.id] = batch
            return batch


@dataclass
class Batch:
    """A batch whose results are known from the start, and shown after some polls."""

    id: str
    results: list[dict[str, Any]]
    endpoint: str
    input_file: str = ""
    polls: int = 0
    cancelled: bool = False

    def over(self, fake: FakeLLM) -> bool:
        return self.cancelled or self.polls > fake.batch_polls


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 1024
    fake: FakeLLM

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients that go away are part of the tests."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Server

    def log_message(self, format: str, *args: Any) -> None:
        """Silence."""

    @property
    def fake(self) -> FakeLLM:
        return self.server.fake

    def do_POST(self) -> None:
        raw = self.rfile.read(int(self.headers.get("content-length", 0)))
        self.known = {name.lower(): value for name, value in self.headers.items()}
        parts = self.path.partition("?")[0].strip("/").split("/")
        match parts:
            case ["v1", "files"]:
                self._json(200, {"id": self.fake.store(self._upload(raw)), "object": "file", "purpose": "batch"})
            case ["v1", "batches"]:
                self._accept()
                self._openai_batch(json.loads(raw))
            case ["v1", "messages", "batches"]:
                self._accept()
                self._anthropic_batch(json.loads(raw))
            case ["v1", "batches", name, "cancel"] | ["v1", "messages", "batches", name, "cancel"]:
                self.fake.batches[name].cancelled = True
                self._json(200, self._batch_state(self.fake.batches[name]))
            case ["v1", "responses"] | ["v1", "chat", "completions"] | ["v1", "messages"]:
                self._answer(llm_protocols.PROTOCOLS[parts[1]], json.loads(raw))
            case _:
                self._json(404, {"error": {"message": f"no such path: {self.path}", "type": "not_found_error"}})

    def do_GET(self) -> None:
        self.known = {name.lower(): value for name, value in self.headers.items()}
        match self.path.partition("?")[0].strip("/").split("/"):
            case ["v1", "files", name, "content"]:
                self._send(200, {"content-type": "application/octet-stream"}, self.fake.files[name])
            case ["v1", "batches", name] | ["v1", "messages", "batches", name]:
                if self.fake.failing_looks:
                    self._json(self.fake.failing_looks.pop(0), llm_protocols.anthropic_failure("not now", "api_error"))
                    return
                self.fake.batches[name].polls += 1
                self._json(200, self._batch_state(self.fake.batches[name]))
            case ["v1", "messages", "batches", name, "results"]:
                lines = "".join(json.dumps(result) + "\n" for result in self.fake.batches[name].results)
                self._send(200, {"content-type": "application/x-jsonl"}, lines.encode())
            case _:
                self._json(404, {"error": {"message": f"no such path: {self.path}", "type": "not_found_error"}})

    def _answer(self, protocol: llm_protocols.Protocol, body: dict[str, Any]) -> None:
        self.fake.entered()
        try:
            action = self.fake.decide(protocol.name, self.known, body, in_batch=False)
            if isinstance(action, Say):
                self.fake.closing.wait(action.delay_seconds)
        finally:
            # Before any of the answer is sent: the client may make its next call before the next line runs.
            self.fake.finished()
        if isinstance(action, Hang):
            self.fake.closing.wait()
            self._drop()
        elif isinstance(action, Fail):
            self._fail(protocol, action, bool(body.get("stream")))
        elif body.get("stream"):
            self._stream(action, protocol.events(action, body))
        else:
            self._json(200, protocol.complete(action, body))

    def _fail(self, protocol: llm_protocols.Protocol, action: Fail, stream: bool) -> None:
        key = self.known.get("x-api-key") or self.known.get("authorization", "").removeprefix("Bearer ")
        message = f"{action.message}: {key}" if action.echo_key else action.message
        if action.in_stream and stream:
            self._start_stream()
            self._chunk(protocol.failure_event(message, action.code))
            self._chunk(b"")
            return
        if action.raw is not None:
            self._send(action.status, {"content-type": "text/html", **action.headers}, action.raw.encode())
            return
        self._json(action.status, protocol.failure(message, action.code), action.headers)

    def _start_stream(self) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()

    def _stream(self, action: Say, events: Iterator[bytes]) -> None:
        self._start_stream()
        for number, event in enumerate(events):
            if number == action.break_after:
                if action.break_how == "end":
                    break
                if action.break_how == "garble":
                    self._chunk(event.replace(b"data: {", b"data: {{", 1))
                    continue
                if action.break_how == "hang":
                    self.fake.closing.wait()
                self._drop()
                return
            self._chunk(event)
        self._chunk(b"")

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))

    def _drop(self) -> None:
        self.close_connection = True
        self.connection.shutdown(socket.SHUT_RDWR)

    def _json(self, status: int, body: Mapping[str, Any], headers: Mapping[str, str] | None = None) -> None:
        self._send(status, {"content-type": "application/json", **(headers or {})}, json.dumps(body).encode())

    def _send(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _upload(self, raw: bytes) -> bytes:
        """The file in a multipart form."""
        form = message_from_bytes(b"content-type: " + self.known["content-type"].encode() + b"\r\n\r\n" + raw)
        files = [part.get_payload(decode=True) for part in form.walk() if part.get_filename()]
        assert len(files) == 1
        assert isinstance(files[0], bytes)
        return files[0]

    def _accept(self) -> None:
        self.fake.submitting += 1
        if self.fake.accepting is not None:
            self.fake.accepting.wait(60)

    def _openai_batch(self, order: dict[str, Any]) -> None:
        protocol = llm_protocols.PROTOCOLS[order["endpoint"].split("/")[2]]
        results = []
        for line in self.fake.files[order["input_file_id"]].splitlines():
            item = json.loads(line)
            assert item["url"] == order["endpoint"]
            action = self.fake.decide(protocol.name, self.known, item["body"], in_batch=True)
            result: dict[str, Any] = {"id": f"result-{len(results)}", "custom_id": item["custom_id"]}
            if isinstance(action, Say):
                body = protocol.complete(action, item["body"])
                result |= {"response": {"status_code": 200, "body": body}, "error": None}
            elif isinstance(action, Fail):
                body = protocol.failure(action.message, action.code)
                result |= {"response": {"status_code": action.status, "body": body}, "error": None}
            else:
                result |= {"response": None, "error": {"code": "batch_expired", "message": "not run in time"}}
            results.append(result)
        batch = self.fake.add_batch(results[::-1], order["endpoint"], order["input_file_id"])
        self._json(200, self._batch_state(batch))

    def _anthropic_batch(self, order: dict[str, Any]) -> None:
        protocol = llm_protocols.PROTOCOLS["messages"]
        results = []
        for item in order["requests"]:
            action = self.fake.decide(protocol.name, self.known, item["params"], in_batch=True)
            if isinstance(action, Say):
                result = {"type": "succeeded", "message": protocol.complete(action, item["params"])}
            elif isinstance(action, Fail):
                result = {"type": "errored", "error": protocol.failure(action.message, action.code)}
            else:
                result = {"type": "expired"}
            results.append({"custom_id": item["custom_id"], "result": result})
        self._json(200, self._batch_state(self.fake.add_batch(results[::-1], "messages")))

    def _batch_state(self, batch: Batch) -> dict[str, Any]:
        over = batch.over(self.fake)
        if batch.endpoint == "messages":
            return llm_protocols.anthropic_batch(
                batch.id, over, f"{self.fake.url}/v1/messages/batches/{batch.id}/results"
            )
        ends = "cancelled" if batch.cancelled else self.fake.batch_ends
        state = llm_protocols.openai_batch(batch.id, batch.endpoint, batch.input_file, ends if over else "in_progress")
        if over and ends == "completed":
            for kind, succeeded in (("output_file_id", True), ("error_file_id", False)):
                lines = [result for result in batch.results if _succeeded(result) is succeeded]
                if lines:
                    state[kind] = self.fake.store("".join(json.dumps(line) + "\n" for line in lines).encode())
        return state


def _succeeded(result: Mapping[str, Any]) -> bool:
    return bool(result["response"]) and result["response"]["status_code"] == 200
