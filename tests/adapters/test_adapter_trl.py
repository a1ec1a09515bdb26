"""TRL's reward functions: called the way TRL calls them, and by its trainer where TRL is installed."""

from __future__ import annotations

import asyncio
import inspect
from types import SimpleNamespace
from typing import Any

import pytest

from kernelforge.adapters.common import Scorer
from kernelforge.adapters.trl import (
    async_kernelforge_reward,
    async_reward_function,
    kernelforge_reward,
    reward_function,
)
from kernelforge.errors import ServerError, UsageError
from kernelforge.records import UNCOMPARED
from tests.adapters.character_tokenizer import LETTERS, character_tokenizer
from tests.support.protocol_server import refusal


class Logs:
    """The logger that ``GRPOTrainer`` passes as ``log_extra`` and ``log_metric``."""

    def __init__(self) -> None:
        self.columns: dict[str, list[Any]] = {}
        self.metrics: dict[str, float] = {}

    def extra(self, column: str, values: list[Any]) -> None:
        self.columns[column] = values

    def metric(self, name: str, value: float) -> None:
        self.metrics[name] = value


def call(completions: list[Any], **columns: Any) -> dict[str, Any]:
    """The arguments of one call by ``GRPOTrainer._calculate_rewards``."""
    return {
        "prompts": ["Write it."] * len(completions),
        "completions": completions,
        "completion_ids": [[1, 2]] * len(completions),
        "task": ["core/swish"] * len(completions),
        "trainer_state": SimpleNamespace(global_step=12),
        **columns,
    }


def test_trouble_is_none_and_every_other_sample_keeps_its_reward(server) -> None:
    assert kernelforge_reward(**call(["1.5", "infra", "no code"])) == [1.5, None, 0.0]


def test_the_asynchronous_function_gives_the_same(server) -> None:
    assert inspect.iscoroutinefunction(async_kernelforge_reward)
    assert asyncio.run(async_kernelforge_reward(**call(["1.5", "infra", "no code"]))) == [1.5, None, 0.0]


def test_conversational_completions_are_read(server) -> None:
    completions = [[{"role": "assistant", "content": "1.5"}], [{"role": "assistant", "content": "2.5"}]]
    assert kernelforge_reward(**call(completions)) == [1.5, 2.5]


def test_a_batch_is_one_submission_with_the_age_of_the_weights(server) -> None:
    kernelforge_reward(**call([f"{n}.0" for n in range(8)]))
    assert [line for line in server.lines() if line.endswith("/batch")] == ["POST /v1/jobs/batch"]
    assert {request.policy_version for request in server.scored} == {12}


def test_prompts_are_kept_where_that_is_wanted_with_a_group_for_each(server) -> None:
    prompts = ["Write it.", [{"role": "user", "content": "Write it."}], "Write another.", "Write another."]
    completions = ["1.0", "2.0", "3.0", "4.0"]
    reward_function(Scorer(keep_prompts=True))(**call(completions, prompts=prompts))
    kept = {request.completion: (request.prompt, request.group_id) for request in server.scored}
    assert {prompt for prompt, _ in kept.values()} == {"Write it.", "Write another."}
    assert kept["1.0"] == kept["2.0"] != kept["3.0"] == kept["4.0"]
    kernelforge_reward(**call(["5.0"], prompts=["Write it."]))
    assert server.scored[-1].prompt is None


def test_a_scorer_and_a_column_can_be_chosen(server) -> None:
    function = reward_function(Scorer(policy="kevin/1"), column="kernel")
    assert function(**call(["1.5"], kernel=["core/swish"], task=["other"])) == [1.5]
    assert server.scored[0].policy == "kevin/1"
    assert asyncio.run(async_reward_function(Scorer(run_id="b"))(**call(["1.5"]))) == [1.5]
    assert server.scored[1].run_id == "b"


def test_reward_functions_of_different_policies_are_logged_under_different_names() -> None:
    kevin = Scorer(policy="kevin/1")
    made = [kernelforge_reward, reward_function(kevin), async_reward_function(kevin), reward_function(kevin, name="k")]
    assert [function.__name__ for function in made] == [
        "kernelforge_reward",
        "kevin_1_reward",
        "async_kevin_1_reward",
        "k",
    ]


def test_the_trainers_logs_hear_what_the_rewards_are_made_of(server) -> None:
    logs = Logs()
    kernelforge_reward(**call(["1.5", "infra", "0 uncompared", "2"]), log_extra=logs.extra, log_metric=logs.metric)
    assert logs.columns["kernelforge_verdict"] == ["OK", "infra_error", UNCOMPARED, "OK"]
    assert logs.metrics["kernelforge/unscored"] == 0.25
    assert {"kernelforge/built", "kernelforge/correct", "kernelforge/format"} <= logs.metrics.keys()


def test_a_batch_without_any_score_logs_no_average(server) -> None:
    logs = Logs()
    assert kernelforge_reward(**call(["infra"]), log_metric=logs.metric) == [None]
    assert logs.metrics == {"kernelforge/unscored": 1.0}


def test_rows_without_a_task_are_refused(server) -> None:
    with pytest.raises(UsageError, match="names no task"):
        kernelforge_reward(prompts=["Write it."], completions=["1.5"])


def test_a_server_that_refuses_ends_the_step(server) -> None:
    server.instead("/v1/jobs", refusal(401, "unauthorised"))
    with pytest.raises(ServerError):
        kernelforge_reward(**call(["1.5"]))


def trainer(reward_funcs: Any, folder: Any) -> Any:
    """GRPO on a random model of a few thousand parameters that speaks in characters."""
    datasets, transformers, trl = map(pytest.importorskip, ("datasets", "transformers", "trl"))
    shape = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    return trl.GRPOTrainer(
        model=transformers.LlamaForCausalLM(
            transformers.LlamaConfig(
                vocab_size=len(LETTERS), num_key_value_heads=2, pad_token_id=0, eos_token_id=1, bos_token_id=1, **shape
            )
        ),
        reward_funcs=reward_funcs,
        args=trl.GRPOConfig(
            output_dir=str(folder),
            per_device_train_batch_size=4,
            num_generations=4,
            max_completion_length=8,
            max_steps=1,
            logging_steps=1,
            save_strategy="no",
            report_to=[],
            use_cpu=True,
            bf16=False,
            disable_tqdm=True,
            seed=3,
        ),
        train_dataset=datasets.Dataset.from_dict({"prompt": ["Write it."] * 4, "task": ["core/swish"] * 4}),
        processing_class=character_tokenizer(),
    )


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_a_step_of_grpo_trains_on_the_scored_samples_only(server, tmp_path) -> None:
    """Four completions, one of them in trouble: the other three's rewards are those that TRL averages."""
    grpo = trainer([kernelforge_reward, async_kernelforge_reward], tmp_path)
    rewards = iter(["1.0", "2.0", "infra", "6.0"] * 2)
    server.tell = lambda completion: next(rewards)
    grpo.train()
    (step,) = [entry for entry in grpo.state.log_history if "reward" in entry]
    assert step["rewards/kernelforge_reward/mean"] == step["rewards/async_kernelforge_reward/mean"] == 3.0
    assert step["kernelforge/unscored"] == 0.25
    assert len(server.scored) == 8
    assert {(request.task, request.policy_version) for request in server.scored} == {("core/swish", 0)}
