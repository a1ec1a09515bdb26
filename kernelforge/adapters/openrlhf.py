"""OpenRLHF: ``reward_func``, for ``--reward.remote_url path/to/this/file.py``.

OpenRLHF (0.11: ``openrlhf.utils.agent.SingleTurnAgentExecutor``) loads the file and calls the function in a thread,
with a query that is prompt and completion in one, special tokens included. ``label`` is the task's name. An exception
leaves the sample's reward None.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from kernelforge.adapters.common import Scorer, completion_of, task_of


def reward_function(scorer: Scorer | None = None) -> Callable[[Sequence[str], Sequence[str], Sequence[Any]], Any]:
    """A ``reward_func`` that asks ``scorer``; by default the server of the environment."""
    scorer_used = scorer or Scorer()

    def reward_func(queries: Sequence[str], prompts: Sequence[str], labels: Sequence[Any]) -> dict[str, Any]:
        """Rewards of a batch, as tensors of shape (batch,).

        Raises:
            MissingRewardError: trouble of the server's with any of them.
        """
        import torch

        texts = [completion_of(query, prompt) for query, prompt in zip(queries, prompts, strict=True)]
        results = scorer_used.score_many_blocking([task_of(label) for label in labels], texts)
        rewards = torch.tensor([result.require() for result in results], dtype=torch.float32)
        logs = [result.components.flags() for result in results]
        extra_logs = {name: torch.tensor([parts[name] for parts in logs]) for name in logs[0]}
        return {"rewards": rewards, "scores": rewards, "extra_logs": extra_logs}

    return reward_func


reward_func = reward_function()
