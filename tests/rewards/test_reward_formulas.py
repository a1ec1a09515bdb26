"""Published formulas, worked by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest

from kernelforge.records import Correctness, Evaluation, PredictedSpeedup, SizeCheck, Verdict
from kernelforge.rewards import Context, reward, unscored
from kernelforge.rewards.policies import bucket_means, towards_one
from tests.rewards.evaluations import GPU, side, timed
from tests.support.factories import make_evaluation, make_profile, make_timing, measured, modelled


def value(policy: str, evaluation: Evaluation, context: Context | None = None) -> float | None:
    return reward(policy, evaluation, context or Context()).value


def sampled(candidate: list[float], eager: list[float], **changes: Any) -> Evaluation:
    """OK on a GPU with these samples of the candidate and of eager."""
    timing = make_timing(candidate=side("candidate", candidate), baselines=(side("eager", eager),))
    performance = measured(timing=timing, speedup=2.0, speedup_lower=1.9, speedup_eager=2.0)
    return make_evaluation(**({"fingerprint": GPU, "performance": performance} | changes))


def quarantined() -> Evaluation:
    """A time that is not believed, though its samples are there."""
    return make_evaluation(fingerprint=GPU, performance=measured(timing=make_timing(), quarantined="below the floor"))


def against(eager: float, compiled: float | None, **changes: Any) -> Evaluation:
    """Of these speedups over eager, by a ratio, and over torch.compile, by medians alone."""
    sides = [side("eager", [10 * eager])] + ([] if compiled is None else [side("compile", [10 * compiled])])
    timing = make_timing(10.0, eager, candidate=side("candidate", [10.0]), baselines=tuple(sides), **changes)
    performance = measured(speedup=eager, speedup_lower=eager, speedup_eager=eager, timing=timing)
    return make_evaluation(fingerprint=GPU, performance=performance)


def foreseen(low: float, high: float | None = None) -> Evaluation:
    """OK on an emulated device, with these ends of a predicted speedup."""
    high = 4 * low if high is None else high
    speedup = math.sqrt(low * high)
    predicted = PredictedSpeedup(
        gpu="H100", speedup=speedup, low=low, high=high, eager_us=speedup * 10.0, eager_origin="predicted",
        eager_source="a fit",
    )  # fmt: skip
    return make_evaluation(performance=modelled(predicted=predicted))


# Our own


@pytest.mark.parametrize(
    ("low", "part"),
    [(1.0, math.log(8) / 4), (2.0, math.log(16) / 4), (0.5, math.log(4) / 4), (0.01, 0.0), (99.0, math.log(64) / 4)],
)
def test_a_predicted_speedup_earns_a_part_of_its_own(low: float, part: float) -> None:
    scored = reward("kernelforge/2", foreseen(low))
    assert scored.value == pytest.approx(0.3 + part)
    assert scored.components == {"correct": 0.3, "log_speedup": None, "log_predicted": pytest.approx(part)}
    assert value("kernelforge/1", foreseen(low)) == 0.3
    assert value("kevin/1", foreseen(low)) == 0.3, "a prediction is no speedup"


def test_what_is_measured_earns_the_same_under_both_versions() -> None:
    for evaluation in (against(3.0, 2.0), quarantined(), make_evaluation(performance=modelled())):
        assert value("kernelforge/2", evaluation) == value("kernelforge/1", evaluation)


# CUDA-L1


@pytest.mark.parametrize(
    ("ratio", "rounded"),
    [(1.118, 1.11), (0.992, 1.0), (1.0, 1.0), (1.12, 1.12), (2.999, 2.99), (0.5, 0.5), (0.411, 0.42), (1e-9, 0.01)],
)
def test_cuda_l1_rounds_towards_one(ratio: float, rounded: float) -> None:
    assert towards_one(ratio) == rounded


def test_cuda_l1_rewards_the_median_of_bucket_means() -> None:
    # Seven buckets of two: their means are 1.08, 1.09, 1.10, 1.118, 1.12, 1.13, 1.14.
    theirs = [10.8, 10.8, 10.9, 10.9, 11.0, 11.0, 11.17, 11.19, 11.2, 11.2, 11.3, 11.3, 11.4, 11.4]
    scored = reward("cuda-l1/1", sampled([10.0] * 14, theirs))
    assert scored.value == 1.11
    assert scored.components["ratio"] == pytest.approx(1.118)
    assert scored.components["suspect"] == 0


def test_cuda_l1_drops_what_drifts() -> None:
    # Bucket means 1, 1, 1, 1, 2, 2, 2: their variance is (4 (3/7)^2 + 3 (4/7)^2) / 6 = 2/7.
    evaluation = sampled([10.0] * 14, [10.0] * 8 + [20.0] * 6)
    scored = reward("cuda-l1/1", evaluation)
    assert scored.value is None
    assert scored.components["variance"] == pytest.approx(2 / 7)
    assert "vary too much" in unscored(evaluation, scored)


def test_cuda_l1_keeps_what_varies_within_buckets_alone() -> None:
    # By value, three buckets would hold 1.0 and three 1.2; in time every bucket holds both.
    scored = reward("cuda-l1/1", sampled([10.0] * 14, [10.0, 12.0] * 7))
    assert scored.value == 1.1
    assert scored.components["variance"] == pytest.approx(0)


def test_cuda_l1_buckets_are_in_order_and_nearly_equal() -> None:
    assert bucket_means([float(item) for item in range(14)]) == [0.5, 2.5, 4.5, 6.5, 8.5, 10.5, 12.5]
    assert bucket_means([float(item) for item in range(8)]) == [0, 1, 2, 3, 4, 5, 6.5]


def test_cuda_l1_pairs_sides_of_different_lengths_by_position() -> None:
    # The candidate slows down by half, and eager with it: every pair has the same ratio.
    own, theirs = [10.0] * 7 + [15.0] * 7, [20.0] * 14 + [30.0] * 14
    scored = reward("cuda-l1/1", sampled(own, theirs))
    assert (scored.value, scored.components["variance"]) == (2.0, 0.0)


def test_cuda_l1_suspects_jumps() -> None:
    def suspect(speedup: float, *earlier: float) -> float | None:
        context = Context(earlier=[make_evaluation(Verdict.WRONG), *map(timed, earlier)])
        return reward("cuda-l1/1", timed(speedup), context).components["suspect"]

    assert (suspect(3.0), suspect(3.1)) == (0, 1)
    assert (suspect(2.4, 1.2, 0.5), suspect(2.5, 1.2, 0.5)) == (0, 1)


def test_cuda_l1_without_samples_for_seven_buckets_rounds_the_recorded_ratio() -> None:
    assert value("cuda-l1/1", sampled([10.0] * 3, [30.0] * 3)) == 2.0


# CUDA-L2


def test_cuda_l2_pays_for_error_and_length() -> None:
    checks = (SizeCheck(size="small", status="passed", error=0.5), SizeCheck(size="full", status="passed", error=0.25))
    evaluation = timed(1.25, correctness=Correctness(sizes=checks))
    # 1.25 - 0.1 * 0.5 - 0.005 * 10
    scored = reward("cuda-l2/1", evaluation, Context("x" * 10_000))
    assert scored.value == pytest.approx(1.15)
    assert scored.components == pytest.approx({"correct": 1.0, "speedup": 1.25, "error": -0.05, "length": -0.05})


def test_cuda_l2_leaves_a_correct_candidate_above_a_wrong_one() -> None:
    assert value("cuda-l2/1", timed(0.1), Context("x" * 200_000)) == 0.01
    assert value("cuda-l2/1", make_evaluation(Verdict.WRONG), Context("x")) == 0.0


def test_cuda_l2_counts_an_unknown_time_as_no_faster() -> None:
    assert value("cuda-l2/1", make_evaluation(), Context("x" * 2_000)) == pytest.approx(0.99)


# Kevin, kernelbench-tinker


@pytest.mark.parametrize(
    ("speedup", "kevin", "tinker"), [(0.5, 0.8, 0.3), (1.0, 1.3, 0.3), (2.5, 2.8, 1.8), (20.0, 20.3, 10.3)]
)
def test_kevin_and_tinker_add_the_speedup_over_eager(speedup: float, kevin: float, tinker: float) -> None:
    performance = measured(speedup=9.0, speedup_lower=8.0, speedup_eager=speedup)
    evaluation = make_evaluation(fingerprint=GPU, performance=performance)
    assert value("kevin/1", evaluation) == pytest.approx(kevin)
    assert value("kernelbench-tinker/1", evaluation) == pytest.approx(tinker)


# CUDA Agent


@pytest.mark.parametrize(
    ("eager", "compiled", "milestone"),
    [(1.05, 2.0, 1), (1.06, 1.05, 2), (1.06, 1.06, 3), (3.0, None, 2), (0.5, 0.5, 1), (1.0, 1.5, 1)],
)
def test_cuda_agent_milestones_take_five_percent_of_the_baselines_time(
    eager: float, compiled: float | None, milestone: float
) -> None:
    # 1.05 times as fast saves 4.8 % of the time, 1.06 times 5.7 %.
    assert value("cuda-agent/1", against(eager, compiled)) == milestone


def test_cuda_agent_punishes_what_is_not_correct() -> None:
    assert value("cuda-agent/1", make_evaluation(Verdict.CRASH)) == -1


# Dr. Kernel


@pytest.mark.parametrize(("speedup", "coverage", "total"), [(2.0, 1.0, 2.0), (5.0, 0.6, 2.3), (0.4, None, 0.7)])
def test_dr_kernel_adds_capped_speedup_and_coverage(speedup: float, coverage: float | None, total: float) -> None:
    assert value("dr-kernel/1", against(speedup, None, coverage=coverage)) == pytest.approx(total)


@pytest.mark.parametrize(
    ("speedup", "tier"), [(0.99, -0.1), (1.0, 0.2), (1.2, 0.4), (1.5, 0.6), (2.0, 0.8), (2.99, 0.8), (3.0, 1.0)]
)
def test_dr_kernel_tiers(speedup: float, tier: float) -> None:
    assert value("dr-kernel-tiers/1", against(speedup, None)) == tier


@pytest.mark.parametrize(
    ("verdict", "stage", "penalty"),
    [
        (Verdict.POLICY, "parse", -1.0),
        (Verdict.POLICY, "policy", -1.0),
        (Verdict.BUILD, "compile", -0.5),
        (Verdict.LIMIT, "plan", -0.5),
        (Verdict.WRONG, "small", -0.3),
        (Verdict.TIMEOUT, "full", -0.3),
    ],
)
def test_dr_kernel_tiers_of_failures(verdict: Verdict, stage: str, penalty: float) -> None:
    assert value("dr-kernel-tiers/1", make_evaluation(verdict, stage=stage)) == penalty


def test_a_decoy_is_not_a_kernel() -> None:
    decoy = against(4.0, None, coverage=0.0)
    assert value("dr-kernel/1", decoy) == 0
    assert value("dr-kernel-tiers/1", decoy) == -1
    assert value("autotriton/1", decoy) == 0
    assert value("autotriton/1", against(4.0, None, coverage=0.1)) == 1


@pytest.mark.parametrize(
    ("low", "high", "part"),
    [
        (2.0, 4.0, math.log(2) / 8),
        (0.7, 1.4, 0.0),
        (0.1, 0.5, -math.log(2) / 8),
        (50.0, 90.0, math.log(8) / 8),
        (0.001, 0.002, -math.log(8) / 8),
    ],
)
def test_predicted_pays_what_the_models_errors_leave_no_doubt_of(low: float, high: float, part: float) -> None:
    assert value("predicted/1", foreseen(low, high)) == pytest.approx(0.3 + part)


def test_predicted_is_a_gate_where_nothing_is_predicted() -> None:
    assert value("predicted/1", make_evaluation()) == 0.3
    assert value("predicted/1", timed(5.0)) == 0.3


@pytest.mark.parametrize(
    ("verdict", "stage", "credit"),
    [
        (Verdict.POLICY, "parse", 0.0),
        (Verdict.LIMIT, "plan", 0.02),
        (Verdict.BUILD, "compile", 0.05),
        (Verdict.WRONG, "small", 0.1),
        (Verdict.CRASH, "hidden", 0.15),
        (Verdict.WRONG, "full", 0.2),
        (Verdict.POLICY, "full", 0.0),
    ],
)
def test_shaped_pays_for_the_stage_of_a_failure(verdict: Verdict, stage: str, credit: float) -> None:
    assert value("shaped/1", make_evaluation(verdict, stage=stage)) == credit


def test_shaped_pays_counts_against_the_least() -> None:
    sizes = (SizeCheck(size="full", status="passed", launches=2),)
    evaluation = make_evaluation(correctness=Correctness(sizes=sizes))
    profile = make_profile(dram=2400.0, loads=60.0, stores=15.0)  # twice the least bytes, both
    scored = reward("shaped/1", evaluation, Context(profile=profile))
    assert scored.components == {"stage": None, "correct": 0.3, "dram": 0.15, "sectors": 0.1, "launches": 0.05}
    assert scored.value == pytest.approx(0.6)
    best = Context(profile=make_profile(dram=900.0, loads=5.0))  # below the least is not more than all
    assert value("shaped/1", evaluation, best) == pytest.approx(0.3 + 0.3 + 0.2 + 0.05)
    assert value("shaped/1", make_evaluation()) == 0.3


# Speedups that cannot be


@pytest.mark.parametrize(
    ("policy", "most"), [("cuda-l1/1", 1e6), ("cuda-l2/1", 1e6), ("kevin/1", 1e6 + 0.3), ("kernelbench-tinker/1", 10.3)]
)
def test_no_speedup_counts_for_more_than_a_million(policy: str, most: float) -> None:
    assert value(policy, timed(1e300)) == most
    assert value(policy, timed(1e300, samples=1)) == most


# Times without a baseline's


@pytest.mark.parametrize("policy", ["cuda-l1/1", "cuda-l2/1"])
def test_a_time_without_a_baseline_is_not_taken_for_a_speedup_of_one(policy: str) -> None:
    alone = make_timing(candidate=side("candidate", [50.0] * 14), baselines=(), ratios=(), fastest=None)
    evaluation = make_evaluation(fingerprint=GPU, performance=measured(timing=alone))
    scored = reward(policy, evaluation)
    assert (scored.value, scored.components["correct"]) == (None, 1.0)
    assert "was timed with it" in unscored(evaluation, scored)


def test_cuda_l1_takes_no_other_baseline_for_eager() -> None:
    other = side("compile", [10.0] * 14)
    alone = make_timing(candidate=side("candidate", [50.0] * 14), baselines=(other,), ratios=(), fastest=None)
    evaluation = make_evaluation(fingerprint=GPU, performance=measured(timing=alone, speedup=0.2, speedup_lower=0.2))
    assert value("cuda-l1/1", evaluation) is None
    assert value("cuda-l2/1", evaluation) == 0.2


# Times that are modelled or not believed


@pytest.mark.parametrize(
    ("policy", "modelled_time", "not_believed"),
    [
        ("kernelforge/1", 0.3, 0.3),
        ("cuda-l1/1", 1.0, 0.0),
        ("cuda-l2/1", 1.0, 0.0),
        ("kevin/1", 0.3, 0.3),
        ("cuda-agent/1", 1.0, 1.0),
        ("dr-kernel/1", 0.5, 0.5),
        ("dr-kernel-tiers/1", -0.1, -0.1),
        ("kernelbench-tinker/1", 0.3, 0.3),
        ("autotriton/1", 1.0, 1.0),
    ],
)
def test_a_time_that_is_not_measured_or_not_believed_earns_no_speed(
    policy: str, modelled_time: float, not_believed: float
) -> None:
    assert value(policy, make_evaluation(performance=modelled(0.001))) == modelled_time
    assert value(policy, quarantined()) == not_believed
