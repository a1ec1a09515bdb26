"""Conversations with a model: complaints, kept messages, and budgets that let no further call start."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from kernelforge.errors import BudgetExhausted, CandidateError, ProviderError
from kernelforge.llm.base import ASKS, COMPLAINT, ChatReply, ChatRequest, Prompt, Question
from kernelforge.llm.conversation import MAX_TURN_CHARS, SILENCE, Conversation
from kernelforge.llm.rate_limits import CallLimits
from kernelforge.records import LLMSettings, Usage


def reply(text: str, **fields) -> ChatReply:
    return ChatReply(text, Usage(model="m", input_tokens=100, output_tokens=20, seconds=1.0), **fields)


class Scripted:
    """A model that gives scripted replies, one after the other, and keeps its requests."""

    name = "openai:m"

    def __init__(self, *script: ChatReply | Exception) -> None:
        self.script = list(script)
        self.requests: list[ChatRequest] = []
        self._lock = threading.Lock()

    def complete(self, request: ChatRequest) -> ChatReply:
        with self._lock:
            self.requests.append(request)
            step = self.script.pop(0)
        if isinstance(step, Exception):
            raise step
        return step

    def close(self) -> None:
        """Nothing is open."""


class Purse:
    """Lets calls start until so many tokens are spent."""

    def __init__(self, tokens: float = float("inf")) -> None:
        self.tokens = tokens
        self.usages: list[Usage] = []
        self._lock = threading.Lock()

    @property
    def used(self) -> int:
        return sum(usage.tokens or 0 for usage in self.usages)

    def check(self) -> None:
        with self._lock:
            if self.used >= self.tokens:
                raise BudgetExhausted("spent")

    def spent(self, usage: Usage) -> None:
        with self._lock:
            self.usages.append(usage)


def conversing(model, meter=None, *, retries: int = 3, waits: list[float] | None = None, **settings) -> Conversation:
    return Conversation(
        "openai:m?effort=low",
        model,
        meter or Purse(),
        limits=CallLimits(LLMSettings(**settings)),
        retries=retries,
        price=lambda usage: (usage.tokens or 0) / 1000,
        sleep=([] if waits is None else waits).append,
    )


def usable(text: str) -> None:
    if "usable" not in text:
        raise CandidateError("it lacks a word")


def question(check: Callable[[str], None] = usable) -> Question:
    return Question("coder", "softmax", Prompt("the prompt", 4), check)


def roles(messages) -> Sequence[tuple[str, str]]:
    return [(message.role, message.content) for message in messages]


def test_a_usable_reply_is_the_answer_and_says_what_it_cost() -> None:
    model, meter = Scripted(reply("usable")), Purse()
    answer = conversing(model, meter).ask(question())
    assert answer.text == "usable"
    assert roles(answer.messages) == [("prompt", "the prompt"), ("reply", "usable")]
    requested, text = answer.messages
    assert requested.usage is None
    assert text.usage == Usage(model="m", input_tokens=100, output_tokens=20, seconds=1.0, dollars=0.12)
    assert meter.usages == [text.usage]
    assert {(message.agent, message.provider) for message in answer.messages} == {("coder", "openai:m?effort=low")}


def test_an_unusable_reply_is_complained_of_in_the_same_conversation() -> None:
    model, meter = Scripted(reply("no"), reply("usable")), Purse()
    answer = conversing(model, meter).ask(question())
    assert answer.text == "usable"
    assert [message.role for message in answer.messages] == ["prompt", "reply", "prompt", "reply"]
    complaint = answer.messages[2].content
    assert complaint.startswith(COMPLAINT)
    assert "it lacks a word" in complaint
    assert [(turn.role, turn.text) for turn in model.requests[1].turns] == [
        ("user", "the prompt"), ("assistant", "no"), ("user", complaint),
    ]  # fmt: skip
    assert len(meter.usages) == 2


def test_reasoning_is_kept_with_its_reply_and_signed_blocks_go_back() -> None:
    block = {"type": "thinking", "thinking": "hm", "signature": "s"}
    model = Scripted(reply("no", reasoning="hm", blocks=(block,)), reply("", reasoning="hm, hm"), reply("usable"))
    answer = conversing(model).ask(question())
    assert [message.reasoning for message in answer.messages] == [None, "hm", None, "hm, hm", None, None]
    assert model.requests[1].turns[1].blocks == (block,)
    assert "It held reasoning alone" in answer.messages[4].content
    assert answer.text == "usable"


def test_the_last_reply_is_handed_on_as_it_is() -> None:
    model = Scripted(*(reply(f"bad {number}") for number in range(ASKS)))
    answer = conversing(model).ask(question())
    assert answer.text == f"bad {ASKS - 1}"
    assert len(model.requests) == ASKS
    assert answer.messages[-1].content == f"bad {ASKS - 1}"


def test_a_refusal_is_not_asked_again_and_its_words_are_handed_on() -> None:
    model = Scripted(reply("I would rather not", ended="refused"))
    assert conversing(model).ask(question()).text == "I would rather not"
    silent = conversing(Scripted(reply("", ended="refused"))).ask(question())
    assert "refused" in silent.text
    assert silent.messages[-1].content == ""


def test_a_reply_that_was_cut_is_not_used_even_if_it_could_be_read() -> None:
    model = Scripted(reply("usable, but", ended="length"), reply("usable"))
    answer = conversing(model).ask(question())
    assert answer.text == "usable"
    assert "cut at the output limit after 20 tokens" in answer.messages[2].content


def test_a_reply_without_measure_is_not_sent_back_whole_and_kept_all_the_same() -> None:
    model = Scripted(reply("x" * (MAX_TURN_CHARS + 1), ended="length"), reply("usable"))
    answer = conversing(model).ask(question())
    assert len(model.requests[1].turns[1].text) == MAX_TURN_CHARS
    assert len(answer.messages[1].content) == MAX_TURN_CHARS + 1


@pytest.mark.parametrize("text", ["", " \n"])
def test_an_empty_reply_is_complained_of_and_its_turn_has_a_text(text: str) -> None:
    model = Scripted(reply(text), reply("usable"))
    answer = conversing(model).ask(question(check=lambda text: None))
    assert answer.messages[1].content == text
    assert "empty" in answer.messages[2].content
    assert model.requests[1].turns[1].text == SILENCE


def test_the_stable_part_has_a_key_that_depends_on_it_and_on_the_agent_alone() -> None:
    model = Scripted(*(reply("usable") for _ in range(5)))
    asker = conversing(model)
    asker.ask(Question("coder", "a", Prompt("same, then this", 4), usable))
    asker.ask(Question("coder", "b", Prompt("same, then that", 4), usable))
    asker.ask(Question("judge", "a", Prompt("same, then this", 4), usable))
    asker.ask(Question("coder", "a", Prompt("other, then this", 5), usable))
    asker.ask(Question("coder", "a", Prompt("same, then this"), usable))
    keys = [request.cache_key for request in model.requests]
    assert keys[0] == keys[1] != ""
    assert len({keys[0], keys[2], keys[3]}) == 3
    assert keys[4] == ""
    assert [request.stable for request in model.requests] == [4, 4, 4, 5, 0]


def test_passing_failures_are_retried_and_counted_where_the_reply_is_kept() -> None:
    busy = ProviderError("busy", passing=True)
    waits: list[float] = []
    answer = conversing(Scripted(busy, busy, reply("usable")), waits=waits).ask(question())
    assert answer.messages[1].usage is not None
    assert answer.messages[1].usage.retries == 2
    assert len(waits) == 2


def test_no_call_is_made_once_the_meter_refuses() -> None:
    model = Scripted(reply("no"), reply("usable"))
    with pytest.raises(BudgetExhausted):
        conversing(model, Purse(tokens=0)).ask(question())
    assert model.requests == []
    with pytest.raises(BudgetExhausted):
        conversing(model, Purse(tokens=120)).ask(question())
    assert len(model.requests) == 1


@pytest.mark.parametrize("end", [ProviderError("gone"), BudgetExhausted("spent")])
def test_an_error_holds_the_replies_that_were_paid_for_before_it(end: Exception) -> None:
    with pytest.raises(type(end)) as caught:
        conversing(Scripted(reply("no"), reply("nor this"), end)).ask(question())
    kept = caught.value.messages
    assert [message.content for message in kept if message.role == "reply"] == ["no", "nor this"]
    assert [message.role for message in kept] == ["prompt", "reply", "prompt", "reply"]
    with pytest.raises(type(end)) as caught:
        conversing(Scripted(end)).ask(question())
    assert caught.value.messages == ()


def test_the_meter_is_asked_again_before_each_retry() -> None:
    class Closing(Purse):
        def check(self) -> None:
            if model.requests:
                raise BudgetExhausted("spent by others")

    model = Scripted(ProviderError("busy", passing=True), reply("usable"))
    with pytest.raises(BudgetExhausted, match="others"):
        conversing(model, Closing()).ask(question())
    assert len(model.requests) == 1


def test_a_budget_is_passed_by_less_than_one_call_for_each_place() -> None:
    """Twenty threads share three places: those that wait for one must see what the calls before them cost."""

    class Endless(Scripted):
        def complete(self, request: ChatRequest) -> ChatReply:
            with self._lock:
                self.requests.append(request)
            return reply("usable")

    class Slow(Purse):
        def spent(self, usage: Usage) -> None:
            time.sleep(0.002)  # long enough for a thread that came too early to ask
            super().spent(usage)

    model, meter = Endless(), Slow(tokens=1200)
    asker = conversing(model, meter, concurrency=3)

    def ask(_: int) -> bool:
        try:
            asker.ask(question())
        except BudgetExhausted:
            return False
        return True

    with ThreadPoolExecutor(20) as pool:
        answered = sum(pool.map(ask, range(60)))
    assert answered == len(model.requests) == len(meter.usages)
    assert 1200 <= meter.used < 1200 + 3 * 120
