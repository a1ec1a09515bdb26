"""verl's ``compute_score``, called the way verl 0.9 calls it."""

from __future__ import annotations

import asyncio
import functools
import importlib
import inspect
from typing import Any

import pytest

from kernelforge.adapters.verl import compute_score
from kernelforge.errors import MissingRewardError, ServerError
from tests.adapters.character_tokenizer import character_tokenizer
from tests.support.protocol_server import refusal

ROW = {"data_source": "kernelforge", "ground_truth": "core/swish", "extra_info": {"index": 0, "num_turns": None}}


async def configured(reward_kwargs, /, **call):
    """Call the function as ``verl.trainer.ppo.reward.get_custom_reward_fn`` does, with its ``reward_kwargs``."""
    function = importlib.import_module("kernelforge.adapters.verl").compute_score
    return await function(**{**call, **reward_kwargs})


def test_verl_sees_a_coroutine_function() -> None:
    assert inspect.iscoroutinefunction(compute_score)
    assert inspect.iscoroutinefunction(functools.partial(configured, {}))


def test_every_answer_has_the_keys_of_the_first(server) -> None:
    answers = [asyncio.run(compute_score(solution_str=completion, **ROW)) for completion in ("1.5", "-1.0")]
    assert [answer["score"] for answer in answers] == [1.5, -1.0]
    assert answers[0].keys() == answers[1].keys() >= {"score", "acc", "format", "built", "policy", "speedup"}


def test_reward_kwargs_configure_the_request_and_what_verl_adds_is_let_through(server) -> None:
    reward_model = {"reward_router_address": "host:1", "reward_model_tokenizer": None}
    answer = asyncio.run(
        configured({"policy": "kevin/1", "run_id": "grpo-7"}, solution_str="1.5", **ROW, **reward_model)
    )
    assert answer["score"] == 1.5
    assert (server.scored[0].policy, server.scored[0].run_id) == ("kevin/1", "grpo-7")


def test_a_misspelt_option_is_not_dropped_in_silence() -> None:
    with pytest.raises(TypeError, match="polcy"):
        asyncio.run(compute_score(solution_str="1.5", polcy="kevin/1", **ROW))


def test_the_rows_own_task_comes_before_its_ground_truth(server) -> None:
    asyncio.run(compute_score("kernelforge", "1.5", "class Model: ...", {"task": "core/swish"}))
    assert server.scored[0].task == "core/swish"


@pytest.mark.parametrize(("fields", "version"), [({"min_global_steps": 7}, 7), ({"min_global_steps": None}, None)])
def test_the_oldest_weights_of_a_rollout_are_its_version(server, fields: dict[str, Any], version: int | None) -> None:
    asyncio.run(compute_score("kernelforge", "1.5", "core/swish", fields))
    assert server.scored[0].policy_version == version


def test_trouble_is_raised_and_never_a_number(server) -> None:
    with pytest.raises(MissingRewardError, match="worker_died"):
        asyncio.run(compute_score(solution_str="infra", **ROW))


def test_a_server_that_does_not_know_the_task_is_an_error(server) -> None:
    server.instead("/v1/jobs", refusal(422, "unknown_task"))
    with pytest.raises(ServerError):
        asyncio.run(compute_score(solution_str="1.5", **ROW))


def managed(text: str, **reward_kwargs: str) -> dict[str, Any]:
    """One sample's answer from verl's own reward manager, with the function found by verl's configuration."""
    pytest.importorskip("verl")
    import numpy
    import torch
    from omegaconf import OmegaConf
    from verl import DataProto
    from verl.experimental.reward_loop.reward_manager.naive import NaiveRewardManager
    from verl.trainer.ppo.reward import get_custom_reward_fn

    tokenizer = character_tokenizer()
    function = {"path": "pkg://kernelforge.adapters.verl", "name": "compute_score", "reward_kwargs": reward_kwargs}
    config = OmegaConf.create({"reward": {"custom_reward_function": function}})
    tokens = torch.tensor([tokenizer.encode(text, add_special_tokens=False)])
    columns = {
        "data_source": "kernelforge",
        "reward_model": {"ground_truth": "core/swish"},
        "extra_info": {"index": 0},
        "tool_extra_fields": {"global_steps": 8, "min_global_steps": 7, "max_global_steps": 8},  # of verl's rollout
    }
    data = DataProto.from_dict(
        tensors={"responses": tokens, "attention_mask": torch.ones_like(tokens)},
        non_tensors={name: numpy.array([value], dtype=object) for name, value in columns.items()},
    )

    async def run() -> dict[str, Any]:
        return await NaiveRewardManager(config, tokenizer, get_custom_reward_fn(config)).run_single(data)

    return asyncio.run(run())


def test_verls_own_manager_takes_the_answer(server) -> None:
    answer = managed("1.5", policy="kevin/1")
    assert answer["reward_score"] == 1.5
    assert answer["reward_extra_info"]["verdict"] == "OK"
    request = server.scored[0]
    assert (request.completion, request.policy, request.policy_version) == ("1.5", "kevin/1", 7)


def test_verls_own_manager_lets_trouble_through(server) -> None:
    with pytest.raises(MissingRewardError):
        managed("infra")
