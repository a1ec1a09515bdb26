"""An estimate is an upper bound made of real prompts, and says what it assumes."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest

from kernelforge.agents.base import TaskContext
from kernelforge.errors import UsageError
from kernelforge.records import Attempt, Budget, Limits, LLMSettings, MeasureSettings, Message, Price, RunConfig, Usage
from kernelforge.run.budget import ASSUMED_CODER_REPLY, ASSUMED_EVALUATION_SECONDS, Estimate, estimate
from kernelforge.run.runner import task_contexts
from tests.run.run_helpers import quick_config
from tests.support.factories import make_attempt, measured_evaluation

PRICES = {"openai:m": Price(input=1.0, output=10.0)}


@pytest.fixture(autouse=True)
def keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "test-key")
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)


def config(**changes: Any) -> RunConfig:
    options: dict[str, Any] = {
        "tasks": ("gelu",),
        "coder": "openai:m",
        "judge": "builtin",
        "memory": "off",
        "budget": Budget(rounds=5),
        "llm": LLMSettings(prices=PRICES),
    }
    return quick_config(**(options | changes))


@lru_cache(maxsize=1)
def brief() -> TaskContext:
    (result,) = task_contexts(config())
    return result


def estimated(*earlier: Attempt, **changes: Any) -> Estimate:
    return estimate(config(**changes), [brief()], earlier)


def reply_of(tokens: int, provider: str = "openai:m") -> Attempt:
    usage = Usage(model="m", input_tokens=10, output_tokens=tokens, seconds=1.0)
    return make_attempt(
        0, messages=(Message(agent="coder", role="reply", provider=provider, content="x", usage=usage),)
    )


@pytest.mark.slow
def test_an_estimate_needs_no_key(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    message = brief()
    monkeypatch.delenv("OPENAI_API_KEY")
    monkeypatch.chdir(tmp_path)
    assert estimate(config(keys=False), [message], ()).dollars is not None
    with pytest.raises(UsageError, match="OPENAI_API_KEY"):
        config()


@pytest.mark.slow
def test_every_round_is_one_reply_of_the_coder_at_the_price_of_its_model() -> None:
    (coder, judge) = estimated().agents
    assert (coder.agent, coder.calls) == ("coder", 5)
    assert coder.output_tokens == 5 * ASSUMED_CODER_REPLY
    assert coder.dollars == pytest.approx((coder.input_tokens * 1.0 + coder.output_tokens * 10.0) / 1e6)
    assert coder.input_tokens > 5 * 3000, "the launch plan's page alone is some thousands of tokens"
    assert (judge.agent, judge.calls, judge.dollars) == ("judge", 4, 0.0)


def test_the_size_of_a_reply_is_read_from_earlier_runs_of_the_same_model() -> None:
    seen = estimated(reply_of(100), reply_of(300)).agents[0]
    assert seen.output_tokens == 5 * 200
    assert "seen" in seen.basis
    assert "assumed" in estimated(reply_of(100, "openai:other")).agents[0].basis


def test_an_unknown_price_is_unknown_and_so_is_the_sum() -> None:
    unknown = estimated(llm=LLMSettings())
    assert unknown.agents[0].dollars is None
    assert unknown.dollars is None
    assert unknown.tokens > 0


def test_budgets_that_would_bind_are_named() -> None:
    bound = estimated(budget=Budget(rounds=5, evaluations=3, per_task=Limits(tokens=1000))).binding
    assert [line.partition(":")[0] for line in bound] == ["evaluations", "tokens per task"]
    assert estimated(budget=Budget(rounds=5, evaluations=5, dollars=1000.0)).binding == ()


def test_a_method_without_a_judge_asks_none() -> None:
    assert [item.agent for item in estimated(strategy="best-of-n").agents] == ["coder"]


def test_mixed_coders_share_the_rounds() -> None:
    calls = [item.calls for item in estimated(coder=("openai:m", "builtin")).agents if item.agent == "coder"]
    assert calls == [3, 2]


def test_batches_cost_half() -> None:
    complete, batched = estimated().dollars, estimated(llm=LLMSettings(prices=PRICES, batch=True)).dollars
    assert complete is not None
    assert batched == pytest.approx(complete / 2)


def test_the_tester_and_the_lessons_are_counted() -> None:
    agents = estimated(tester="openai:m", memory="results", judge="openai:m").agents
    assert [(item.agent, item.calls) for item in agents] == [
        ("coder", 5),
        ("judge", 4),
        ("tester", 1),
        ("reflexion", 1),
    ]


def test_lessons_are_written_where_a_later_task_may_be_shown_them() -> None:
    for memory, expected in (("off", (False, False)), ("run", (False, True)), ("results", (True, True))):
        alone = config(tasks=("gelu",), memory=memory, judge="openai:m")
        both = config(tasks=("gelu", "swish"), memory=memory, judge="openai:m")
        assert (alone.writes_lessons, both.writes_lessons) == expected
        for run, writes in zip((alone, both), expected, strict=True):
            agents = [item.agent for item in estimate(run, [brief()], []).agents]
            assert ("reflexion" in agents) == writes


def test_a_gpu_takes_its_time_for_timing_and_earlier_runs_on_any_of_its_gpus_tell_more() -> None:
    on_gpus = config().model_copy(update={"device": "cuda:0,cuda:1", "measure": MeasureSettings(seconds=30.0)})
    assumed = estimate(on_gpus, [brief()], [])
    assert assumed.evaluation_seconds >= 5 * 30.0
    assert assumed.evaluation_seconds > 10 * estimated().evaluation_seconds
    evaluation = measured_evaluation(2.0, seconds={"timing": 7.0})
    seen = estimate(on_gpus, [brief()], [make_attempt(0, evaluation=evaluation)])
    assert seen.evaluation_seconds == pytest.approx(5 * 7.0)


@pytest.mark.parametrize(
    ("strategy", "options", "rounds", "measured", "first"),
    [
        ("best-of-n", {"samples": 8}, 8, 2, 8),
        ("contrast", {"samples": 3}, 8, 3 * 2, 3),
        ("best-of-n", {"samples": 1}, 1, 1, 1),
    ],
)
def test_of_each_round_no_more_are_measured_than_asked_for(
    strategy: str, options: dict[str, Any], rounds: int, measured: int, first: int
) -> None:
    budget = Budget(rounds=rounds)
    on_gpu = config(strategy=strategy, options=options, budget=budget).model_copy(update={"device": "cuda:0"})
    everything = estimate(on_gpu, [brief()], [])
    some = estimate(on_gpu.model_copy(update={"measure_top": 2}), [brief()], [])
    assert (everything.round, everything.measured) == (first, rounds)
    assert (some.evaluations, some.round, some.measured) == (rounds, first, measured)
    saved = everything.evaluation_seconds - some.evaluation_seconds
    each = everything.evaluation_seconds / rounds
    assert saved == pytest.approx((rounds - measured) * (each - ASSUMED_EVALUATION_SECONDS))


@pytest.mark.slow
def test_of_many_tasks_a_sample_of_prompts_stands_for_all() -> None:
    tasks = ("gelu", "swish", "rmsnorm", "transpose")
    assert [context.task.name for context in task_contexts(config(tasks=tasks), most=2)] == ["gelu", "transpose"]
    single, four = estimated(), estimate(config(tasks=tasks), [brief()], ())
    assert (four.sampled, four.evaluations) == (1, 20)
    assert [agent.calls for agent in four.agents] == [20, 16]
    assert four.tokens == 4 * single.tokens
