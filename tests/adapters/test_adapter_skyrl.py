"""SkyRL's environment, made and stepped by ``skyrl_gym`` the way its generator does."""

from __future__ import annotations

import importlib.util
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from kernelforge.adapters.common import Scorer
from kernelforge.errors import MissingRewardError, ServerError

# Imported by the tests alone: it brings pandas, which collecting need not wait for.
pytestmark = pytest.mark.skipif(importlib.util.find_spec("skyrl_gym") is None, reason="needs skyrl-gym")

PROMPT = [{"role": "user", "content": "Write it."}]


@pytest.fixture(autouse=True)
def _registered() -> None:
    from kernelforge.adapters.skyrl import register

    register()


def made(max_turns: int = 1, env_config: dict[str, Any] | None = None) -> Any:
    """An environment for one row of a dataset."""
    import skyrl_gym

    extras = {"reward_spec": {"method": "rule", "ground_truth": "core/swish"}, "max_turns": max_turns}
    return skyrl_gym.make("kernelforge", env_config=env_config or {}, extras=extras)


def test_a_single_turn_is_one_score(server) -> None:
    env = made()
    assert env.init(PROMPT) == (PROMPT, {})
    out = env.step("1.5")
    assert (out["observations"], out["reward"], out["done"]) == ([], 1.5, True)
    assert out["metadata"]["verdict"] == "OK"
    assert server.lines()[0] == "POST /v1/jobs"


def test_what_the_judge_said_is_the_next_observation(server) -> None:
    env = made(max_turns=2)
    first, second = env.step("0.5"), env.step("1.5")
    assert (first["observations"], first["reward"], first["done"]) == (
        [{"role": "user", "content": "Faster."}],
        0.5,
        False,
    )
    assert (second["observations"], second["reward"], second["done"]) == ([], 1.5, True)
    env.close()
    env.close()
    assert server.sessions == {}


@pytest.mark.parametrize("turns", [1, 2])
def test_a_version_that_a_generator_adds_to_the_row_is_sent(server, turns: int) -> None:
    import skyrl_gym

    env = skyrl_gym.make("kernelforge", extras={"task": "core/swish", "max_turns": turns, "policy_version": 6})
    env.step("1.5")
    (request,) = server.scored if turns == 1 else server.opened()
    assert request.policy_version == 6


def test_steps_of_many_trajectories_run_in_a_pool_of_threads(server) -> None:
    with ThreadPoolExecutor(8) as pool:
        outs = list(pool.map(lambda n: made().step(f"{n}.0"), range(8)))
    assert [out["reward"] for out in outs] == [float(n) for n in range(8)]


def test_the_trainers_configuration_comes_before_what_was_registered(server) -> None:
    from kernelforge.adapters.skyrl import register

    register(scorer=Scorer(policy="kevin/1", run_id="a"))
    made(env_config={"run_id": "b"}).step("1.5")
    assert (server.scored[0].policy, server.scored[0].run_id) == ("kevin/1", "b")


@pytest.mark.parametrize(("max_turns", "error"), [(1, MissingRewardError), (2, ServerError)])
def test_trouble_is_raised_and_never_a_number(server, max_turns: int, error: type[Exception]) -> None:
    with pytest.raises(error):
        made(max_turns).step("infra")


def test_metrics_of_episodes_are_averaged_by_skyrl(server) -> None:
    from skyrl_gym.metrics import aggregate_for_environment

    env = made()
    env.step("1.5")
    assert env.get_metrics().keys() == {"format", "built", "correct", "policy"}
    assert aggregate_for_environment("kernelforge", [{"correct": 1.0}, {"correct": 0.0}]) == {"correct": 0.5}


def test_a_row_may_name_its_task_itself() -> None:
    from kernelforge.adapters.skyrl import KernelEnv

    assert KernelEnv(extras={"task": "core/swish"}).task == "core/swish"
