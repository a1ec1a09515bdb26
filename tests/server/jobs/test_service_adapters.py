"""Adapters of trainers in front of the real job service, over real connections."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from kernelforge.adapters import openrlhf, slime, trl, verl
from kernelforge.adapters.common import Scorer
from kernelforge.errors import MissingRewardError, ServerError
from tests.server.socket_server import ServedJobs
from tests.support.inprocess_engine import completion

TASK = "core/gelu"
RIGHT, WRONG, TROUBLE, TALK = completion("v0"), completion("WRONG"), completion("TROUBLE"), "I cannot do that."


@pytest.fixture(scope="module")
def service_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of a server with an engine that does what a candidate's source says."""
    with ServedJobs(tmp_path_factory.mktemp("service")).running() as served:
        yield served.url


@pytest.fixture(autouse=True)
def _found_by_the_environment(service_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNELFORGE_SERVER", service_url)
    monkeypatch.delenv("KERNELFORGE_TOKEN", raising=False)


def test_trl_has_a_reward_for_all_but_the_one_in_trouble() -> None:
    rewards = trl.kernelforge_reward(
        prompts=["?"] * 4, completions=[RIGHT, WRONG, TROUBLE, TALK], task=[TASK] * 4, completion_ids=[[1]] * 4
    )
    assert rewards[0] is not None
    assert rewards[0] > 0
    assert rewards[1:] == [0.0, None, 0.0]


async def test_verl_has_the_same_keys_for_right_wrong_and_talk() -> None:
    async def score(text: str) -> dict[str, float | str | None]:
        return await verl.compute_score("kernelforge", text, TASK, {"index": 0})

    right, wrong, talk = await asyncio.gather(*map(score, (RIGHT, WRONG, TALK)))
    assert right.keys() == wrong.keys() == talk.keys()
    assert [(each["format"], each["acc"]) for each in (right, wrong, talk)] == [(1, 1), (1, 0), (0, 0)]
    with pytest.raises(MissingRewardError):
        await score(TROUBLE)


def test_openrlhf_scores_the_reply_and_not_the_prompts_example() -> None:
    prompt = f"Write one like this:\n{RIGHT}\n"
    answer = openrlhf.reward_func([prompt + TALK, prompt + RIGHT], [prompt] * 2, [TASK] * 2)
    assert answer["extra_logs"]["format"].tolist() == [0.0, 1.0]


def test_slime_has_a_number_for_each_sample_of_a_group() -> None:
    group = [SimpleNamespace(response=text, label=TASK, metadata={}) for text in (RIGHT, WRONG)]
    right, wrong = asyncio.run(slime.custom_rm(SimpleNamespace(), group))
    assert right > wrong == 0.0


def test_a_conversation_goes_on_from_what_the_judge_said() -> None:
    talk = Scorer(policy="kevin/1").session_blocking(TASK, turns=2)
    first = talk.turn(WRONG)
    assert first.observation
    assert talk.turn(RIGHT).result.require() > first.result.require()


def test_trouble_in_a_conversation_is_raised() -> None:
    with pytest.raises(ServerError, match="not well"):
        Scorer().session_blocking(TASK, turns=2).turn(TROUBLE)
