"""RL over several turns with Tinker, by the tinker-cookbook 0.6. Arguments, such as ``max_tokens=4096``, go to its
configuration. Tinker is a hosted service: it takes its key and costs money."""

import asyncio
import dataclasses
import sys
from collections.abc import Sequence

import chz
from tinker_cookbook.renderers import get_renderer
from tinker_cookbook.rl.rollout_strategy import RetryOnFailure
from tinker_cookbook.rl.train import Config, main
from tinker_cookbook.rl.types import EnvGroupBuilder, RLDataset, RLDatasetBuilder
from tinker_cookbook.tokenizer_utils import get_tokenizer

from kernelforge.adapters.common import Scorer
from kernelforge.adapters.tinker import KernelGroupBuilder
from kernelforge.client import Client

MODEL = "Qwen/Qwen3-8B"
RENDERER = "qwen3"


class Kernels(RLDataset):
    """Groups of episodes about the server's tasks, some of them in each batch."""

    def __init__(self, groups: Sequence[KernelGroupBuilder], groups_per_batch: int) -> None:
        self._groups = groups
        self._size = groups_per_batch

    def get_batch(self, index: int) -> Sequence[EnvGroupBuilder]:
        groups = self._groups[index * self._size : (index + 1) * self._size]
        return [dataclasses.replace(group, policy_version=index) for group in groups]

    def __len__(self) -> int:
        return -(-len(self._groups) // self._size)


@chz.chz
class KernelsBuilder(RLDatasetBuilder):
    model_name: str = MODEL
    renderer_name: str = RENDERER
    policy: str = "predicted/1"
    turns: int = 4
    group_size: int = 16
    groups_per_batch: int = 16
    epochs: int = 20

    async def __call__(self) -> tuple[RLDataset, None]:
        renderer = get_renderer(self.renderer_name, get_tokenizer(self.model_name), model_name=self.model_name)
        scorer = Scorer(policy=self.policy, profile=True, run_id="tinker")
        with Client() as client:
            tasks = [offered.task for offered in client.tasks()]
        groups = [KernelGroupBuilder(task, renderer, self.group_size, self.turns, scorer) for task in tasks]
        return Kernels(groups * self.epochs, self.groups_per_batch), None


def configuration(arguments: list[str]) -> Config:
    defaults = chz.Blueprint(Config).apply(
        {
            "model_name": MODEL,
            "renderer_name": RENDERER,
            "recipe_name": "kernelforge",
            "dataset_builder": KernelsBuilder,
            "learning_rate": 4e-5,
            "max_tokens": 8192,
            "log_path": "tinker-logs",
            "rollout_error_tolerance": RetryOnFailure(),
        }
    )
    return defaults.make_from_argv(arguments)


if __name__ == "__main__":
    asyncio.run(main(configuration(sys.argv[1:])))
