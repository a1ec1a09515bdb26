"""GRPO with SkyRL 0.4 over several turns, on one node of 8 GPUs. Arguments, such as ``trainer.seed=1``, go to SkyRL."""

from __future__ import annotations

import sys

import ray
from skyrl.train.config import SkyRLTrainConfig
from skyrl.train.entrypoints.main_base import BasePPOExp
from skyrl.train.utils import initialize_ray, validate_cfg

from kernelforge.adapters.common import Scorer
from kernelforge.adapters.skyrl import register

ARGUMENTS = [
    "data.train_data=[prompts.parquet]",
    "data.val_data=[prompts.parquet]",
    "environment.env_class=kernelforge",
    "environment.skyrl_gym.max_env_workers=512",
    "trainer.policy.model.path=Qwen/Qwen2.5-Coder-7B-Instruct",
    "trainer.policy.optimizer_config.lr=1e-6",
    "trainer.algorithm.advantage_estimator=grpo",
    "trainer.algorithm.use_kl_loss=false",
    "trainer.placement.policy_num_gpus_per_node=8",
    "trainer.placement.ref_num_gpus_per_node=8",
    "trainer.train_batch_size=32",
    "trainer.policy_mini_batch_size=32",
    "trainer.micro_train_batch_size_per_gpu=1",
    "trainer.micro_forward_batch_size_per_gpu=1",
    "trainer.max_prompt_length=8192",
    "trainer.epochs=20",
    "trainer.logger=console",
    "generator.inference_engine.num_engines=4",
    "generator.inference_engine.tensor_parallel_size=2",
    "generator.n_samples_per_prompt=16",
    "generator.max_turns=4",
    "generator.max_input_length=24576",
    "generator.sampling_params.max_generate_length=8192",
]


def configuration(arguments: list[str]) -> SkyRLTrainConfig:
    return SkyRLTrainConfig.from_cli_overrides([*ARGUMENTS, *arguments])


@ray.remote(num_cpus=1)
def train(config: SkyRLTrainConfig) -> None:
    register("kernelforge", Scorer(policy="predicted/1", run_id="skyrl"))
    BasePPOExp(config).run()


if __name__ == "__main__":
    options = configuration(sys.argv[1:])
    validate_cfg(options)
    initialize_ray(options)
    ray.get(train.remote(options))
