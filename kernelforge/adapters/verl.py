"""verl: ``compute_score``, for ``reward.custom_reward_function``.

verl's reward managers (0.9: ``verl.experimental.reward_loop.reward_manager``) await it once per sample, with keyword
arguments. They read the names of a batch's extra columns off its first sample, so every answer has the same keys. An
exception ends the rollout, and is the only way to say that there is no score.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kernelforge.adapters.common import Scorer, task_of, version_in

VERL_ARGUMENTS = frozenset({"reward_router_address", "reward_model_tokenizer"})
"""What verl passes besides, where a reward model is served."""


async def compute_score(
    data_source: str,
    solution_str: str,
    ground_truth: object,
    extra_info: Mapping[str, Any] | None = None,
    **kwargs: Any,
) -> dict[str, float | str | None]:
    """Score one response.

    Args:
        data_source: not used.
        solution_str: the response, without special tokens.
        ground_truth: name of the task, unless ``extra_info`` has a ``task``.
        extra_info: the row's own columns, with the fields of verl's rollout: its ``min_global_steps``, the oldest
            weights that wrote a part of the response, is the policy version.
        kwargs: ``reward_kwargs`` of the configuration: the fields of :class:`~kernelforge.adapters.common.Scorer`.

    Returns:
        ``score`` and, always with the same keys, what it is made of. ``speedup`` is None where no time was measured,
        which verl's validation leaves out.

    Raises:
        MissingRewardError: trouble of the server's.
        TypeError: ``reward_kwargs`` has a field that a scorer has not.
    """
    scorer = Scorer(**{name: value for name, value in kwargs.items() if name not in VERL_ARGUMENTS})
    version = version_in(extra_info, "min_global_steps")
    result = await scorer.score(task_of(extra_info, ground_truth), solution_str, version)
    flags = result.components.flags()
    return {
        "score": result.require(),
        "acc": flags.pop("correct"),
        **flags,
        "speedup": result.components.speedup,
        "verdict": result.verdict_words or "",
    }
