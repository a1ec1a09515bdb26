"""The verifiers v1 taskset: loaded, run and scored by verifiers, with a policy of scripted replies."""

from __future__ import annotations

import asyncio
import sys
import tomllib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

PACKAGE = Path(__file__).parents[2] / "kernelforge" / "adapters" / "verifiers_v1"
PROJECT = tomllib.loads((PACKAGE / "pyproject.toml").read_text())


def test_the_package_is_a_project_of_its_own() -> None:
    assert PROJECT["project"]["name"] == "kernelforge-v1"
    assert PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"] == ["kernelforge_v1"]
    assert not (PACKAGE / "__init__.py").exists()


vf = pytest.importorskip("verifiers.v1")

import httpx2  # noqa: E402
from verifiers.v1.clients import EvalClientConfig, ModelContext  # noqa: E402
from verifiers.v1.dialects.chat import message_to_wire  # noqa: E402
from verifiers.v1.runtimes import ProgramResult  # noqa: E402
from verifiers.v1.utils.loaders import load_environment, resolve_env_config  # noqa: E402


class ChatConfig(vf.HarnessConfig):
    pass


class Chat(vf.Harness[ChatConfig]):
    """The loop of verifiers' own ``null`` harness, in this process: that one installs its program from a registry."""

    SUPPORTS_RESUME = True
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(
        self, ctx: Any, trace: Any, runtime: Any, endpoint: str, secret: str, mcp_urls: Any, data: Any
    ) -> ProgramResult:
        prompt = data.prompt
        messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else map(message_to_wire, prompt)
        async with httpx2.AsyncClient(headers={"authorization": f"Bearer {secret}"}, timeout=60) as http:
            answer = await http.post(
                f"{endpoint}/chat/completions", json={"model": ctx.model, "messages": list(messages)}
            )
        return ProgramResult(0 if answer.is_success else 1, "", answer.text)


@pytest.fixture(autouse=True)
def _installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The taskset's package and the harness can be imported."""
    monkeypatch.syspath_prepend(str(PACKAGE))
    harness = ModuleType("in_process_chat")
    harness.__dict__.update(Chat=Chat, __all__=["Chat"])
    monkeypatch.setitem(sys.modules, "in_process_chat", harness)


def episode(model: Any, /, turns: int = 1, **task: Any) -> Any:
    """One episode of the server's only task."""
    config = resolve_env_config(
        {
            "taskset": {"id": "kernelforge-v1", "task": task},
            "turns": turns,
            "agent": {"harness": {"id": "in-process-chat"}},
        }
    )
    env = load_environment(config)
    (row,) = env.taskset

    async def run() -> Any:
        context = ModelContext(model="policy", client=EvalClientConfig(base_url=model.url))
        async with env.serving():
            return await env.run_episode(row, context)

    return asyncio.run(run())


def test_the_taskset_is_the_servers_tasks(server) -> None:
    env = load_environment(resolve_env_config({"taskset": {"id": "kernelforge-v1"}}))
    assert [(row.data.name, row.data.prompt) for row in env.taskset] == [("core/swish", "Write it.")]
    other = load_environment(resolve_env_config({"taskset": {"id": "kernelforge-v1", "suite": "kernelbench"}}))
    assert list(other.taskset) == []


def test_one_reply_is_one_reward(server, policy) -> None:
    policy.replies = ["1.5"]
    (trace,) = episode(policy, policy="kevin/1", run_id="a").traces
    assert (trace.ok, trace.reward) == (True, 1.5)
    assert trace.metrics.keys() >= {"format", "built", "correct", "policy"}
    assert (server.scored[0].policy, server.scored[0].run_id) == ("kevin/1", "a")


def test_a_conversation_is_rewarded_by_its_best_turn(server, policy) -> None:
    policy.replies = ["0.5", "2.5", "1.5"]
    (trace,) = episode(policy, turns=3).traces
    assert (trace.ok, trace.reward, trace.num_turns) == (True, 2.5, 3)
    assert [message["content"] for message in policy.received[2]["messages"]] == [
        "Write it.", "0.5", "Faster.", "2.5", "Faster.",
    ]  # fmt: skip
    assert (server.scored, server.sessions) == ([], {})


@pytest.mark.parametrize("turns", [1, 2])
def test_trouble_is_an_error_and_nothing_to_train_on(server, policy, turns: int) -> None:
    policy.replies = ["infra"]
    ended = episode(policy, turns=turns)
    assert not ended.ok
    errors = [*ended.errors, *(error for trace in ended.traces for error in trace.errors)]
    assert "three workers died" in errors[0].message
