"""``cuda-agent/1``: four milestones."""

from __future__ import annotations

from kernelforge.records import Evaluation, Reward, Verdict
from kernelforge.rewards.base import Context
from kernelforge.rewards.speed import over, over_eager

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
