"""``dr-kernel/1`` and ``dr-kernel-tiers/1``: the rewards of Dr. Kernel's trainer."""

from __future__ import annotations

from kernelforge.records import Evaluation, Reward, Verdict
from kernelforge.rewards.base import Context
from kernelforge.rewards.speed import coverage_of, over_eager

WEIGHT = 0.5
"""Of being correct, of the speedup, and of coverage in the recipe for 14B."""
MOST_SPEEDUP = 3.0

REFUSED = -1.0
NOT_BUILT = -0.5
NOT_CORRECT = -0.3
SLOWER = -0.1
TIERS = ((3.0, 1.0), (2.0, 0.8), (1.5, 0.6), (1.2, 0.4), (1.0, 0.2))
"""Speedup from which on, and the reward."""


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
    bounds = (0.0, WEIGHT + WEIGHT * MOST_SPEEDUP + WEIGHT)
    parts: tuple[str, ...] = ("correct", "speedup", "coverage")

    def score(self, evaluation: Evaluation, context: Context) -> Reward:
        coverage = coverage_of(evaluation)
        if evaluation.verdict is not Verdict.OK or coverage == 0:
            components = dict.fromkeys(self.parts) | {"correct": 0.0, "coverage": coverage}
            return Reward(policy=self.name, value=0.0, components=components)
        speedup = over_eager(evaluation)
        fast = None if speedup is None else WEIGHT * min(speedup, MOST_SPEEDUP)
        covered = None if coverage is None else WEIGHT * coverage
        return Reward(
            policy=self.name,
            value=WEIGHT + (fast or 0.0) + (covered or 0.0),
            components={"correct": WEIGHT, "speedup": fast, "coverage": covered},
        )


class DrKernelTiers:
    """From -1 to 1 by how far a candidate came, and by tiers of its speedup.

    -1 if it was refused or is a decoy, -0.5 if it was not built, -0.3 if it is not correct, -0.1 if it is slower than
    eager PyTorch, and 0.2, 0.4, 0.6, 0.8, 1 from 1, 1.2, 1.5, 2, 3 times on. A correct candidate without a time that is
    believed earns what a slower one does.
    """

    name = "dr-kernel-tiers/1"
    title = "-1 refused, -0.5 not built, -0.3 wrong, -0.1 slower than eager, 0.2 to 1 by tiers"
    source = (
        "Dr. Kernel (arXiv 2602.05885), calculate_reward_like_kernel; KernelGYM's client. Decided here: a reply "
        "without a candidate, and what may not be done, are its failed tasks; every failure after the build is its "
        "wrong result; no time is the lowest tier of a correct candidate"
    )
    bounds = (REFUSED, 1.0)
    parts: tuple[str, ...] = ("correct", "tier")

    def score(self, evaluation: Evaluation, context: Context) -> Reward:
        speedup = over_eager(evaluation)
        if evaluation.verdict is Verdict.OK and coverage_of(evaluation) != 0:
            tier = None if speedup is None else tier_of(speedup)
            value = SLOWER if tier is None else tier
            return Reward(policy=self.name, value=value, components={"correct": 1.0, "tier": tier})
        return Reward(policy=self.name, value=failed(evaluation), components={"correct": 0.0, "tier": None})


def tier_of(speedup: float) -> float:
    """The reward of a correct candidate of that speedup."""
    return next((reward for least, reward in TIERS if speedup >= least), SLOWER)


def failed(evaluation: Evaluation) -> float:
    """The penalty of a candidate that is not correct, or a decoy."""
    if evaluation.verdict in (Verdict.POLICY, Verdict.OK):
        return REFUSED
    return NOT_BUILT if evaluation.stage in ("plan", "compile", "policy") else NOT_CORRECT
