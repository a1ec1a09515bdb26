"""What was bought is journalled and evaluated, whatever ends the work on a task."""

from __future__ import annotations

from pathlib import Path

import pytest
from fake_server import Call, FakeLLM, Say
from run_helpers import open_store, run_in
from test_run_models import PRICES, reply

from kernelforge.records import Budget, Limits, LLMSettings, RunState
from kernelforge.run import configure

pytestmark = pytest.mark.usefixtures("warm_workshop")


def test_siblings_of_a_draft_that_a_task_budget_ends_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first sample is asked again, which the budget refuses; the replies to the others have come by then."""

    def script(call: Call) -> Say:
        text, delay = ("no code", 1.0) if call.number == 0 else (reply(call.number), 0.0)
        return Say(text, input_tokens=1000, output_tokens=100, delay_seconds=delay)

    with FakeLLM(script) as server:
        monkeypatch.setenv("OPENAI_API_KEY", "test-key")
        config = configure(
            tasks=("swish",),
            seed=5,
            coder="openai:coder",
            strategy="best-of-n",
            options={"samples": 4},
            memory="off",
            tune=False,
            budget=Budget(per_task=Limits(tokens=4000)),
            llm=LLMSettings(prices=PRICES, concurrency=4, base_url=server.openai_url),
        )
        run = run_in(tmp_path, config)
    assert run.state is RunState.FINISHED
    with open_store(tmp_path) as store:
        messages = [message for attempt in store.attempts(run.id) for message in attempt.messages]
        messages += store.task_messages(run.id, "swish")
        assert "4,000 tokens" in store.finished_tasks(run.id)["swish"]
    assert len(server.calls) == 4
    assert sum(message.usage is not None for message in messages) == 4
