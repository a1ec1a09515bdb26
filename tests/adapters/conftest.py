"""A server of the native protocol, found through the environment as trainers do; a model with scripted replies."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from kernelforge.client.models import Job, JobRequest, SessionRequest, TurnRequest
from tests.support.protocol_server import ProtocolServer, ScriptedAnswer, refusal


class RewardServer(ProtocolServer):
    """Rewards a completion with the last number in it, or 0; one with ``infra`` in it ends in trouble, with ``lacks``
    it is unsupported, and the full size of one that ends with ``uncompared`` is not compared.
    """

    def __init__(self) -> None:
        super().__init__()
        self.scored: list[JobRequest] = []
        """As they arrived."""
        self.tell: Callable[[str], str] = _scripted_completion
        """Maps a completion to one that names its result for a ``ProtocolServer``."""

    def opened(self) -> list[SessionRequest]:
        """Sessions that were begun, forgotten or not."""
        received = [received for received in self.received if received.line == "POST /v1/sessions"]
        return [SessionRequest.model_validate_json(request.body) for request in received]

    def _accept(self, request: JobRequest, key: str) -> Job:
        if key not in self.keys:
            self.scored.append(request)
        return super()._accept(request.model_copy(update={"completion": self.tell(request.completion or "")}), key)

    def _turn(self, session_id: str, request: TurnRequest) -> ScriptedAnswer:
        reply_text = self.tell(request.completion)
        if reply_text == "infra":
            return refusal(503, "infra_error", "three workers died")
        return super()._turn(session_id, request.model_copy(update={"completion": reply_text}))


def _scripted_completion(completion: str) -> str:
    for word in ("infra", "lacks"):
        if word in completion:
            return word
    if completion.endswith("uncompared"):
        return "0 uncompared"
    return (re.findall(r"-?\d+\.\d+", completion) or ["0.0"])[-1]


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[RewardServer]:
    monkeypatch.delenv("KERNELFORGE_TOKEN", raising=False)
    with RewardServer().running() as running:
        monkeypatch.setenv("KERNELFORGE_SERVER", running.url)
        assert isinstance(running, RewardServer)
        yield running


class Policy:
    """A model behind the API of OpenAI that gives its scripted replies in turn."""

    def __init__(self) -> None:
        self.replies: list[str] = []
        self.received: list[dict[str, Any]] = []
        self.url = ""


@pytest.fixture
def policy() -> Iterator[Policy]:
    model = Policy()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            request_body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            model.received.append(request_body)
            number = len(model.received)
            message = {"role": "assistant", "content": model.replies[number - 1]}
            reply = {
                "id": f"reply-{number}",
                "object": "chat.completion",
                "created": 0,
                "model": request_body["model"],
                "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
            }
            body = json.dumps(reply).encode()
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            """Keep the test's output clean."""

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    model.url = f"http://127.0.0.1:{http.server_port}/v1"
    thread = threading.Thread(target=http.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    yield model
    http.shutdown()
    thread.join(10)
    http.server_close()
