"""Replay: the recorded reply to exactly this prompt, each once, in a resumed run too; anything else is an error."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from kernelforge.errors import BudgetExhausted, CandidateError, ProviderError, UsageError
from kernelforge.llm.base import COMPLAINT, Answer, Prompt, Question
from kernelforge.llm.providers import Providers
from kernelforge.llm.recording import sha256_of, transcript_lines
from kernelforge.records import AgentName, LLMSettings, Message, Usage
from tests.support.factories import make_attempt

Talk = tuple[AgentName, str, Sequence[str]]
"""Agent, task, and prompt, reply, prompt, reply, ..."""


class Free:
    """A meter that lets everything pass and sees nothing spent."""

    def check(self) -> None:
        """No limit."""

    def spent(self, usage: Usage) -> None:
        raise AssertionError("a replay buys nothing")


class Shut(Free):
    def check(self) -> None:
        raise BudgetExhausted("asked to stop")


def messages(agent: AgentName, texts: Sequence[str]) -> tuple[Message, ...]:
    return tuple(
        Message(agent=agent, role="reply" if position % 2 else "prompt", provider="exchange:desk", content=text)
        for position, text in enumerate(texts)
    )


def test_reasoning_is_recorded_and_replayed(tmp_path: Path) -> None:
    prompt, reply = messages("coder", ["write", "a kernel"])
    thought = reply.model_copy(update={"reasoning": "hm"})
    file = tmp_path / "t.jsonl"
    file.write_text("".join(transcript_lines([make_attempt(0, messages=(prompt, thought))], {}, written_by="m")))
    for setting, kept in (("keep", "hm"), ("off", None)):
        providers = Providers(LLMSettings(reasoning=setting))
        answer = providers.answerer(f"replay:{file}", Free()).ask(
            Question("coder", "t", Prompt("write"), lambda text: None)
        )
        assert (answer.text, answer.messages[-1].reasoning) == ("a kernel", kept)


@pytest.fixture
def record(tmp_path: Path):
    """Writes a transcript of talks and gives its specification."""

    def write(*talks: Talk) -> str:
        attempts = [
            make_attempt(number, task=task, messages=messages(agent, texts))
            for number, (agent, task, texts) in enumerate(talks)
        ]
        file = tmp_path / "t.jsonl"
        file.write_text("".join(transcript_lines(attempts, {}, written_by="a person")), encoding="utf-8")
        return f"replay:{file}"

    return write


def ask(
    providers: Providers, spec: str, prompt: str, *, agent: AgentName = "coder", task: str = "softmax", sample: int = 0
) -> Answer:
    question = Question(agent, task, Prompt(prompt), lambda text: None, sample=sample)
    return providers.answerer(spec, Free()).ask(question)


def providers() -> Providers:
    return Providers(LLMSettings())


def test_a_prompt_gets_the_reply_that_it_got(record) -> None:
    spec = record(("coder", "softmax", ["p", "r"]), ("coder", "softmax", ["q", "s"]))
    some = providers()
    answer = ask(some, spec, "q")
    assert answer.text == "s"
    assert [(item.role, item.content, item.provider, item.usage) for item in answer.messages] == [
        ("prompt", "q", spec, None),
        ("reply", "s", spec, None),
    ]
    assert ask(some, spec, "p").text == "r"


def test_each_agent_has_replies_of_its_own(record) -> None:
    spec = record(("coder", "softmax", ["p", "as coder"]), ("judge", "softmax", ["p", "as judge"]))
    some = providers()
    assert ask(some, spec, "p", agent="judge").text == "as judge"
    with pytest.raises(ProviderError):
        ask(some, spec, "p", agent="tester")


def test_a_conversation_is_replayed_to_its_end_with_its_complaints(record) -> None:
    """A reply that was wrong then may be right now, and complaints may differ: the recording decides."""
    texts = ["p", "bad", f"{COMPLAINT}\n\nsee 0001.error.md", "good"]
    spec = record(("coder", "softmax", texts))

    def refuse(text: str) -> None:
        raise CandidateError("in words of today")

    for check in (refuse, lambda text: None):
        answer = providers().answerer(spec, Free()).ask(Question("coder", "softmax", Prompt("p"), check))
        assert answer.text == "good"
        assert [item.content for item in answer.messages] == texts


def test_the_same_prompt_gets_the_recorded_replies_one_after_the_other_and_then_none(record) -> None:
    spec = record(*(("coder", "softmax", ["p", f"reply {number}"]) for number in range(3)))
    some = providers()
    assert [ask(some, spec, "p").text for _ in range(3)] == ["reply 0", "reply 1", "reply 2"]
    with pytest.raises(ProviderError, match="the 3 that it has for it are used"):
        ask(some, spec, "p")


def test_samples_get_their_own_replies_whoever_asks_first(record) -> None:
    spec = record(*(("coder", "softmax", ["p", f"reply {number}"]) for number in range(8)))
    for order in (range(8), reversed(range(8))):
        some = providers()
        with ThreadPoolExecutor(8) as pool:
            requested = {sample: pool.submit(ask, some, spec, "p", sample=sample) for sample in order}
        assert {sample: future.result().text for sample, future in requested.items()} == {
            sample: f"reply {sample}" for sample in range(8)
        }


def test_a_sample_that_was_not_recorded_gets_a_reply_that_is_left(record) -> None:
    spec = record(("coder", "softmax", ["p", "the only one"]))
    assert ask(providers(), spec, "p", sample=5).text == "the only one"


@pytest.mark.parametrize("option", ["", "?match=order"])
@pytest.mark.parametrize("before", range(5))
def test_a_resumed_run_gets_what_the_run_would_have_got(record, before: int, option: str) -> None:
    """Questions that do not differ, asked by a run that dies after ``before`` of them were journalled."""
    spec = record(*(("judge", "softmax", ["p", f"reply {number // 2}"]) for number in range(4))) + option
    first, second, journal = providers(), providers(), []
    for _ in range(before):
        journal += ask(first, spec, "p", agent="judge").messages
    if before < 4:
        ask(first, spec, "p", agent="judge")  # the reply that the kill lost
    second.recall("softmax", journal)
    rest = [ask(second, spec, "p", agent="judge").text for _ in range(4 - before)]
    replies = [item.content for item in journal if item.role == "reply"] + rest
    assert replies == ["reply 0", "reply 0", "reply 1", "reply 1"]
    with pytest.raises(ProviderError):
        ask(second, spec, "p", agent="judge")


def test_a_recording_can_be_reminded_after_it_was_opened(record) -> None:
    spec = record(("coder", "softmax", ["p", "r"]), ("coder", "softmax", ["p", "s"]))
    some = providers()
    some.check(spec)
    some.recall("softmax", ask(providers(), spec, "p").messages)
    assert ask(some, spec, "p").text == "s"


def test_what_others_said_uses_up_nothing(record) -> None:
    spec = record(("coder", "softmax", ["p", "r"]))
    some = providers()
    some.recall("softmax", messages("coder", ["p", "r"]))
    assert ask(some, spec, "p").text == "r"


def test_a_miss_says_which_prompt_and_where_it_differs_from_the_nearest(record) -> None:
    prompts = ["# Task\nsame\nfar off\nentirely\nother", "# Task\nsame\nrounds: 3\nend"]
    spec = record(*(("coder", "softmax", [prompt, "r"]) for prompt in prompts))
    requested = "# Task\nsame\nrounds: 4\nend"
    with pytest.raises(ProviderError) as caught:
        ask(providers(), spec, requested)
    text = str(caught.value)
    assert not caught.value.passing
    for part in ("coder", "'softmax'", sha256_of(requested), "line 3 of the file", "line 3 of the prompt"):
        assert part in text
    assert "recorded: 'rounds: 3\\n'" in text
    assert "asked:    'rounds: 4\\n'" in text
    assert "?match=order" in text


@pytest.mark.parametrize(("prompt", "quoted"), [("a\nb\nc", "'c'"), ("a\nb", "'b'"), ("a", "'a'")])
def test_a_prompt_that_only_ends_elsewhere_differs_too(record, prompt: str, quoted: str) -> None:
    spec = record(("coder", "softmax", ["a\nb\n", "r"]))
    with pytest.raises(ProviderError) as caught:
        ask(providers(), spec, prompt)
    assert f"asked:    {quoted}" in str(caught.value)


def test_a_miss_where_nothing_was_recorded_says_what_was(record) -> None:
    spec = record(("coder", "softmax", ["p", "r"]))
    with pytest.raises(ProviderError, match="it has coder on 'softmax'"):
        ask(providers(), spec, "q", task="gelu")


def test_in_order_the_prompt_does_not_matter_but_agent_and_task_do(record) -> None:
    talks: list[Talk] = [
        ("coder", "softmax", ["p0", "c0"]),
        ("judge", "softmax", ["p1", "j0"]),
        ("coder", "gelu", ["p2", "g0"]),
        ("coder", "softmax", ["p3", "c1"]),
    ]
    spec = record(*talks) + "?match=order"
    some = providers()
    first = ask(some, spec, "changed")
    assert first.text == "c0"
    assert first.messages[0].content == "changed", "what is kept is what was asked"
    assert {item.provider for item in first.messages} == {spec}
    assert ask(some, spec, "changed", agent="judge").text == "j0"
    assert ask(some, spec, "changed too").text == "c1"
    assert ask(some, spec, "changed", task="gelu").text == "g0"
    with pytest.raises(ProviderError, match="the 2 that it has for the coder on that task are used"):
        ask(some, spec, "changed")


def test_a_replay_stops_when_the_run_does(record) -> None:
    spec = record(("coder", "softmax", ["p", "r"]))
    some = providers()
    with pytest.raises(BudgetExhausted):
        some.answerer(spec, Shut()).ask(Question("coder", "softmax", Prompt("p"), lambda text: None))
    assert ask(some, spec, "p").text == "r", "what was not answered is not used up"


@pytest.mark.parametrize("option", ["?", "?match=prompt", "?order"])
def test_an_unknown_option_is_refused(record, option: str) -> None:
    spec = record(("coder", "softmax", ["p", "r"])) + option
    with pytest.raises(UsageError, match="match=order"):
        providers().check(spec)
