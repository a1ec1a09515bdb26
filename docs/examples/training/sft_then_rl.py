"""Sample replies, export the right ones as training data, fine-tune on them, then go on with GRPO."""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
import toy
from datasets import Dataset, load_dataset
from grpo_toy import grpo
from transformers import PreTrainedModel, PrinterCallback
from trl import SFTConfig, SFTTrainer

from kernelforge.adapters.common import Scorer


def sampled(model: PreTrainedModel, count: int) -> list[str]:
    """Completions of the prompt."""
    tokenizer = toy.tokenizer()
    prompt = tokenizer([toy.PROMPT] * count, return_tensors="pt")
    tokens = model.generate(**prompt, do_sample=True, max_new_tokens=toy.LONGEST)
    return tokenizer.batch_decode(tokens[:, prompt["input_ids"].shape[1] :], skip_special_tokens=True)


def exported(results: Path, folder: Path) -> Dataset:
    """Correct replies of the server's jobs, each once."""
    command = [sys.executable, "-m", "kernelforge", "data", "export", "--from", "jobs", "--as", "sft"]
    command += ["--results", str(results), "--output", str(folder)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return load_dataset("json", data_files=str(folder / "train.jsonl"), split="train")


def fine_tune(model: PreTrainedModel, data: Dataset) -> None:
    """Supervised fine-tuning, in place."""
    with tempfile.TemporaryDirectory() as folder:
        arguments = SFTConfig(
            output_dir=folder,
            per_device_train_batch_size=len(data),
            max_steps=40,
            learning_rate=1e-2,
            use_cpu=True,
            bf16=False,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
        )
        trainer = SFTTrainer(
            model=model,
            args=arguments,
            train_dataset=data.select_columns(["messages"]),
            processing_class=toy.tokenizer(),
        )
        trainer.remove_callback(PrinterCallback)
        trainer.train()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=1024, help="replies to choose training data from")
    parser.add_argument("--steps", type=int, default=30, help="steps of GRPO")
    options = parser.parse_args()
    count, steps = options.samples, options.steps
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder, toy.reward_server(Path(folder)) as client:
        model = toy.model(1)
        samples = sampled(model, count)
        scorer = Scorer(keep_prompts=True, profile=True)
        scorer.score_many_blocking([toy.TASK] * count, samples, prompts=[toy.PROMPT] * count)
        data = exported(Path(folder), Path(folder) / "sft")
        print(f"{len(data)} rows of {count} samples, {toy.shares(client, [samples])[0].correct:.2f} of them correct")
        fine_tune(model, data)
        print(f"fine-tuned: correct {toy.shares(client, [sampled(model, count)])[0].correct:.2f}")
        for name, start in (("from random weights", toy.model(1)), ("after fine-tuning", model)):
            curve = toy.shares(client, grpo(start, "predicted/1", 1, steps))
            correct, fast = (sum(column) / len(column) for column in zip(*curve[-10:], strict=True))
            print(f"GRPO {name}, {steps} steps: correct {correct:.2f}, of these fast {fast:.2f}", flush=True)


if __name__ == "__main__":
    main()
