"""``autotriton/1``: correct or not."""

from __future__ import annotations

from kernelforge.records import Evaluation, Reward, Verdict
from kernelforge.rewards.base import Context
from kernelforge.rewards.speed import coverage_of


class AutoTriton:
    """1 if it is correct and runs kernels of its own, else 0."""

    name = "autotriton/1"
    title = "1 if correct by its own kernels, else 0"
    source = (
        "AutoTriton, rule-based reward: a Triton kernel that passes its tests. Decided here: a kernel is CUDA's, and "
        "none of its own is a measured coverage of 0; a plan cannot be correct without one but through library calls"
    )
    bounds = (0.0, 1.0)
    parts: tuple[str, ...] = ("correct", "own")

    def score(self, evaluation: Evaluation, context: Context) -> Reward:
        coverage = coverage_of(evaluation)
        correct = float(evaluation.verdict is Verdict.OK)
        own = None if coverage is None else float(coverage > 0)
        value = 0.0 if own == 0 else correct
        return Reward(policy=self.name, value=value, components={"correct": correct, "own": own})
