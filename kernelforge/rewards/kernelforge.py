"""``kernelforge/1``: the default policy."""

from __future__ import annotations

import math

from kernelforge.records import Evaluation, Reward, Verdict
from kernelforge.rewards.base import Context
from kernelforge.rewards.speed import believed

CORRECT_GATE = 0.3
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
    bounds = (0.0, CORRECT_GATE + math.log(SPEEDUP_CAP))
    parts: tuple[str, ...] = ("correct", "log_speedup")

    def score(self, evaluation: Evaluation, context: Context) -> Reward:
        if evaluation.verdict is not Verdict.OK:
            return Reward(policy=self.name, value=0.0, components={"correct": 0.0, "log_speedup": None})
        performance = believed(evaluation)
        lower = None if performance is None else performance.speedup_lower
        speed = None if lower is None else math.log(min(max(lower, 1.0), SPEEDUP_CAP))
        return Reward(
            policy=self.name,
            value=CORRECT_GATE + (speed or 0.0),
            components={"correct": CORRECT_GATE, "log_speedup": speed},
        )
