"""Policies of a few fixed values: AutoTriton, CUDA Agent, Dr. Kernel by tiers."""

from __future__ import annotations

from kernelforge.records import Evaluation, Reward, Verdict
from kernelforge.rewards.base import Context, coverage_of, over, over_eager


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


SAVED = 0.05
"""A baseline is beaten when more than this share of its time is saved."""
COMPILE = "compile"
"""torch.compile with its default mode."""


class CudaAgent:
    """-1 if it is not correct; 3 if it beats eager PyTorch and torch.compile by more than 5 % of their time; 2 if it
    beats eager; else 1.

    What was not timed, or not compared with, is not beaten.
    """

    name = "cuda-agent/1"
    title = "-1 not correct, 1 correct, 2 also 5 % faster than eager, 3 also than torch.compile"
    source = (
        "CUDA Agent (arXiv 2602.24286), milestone reward. Decided here: a baseline that was not timed is not beaten; "
        "torch.compile is in its default mode"
    )
    bounds = (-1.0, 3.0)
    parts: tuple[str, ...] = ("correct", "beats_eager", "beats_compile")

    def score(self, evaluation: Evaluation, context: Context) -> Reward:
        if evaluation.verdict is not Verdict.OK:
            return Reward(policy=self.name, value=-1.0, components=dict.fromkeys(self.parts) | {"correct": 0.0})
        eager, compiled = beaten(over_eager(evaluation)), beaten(over(evaluation, COMPILE))
        value = 1.0 if not eager else 3.0 if compiled else 2.0
        components = {"correct": 1.0, "beats_eager": eager, "beats_compile": compiled}
        return Reward(policy=self.name, value=value, components=components)


def beaten(speedup: float | None) -> float | None:
    """1 if ``(t0 - t) / t0`` is above 5 %, else 0; None where there is no speedup."""
    return None if speedup is None else float(1 - 1 / speedup > SAVED)


REFUSED = -1.0
NOT_BUILT = -0.5
NOT_CORRECT = -0.3
SLOWER = -0.1
TIERS = ((3.0, 1.0), (2.0, 0.8), (1.5, 0.6), (1.2, 0.4), (1.0, 0.2))
"""Speedup from which on, and the reward."""


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
