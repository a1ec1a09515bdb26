"""slime: ``custom_rm``, for ``--custom-rm-path kernelforge.adapters.slime.custom_rm``.

slime (``slime.rollout.rm_hub``) awaits it with a sample, or with ``--group-rm`` with a list of them. The task's name is
the sample's ``label``, or ``task`` in its metadata. slime has no reward that means none, and an exception ends the run:
with ``--dynamic-sampling-filter-path kernelforge.adapters.slime.keep_scored`` a group with an unscored sample is
sampled again instead.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from kernelforge.adapters.common import Scorer, task_of
from kernelforge.client.models import RewardResult

FILTER = f"{__name__}.keep_scored"


def reward_function(scorer: Scorer | None = None) -> Callable[..., Awaitable[Any]]:
    """A ``custom_rm`` that asks ``scorer``; by default the server of the environment."""
    scorer_used = scorer or Scorer()

    async def custom_rm(args: Any, sample: Any, **kwargs: Any) -> Any:
        """Reward of one sample, or the rewards of a list of them.

        A reward is a number, or with ``--reward-key`` a dictionary that has it under that key. It is None, respectively
        the dictionary's is, where there is no score and :func:`keep_scored` is in use, and for a sample that slime
        aborted: its partial response is not evaluated, and scored when ``--partial-rollout`` has completed it.

        Raises:
            MissingRewardError: trouble of the server's, without the filter.
        """
        samples = sample if isinstance(sample, list) else [sample]
        complete = [each for each in samples if not is_aborted(each)]
        tasks = [task_of(each.metadata, each.label) for each in complete]
        versions = [oldest_version(each) for each in complete]
        results = iter(await scorer_used.score_many(tasks, [each.response for each in complete], versions))
        answers = [_no_reward(args) if is_aborted(each) else _answer(args, next(results)) for each in samples]
        return answers if isinstance(sample, list) else answers[0]

    return custom_rm


custom_rm = reward_function()


def is_aborted(sample: Any) -> bool:
    """Whether a sample's status is slime's ``ABORTED``: its response is a part, which slime keeps and continues."""
    return getattr(getattr(sample, "status", None), "value", None) == "aborted"


def oldest_version(sample: Any) -> int | None:
    """Version of the oldest weights that wrote a part of a response, of slime's ``weight_versions``; None without one.

    slime counts its updates there; an engine that was not updated yet says ``default``.
    """
    versions = [str(version) for version in getattr(sample, "weight_versions", None) or ()]
    return min(map(int, versions)) if versions and all(version.isdecimal() for version in versions) else None


def _no_reward(args: Any) -> Any:
    key = getattr(args, "reward_key", None)
    return {key: None} if key else None


def keep_scored(args: Any, samples: Sequence[Any], **kwargs: Any) -> bool:
    """A filter of groups: whether every sample has a score."""
    return all(each.get_reward_value(args) is not None for each in samples)


def _answer(args: Any, result: RewardResult) -> Any:
    filtered = getattr(args, "dynamic_sampling_filter_path", None) == FILTER
    value = result.reward if filtered else result.require()
    key = getattr(args, "reward_key", None)
    return {**result.components.numbers(), "verdict": result.verdict_words, key: value} if key else value
