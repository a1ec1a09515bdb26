"""Runs whose agents are models behind the real SDKs: what is bought is bounded, kept, and never bought twice."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest

from kernelforge.errors import UsageError
from kernelforge.records import Budget, Limits, LLMSettings, Operator, Price, Run, RunState, Verdict
from kernelforge.run import Event, StopSignal, configure, extend_budget, resume_run
from tests.run.run_helpers import open_store, run_in, small_core
from tests.support.llm_server import Call, Fail, FakeLLM, Say

pytestmark = pytest.mark.usefixtures("warm_workshop")

SOURCE = """\
__global__ void swish(const float* x, float* out, long long n) {
    long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (i >= n) return;
    float waste = 0.0f;
    for (int k = 0; k < WASTE; k++) waste += sinf(x[i] + k);
    out[i] = waste == -123456.0f ? 0.0f : x[i] / (1.0f + expf(-x[i]));
}
"""
PLAN = """\
# tune: WASTE = {values}
def forward(x):
    n = x.numel()
    out = empty_like(x)
    swish[ceil_div(n, 256), 256](x, out, i64(n))
    return out
"""
FINDING = {"bottleneck": "b", "method": "m", "plan": "p", "metrics": ["ptx__warp_inst_executed.sum"]}
PRICES = {
    "openai:coder": Price(input=1.0, output=10.0),
    "openai:other": Price(input=1.0, output=10.0),
    "anthropic:judge": Price(input=1.0, output=10.0),
}


def reply(mark: int = 0, values: str = "0 | 64") -> str:
    """A right kernel with rounds of useless work: the fewer, the faster. The first of ``values`` counts untuned."""
    plan = PLAN.replace("{values}", values)
    return f"Attempt {mark}.\n\n```cuda\n// {mark}\n{SOURCE}```\n\n```python\n{plan}```\n"


def answer(call: Call) -> Say:
    """A right kernel from the Coder, a finding from the Judge."""
    if call.model.startswith("judge"):
        return Say(json.dumps(FINDING), input_tokens=500, output_tokens=50)
    return Say(reply(call.number), input_tokens=1000, output_tokens=100)


@pytest.fixture
def llm(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Starts a server that both SDKs are pointed at."""
    with ExitStack() as stack:

        def start(script: Any = answer) -> FakeLLM:
            server = stack.enter_context(FakeLLM(script))
            monkeypatch.setenv("OPENAI_API_KEY", "test-key")
            monkeypatch.setenv("ANTHROPIC_API_KEY", "test-key")
            monkeypatch.setenv("OPENAI_BASE_URL", server.openai_url)
            monkeypatch.setenv("ANTHROPIC_BASE_URL", server.url)
            return server

        yield start


def config(**changes: Any) -> Any:
    options: dict[str, Any] = {
        "suite": small_core(),
        "tasks": ("swish",),
        "seed": 5,
        "coder": "openai:coder",
        "judge": "anthropic:judge",
        "memory": "off",
        "tune": False,
        "budget": Budget(rounds=3),
        "llm": LLMSettings(prices=PRICES, retries=1),
    }
    return configure(**(options | changes))


def attempts_in(folder: Path, run: Run) -> list[Any]:
    with open_store(folder) as store:
        return store.attempts(run.id)


@pytest.mark.slow
def test_every_call_is_journalled_with_its_tokens_and_dollars(tmp_path: Path, llm: Any) -> None:
    server = llm()
    run = run_in(tmp_path, config())
    attempts = attempts_in(tmp_path, run)
    assert [attempt.operator for attempt in attempts] == [Operator.SEED, Operator.OPTIMISE, Operator.OPTIMISE]
    assert all(attempt.evaluation.verdict is Verdict.OK for attempt in attempts)
    assert {attempt.coder for attempt in attempts} == {"openai:coder"}
    used = [message.usage for attempt in attempts for message in attempt.messages if message.usage]
    assert len(used) == len(server.calls) == 5
    assert sum(usage.tokens or 0 for usage in used) == 3 * 1100 + 2 * 550
    assert sum(usage.dollars or 0 for usage in used) == pytest.approx((3 * 2000 + 2 * 1000) / 1e6)
    assert run.state is RunState.FINISHED


@pytest.mark.slow
def test_mixed_coders_take_turns(tmp_path: Path, llm: Any) -> None:
    llm()
    run = run_in(tmp_path, config(strategy="best-of-n", options={"samples": 4}, coder=("openai:coder", "openai:other"),
                                  budget=Budget()))  # fmt: skip
    assert [item.coder for item in attempts_in(tmp_path, run)] == ["openai:coder", "openai:other"] * 2


@pytest.mark.slow
def test_independent_samples_are_asked_for_side_by_side(tmp_path: Path, llm: Any) -> None:
    all_asked = Barrier(6, timeout=60)

    def together(call: Call) -> Say:
        all_asked.wait()
        return Say(reply(call.number))

    server = llm(together)
    run_in(tmp_path, config(strategy="best-of-n", options={"samples": 6}, budget=Budget()))
    assert server.peak == len(server.calls) == 6


@pytest.mark.slow
@pytest.mark.parametrize(
    ("limits", "pattern"),
    [
        ({"tokens": 2000}, "2,000 tokens"),
        ({"dollars": 0.004}, r"\$0.004"),
        ({"evaluations": 2}, "2 evaluations"),
    ],
)
def test_a_budget_of_the_run_stops_it_and_a_larger_one_lets_it_go_on(
    tmp_path: Path, llm: Any, limits: dict[str, Any], pattern: str
) -> None:
    server = llm()
    message: list[str] = []
    run = run_in(tmp_path, config(budget=Budget(rounds=4, **limits)), lambda event, stop: message.append(event.message))
    assert run.state is RunState.STOPPED
    assert any(pattern.replace("\\", "") in message for message in message)
    made, calls = len(attempts_in(tmp_path, run)), len(server.calls)
    assert 0 < made < 4
    with open_store(tmp_path) as store:
        larger = {name: value * 100 for name, value in limits.items()}
        assert extend_budget(store.run(run.id), larger, store).budget.rounds == 4
        done = resume_run(run.id, store, Silent(), StopSignal())
    assert done.state is RunState.FINISHED
    assert len(attempts_in(tmp_path, run)) == 4
    assert len(server.calls) == 4 + 3, f"{calls} calls before, none of them made again"


@pytest.mark.slow
def test_a_budget_of_a_task_ends_the_task_and_the_run_goes_on(tmp_path: Path, llm: Any) -> None:
    llm()
    run = run_in(
        tmp_path, config(budget=Budget(rounds=4, per_task=Limits(tokens=1500)), memory="off", coder="openai:coder")
    )
    with open_store(tmp_path) as store:
        assert "the task's budget of 1,500 tokens is spent" in store.finished_tasks(run.id)["swish"]
    assert run.state is RunState.FINISHED


@pytest.mark.slow
def test_an_overshoot_is_less_than_one_call_for_each_in_flight(tmp_path: Path, llm: Any) -> None:
    server = llm(lambda call: Say(reply(call.number), input_tokens=1000, output_tokens=100, delay_seconds=0.1))
    settings = LLMSettings(prices=PRICES, concurrency=4)
    run_in(
        tmp_path,
        config(strategy="best-of-n", options={"samples": 20}, budget=Budget(tokens=5000), llm=settings),
    )
    assert 5 <= len(server.calls) < 5 + 4


@pytest.mark.slow
def test_a_reply_that_was_paid_for_is_not_bought_again_after_a_stop(tmp_path: Path, llm: Any) -> None:
    all_asked = Barrier(4, timeout=60)

    def together(call: Call) -> Say:
        if call.number < 4:
            all_asked.wait()
        return answer(call)

    server = llm(together)

    def stop_at_first(event: Event, stop: StopSignal) -> None:
        if event.kind == "attempt":
            stop.drain()

    started = config(strategy="best-of-n", options={"samples": 4}, budget=Budget())
    run = run_in(tmp_path, started, stop_at_first)
    assert run.state is RunState.STOPPED
    with open_store(tmp_path) as store:
        assert len(store.drafts(run.id, "swish")) == 3
        resume_run(run.id, store, Silent(), StopSignal())
        assert store.drafts(run.id, "swish") == []
    assert len(attempts_in(tmp_path, run)) == 4
    assert len(server.calls) == 4


@pytest.mark.slow
def test_a_server_that_stays_down_stops_the_run_in_good_order(tmp_path: Path, llm: Any) -> None:
    server = llm(lambda call: Fail(500) if call.number > 0 else answer(call))
    message: list[str] = []
    run = run_in(
        tmp_path, config(llm=LLMSettings(prices=PRICES, retries=0)), lambda event, _: message.append(event.message)
    )
    assert run.state is RunState.STOPPED
    assert [item.evaluation.verdict for item in attempts_in(tmp_path, run)] == [Verdict.OK]
    assert any("resume" in message for message in message)
    server.script = answer
    with open_store(tmp_path) as store:
        assert resume_run(run.id, store, Silent(), StopSignal()).state is RunState.FINISHED


@pytest.mark.slow
def test_a_tuned_child_costs_no_call(tmp_path: Path, llm: Any) -> None:
    server = llm(lambda call: Say(reply(values="64 | 0")))
    run = run_in(tmp_path, config(tune=True, budget=Budget(rounds=1)))
    seed, *children = attempts_in(tmp_path, run)
    assert [trial.choices for trial in seed.trials] == [{"WASTE": 64}, {"WASTE": 0}]
    assert [child.operator for child in children] == [Operator.TUNE]
    assert children[0].candidate.choices == {"WASTE": 0}
    assert children[0].candidate.hash != seed.candidate.hash
    assert children[0].accepted
    assert len(server.calls) == 1


@pytest.mark.slow
def test_lessons_of_one_task_are_shown_to_the_next_of_its_family(tmp_path: Path, llm: Any) -> None:
    lesson = "Wide loads of four floats halve the issue slots here."

    def script(call: Call) -> Say:
        if '"lessons"' in call.prompt:
            return Say(json.dumps({"lessons": [{"text": lesson, "applies_to": "elementwise"}]}))
        text = answer(call)
        if "task `gelu`" not in call.turns[0][1]:
            return text
        inner = "0.7978845608f * (x[i] + 0.044715f * x[i] * x[i] * x[i])"
        return replace(
            text, text=text.text.replace("x[i] / (1.0f + expf(-x[i]))", f"0.5f * x[i] * (1 + tanhf({inner}))")
        )

    server = llm(script)
    run = run_in(tmp_path, config(tasks=("gelu", "swish"), memory="run", jobs=1, budget=Budget(rounds=2)))
    second = [call for call in server.calls if "task `swish`" in call.turns[0][1] and call.model == "coder"]
    assert second
    assert all(lesson in call.turns[0][1] for call in second)
    first = [call for call in server.calls if "task `gelu`" in call.turns[0][1] and call.model == "coder"]
    assert not any(lesson in call.turns[0][1] for call in first)
    with open_store(tmp_path) as store:
        assert {item.task for item in store.lessons(["elementwise"], run.id)} == {"gelu", "swish"}


def test_a_dollar_budget_needs_a_known_price(llm: Any) -> None:
    llm()
    with pytest.raises(UsageError, match="price of 'openai:coder' is unknown"):
        config(budget=Budget(dollars=1.0), llm=LLMSettings())


def test_no_key_is_ever_journalled(tmp_path: Path, llm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    canary = "sk-canary-5f0c7d"
    llm(lambda call: Fail(401, echo_key=True) if call.number == 2 else answer(call))
    monkeypatch.setenv("OPENAI_API_KEY", canary)
    monkeypatch.setenv("ANTHROPIC_API_KEY", canary)
    message: list[str] = []
    run_in(tmp_path, config(), lambda event, _: message.append(event.message))
    assert any(message for message in message)
    for path in tmp_path.rglob("*"):
        if path.is_file():
            assert canary.encode() not in path.read_bytes(), path
    assert not any(canary in message for message in message)


class Silent:
    def on_event(self, event: Event) -> None:
        """Discard the event."""


@pytest.mark.slow
def test_a_judge_that_cannot_be_understood_does_not_end_the_task(tmp_path: Path, llm: Any) -> None:
    def script(call: Call) -> Say:
        return Say("I like it.") if call.model.startswith("judge") else answer(call)

    llm(script)
    run = run_in(tmp_path, config(budget=Budget(rounds=2)))
    attempts = attempts_in(tmp_path, run)
    assert [item.operator for item in attempts] == [Operator.SEED, Operator.OPTIMISE]
    assert attempts[1].finding is None
    assert [message.agent for message in attempts[1].messages].count("judge") == 6
