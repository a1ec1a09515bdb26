"""Rewards of CUDA-L1 (arXiv 2507.14111) and CUDA-L2 (arXiv 2512.02551)."""

from __future__ import annotations

import math
from itertools import pairwise
from statistics import fmean, median, variance

from kernelforge.records import Evaluation, Reward, Verdict
from kernelforge.rewards.base import (
    MOST_SPEEDUP,
    Context,
    believed,
    capped,
    divided,
    over_fastest,
    quarantined,
    side_of,
)

BUCKETS = 7
MOST_VARIANCE = 0.005
"""Between the means of buckets; above it the paper drops the evaluation."""
JUMP = 3.0
LEAP = 2.0
BASELINE = "eager"


def paired_ratios(evaluation: Evaluation) -> list[float]:
    """Time of eager PyTorch over time of the candidate, sample against sample, in the order they were taken.

    The two sides took turns. Where one has more samples than the other, each sample of the shorter is paired with that
    of the longer which lies at the same share of the way.
    """
    performance = believed(evaluation)
    timing = None if performance is None else performance.timing
    reference = None if timing is None else side_of(timing, BASELINE)
    if timing is None or reference is None:
        return []
    candidate, baseline = timing.candidate.samples_us, reference.samples_us
    pairs = min(len(candidate), len(baseline))
    places = range(pairs)
    return [
        divided(baseline[index * len(baseline) // pairs], candidate[index * len(candidate) // pairs])
        for index in places
    ]


def bucket_means(ratios: list[float]) -> list[float]:
    """Means of seven consecutive parts of a series, as equal as can be; at least seven ratios are needed."""
    ends = [part * len(ratios) // BUCKETS for part in range(BUCKETS + 1)]
    return [fmean(ratios[start:end]) for start, end in pairwise(ends)]


def towards_one(ratio: float) -> float:
    """Two decimals, rounded towards 1: 1.118 is 1.11, and 0.992 is 1.00. Never below 0.01.

    A ratio that is two decimals but for the error of a floating-point product is taken for what it prints as.
    """
    hundredths = round(ratio * 100, 9)
    return (math.floor(hundredths) if ratio > 1 else max(math.ceil(hundredths), 1)) / 100


class CudaL1:
    """The median of seven buckets' mean ratios over eager PyTorch, rounded to two decimals towards 1.

    The paper's evaluation drops what varies too much between buckets: there is no score then, and ``variance`` says
    why. A time that two measurements contradict, it rejects: 0. Where nothing was timed, a correct candidate earns 1,
    as in its training on correctness alone. With fewer samples than buckets the ratio that was recorded is rounded.
    """

    name = "cuda-l1/1"
    title = "Median over 7 chronological buckets of the speedup over eager, rounded towards 1"
    source = (
        "CUDA-L1 (arXiv 2507.14111), reward of contrastive RL. Decided here: the variance is the sample variance of "
        "bucket means; samples are paired by position; 0 for a time in quarantine, 1 where no time was taken. The "
        "second measurement above 3 times, or twice the best so far, is the evaluator's; clipping is the learner's"
    )
    bounds = (0.0, MOST_SPEEDUP)
    parts: tuple[str, ...] = ("correct", "ratio", "variance", "suspect")

    def score(self, evaluation: Evaluation, context: Context) -> Reward:
        if evaluation.verdict is not Verdict.OK:
            return self._reward(0.0, correct=0.0)
        if quarantined(evaluation):
            return self._reward(0.0, correct=1.0)
        ratio, spread = self._ratio(evaluation)
        if ratio is None:
            return self._reward(1.0, correct=1.0)
        suspect = float(ratio > JUMP or any(ratio > LEAP * best for best in self._best(context)))
        kept = spread is None or spread <= MOST_VARIANCE
        value = towards_one(ratio) if kept else None
        return self._reward(value, correct=1.0, ratio=ratio, variance=spread, suspect=suspect)

    def _ratio(self, evaluation: Evaluation) -> tuple[float | None, float | None]:
        """The ratio before rounding, and the variance between buckets where there are enough samples for them."""
        ratios = paired_ratios(evaluation)
        if len(ratios) >= BUCKETS:
            means = bucket_means(ratios)
            return median(means), variance(means)
        performance = believed(evaluation)
        return None if performance is None else capped(performance.speedup_eager), None

    def _best(self, context: Context) -> list[float]:
        """The best ratio so far, as a list of at most one."""
        all_ratios = [self._ratio(past)[0] for past in context.earlier if past.verdict is Verdict.OK]
        ratios = [ratio for ratio in all_ratios if ratio is not None]
        return [max(ratios)] if ratios else []

    def _reward(self, value: float | None, **components: float | None) -> Reward:
        return Reward(policy=self.name, value=value, components=dict.fromkeys(self.parts) | components)


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
