"""Tinker's environment, rolled out by the cookbook's own loop with a policy of scripted replies."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Iterator
from typing import Any

import pytest

from kernelforge.adapters.common import Scorer
from kernelforge.errors import KernelForgeError
from tests.adapters.character_tokenizer import character_tokenizer

pytest.importorskip("tinker")
pytest.importorskip("tinker_cookbook")

from tinker_cookbook import renderers, tokenizer_utils
from tinker_cookbook.completers import TokenCompleter, TokensWithLogprobs
from tinker_cookbook.rl.rollout_strategy import FailFast, RetryOnFailure
from tinker_cookbook.rl.rollouts import do_group_rollout

from kernelforge.adapters.tinker import KernelGroupBuilder


@pytest.fixture(scope="module")
def renderer() -> Iterator[Any]:
    tokenizer = character_tokenizer()
    tokenizer_utils.register_tokenizer("characters", lambda: tokenizer)
    yield renderers.get_renderer("role_colon", tokenizer, model_name="characters")
    tokenizer_utils.unregister_tokenizer("characters")


class ScriptedPolicy(TokenCompleter):
    """A policy with scripted replies, the same for every episode."""

    def __init__(self, renderer: Any, *replies: str) -> None:
        self.replies = list(replies)
        self.received: list[str] = []
        self.tokenizer = renderer.tokenizer

    async def __call__(self, model_input: Any, stop: Any, *, max_tokens: int | None = None) -> TokensWithLogprobs:
        self.received.append(self.tokenizer.decode(model_input.to_ints(), skip_special_tokens=True).strip())
        tokens = self.tokenizer.encode(f" {self.replies.pop(0)}\n\nUser:", add_special_tokens=False)
        return TokensWithLogprobs(tokens=tokens, maybe_logprobs=[0.0] * len(tokens))


def rollout(builder: KernelGroupBuilder, policy: ScriptedPolicy, strategy: Any = None) -> Any:
    """One group, from a builder that came out of a pickle as on a remote worker."""
    return asyncio.run(do_group_rollout(pickle.loads(pickle.dumps(builder)), policy, strategy or FailFast()))


def test_a_group_is_rewarded_by_what_the_model_wrote(server, renderer) -> None:
    policy = ScriptedPolicy(renderer, "1.5", "no code", "2.5")
    group = rollout(KernelGroupBuilder("core/swish", renderer, group_size=3), policy)
    assert group.get_total_rewards() == [1.5, 0.0, 2.5]
    assert set(policy.received) == {"User: Write it.\n\nAssistant:"}
    assert {"format", "built", "correct"} <= group.trajectories_G[0].transitions[0].metrics.keys()


def test_what_the_judge_said_is_in_the_next_observation(server, renderer) -> None:
    policy = ScriptedPolicy(renderer, "0.5", "1.5")
    scorer = Scorer(policy="kevin/1")
    builder = KernelGroupBuilder("core/swish", renderer, group_size=1, turns=2, scorer=scorer, policy_version=12)
    (trajectory,) = rollout(builder, policy).trajectories_G
    assert [step.reward for step in trajectory.transitions] == [0.5, 1.5]
    assert [step.episode_done for step in trajectory.transitions] == [False, True]
    assert trajectory.stop_reason == "max_turns"
    assert policy.received[1] == "User: Write it.\n\nAssistant: 0.5\n\nUser: Faster.\n\nAssistant:"
    (session,) = server.opened()
    assert session.policy_version == 12
    assert (session.task, session.policy, session.turns) == ("core/swish", "kevin/1", 2)
    assert server.sessions == {}


@pytest.mark.parametrize("turns", [1, 2])
def test_trouble_ends_the_rollout(server, renderer, turns: int) -> None:
    builder = KernelGroupBuilder("core/swish", renderer, group_size=1, turns=turns)
    with pytest.raises(KernelForgeError):
        rollout(builder, ScriptedPolicy(renderer, "infra"))


def test_a_strategy_that_retries_gets_a_score_in_the_end(server, renderer) -> None:
    builder = KernelGroupBuilder("core/swish", renderer, group_size=1)
    group = rollout(builder, ScriptedPolicy(renderer, "infra", "1.5"), RetryOnFailure(max_retries=1))
    assert group.get_total_rewards() == [1.5]


def test_a_prompt_of_ones_own_is_asked(server, renderer) -> None:
    policy = ScriptedPolicy(renderer, "1.5")
    rollout(KernelGroupBuilder("core/swish", renderer, group_size=1, prompt="Mine."), policy)
    assert policy.received[0] == "User: Mine.\n\nAssistant:"
    assert "GET /v1/tasks/core/swish" not in server.lines()
