"""Policies that add a speedup to a gate for correctness: KernelForge, Kevin, kernelbench-tinker, Dr. Kernel."""

from __future__ import annotations

import math

from kernelforge.records import Evaluation, Reward, Verdict
from kernelforge.rewards.base import MOST_SPEEDUP, Context, believed, coverage_of, over_eager

CORRECT = 0.3
SPEEDUP_CAP = 8.0
"""Speedups above this earn no more: a figure that large is looked at, not rewarded."""


class KernelForge1:
    """0 unless the verdict is OK, ``POLICY`` among the rest; then a gate of 0.3 for being correct, and the natural
    logarithm of the lower confidence bound of the speedup over the fastest baseline, clipped to 1 to 8 times.

    Slower than the baseline earns the gate alone, and so does a correct candidate with no measured time that is
    believed: the component is None then.
    """

    name = "kernelforge/1"
    title = "0.3 for correct, plus the logarithm of the speedup's lower bound, capped at 8 times"
    source = "KernelForge's own; docs/rewards.md"
    bounds = (0.0, CORRECT + math.log(SPEEDUP_CAP))
    parts: tuple[str, ...] = ("correct", "log_speedup")

    def score(self, evaluation: Evaluation, context: Context) -> Reward:
        performance = believed(evaluation)
        lower = None if performance is None else performance.speedup_lower
        speed = None if lower is None else math.log(min(max(lower, 1.0), SPEEDUP_CAP))
        return _gate_and(self.name, "log_speedup", evaluation, speed)


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


DR_KERNEL_WEIGHT = 0.5
"""Weight of correctness, of the speedup, and of coverage in the recipe for 14B."""
DR_KERNEL_CAP = 3.0
"""Speedups above this earn no more."""


class DrKernel:
    """``0.5 + 0.5 * min(s, 3) + 0.5 * coverage`` of a correct candidate, else 0.

    A correct one none of whose time is in its own kernels is a decoy: 0. Terms that were not measured add nothing.
    """

    name = "dr-kernel/1"
    title = "Half for correct, half of the speedup over eager up to 3, half of the coverage"
    source = (
        "Dr. Kernel (arXiv 2602.05885), calculate_reward_speedup with the 14B recipe's coverage weight of 0.5 and a "
        "penalty of 0; KernelGYM's client. Decided here: a decoy is a coverage of 0; coverage is by events around the "
        "steps of the plan, not by names of kernels; the second evaluation above 3 times is the evaluator's"
    )
    bounds = (0.0, DR_KERNEL_WEIGHT + DR_KERNEL_WEIGHT * DR_KERNEL_CAP + DR_KERNEL_WEIGHT)
    parts: tuple[str, ...] = ("correct", "speedup", "coverage")

    def score(self, evaluation: Evaluation, context: Context) -> Reward:
        coverage = coverage_of(evaluation)
        if evaluation.verdict is not Verdict.OK or coverage == 0:
            components = dict.fromkeys(self.parts) | {"correct": 0.0, "coverage": coverage}
            return Reward(policy=self.name, value=0.0, components=components)
        speedup = over_eager(evaluation)
        fast = None if speedup is None else DR_KERNEL_WEIGHT * min(speedup, DR_KERNEL_CAP)
        covered = None if coverage is None else DR_KERNEL_WEIGHT * coverage
        return Reward(
            policy=self.name,
            value=DR_KERNEL_WEIGHT + (fast or 0.0) + (covered or 0.0),
            components={"correct": DR_KERNEL_WEIGHT, "speedup": fast, "coverage": covered},
        )


def _gate_and(policy: str, part: str, evaluation: Evaluation, speed: float | None) -> Reward:
    if evaluation.verdict is not Verdict.OK:
        return Reward(policy=policy, value=0.0, components={"correct": 0.0, part: None})
    return Reward(policy=policy, value=CORRECT + (speed or 0.0), components={"correct": CORRECT, part: speed})
