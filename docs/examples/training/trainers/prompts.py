"""Write the tasks of a reward server as rows for every trainer here: prompts.jsonl and prompts.parquet."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from datasets import Dataset

from kernelforge.client import Client


def row(task: str, prompt: str) -> dict[str, Any]:
    """One task. Every trainer takes the prompt as messages, and has its own name for the rest."""
    messages = [{"role": "user", "content": prompt}]
    return {
        "prompt": messages,
        "messages": messages,  # AReaL
        "task": task,  # TRL, slime, OpenRLHF, SkyRL, AReaL
        "data_source": "kernelforge",  # verl, SkyRL
        "reward_model": {"style": "rule", "ground_truth": task},  # verl
        "extra_info": {"task": task},  # verl
        "env_class": "kernelforge",  # SkyRL
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--suite", help="only tasks of this suite; all that the server has if left out")
    parser.add_argument("--output", type=Path, default=Path())
    options = parser.parse_args()
    with Client() as client:
        tasks = [offered.task for offered in client.tasks()]
        picked = [task for task in tasks if options.suite in (None, task.partition("/")[0])]
        rows = Dataset.from_list([row(task, client.task(task).prompt) for task in picked])
    rows.to_json(options.output / "prompts.jsonl")
    rows.to_parquet(options.output / "prompts.parquet")
    print(f"{len(rows)} prompts in prompts.jsonl and prompts.parquet")


if __name__ == "__main__":
    main()
