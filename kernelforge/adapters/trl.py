"""TRL: reward functions for ``GRPOTrainer(reward_funcs=...)`` and the other trainers that take them.

TRL (1.16: ``GRPOTrainer._calculate_rewards``) calls a reward function once per step with its process's whole batch,
every column of the dataset as a list, and awaits those that are coroutine functions side by side. ``None`` leaves a
sample out of its group's baseline and gives it no advantage.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

from kernelforge.adapters.common import TASK, Scorer, prompt_text, task_of, text_of
from kernelforge.client.models import RewardResult

Completion = str | Sequence[Mapping[str, Any]]
Rewards = list[float | None]
T = TypeVar("T")


def _name(scorer: Scorer, function: Callable[..., Any]) -> str:
    owner = "kernelforge" if scorer.policy is None else re.sub(r"\W", "_", scorer.policy)
    return function.__name__.replace("kernelforge", owner)


def _named(function: Callable[..., T], name: str) -> Callable[..., T]:
    function.__name__ = name
    return function


def reward_function(
    scorer: Scorer | None = None, column: str = TASK, name: str | None = None
) -> Callable[..., Rewards]:
    """A reward function that asks ``scorer``.

    Args:
        scorer: by default the server of the environment, with its own policy.
        column: of the dataset, naming each row's task.
        name: of the function, which TRL logs its rewards under: two of one name are logged as their average. By
            default ``kernelforge_reward``, or with the policy's name: ``kevin_1_reward``.
    """
    scorer_used = scorer or Scorer()

    def kernelforge_reward(prompts: Sequence[Any], completions: Sequence[Completion], **columns: Any) -> Rewards:
        tasks, texts = _read(completions, columns, column)
        sent_prompts = [prompt_text(prompt) for prompt in prompts]
        return _rewards(scorer_used.score_many_blocking(tasks, texts, _step(columns), sent_prompts), columns)

    return _named(kernelforge_reward, name or _name(scorer_used, kernelforge_reward))


def async_reward_function(
    scorer: Scorer | None = None, column: str = TASK, name: str | None = None
) -> Callable[..., Awaitable[Rewards]]:
    """:func:`reward_function` as a coroutine function: other asynchronous rewards are computed at the same time."""
    scorer_used = scorer or Scorer()

    async def async_kernelforge_reward(
        prompts: Sequence[Any], completions: Sequence[Completion], **columns: Any
    ) -> Rewards:
        tasks, texts = _read(completions, columns, column)
        sent_prompts = [prompt_text(prompt) for prompt in prompts]
        return _rewards(await scorer_used.score_many(tasks, texts, _step(columns), sent_prompts), columns)

    return _named(async_kernelforge_reward, name or _name(scorer_used, async_kernelforge_reward))


kernelforge_reward = reward_function()
"""Asks the server of the environment about each row's ``task``."""
async_kernelforge_reward = async_reward_function()


def _read(completions: Sequence[Completion], columns: Mapping[str, Any], column: str) -> tuple[list[str], list[str]]:
    names = columns.get(column) or [None] * len(completions)
    return [task_of(name) for name in names], [text_of(completion) for completion in completions]


def _step(columns: Mapping[str, Any]) -> int | None:
    """Number of updates of the weights."""
    step = getattr(columns.get("trainer_state"), "global_step", None)
    return step if isinstance(step, int) else None


def _rewards(results: list[RewardResult], columns: Mapping[str, Any]) -> Rewards:
    """The answer, after telling the trainer's logs what it is made of."""
    log_extra, log_metric = columns.get("log_extra"), columns.get("log_metric")
    if log_extra is not None:
        log_extra("kernelforge_verdict", [result.verdict_words or result.outcome for result in results])
        log_extra("kernelforge_feedback", [result.feedback for result in results])
    if log_metric is not None and results:
        scored = [result.components.flags() for result in results if result.reward is not None]
        log_metric("kernelforge/unscored", 1 - len(scored) / len(results))
        for name in scored[0] if scored else ():
            log_metric(f"kernelforge/{name}", sum(parts[name] for parts in scored) / len(scored))
    return [result.reward for result in results]
