"""Replies that were paid for are journalled, evaluated, and not bought again, however the work on a task ends."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from kernelforge.records import Budget, Limits, LLMSettings, RunConfig, RunState
from kernelforge.run import StopSignal, configure, resume_run
from tests.run.run_helpers import Watcher, open_store, run_in
from tests.run.test_run_models import FINDING, PRICES, reply
from tests.support.llm_server import Call, Fail, FakeLLM, Say

pytestmark = pytest.mark.usefixtures("warm_workshop")


@pytest.fixture(autouse=True)
def keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "test-key")


def asking(server: FakeLLM, **changes: Any) -> RunConfig:
    settings = LLMSettings(prices=PRICES, concurrency=4, retries=0, base_url=server.openai_url)
    options = {"tasks": ("swish",), "seed": 5, "coder": "openai:coder", "memory": "off", "tune": False, "llm": settings}
    return configure(**(options | changes))


@pytest.mark.slow
def test_siblings_of_a_draft_that_a_task_budget_ends_are_kept(tmp_path: Path) -> None:
    """One sample is asked again, which the budget refuses; the replies to the others are in the journal by then."""

    def others_are_kept() -> bool:
        with open_store(tmp_path) as store:
            run = store.run("latest").id
            return len(store.drafts(run, "swish")) + len(store.attempts(run)) >= 3

    def script(call: Call) -> Say:
        text = reply(call.number)
        if call.number == 0:
            text, end = "no code", time.monotonic() + 60
            while not others_are_kept() and time.monotonic() < end:
                time.sleep(0.02)
        return Say(text, input_tokens=1000, output_tokens=100)

    with FakeLLM(script) as server:
        budget = Budget(per_task=Limits(tokens=4000))
        run = run_in(tmp_path, asking(server, strategy="best-of-n", options={"samples": 4}, budget=budget))
    assert run.state is RunState.FINISHED
    with open_store(tmp_path) as store:
        messages = [message for attempt in store.attempts(run.id) for message in attempt.messages]
        messages += store.task_messages(run.id, "swish")
        assert "4,000 tokens" in store.finished_tasks(run.id)["swish"]
    assert len(server.calls) == 4
    assert sum(message.usage is not None for message in messages) == 4


@pytest.mark.slow
def test_a_finding_is_not_bought_again_when_the_coder_could_not_be_asked(tmp_path: Path) -> None:
    """Nor where the process was killed while the Coder was asked: the finding is in the journal by then."""
    down = True

    def script(call: Call) -> Say | Fail:
        if call.model == "judge":
            return Say(json.dumps(FINDING), input_tokens=500, output_tokens=50)
        return Fail(500) if down and call.number > 0 else Say(reply(call.number))

    with FakeLLM(script) as server:
        run = run_in(tmp_path, asking(server, judge="openai:judge", budget=Budget(rounds=2)))
        assert run.state is RunState.STOPPED
        assert [call.model for call in server.calls] == ["coder", "judge", "coder"]
        down = False
        with open_store(tmp_path) as store:
            assert resume_run(run.id, store, Watcher(), StopSignal()).state is RunState.FINISHED
            attempts = store.attempts(run.id)
            others = store.task_messages(run.id, "swish")
        assert [call.model for call in server.calls] == ["coder", "judge", "coder", "coder"]
    assert attempts[1].finding is not None
    assert attempts[1].finding.headline == FINDING["bottleneck"]
    assert [message.agent for message in attempts[1].messages if message.usage] == ["judge", "coder"]
    assert not any(message.usage for message in others)
