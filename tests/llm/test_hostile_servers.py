"""Servers that attack, or loop: a reply stays bounded, and what is kept holds no key."""

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from kernelforge.errors import ProviderError
from kernelforge.llm import http
from kernelforge.llm.base import ChatRequest, Turn
from kernelforge.llm.providers import make_chat_model
from kernelforge.llm.spec import parse_spec
from kernelforge.records import LLMSettings
from tests.support.llm_server import Fail, Say

KEY = "sk-canary-0123456789abcdef"
ASK = ChatRequest((Turn("user", "hello"),))
WIRES = {
    "responses": "openai:gpt-5?api=responses&base_url={url}/v1",
    "chat": "openai:Qwen/Qwen3-32B?base_url={url}/v1",
    "messages": "anthropic:claude-x?base_url={url}",
}


@pytest.fixture(params=WIRES)
def wire(request, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
    return request.param


@pytest.fixture
def at(wire):
    """A model behind a server's address."""
    models = []

    def at(url):
        models.append(make_chat_model(parse_spec(WIRES[wire].format(url=url)), LLMSettings(timeout_seconds=60)))
        return models[-1]

    yield at
    for model in models:
        model.close()


def failure_of(model):
    with pytest.raises(ProviderError) as caught:
        model.complete(ASK)
    return caught.value


@pytest.mark.slow
@pytest.mark.parametrize("pieces", [1, 64])
def test_a_reply_without_end_is_cut_and_counts_as_cut(fake_llm, at, pieces, monkeypatch):
    monkeypatch.setattr(http, "MAX_REPLY_CHARS", 1000)
    reply = at(fake_llm(Say("x" * 64_000, pieces=pieces)).url).complete(ASK)
    assert (len(reply.text), reply.ended) == (1000, "length")


def test_a_reply_of_the_longest_length_is_whole(fake_llm, at, monkeypatch):
    monkeypatch.setattr(http, "MAX_REPLY_CHARS", 1000)
    reply = at(fake_llm(Say("x" * 1000)).url).complete(ASK)
    assert (len(reply.text), reply.ended) == (1000, "complete")


@pytest.mark.parametrize("limit", ["MAX_BODY_BYTES", "MAX_EVENT_BYTES"])
@pytest.mark.parametrize("script", [Say("x" * 100_000, pieces=1), Fail(500, raw="x" * 100_000)])
def test_a_body_without_end_is_given_up(fake_llm, at, limit, script, monkeypatch):
    monkeypatch.setattr(http, limit, 50_000)
    failed = failure_of(at(fake_llm(script).url))
    assert "far longer than any reply" in str(failed)


def test_signs_of_life_do_not_keep_a_call_alive_for_ever(at, monkeypatch):
    monkeypatch.setattr(http, "LONGEST_CALL_SECONDS", 0.5)
    over = threading.Event()

    class Pings(BaseHTTPRequestHandler):
        def do_POST(self):
            self.send_response(200)
            self.send_header("content-type", "text/event-stream")
            self.end_headers()
            while not over.wait(0.02):
                self.wfile.write(b": ping\n\n")

        def log_message(self, format, *args):
            """Silence."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Pings) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        try:
            failed = failure_of(at(f"http://127.0.0.1:{server.server_address[1]}"))
        finally:
            over.set()
            server.shutdown()
    assert failed.passing
    assert "not whole" in str(failed)


def test_a_compressed_body_is_not_unpacked(fake_llm, at):
    failed = failure_of(at(fake_llm(Fail(500, headers={"content-encoding": "gzip"}, raw="bomb")).url))
    assert "compressed" in str(failed)


def test_a_number_that_no_integer_can_hold_is_passing(fake_llm, at):
    raw = "event: message_start\ndata: {" + f'"type": "message_start", "choices": [], "usage": {"9" * 10_000}' + "}\n\n"
    assert failure_of(at(fake_llm(Fail(200, raw=raw)).url)).passing


@pytest.mark.parametrize("count", [-5, 10**13, 2**64])
def test_counts_that_cannot_be_are_unknown(fake_llm, at, count):
    reply = at(fake_llm(Say("text", input_tokens=count, output_tokens=count)).url).complete(ASK)
    assert reply.text == "text"
    assert (reply.usage.input_tokens, reply.usage.output_tokens, reply.usage.tokens) == (None, None, None)


def test_a_key_that_comes_back_in_a_reply_is_taken_out(fake_llm, at):
    reply = at(fake_llm(lambda call: Say(f"Your key is {call.key}.")).url).complete(ASK)
    assert reply.text == "Your key is [key]."
