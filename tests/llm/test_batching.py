"""Batch mode: calls that wait at the same time go to the provider together."""

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from kernelforge.agents.reply_forms import RepairReply
from kernelforge.errors import BudgetExhausted, ProviderError, UsageError
from kernelforge.llm.base import ChatRequest, Turn
from kernelforge.llm.batches import BatchingModel
from kernelforge.llm.providers import make_chat_model
from kernelforge.llm.spec import parse_spec
from kernelforge.records import LLMSettings
from tests.support.llm_server import Fail, Hang, Say


def echo(call):
    return Say(f"re: {call.prompt}", input_tokens=100, cached_tokens=40)


WIRES = {
    "responses": "openai:gpt-5?api=responses&effort=low&base_url={server.openai_url}",
    "chat": "openai:gpt-4?base_url={server.openai_url}",
    "messages": "anthropic:claude-x?effort=low&base_url={server.url}",
}


def until(true):
    """Wait for the work of other tasks."""
    end = time.monotonic() + 60
    while not true():
        assert time.monotonic() < end
        time.sleep(0.01)


def ask(text, **options):
    return ChatRequest((Turn("user", text),), **options)


@pytest.fixture(params=WIRES)
def wire(request, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-canary-0123456789")
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-canary-0123456789")
    return request.param


@pytest.fixture
def connect(fake_llm, wire):
    from kernelforge.llm.batches import make_batch_jobs

    models = []

    def connect(script, *, stopped=lambda: False, gather_seconds=0.02, poll_seconds=0.02, **options):
        server = fake_llm(script, **options)
        single = make_chat_model(parse_spec(WIRES[wire].format(server=server)), LLMSettings(), stopped)
        models.append(
            BatchingModel(single, make_batch_jobs(single), gather_seconds=gather_seconds, poll_seconds=poll_seconds)
        )
        return server, models[-1]

    yield connect
    for model in models:
        model.close()


def together(model, count):
    """Replies or errors of that many calls at the same time."""

    def complete(number):
        try:
            return model.complete(ask(f"{number}"))
        except ProviderError as error:
            return error

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(complete, range(count)))


@pytest.mark.slow
def test_calls_at_the_same_time_are_one_batch_and_each_gets_its_own_reply(connect, wire, monkeypatch):
    server, model = connect(echo, gather_seconds=60)

    async def until_all_wait(seconds):
        if seconds == 60:
            while len(model._waiting) < 12:
                await asyncio.sleep(0.01)

    monkeypatch.setattr(model, "_nap", until_all_wait)
    replies = together(model, 12)
    assert [reply.text for reply in replies] == [f"re: {number}" for number in range(12)]
    assert len(server.batches) == 1
    assert all(call.in_batch and call.protocol == wire for call in server.calls)


@pytest.mark.slow
def test_usage_says_that_it_was_a_batch(connect):
    _, model = connect(echo)
    usage = model.complete(ask("one")).usage
    assert usage.batch
    assert (usage.input_tokens, usage.cached_tokens) == (100, 40)
    assert usage.seconds > 0.02


def test_a_batch_carries_what_a_single_call_would(connect, wire):
    server, model = connect(echo)
    model.complete(ask("one", schema=RepairReply))
    body = server.calls[0].body
    assert "stream" not in body
    form = {"responses": "text", "chat": "response_format", "messages": "output_config"}[wire]
    assert "critical_issue" in str(body[form])
    assert wire == "chat" or "low" in str(body)


def test_later_calls_are_a_batch_of_their_own(connect):
    server, model = connect(echo)
    assert [model.complete(ask(text)).text for text in ("a", "b")] == ["re: a", "re: b"]
    assert len(server.batches) == 2


def test_one_failed_call_fails_alone(connect, wire):
    bad = Fail(400, code="invalid_request_error", message="too long")
    _, model = connect(lambda call: bad if call.prompt == "1" else echo(call), gather_seconds=0.1)
    first, second, third = together(model, 3)
    assert (first.text, third.text) == ("re: 0", "re: 2")
    assert isinstance(second, ProviderError)
    assert not second.passing
    assert "too long" in str(second)


def test_a_call_that_the_provider_never_came_to_is_passing(connect):
    _, model = connect(lambda call: Hang() if call.prompt == "0" else echo(call), gather_seconds=0.1)
    first, second = together(model, 2)
    assert isinstance(first, ProviderError)
    assert first.passing
    assert second.text == "re: 1"


# Anthropic's batches expire call by call, and are refused when they are made.
@pytest.mark.parametrize("wire", ["responses", "chat"], indirect=True)
def test_a_batch_that_expired_is_passing_for_all(connect):
    _, model = connect(echo, batch_ends="expired", gather_seconds=0.1)
    assert [error.passing for error in together(model, 2)] == [True, True]


@pytest.mark.parametrize("wire", ["responses", "chat"], indirect=True)
def test_a_batch_that_was_refused_is_not_passing_and_says_why(connect):
    _, model = connect(echo, batch_ends="failed", gather_seconds=0.1)
    errors = together(model, 2)
    assert [error.passing for error in errors] == [False, False]
    assert "line 1 is bad" in str(errors[0])
    assert errors[0] is not errors[1]


@pytest.mark.parametrize("status", [503, 429])
def test_looking_at_a_batch_may_fail_for_a_while(connect, status):
    server, model = connect(echo)
    server.failing_looks = [status, status]
    assert model.complete(ask("one")).text == "re: one"
    assert not server.failing_looks
    assert len(server.batches) == 1


def test_a_lasting_failure_to_look_reaches_who_waits(connect):
    server, model = connect(echo)
    server.failing_looks = [401]
    with pytest.raises(ProviderError, match="refused the key"):
        model.complete(ask("one"))


@pytest.mark.parametrize(
    ("options", "reached", "cancelled"),
    [
        pytest.param({"batch_polls": 10**9}, lambda server, model: server.batches, [True], id="submitted"),
        pytest.param({"gather_seconds": 30}, lambda server, model: model._waiting, [], id="never sent"),
    ],
)
def test_a_call_that_stops_cancels_its_batch(connect, options, reached, cancelled):
    halt = []
    server, model = connect(echo, stopped=lambda: bool(halt), **options)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(model.complete, ask("one"))
        until(lambda: reached(server, model))
        halt.append(True)
        with pytest.raises(BudgetExhausted):
            waiting.result(timeout=60)
    model.close()
    assert [batch.cancelled for batch in server.batches.values()] == cancelled


def test_a_batch_that_is_just_being_submitted_is_cancelled_too(connect):
    accepting = threading.Event()
    server, model = connect(echo, batch_polls=10**9, accepting=accepting)
    with ThreadPoolExecutor(2) as pool:
        waiting = pool.submit(model.complete, ask("one"))
        until(lambda: server.submitting)
        closing = pool.submit(model.close)
        with pytest.raises(BudgetExhausted):
            waiting.result(timeout=60)
        assert not server.batches
        accepting.set()
        closing.result(timeout=60)
    assert [batch.cancelled for batch in server.batches.values()] == [True]


@pytest.mark.parametrize("text", ["openai:m?base_url=http://localhost:1/v1", "anthropic:m?base_url=http://localhost:1"])
def test_batches_of_a_compatible_server_are_refused(text):
    with pytest.raises(UsageError, match="no batches"):
        make_chat_model(parse_spec(text), LLMSettings(batch=True))


@pytest.mark.parametrize("text", ["openai:gpt-5", "anthropic:claude-x"])
def test_the_setting_makes_a_model_that_batches(text, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-canary-0123456789")
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-canary-0123456789")
    assert isinstance(make_chat_model(parse_spec(text), LLMSettings(batch=True)), BatchingModel)
    assert not isinstance(make_chat_model(parse_spec(text), LLMSettings()), BatchingModel)
