"""``kevin/1`` and ``kernelbench-tinker/1``: a gate of 0.3 for being correct, plus the speedup over eager PyTorch."""

from __future__ import annotations

from kernelforge.records import Evaluation, Reward, Verdict
from kernelforge.rewards.base import Context
from kernelforge.rewards.speed import MOST_SPEEDUP, over_eager

CORRECT = 0.3
MOST_BONUS = 10.0


class Kevin:
    """``0.3 + T_base / T_kernel`` of a correct candidate, else 0. Without a time that is believed: 0.3.

    Over turns it is summed with a discount: :func:`kernelforge.rewards.advantages.discounted_returns`.
    """

    name = "kevin/1"
    title = "0.3 for correct, plus the speedup over eager"
    source = (
        "Kevin (arXiv 2507.11948), score of a turn. Decided here: T_base is eager PyTorch's; speedups above a million "
        "count as that; the published sum over turns, with a discount of 0.4, is taken by sessions, not by the policy"
    )
    bounds = (0.0, CORRECT + MOST_SPEEDUP)
    parts: tuple[str, ...] = ("correct", "speedup")

    def score(self, evaluation: Evaluation, context: Context) -> Reward:
        return _gate_and(self.name, "speedup", evaluation, over_eager(evaluation))


class KernelBenchTinker:
    """``0.3 + min(speedup - 1, 10)`` of a correct candidate, else 0. No faster than eager, or no time: 0.3."""

    name = "kernelbench-tinker/1"
    title = "0.3 for correct, plus what the speedup over eager exceeds 1 by, at most 10"
    source = (
        "kernelbench-tinker (repository), reward.py with its default weights: nothing is added, or taken, "
        "at or below a speedup of 1"
    )
    bounds = (0.0, CORRECT + MOST_BONUS)
    parts: tuple[str, ...] = ("correct", "bonus")

    def score(self, evaluation: Evaluation, context: Context) -> Reward:
        speedup = over_eager(evaluation)
        bonus = None if speedup is None else min(max(speedup - 1, 0.0), MOST_BONUS)
        return _gate_and(self.name, "bonus", evaluation, bonus)


def _gate_and(policy: str, part: str, evaluation: Evaluation, speed: float | None) -> Reward:
    if evaluation.verdict is not Verdict.OK:
        return Reward(policy=policy, value=0.0, components={"correct": 0.0, part: None})
    return Reward(policy=policy, value=CORRECT + (speed or 0.0), components={"correct": CORRECT, part: speed})
