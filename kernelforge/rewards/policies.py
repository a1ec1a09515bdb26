"""The reward policies, their table, and scoring of a stored evaluation.

A policy sees nothing but stored records, so old runs can be scored again with no device at hand.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import pairwise
from statistics import fmean, median, variance
from types import MappingProxyType
from typing import ClassVar

from kernelforge.errors import UsageError
from kernelforge.records import Evaluation, Reward, Verdict
from kernelforge.rewards.base import (
    MOST_SPEEDUP,
    Context,
    RewardPolicy,
    believed,
    capped,
    components,
    coverage_of,
    divided,
    largest_error,
    over,
    over_eager,
    over_fastest,
    quarantined,
    side_of,
)

CORRECT = 0.3
SPEEDUP_CAP = 8.0
"""Speedups above this earn no more: a figure that large is looked at, not rewarded."""
PREDICTED_WEIGHT = 0.25
"""Weight of a predicted speedup: that of a measured one is 1."""


class KernelForge1(RewardPolicy):
    """0 unless the verdict is OK, ``POLICY`` among the rest; then a gate of 0.3 for being correct, and the natural
    logarithm of the lower confidence bound of the speedup over the fastest baseline, clipped to 1 to 8 times.

    Slower than the baseline earns the gate alone, and so does a correct candidate with no measured time that is
    believed: the component is None then.
    """

    name = "kernelforge/1"
    title = "0.3 for correct, plus the logarithm of the speedup's lower bound, capped at 8 times"
    source = "KernelForge's own; docs/rewards.md"
    bounds = (0.0, CORRECT + math.log(SPEEDUP_CAP))
    parts: ClassVar[tuple[str, ...]] = ("correct", "log_speedup")

    def score(self, evaluation: Evaluation, context: Context) -> Reward:
        performance = believed(evaluation)
        lower = None if performance is None else performance.speedup_lower
        speed = None if lower is None else math.log(min(max(lower, 1.0), SPEEDUP_CAP))
        return _gate_and(self, evaluation, speed)


class KernelForge2(KernelForge1):
    """As ``kernelforge/1``; where no time is measured, 0.25 times the logarithm of 8 times the predicted speedup
    over eager PyTorch (its lower end, clipped to 1/8 to 8 times) takes the place of the other.

    So the faster of two right kernels earns more even where both are slower than PyTorch: without that, training on an
    emulated device settles on any right kernel. The most that can be earned is 1.34, for a measured speedup 2.38.
    """

    name = "kernelforge/2"
    title = "kernelforge/1; where nothing is measured, a part for the predicted speedup, with a lower cap"
    parts = ("correct", "log_speedup", "log_predicted")

    def score(self, evaluation: Evaluation, context: Context) -> Reward:
        performance = evaluation.performance
        predicted = None if performance is None else performance.predicted
        if predicted is None or evaluation.verdict is not Verdict.OK:
            return super().score(evaluation, context)
        lower = min(max(predicted.low, 1 / SPEEDUP_CAP), SPEEDUP_CAP)
        part = PREDICTED_WEIGHT * math.log(SPEEDUP_CAP * lower)
        return self.reward(CORRECT + part, correct=CORRECT, log_predicted=part)


MOST_BONUS = 10.0


class Kevin(RewardPolicy):
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
    parts = ("correct", "speedup")

    def score(self, evaluation: Evaluation, context: Context) -> Reward:
        return _gate_and(self, evaluation, over_eager(evaluation))


class KernelBenchTinker(RewardPolicy):
    """``0.3 + min(speedup - 1, 10)`` of a correct candidate, else 0. No faster than eager, or no time: 0.3."""

    name = "kernelbench-tinker/1"
    title = "0.3 for correct, plus what the speedup over eager exceeds 1 by, at most 10"
    source = (
        "kernelbench-tinker (repository), reward.py with its default weights: nothing is added, or taken, "
        "at or below a speedup of 1"
    )
    bounds = (0.0, CORRECT + MOST_BONUS)
    parts = ("correct", "bonus")

    def score(self, evaluation: Evaluation, context: Context) -> Reward:
        speedup = over_eager(evaluation)
        bonus = None if speedup is None else min(max(speedup - 1, 0.0), MOST_BONUS)
        return _gate_and(self, evaluation, bonus)


DR_KERNEL_WEIGHT = 0.5
"""Weight of correctness, of the speedup, and of coverage in the recipe for 14B."""
DR_KERNEL_CAP = 3.0
"""Speedups above this earn no more."""


class DrKernel(RewardPolicy):
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
    parts = ("correct", "speedup", "coverage")

    def score(self, evaluation: Evaluation, context: Context) -> Reward:
        coverage = coverage_of(evaluation)
        if evaluation.verdict is not Verdict.OK or coverage == 0:
            return self.reward(0.0, correct=0.0, coverage=coverage)
        speedup = over_eager(evaluation)
        fast = None if speedup is None else DR_KERNEL_WEIGHT * min(speedup, DR_KERNEL_CAP)
        covered = None if coverage is None else DR_KERNEL_WEIGHT * coverage
        value = DR_KERNEL_WEIGHT + (fast or 0.0) + (covered or 0.0)
        return self.reward(value, correct=DR_KERNEL_WEIGHT, speedup=fast, coverage=covered)


def _gate_and(policy: RewardPolicy, evaluation: Evaluation, speed: float | None) -> Reward:
    """A gate for being correct, and the second part of the policy on top of it."""
    if evaluation.verdict is not Verdict.OK:
        return policy.reward(0.0, correct=0.0)
    return policy.reward(CORRECT + (speed or 0.0), correct=CORRECT, **{policy.parts[1]: speed})


class AutoTriton(RewardPolicy):
    """1 if it is correct and runs kernels of its own, else 0."""

    name = "autotriton/1"
    title = "1 if correct by its own kernels, else 0"
    source = (
        "AutoTriton, rule-based reward: a Triton kernel that passes its tests. Decided here: a kernel is CUDA's, and "
        "none of its own is a measured coverage of 0; a plan cannot be correct without one but through library calls"
    )
    bounds = (0.0, 1.0)
    parts = ("correct", "own")

    def score(self, evaluation: Evaluation, context: Context) -> Reward:
        coverage = coverage_of(evaluation)
        correct = float(evaluation.verdict is Verdict.OK)
        own = None if coverage is None else float(coverage > 0)
        value = 0.0 if own == 0 else correct
        return self.reward(value, correct=correct, own=own)


SAVED = 0.05
"""A baseline is beaten when more than this share of its time is saved."""
COMPILE = "compile"
"""torch.compile with its default mode."""


class CudaAgent(RewardPolicy):
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
    parts = ("correct", "beats_eager", "beats_compile")

    def score(self, evaluation: Evaluation, context: Context) -> Reward:
        if evaluation.verdict is not Verdict.OK:
            return self.reward(-1.0, correct=0.0)
        eager, compiled = beaten(over_eager(evaluation)), beaten(over(evaluation, COMPILE))
        value = 1.0 if not eager else 3.0 if compiled else 2.0
        return self.reward(value, correct=1.0, beats_eager=eager, beats_compile=compiled)


def beaten(speedup: float | None) -> float | None:
    """1 if ``(t0 - t) / t0`` is above 5 %, else 0; None where there is no speedup."""
    return None if speedup is None else float(1 - 1 / speedup > SAVED)


REFUSED = -1.0
NOT_BUILT = -0.5
NOT_CORRECT = -0.3
SLOWER = -0.1
TIERS = ((3.0, 1.0), (2.0, 0.8), (1.5, 0.6), (1.2, 0.4), (1.0, 0.2))
"""Speedup from which on, and the reward."""


class DrKernelTiers(RewardPolicy):
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
    parts = ("correct", "tier")

    def score(self, evaluation: Evaluation, context: Context) -> Reward:
        speedup = over_eager(evaluation)
        if evaluation.verdict is Verdict.OK and coverage_of(evaluation) != 0:
            tier = None if speedup is None else tier_of(speedup)
            value = SLOWER if tier is None else tier
            return self.reward(value, correct=1.0, tier=tier)
        return self.reward(failed(evaluation), correct=0.0)


def tier_of(speedup: float) -> float:
    """The reward of a correct candidate of that speedup."""
    return next((reward for least, reward in TIERS if speedup >= least), SLOWER)


def failed(evaluation: Evaluation) -> float:
    """The penalty of a candidate that is not correct, or a decoy."""
    if evaluation.verdict in (Verdict.POLICY, Verdict.OK):
        return REFUSED
    return NOT_BUILT if evaluation.stage in ("plan", "compile", "policy") else NOT_CORRECT


BUCKETS = 7
MOST_VARIANCE = 0.005
"""Between the means of buckets; above it the paper drops the evaluation."""
JUMP = 3.0
LEAP = 2.0
EAGER = "eager"


def paired_ratios(evaluation: Evaluation) -> list[float]:
    """Time of eager PyTorch over time of the candidate, sample against sample, in the order they were taken.

    The two sides took turns. Where one has more samples than the other, each sample of the shorter is paired with that
    of the longer which lies at the same share of the way.
    """
    performance = believed(evaluation)
    timing = None if performance is None else performance.timing
    reference = None if timing is None else side_of(timing, EAGER)
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


class CudaL1(RewardPolicy):
    """The median of seven buckets' mean ratios over eager PyTorch, rounded to two decimals towards 1.

    The paper's evaluation drops what varies too much between buckets: there is no score then, and ``variance`` says
    why. A time that two measurements contradict, it rejects: 0. Where nothing was timed, a correct candidate earns 1,
    as in its training on correctness alone; a time without one of eager has no score. With fewer samples than
    buckets the ratio that was recorded is rounded.
    """

    name = "cuda-l1/1"
    title = "Median over 7 chronological buckets of the speedup over eager, rounded towards 1"
    source = (
        "CUDA-L1 (arXiv 2507.14111), reward of contrastive RL. Decided here: the variance is the sample variance of "
        "bucket means; samples are paired by position; 0 for a time in quarantine, 1 where no time was taken. The "
        "second measurement above 3 times, or twice the best so far, is the evaluator's; clipping is the learner's"
    )
    bounds = (0.0, MOST_SPEEDUP)
    parts = ("correct", "ratio", "variance", "suspect")

    def score(self, evaluation: Evaluation, context: Context) -> Reward:
        if evaluation.verdict is not Verdict.OK:
            return self.reward(0.0, correct=0.0)
        if quarantined(evaluation):
            return self.reward(0.0, correct=1.0)
        ratio, spread = self._ratio(evaluation)
        if ratio is None:
            return self.reward(_untimed(evaluation), correct=1.0)
        suspect = float(ratio > JUMP or any(ratio > LEAP * best for best in self._best(context)))
        kept = spread is None or spread <= MOST_VARIANCE
        value = towards_one(ratio) if kept else None
        return self.reward(value, correct=1.0, ratio=ratio, variance=spread, suspect=suspect)

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


def _untimed(evaluation: Evaluation) -> float | None:
    """The speedup of 1 that counts where no time was taken; none where one was, and none of a baseline."""
    return 1.0 if believed(evaluation) is None else None


ALPHA = 0.1
"""Weight of the error, which is 1 at the tolerance. Not published."""
BETA = 0.005
"""Weight of a thousand characters of source. Not published; a kernel of 10,000 characters pays 0.05."""
LEAST_CORRECT = 0.01
"""What a correct candidate earns at least, so that neither term makes it worth no more than a wrong one."""


class CudaL2(RewardPolicy):
    """``r = mean(t_ref / t_custom - alpha * diff) - beta * L(code)`` of a correct candidate, at least 0.01.

    A time in quarantine is rejected: 0. Where nothing was timed, the ratio counts as 1; a time without one of any
    baseline has no score.
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
    parts = ("correct", "speedup", "error", "length")

    def score(self, evaluation: Evaluation, context: Context) -> Reward:
        if evaluation.verdict is not Verdict.OK:
            return self.reward(0.0, correct=0.0)
        error = largest_error(evaluation)
        paid = None if error is None else -ALPHA * min(error, 1.0)  # of what passed, none counts for more
        length = None if context.source is None else -BETA * len(context.source) / 1000
        if quarantined(evaluation):
            return self.reward(0.0, correct=1.0, error=paid, length=length)
        speedup = over_fastest(evaluation)
        ratio = _untimed(evaluation) if speedup is None else speedup
        value = None if ratio is None else max(ratio + (paid or 0.0) + (length or 0.0), LEAST_CORRECT)
        return self.reward(value, correct=1.0, speedup=speedup, error=paid, length=length)


class Predicted(RewardPolicy):
    """0.3 for a correct candidate, plus an eighth of the logarithm of the predicted speedup over eager PyTorch, as far
    as the model's errors leave it no doubt: of its lower end if that is above 1, of its upper end if that is below 1,
    and else nothing.

    A correct candidate without a predicted speedup, as on a GPU, earns the gate alone.
    """

    name = "predicted/1"
    title = "0.3 for correct, plus a part for the predicted speedup beyond the model's errors"
    source = "KernelForge's own; docs/rewards.md"
    bounds = (0.0, CORRECT + math.log(SPEEDUP_CAP) / 8)
    parts: ClassVar[tuple[str, ...]] = ("correct", "log_predicted")

    def score(self, evaluation: Evaluation, context: Context) -> Reward:
        performance = evaluation.performance
        predicted = None if performance is None else performance.predicted
        part = None if predicted is None else math.log(beyond_doubt(predicted.low, predicted.high)) / 8
        return _gate_and(self, evaluation, part)


def beyond_doubt(low: float, high: float) -> float:
    """The end of an interval of speedups that is nearer to 1, from 1/8 to 8; 1 if the interval holds it."""
    return min(max(low, 1.0), SPEEDUP_CAP) if low > 1 else max(min(high, 1.0), 1 / SPEEDUP_CAP)


STAGES = {"plan": 0.02, "compile": 0.05, "small": 0.1, "hidden": 0.15}
"""Credit of a candidate that ended at a stage; at a later one 0.2. None for what may not be done."""
LATER_STAGE = 0.2
SHARES = {"dram": 0.3, "sectors": 0.2, "launches": 0.1}
"""Most that is earned by each count."""


class Shaped(RewardPolicy):
    """Credit for the stage that a candidate came to, and, if it is correct, 0.3 and up to 0.6 for what was counted.

    Each count earns its share times the least over the counted: DRAM bytes, and bytes of the sectors that accesses to
    global memory take, against the bytes that any kernel must move; and launches against one. Counts are totals of the
    plan, so that neither more launches nor more accesses, however well they are laid out, earn anything. What was not
    counted adds nothing.
    """

    name = "shaped/1"
    title = "Up to 0.2 by the stage reached, 0.3 for correct, up to 0.6 for bytes and launches against the least"
    source = "KernelForge's own; docs/rewards.md"
    bounds = (0.0, CORRECT + sum(SHARES.values()))
    parts: ClassVar[tuple[str, ...]] = ("stage", "correct", *SHARES)

    def score(self, evaluation: Evaluation, context: Context) -> Reward:
        if evaluation.verdict is not Verdict.OK:
            stage = stage_credit(evaluation)
            return self.reward(stage, stage=stage, correct=0.0)
        counted = components(evaluation, context.profile)
        ratios = {"dram": counted.dram_ratio, "sectors": counted.sector_ratio, "launches": counted.launches}
        shares = {name: None if ratio is None else SHARES[name] / max(ratio, 1.0) for name, ratio in ratios.items()}
        return self.reward(CORRECT + sum(share or 0.0 for share in shares.values()), correct=CORRECT, **shares)


def stage_credit(evaluation: Evaluation) -> float:
    """Credit of a candidate that is not correct, by the stage at which it ended."""
    if evaluation.verdict is Verdict.POLICY:
        return 0.0
    return STAGES.get(evaluation.stage, LATER_STAGE)


MODELNEW_CORRECT = 0.1


class ModelNew1(KernelForge1):
    """As ``kernelforge/1`` with a gate of 0.1: of two correct candidates that are equally fast, the one of device code
    and a plan earns 0.2 more. So a policy that may reply with either gains nothing by host code.

    The only policy that rewards a ``ModelNew`` that ran as it is. Its times are taken from outside, but its host code
    is next to them: see ``docs/modelnew.md`` for what stays open.
    """

    name = "modelnew/1"
    title = "For ModelNew classes that ran as they are: kernelforge/1 with 0.1 for correct"
    source = "KernelForge's own; docs/rewards.md"
    bounds = (0.0, MODELNEW_CORRECT + math.log(SPEEDUP_CAP))
    rewards_host_code = True

    def score(self, evaluation: Evaluation, context: Context) -> Reward:
        if evaluation.verdict is not Verdict.OK:
            return self.reward(0.0, correct=0.0)
        speed = super().score(evaluation, context).components["log_speedup"]
        return self.reward(MODELNEW_CORRECT + (speed or 0.0), correct=MODELNEW_CORRECT, log_speedup=speed)


DEFAULT_POLICY = KernelForge2.name
MODELNEW_POLICY = ModelNew1.name
"""Of a ``ModelNew`` that the reward server ran as it is."""

_ALL: tuple[RewardPolicy, ...] = (
    KernelForge2(),
    KernelForge1(),
    CudaL1(),
    CudaL2(),
    Kevin(),
    CudaAgent(),
    DrKernel(),
    DrKernelTiers(),
    KernelBenchTinker(),
    AutoTriton(),
    Predicted(),
    Shaped(),
    ModelNew1(),
)
POLICIES: Mapping[str, RewardPolicy] = MappingProxyType({policy.name: policy for policy in _ALL})
"""Every policy by its name, the default first."""

NO_CONTEXT = Context()


def find_policy(name: str) -> RewardPolicy:
    """
    Raises:
        UsageError: there is no such policy.
    """
    if name not in POLICIES:
        raise UsageError(f"there is no reward policy {name!r}; choose one of {', '.join(POLICIES)}")
    return POLICIES[name]


def reward(policy: str, evaluation: Evaluation, context: Context = NO_CONTEXT) -> Reward:
    """Score ``evaluation`` under the policy of that name.

    Four rules stand above every policy: ``INFRA`` is not a score, nor is a candidate that was passed over and not
    measured, and what ran without a jail is never rewarded, nor, but by ``modelnew/1``, a ``ModelNew`` class, whose
    host code could have done anything to its own times. The value and every component are None then;
    :func:`unscored` says why. And what was not compared at its full size earns what a wrong
    answer earns: a plan can be written so that no part of it can be run by itself.

    Raises:
        UsageError: there is no such policy.
    """
    found_policy = find_policy(policy)
    if _never_scored(evaluation, found_policy):
        return found_policy.reward(None)
    earlier = tuple(_as_scored(past) for past in context.earlier)
    return found_policy.score(_as_scored(evaluation), replace(context, earlier=earlier))


def _as_scored(evaluation: Evaluation) -> Evaluation:
    """The evaluation as policies see it: wrong, where values were not compared at the full size."""
    if not evaluation.uncompared:
        return evaluation
    wrong = {"verdict": Verdict.WRONG, "stage": "full", "reason": evaluation.outcome, "performance": None}
    return evaluation.model_copy(update=wrong)


def rescore(evaluation: Evaluation, context: Context, policies: Iterable[str]) -> dict[str, Reward]:
    """Score a stored evaluation under several policies, by their names. Needs nothing but records.

    Raises:
        UsageError: there is no such policy.
    """
    return {name: reward(name, evaluation, context) for name in policies}


def unscored(evaluation: Evaluation, scored: Reward) -> str:
    """Reason why a reward has no value, in a line; empty if it has one."""
    if scored.value is not None:
        return ""
    if scored.components.get("variance") is None:
        why = f"no baseline of {scored.policy} was timed with it; one may be in another measurement"
    else:
        why = f"its times vary too much for {scored.policy}, which drops such an evaluation; in another they may not"
    return _never_scored(evaluation, POLICIES.get(scored.policy)) or why


def _never_scored(evaluation: Evaluation, policy: RewardPolicy | None) -> str:
    """The rule above every policy that forbids a score; empty if none does."""
    if evaluation.verdict is Verdict.INFRA:
        return f"it could not be evaluated: {evaluation.reason}"
    if evaluation.passed_over:
        return "it was not measured, for others of its round were predicted to be faster"
    if evaluation.lane == "c":
        return "a C function runs on the CPU, and no policy rewards that"
    if evaluation.lane == "modelnew" and not (policy is not None and policy.rewards_host_code):
        return f"a ModelNew that ran as it is holds host code, which no policy but {MODELNEW_POLICY} rewards"
    return "it ran without a jail, which is never rewarded" if evaluation.fingerprint.jail == "none" else ""
