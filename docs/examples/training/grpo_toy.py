"""Train a toy model by GRPO with TRL: it learns from rewards alone to choose the right kernel, and the fast one."""

from __future__ import annotations

import argparse
import csv
import functools
import tempfile
from pathlib import Path
from typing import Any

import torch
import toy
from datasets import Dataset
from transformers import PreTrainedModel, PrinterCallback
from trl import GRPOConfig, GRPOTrainer

from kernelforge.adapters.common import Scorer
from kernelforge.adapters.trl import reward_function

GROUP = 64
LAST = 10
"""Steps at the end that the printed shares are means of."""


def grpo(model: PreTrainedModel, policy: str, seed: int, steps: int) -> list[list[str]]:
    """Train the model in place. Returns the completions of each step."""
    reward = reward_function(Scorer(policy=policy, profile=True, run_id=f"{policy}-{seed}"))
    completions_of_steps = []

    @functools.wraps(reward)
    def recorded(completions: list[str], **columns: Any) -> list[float | None]:
        completions_of_steps.append(completions)
        return reward(completions=completions, **columns)

    with tempfile.TemporaryDirectory() as folder:
        arguments = GRPOConfig(
            output_dir=folder,
            per_device_train_batch_size=GROUP,
            num_generations=GROUP,
            max_completion_length=toy.LONGEST,
            max_steps=steps,
            learning_rate=2e-3,
            lr_scheduler_type="constant",
            seed=seed,
            use_cpu=True,
            bf16=False,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
        )
        trainer = GRPOTrainer(
            model=model,
            reward_funcs=recorded,
            args=arguments,
            train_dataset=Dataset.from_dict({"prompt": [toy.PROMPT] * GROUP, "task": [toy.TASK] * GROUP}),
            processing_class=toy.tokenizer(),
        )
        trainer.remove_callback(PrinterCallback)
        trainer.train()
    return completions_of_steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--policy", action="append", help="reward policy; repeat for more (default: predicted/1)")
    parser.add_argument("--seeds", type=int, default=1, help="runs of each policy")
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--csv", type=Path, help="where to write the shares of every step")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    with tempfile.TemporaryDirectory() as results, toy.reward_server(Path(results)) as client:
        for policy in options.policy or ["predicted/1"]:
            for seed in range(1, options.seeds + 1):
                completions = grpo(toy.model(seed), policy, seed, options.steps)
                curve = toy.shares(client, completions)
                rows += [(policy, seed, step, *shares) for step, shares in enumerate(curve, 1)]
                correct, fast = (sum(column) / LAST for column in zip(*curve[-LAST:], strict=True))
                print(f"{policy} seed {seed}: correct {correct:.2f}, of these fast {fast:.2f}", flush=True)
    if options.csv:
        with options.csv.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["policy", "seed", "step", "correct", "fast"])
            writer.writerows(rows)


if __name__ == "__main__":
    main()
