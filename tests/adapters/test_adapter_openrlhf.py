"""OpenRLHF's ``reward_func``, loaded from its file and called the way ``SingleTurnAgentExecutor`` does."""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import kernelforge.adapters.openrlhf as adapter
from kernelforge.adapters.common import Scorer
from kernelforge.errors import MissingRewardError
from tests.adapters.character_tokenizer import character_tokenizer

PROMPT = "<|im_start|>user\nWrite it, for example 9.9<|im_end|>\n<|im_start|>assistant\n"


def loaded() -> Callable[..., Any]:
    """The function, as ``--reward.remote_url FILE.py`` finds it."""
    spec = importlib.util.spec_from_file_location("reward_func", adapter.__file__)
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.reward_func


def call(*texts: str) -> tuple[list[str], list[str], list[str]]:
    return [f"{PROMPT}{text}<|im_end|>" for text in texts], [PROMPT] * len(texts), ["core/swish"] * len(texts)


def test_a_sample_is_scored_by_what_the_model_added_alone(server) -> None:
    answer = asyncio.run(asyncio.to_thread(loaded(), *call("1.5")))
    assert answer["rewards"].tolist() == answer["scores"].tolist() == [1.5]
    assert server.scored[0].completion == "1.5<|im_end|>"


def test_answers_become_the_tensors_that_experiences_hold(server) -> None:
    """``samples_generator`` wraps each value in a list and makes a tensor of it: one number per sample."""
    answer = loaded()(*call("1.5"))
    assert torch.tensor([answer["rewards"]]).tolist() == [1.5]
    for value in answer["extra_logs"].values():
        assert torch.tensor([value.flatten()[0].item()]).shape == (1,)


def test_a_batch_has_one_reward_per_query_and_the_same_logs(server) -> None:
    answer = loaded()(*call("1.5", "no code", "-1.0"))
    assert answer["rewards"].tolist() == [1.5, 0.0, -1.0]
    assert {tuple(value.shape) for value in answer["extra_logs"].values()} == {(3,)}


def test_trouble_is_raised_so_that_the_reward_stays_none(server) -> None:
    with pytest.raises(MissingRewardError):
        loaded()(*call("infra"))


def test_a_scorer_can_be_chosen(server) -> None:
    adapter.reward_function(Scorer(policy="kevin/1"))(*call("1.5"))
    assert server.scored[0].policy == "kevin/1"


class Engine:
    """The part of vLLM's engine that OpenRLHF's executor uses; its replies are scripted."""

    def __init__(self, tokenizer: Any, text: str) -> None:
        tokens = tokenizer.encode(text, add_special_tokens=False)
        self.output = SimpleNamespace(token_ids=tokens, text=text, finish_reason="stop", logprobs=None)

    async def generate(self, *_: Any, **__: Any) -> SimpleNamespace:
        return SimpleNamespace(outputs=[self.output])


def executed(text: str, max_length: int = 500) -> dict[str, Any]:
    """One sample by OpenRLHF's own executor."""
    agent = pytest.importorskip("openrlhf.utils.agent", exc_type=ImportError)
    tokenizer = character_tokenizer()
    executor = agent.SingleTurnAgentExecutor([adapter.__file__])
    sampling = SimpleNamespace(max_tokens=20, logprobs=None)
    return asyncio.run(executor.execute(PROMPT, "core/swish", sampling, max_length, tokenizer, Engine(tokenizer, text)))


@pytest.mark.parametrize("max_length", [500, 80])
def test_openrlhfs_own_executor_takes_the_answer(server, max_length: int) -> None:
    """Also where it cut the beginning of the prompt off."""
    output = executed("1.5", max_length)
    assert torch.tensor([output["reward"]]).tolist() == [1.5]
    assert output["extra_logs"].keys() == {"format", "built", "correct", "policy"}
    assert server.scored[0].completion == "1.5"


def test_openrlhfs_own_executor_leaves_trouble_without_a_reward(server) -> None:
    assert executed("infra")["reward"] is None
