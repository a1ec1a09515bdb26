"""GRPO with AReaL 1.0 over several turns.

python docs/examples/training/trainers/areal_train.py --config docs/examples/training/trainers/areal.yaml
"""

from __future__ import annotations

import sys

from areal import PPOTrainer
from areal.api.cli_args import PPOConfig, load_expr_config
from datasets import load_dataset

TURNS = 4
SCORER = {"policy": "predicted/1", "run_id": "areal"}


def main(arguments: list[str]) -> None:
    config, _ = load_expr_config(arguments, PPOConfig)
    rows = load_dataset("parquet", data_files=config.train_dataset.path, split="train")
    generation = {"temperature": config.gconfig.temperature, "max_completion_tokens": config.gconfig.max_new_tokens}
    with PPOTrainer(config, train_dataset=rows) as trainer:
        trainer.train(
            workflow="kernelforge.adapters.areal.KernelAgent",
            workflow_kwargs={"turns": TURNS, "scorer": SCORER, **generation},
        )


if __name__ == "__main__":
    main(sys.argv[1:])
