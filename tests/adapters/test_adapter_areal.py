"""AReaL's agent and reward function, called the way its workflows do, in front of a policy that speaks OpenAI's API."""

from __future__ import annotations

import asyncio
import pickle
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import Any

import pytest

from kernelforge.adapters.areal import WRAPPER_TIMEOUT_S, KernelAgent, reward_fn, reward_function
from kernelforge.adapters.common import Scorer
from kernelforge.errors import KernelForgeError, MissingRewardError


def run(agent: KernelAgent, policy, row: dict[str, Any] | None = None) -> Any:
    """As in mode ``inline``."""
    return asyncio.run(
        agent.run(row or {"task": "core/swish"}, base_url=policy.url, api_key="session", http_client=None)
    )


def test_areal_takes_it_for_an_agent() -> None:
    assert asyncio.iscoroutinefunction(KernelAgent().run)


@pytest.mark.slow
def test_one_turn_is_a_float_about_the_servers_prompt(server, policy) -> None:
    policy.replies = ["1.5"]
    value = run(KernelAgent(temperature=0.7), policy)
    assert value == 1.5
    assert isinstance(value, float)
    assert policy.received[0]["messages"] == [{"role": "user", "content": "Write it."}]
    assert policy.received[0]["temperature"] == 0.7


def test_a_rows_own_messages_are_asked(server, policy) -> None:
    policy.replies = ["1.5"]
    messages = [{"role": "user", "content": "Another prompt."}]
    row = {"answer": "core/swish", "messages": messages}
    assert run(KernelAgent(), policy, row) == 1.5
    assert policy.received[0]["messages"] == messages
    assert row["messages"] == messages


def test_turns_are_rewarded_by_reply_and_what_the_judge_said_is_passed_on(server, policy) -> None:
    policy.replies = ["0.5", "1.5"]
    assert run(KernelAgent(turns=2, scorer=Scorer(policy="kevin/1")), policy) == {"reply-1": 0.5, "reply-2": 1.5}
    assert policy.received[1]["messages"][1:] == [
        {"role": "assistant", "content": "0.5"},
        {"role": "user", "content": "Faster."},
    ]
    (session,) = server.opened()
    assert (session.task, session.policy, session.turns) == ("core/swish", "kevin/1", 2)
    assert server.sessions == {}


def test_where_areal_starts_a_process_the_environment_says_where_the_policy_is(
    server, policy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", policy.url)
    monkeypatch.setenv("OPENAI_API_KEY", "session")
    policy.replies = ["1.5"]
    agent = pickle.loads(pickle.dumps(KernelAgent()))
    assert asyncio.run(agent.run({"task": "core/swish"})) == 1.5


@pytest.mark.parametrize("turns", [1, 2])
def test_trouble_rejects_the_trajectory(server, policy, turns: int) -> None:
    policy.replies = ["infra"]
    with pytest.raises(KernelForgeError):
        run(KernelAgent(turns=turns), policy)
    assert server.sessions == {}


def test_the_reward_function_runs_in_areals_process_pool(server) -> None:
    call = partial(reward_fn, "Write it.", "1.5<|im_end|>", [1], [2], task="core/swish", messages=[])
    with ProcessPoolExecutor(max_workers=1) as pool:
        assert pool.submit(call).result(timeout=60) == 1.5


def test_the_reward_function_raises_before_areal_would_count_a_zero(server) -> None:
    with pytest.raises(MissingRewardError):
        reward_fn("Write it.", "infra", [1], [2], answer="core/swish")
    deadline_s = server.scored[0].deadline_s
    assert deadline_s is not None
    assert deadline_s < WRAPPER_TIMEOUT_S


def test_a_reward_function_of_ones_own_keeps_to_areals_limit_too(server) -> None:
    function = pickle.loads(pickle.dumps(reward_function(Scorer(policy="kevin/1", deadline_s=300))))
    assert function("Write it.", "1.5", [1], [2], task="core/swish") == 1.5
    assert server.scored[0].policy == "kevin/1"
    assert server.scored[0].deadline_s < WRAPPER_TIMEOUT_S


@pytest.mark.parametrize("mode", ["inline", "subproc"])
def test_areals_own_workflow_runs_the_agent(server, policy, mode: str) -> None:
    """Up to the rewards, which it then sets through its proxy: in its own process, and in one of a pool."""
    proxy = pytest.importorskip("areal.experimental.openai.proxy.workflow", exc_type=ImportError)
    policy.replies = ["1.5"]
    workflow = proxy.OpenAIProxyWorkflow(mode=mode, agent=KernelAgent(), proxy_addr=policy.url)
    assert asyncio.run(workflow._run_agent("session", {"task": "core/swish"})) == 1.5


def test_areals_own_wrapper_takes_the_reward_and_lets_trouble_through(server) -> None:
    wrapper = pytest.importorskip("areal.api.reward_api", exc_type=ImportError).AsyncRewardWrapper

    async def reward(text: str) -> float:
        return await wrapper(reward_fn, max_workers=1, max_retries=1)("Write it.", text, [1], [2], task="core/swish")

    assert asyncio.run(reward("1.5")) == 1.5
    with pytest.raises(MissingRewardError):
        asyncio.run(reward("infra"))
