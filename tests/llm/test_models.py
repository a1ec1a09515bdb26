"""Hosted models, through the real SDKs, against a server that speaks their protocols."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from kernelforge.agents.reply_forms import OptimiseReply, RepairReply
from kernelforge.errors import BudgetExhausted, ProviderError, UsageError
from kernelforge.llm.base import ChatRequest, Turn
from kernelforge.llm.providers import make_chat_model
from kernelforge.llm.spec import parse_spec
from kernelforge.records import LLMSettings
from tests.support.llm_protocols import SIGNATURE
from tests.support.llm_server import Fail, Hang, Say

OK = Say()
KEY = "sk-canary-0123456789abcdef"

WIRES = {
    "responses": "openai:gpt-5?api=responses&base_url={server.openai_url}",
    "chat": "openai:Qwen/Qwen3-32B?base_url={server.openai_url}",
    "messages": "anthropic:claude-x?base_url={server.url}",
}
"""A specification for each protocol."""


def ask(text="hello", **options):
    return ChatRequest((Turn("user", text),), **options)


@pytest.fixture(params=WIRES)
def wire(request, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
    return request.param


@pytest.fixture
def connect(fake_llm, wire):
    """Starts a server with a script; gives it and a model behind it."""
    models = []

    def connect(script=OK, *, options="", stopped=lambda: False, **settings):
        server = fake_llm(script)
        spec = parse_spec(WIRES[wire].format(server=server) + options)
        models.append(make_chat_model(spec, LLMSettings(**settings), stopped))
        return server, models[-1]

    yield connect
    for model in models:
        model.close()


def failure_of(model, request=None):
    with pytest.raises(ProviderError) as caught:
        model.complete(request or ask())
    return caught.value


def test_a_reply_arrives_whole_with_its_usage(connect, wire):
    server, model = connect(
        Say("grüß dich, kernel", input_tokens=1000, cached_tokens=600, output_tokens=50, reasoning_tokens=30)
    )
    reply = model.complete(ask())
    usage = reply.usage
    assert (reply.text, reply.ended) == ("grüß dich, kernel", "complete")
    assert (usage.input_tokens, usage.cached_tokens, usage.output_tokens, usage.reasoning_tokens) == (1000, 600, 50, 30)
    assert usage.dollars is None
    assert not usage.batch
    assert 0 < usage.seconds < 60
    assert usage.model.startswith(server.calls[0].model)


def test_written_cache_tokens_are_part_of_the_input(connect, wire):
    _, model = connect(Say(input_tokens=1000, cached_tokens=100, cache_write_tokens=500))
    usage = model.complete(ask()).usage
    assert usage.input_tokens == 1000
    assert usage.cache_write_tokens == (None if wire == "chat" else 500)


@pytest.mark.parametrize("wire", ["responses", "chat"], indirect=True)
def test_usage_that_the_server_does_not_tell_is_unknown(connect, wire):
    _, model = connect(Say(count_usage=False))
    usage = model.complete(ask()).usage
    assert usage.input_tokens is usage.output_tokens is usage.cached_tokens is usage.reasoning_tokens is None
    assert usage.tokens is None


def test_the_call_streams_and_carries_the_key_and_all_turns(connect, wire):
    server, model = connect()
    model.complete(ChatRequest((Turn("user", "one"), Turn("assistant", "two"), Turn("user", "three"))))
    (call,) = server.calls
    assert call.protocol == wire
    assert call.body["stream"] is True
    assert call.turns == [("user", "one"), ("assistant", "two"), ("user", "three")]
    assert call.key == KEY


def test_only_what_the_specification_says_is_sent(connect, wire):
    server, model = connect()
    model.complete(ask())
    body = server.calls[0].body
    own = {"responses": {"store"}, "chat": {"stream_options"}, "messages": {"max_tokens"}}[wire]
    assert set(body) == {"model", "stream", "input" if wire == "responses" else "messages"} | own
    if wire == "messages":
        from kernelforge.llm.anthropic import DEFAULT_MAX_TOKENS

        assert body["max_tokens"] == DEFAULT_MAX_TOKENS


def test_effort_temperature_and_limit_are_sent_as_the_protocol_spells_them(connect, wire):
    server, model = connect(options="&effort=high&temperature=0.2&max_output_tokens=1234")
    model.complete(ask())
    body = server.calls[0].body
    assert body["temperature"] == 0.2
    assert {
        "responses": lambda: (body["reasoning"], body["max_output_tokens"]) == ({"effort": "high"}, 1234),
        "chat": lambda: (body["reasoning_effort"], body["max_tokens"]) == ("high", 1234),
        "messages": lambda: (body["output_config"], body["max_tokens"]) == ({"effort": "high"}, 1234),
    }[wire]()


@pytest.mark.parametrize(
    ("value", "sent"),
    [
        ("adaptive", {"type": "adaptive", "display": "summarized"}),
        ("disabled", {"type": "disabled"}),
        ("2048", {"type": "enabled", "budget_tokens": 2048, "display": "summarized"}),
    ],
)
@pytest.mark.parametrize("wire", ["messages"], indirect=True)
def test_thinking_is_sent_as_anthropic_spells_it(connect, value, sent):
    server, model = connect(options=f"&thinking={value}")
    model.complete(ask())
    assert server.calls[0].body["thinking"] == sent


@pytest.mark.parametrize("wire", ["responses"], indirect=True)
def test_a_summary_of_the_reasoning_is_asked_for_where_the_specification_says_so(connect):
    server, model = connect(options="&effort=low&summary=auto")
    model.complete(ask())
    assert server.calls[0].body["reasoning"] == {"effort": "low", "summary": "auto"}


@pytest.mark.parametrize("wire", ["chat"], indirect=True)
def test_chat_completions_have_no_summaries(connect):
    with pytest.raises(UsageError, match="add api=responses"):
        connect(options="&summary=auto")


FIELDS = [("responses", "reasoning"), ("chat", "reasoning_content"), ("chat", "reasoning"), ("messages", "reasoning")]


@pytest.mark.parametrize(("wire", "field"), FIELDS, indirect=["wire"])
def test_reasoning_comes_apart_from_the_reply(connect, field):
    _, model = connect(Say("the kernel", reasoning="It is bound by memory.\nSo 16 bytes.", reasoning_field=field))
    reply = model.complete(ask())
    assert (reply.text, reply.reasoning) == ("the kernel", "It is bound by memory.\nSo 16 bytes.")


@pytest.mark.parametrize("text", ["<think>\none\n</think>\n\nthe kernel", "one\n</think>\n\nthe kernel"])
def test_thinking_inside_the_text_is_taken_out_of_it(connect, text):
    _, model = connect(Say(text))
    reply = model.complete(ask())
    assert (reply.text, reply.reasoning) == ("the kernel", "one")


def test_reasoning_that_is_off_is_neither_asked_for_nor_given(connect, wire):
    options = {"responses": "&summary=auto", "chat": "", "messages": "&thinking=adaptive"}[wire]
    server, model = connect(Say("<think>one</think>the kernel", reasoning="two"), options=options, reasoning="off")
    reply = model.complete(ask())
    assert (reply.text, reply.reasoning) == ("the kernel", "")
    body = server.calls[0].body
    assert body.get("thinking", {}).get("display") in (None, "omitted")
    assert "reasoning" not in body


def test_reasoning_does_not_hold_the_key_and_is_well_formed(connect):
    _, model = connect(Say("ok", reasoning=f"my key is {KEY}, \ud83d\ude00", pieces=99))
    assert model.complete(ask()).reasoning == "my key is [key], \U0001f600"


@pytest.mark.parametrize("wire", ["messages"], indirect=True)
def test_signed_thinking_goes_back_with_its_reply(connect):
    server, model = connect(Say("a draft", reasoning="I thought."))
    reply = model.complete(ask())
    model.complete(ChatRequest((Turn("user", "one"), Turn("assistant", reply.text, reply.blocks), Turn("user", "no"))))
    assert server.calls[1].body["messages"][1]["content"] == [
        {"type": "thinking", "thinking": "I thought.", "signature": SIGNATURE},
        {"type": "text", "text": "a draft"},
    ]
    assert server.calls[1].turns[1] == ("assistant", "a draft")


@pytest.mark.parametrize("wire", ["chat"], indirect=True)
def test_reasoning_of_an_unknown_form_is_left_out(connect):
    body = {
        "model": "m",
        "choices": [{"message": {"content": "ok", "reasoning": {"steps": 3}}, "finish_reason": "stop"}],
    }
    _, model = connect()
    assert (model.reply(body, seconds=1.0).text, model.reply(body, seconds=1.0).reasoning) == ("ok", "")


@pytest.mark.parametrize("schema", [OptimiseReply, RepairReply])
def test_a_schema_is_sent_as_structured_output(connect, wire, schema):
    server, model = connect(Say("{}"), options="&effort=low")
    model.complete(ask(schema=schema))
    body = server.calls[0].body
    form = {
        "responses": lambda: body["text"]["format"],
        "chat": lambda: body["response_format"]["json_schema"],
        "messages": lambda: body["output_config"]["format"],
    }[wire]()
    assert form["schema"]["required"] == list(schema.model_fields)
    assert form["schema"]["additionalProperties"] is False
    if wire == "messages":
        assert form["type"] == "json_schema"
        assert body["output_config"]["effort"] == "low"
    else:
        assert form["strict"] is True
        assert form["name"] == schema.__name__


def test_the_stable_prefix_is_marked_for_the_cache(connect, wire):
    from kernelforge.llm.anthropic import MIN_CACHED_CHARS

    server, model = connect()
    stable = "s" * MIN_CACHED_CHARS
    model.complete(ask(stable + "rest", stable=len(stable), cache_key="run-1/task"))
    body = server.calls[0].body
    assert server.calls[0].prompt == stable + "rest"
    if wire == "messages":
        head, rest = body["messages"][0]["content"]
        assert head == {"type": "text", "text": stable, "cache_control": {"type": "ephemeral"}}
        assert rest == {"type": "text", "text": "rest"}
    else:
        assert body.get("prompt_cache_key") == ("run-1/task" if wire == "responses" else None)


def test_a_short_prefix_is_not_marked(connect, wire):
    from kernelforge.llm.anthropic import MIN_CACHED_CHARS

    server, model = connect()
    model.complete(ask("x" * MIN_CACHED_CHARS, stable=MIN_CACHED_CHARS - 1))
    assert "cache_control" not in str(server.calls[0].body)


def test_a_long_cache_key_is_shortened_the_same_way_each_time(connect, wire):
    server, model = connect()
    for _ in range(2):
        model.complete(ask(cache_key="k" * 200))
    keys = {call.body.get("prompt_cache_key") for call in server.calls}
    assert len(keys) == 1
    assert wire != "responses" or len(keys.pop()) <= 64


@pytest.mark.parametrize("wire", ["messages"], indirect=True)
def test_a_turn_without_text_is_never_sent_empty_to_anthropic(connect, wire):
    server, model = connect()
    model.complete(ChatRequest((Turn("user", "one"), Turn("assistant", " \n"), Turn("user", "three"))))
    assert all(text.strip() for _, text in server.calls[0].turns)


@pytest.mark.parametrize(("ended", "expected"), [("length", "length"), ("refused", "refused"), ("filtered", "refused")])
def test_a_reply_that_did_not_end_by_itself_says_so(connect, ended, expected):
    _, model = connect(Say("I will not", ended=ended))
    reply = model.complete(ask())
    assert (reply.ended, reply.text) == (expected, "I will not")


def test_an_empty_reply_is_a_reply(connect):
    _, model = connect(Say(""))
    reply = model.complete(ask())
    assert (reply.text, reply.ended) == ("", "complete")


@pytest.mark.parametrize("status", [408, 409, 429, 500, 502, 503, 529])
def test_passing_statuses_are_passing(connect, status):
    server, model = connect(Fail(status, message="busy", headers={"retry-after": "7"}))
    error = failure_of(model)
    assert error.passing
    assert error.retry_after_s == 7
    assert "busy" in str(error)
    assert len(server.calls) == 1


@pytest.mark.parametrize(("status", "word"), [(400, "maximum context"), (401, "refused the key"), (403, "key"),
                                              (404, "no model"), (413, "maximum context"), (422, "maximum context"),
                                              (307, "refused")])  # fmt: skip
def test_lasting_statuses_are_not_passing(connect, status, word):
    server, model = connect(Fail(status, message="maximum context", headers={"location": "http://127.0.0.1:1/"}))
    error = failure_of(model)
    assert not error.passing
    assert word in str(error)
    assert len(server.calls) == 1


def test_an_empty_account_is_not_passing(connect):
    _, model = connect(Fail(429, code="insufficient_quota", message="no credit"))
    error = failure_of(model)
    assert not error.passing
    assert "no credit" in str(error)


def test_a_page_instead_of_an_error_object_is_still_an_error(connect):
    _, model = connect(Fail(502, raw="<html>bad gateway</html>"))
    assert failure_of(model).passing


@pytest.mark.parametrize("how", ["drop", "end", "garble"])
@pytest.mark.parametrize("after", [0, 2, 3])
def test_a_stream_that_breaks_off_is_passing(connect, how, after):
    _, model = connect([Say("some text", break_after=after, break_how=how), Say("whole")])
    assert failure_of(model).passing
    assert model.complete(ask()).text == "whole"


def test_an_error_inside_the_stream_is_passing_unless_its_code_says_otherwise(connect, wire):
    busy, bad = (
        ("overloaded_error", "invalid_request_error") if wire == "messages" else ("server_error", "invalid_prompt")
    )
    _, model = connect([Fail(message="busy", code=busy, in_stream=True), Fail(message="bad", code=bad, in_stream=True)])
    first, second = failure_of(model), failure_of(model)
    assert (first.passing, second.passing) == (True, False)
    assert "busy" in str(first)
    assert "bad" in str(second)


def test_a_body_that_is_no_stream_is_passing(connect):
    _, model = connect(Fail(200, raw="{}"))
    assert failure_of(model).passing


def test_json_that_is_too_deep_is_passing(connect):
    _, model = connect(Fail(200, raw="event: message_start\ndata: " + "[" * 200_000 + "\n\n"))
    assert failure_of(model).passing


def test_characters_that_were_cut_are_joined_and_others_replaced(connect):
    _, model = connect(Say("a\ud83d\ude00b\ude00c", pieces=99))
    assert model.complete(ask()).text == "a\U0001f600b\ufffdc"


@pytest.mark.parametrize("script", [Hang(), Say("text", break_after=2, break_how="hang")])
def test_silence_ends_with_a_passing_error(connect, script):
    _, model = connect(script, timeout_seconds=0.3)
    assert failure_of(model).passing


def test_a_server_that_is_down_is_passing_and_named(connect, wire):
    server, model = connect()
    server.__exit__()
    error = failure_of(model)
    assert error.passing
    assert server.url in str(error)


@pytest.mark.parametrize("script", [Hang(), Say("text", break_after=2, break_how="hang")])
def test_a_call_that_is_to_be_abandoned_ends_soon(connect, script):
    halt = []
    server, model = connect(script, stopped=lambda: bool(halt))
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(model.complete, ask())
        while not server.calls:
            time.sleep(0.01)
        halt.append(True)
        with pytest.raises(BudgetExhausted):
            waiting.result(timeout=60)
    with pytest.raises(BudgetExhausted):
        model.complete(ask())
    assert len(server.calls) == 1


def test_closing_ends_what_waits(connect):
    server, model = connect(Hang())
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(model.complete, ask())
        while not server.calls:
            time.sleep(0.01)
        model.close()
        with pytest.raises(BudgetExhausted):
            waiting.result(timeout=60)
    model.close()
    with pytest.raises(BudgetExhausted):
        model.complete(ask())


@pytest.mark.slow
def test_a_model_is_shared_by_many_threads(connect):
    together = threading.Barrier(50, timeout=60)

    def script(call):
        together.wait()
        return Say(f"re: {call.prompt}")

    _, model = connect(script)
    with ThreadPoolExecutor(50) as pool:
        replies = list(pool.map(lambda number: model.complete(ask(f"{number}")).text, range(50)))
    assert replies == [f"re: {number}" for number in range(50)]
