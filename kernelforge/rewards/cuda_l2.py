"""``cuda-l2/1``: speedup, less a term for the error and one for the length of the code."""

from __future__ import annotations

from kernelforge.records import Evaluation, Reward, Verdict
from kernelforge.rewards.base import Context
from kernelforge.rewards.speed import MOST_SPEEDUP, over_fastest, quarantined

ALPHA = 0.1
"""Weight of the error, which is 1 at the tolerance. Not published."""
BETA = 0.005
"""Weight of a thousand characters of source. Not published; a kernel of 10,000 characters pays 0.05."""
LEAST = 0.01
"""What a correct candidate earns at least, so that neither term makes it worth no more than a wrong one."""


class CudaL2:
    """``r = mean(t_ref / t_custom - alpha * diff) - beta * L(code)`` of a correct candidate, at least 0.01.

    A time in quarantine is rejected: 0. Where nothing was timed, the ratio counts as 1.
    """

    name = "cuda-l2/1"
    title = "Speedup over the fastest baseline, less its error and the length of its source"
    source = (
        "CUDA-L2 (arXiv 2512.02551), reward of RL on HGEMM. Decided here: alpha = 0.1 and beta = 0.005, which are "
        "not published; diff is the largest recorded error as a share of the tolerance, not a difference from "
        "FP32; L is in thousands of characters, 0 where the source was not kept; the mean over rounds is the "
        "recorded speedup; a correct candidate earns at least 0.01, and 0 with a time in quarantine; the ratio "
        "counts as 1 where no time was taken"
    )
    bounds = (0.0, MOST_SPEEDUP)
    parts: tuple[str, ...] = ("correct", "speedup", "error", "length")

    def score(self, evaluation: Evaluation, context: Context) -> Reward:
        if evaluation.verdict is not Verdict.OK:
            return self._reward(0.0, correct=0.0)
        error = largest_error(evaluation)
        paid = None if error is None else -ALPHA * error
        length = None if context.source is None else -BETA * len(context.source) / 1000
        if quarantined(evaluation):
            return self._reward(0.0, correct=1.0, error=paid, length=length)
        speedup = over_fastest(evaluation)
        value = (1.0 if speedup is None else speedup) + (paid or 0.0) + (length or 0.0)
        return self._reward(max(value, LEAST), correct=1.0, speedup=speedup, error=paid, length=length)

    def _reward(self, value: float, **components: float | None) -> Reward:
        return Reward(policy=self.name, value=value, components=dict.fromkeys(self.parts) | components)


def largest_error(evaluation: Evaluation) -> float | None:
    """Largest error over all sizes, as a share of the tolerance: from 0 to 1 for what is correct."""
    checks = () if evaluation.correctness is None else evaluation.correctness.sizes
    errors = [check.error for check in checks if check.error is not None]
    # A recorded error may be NaN or infinite; of what passed, none can count for more than the tolerance.
    return max((error if 0 <= error <= 1 else 1.0 for error in errors), default=None)
