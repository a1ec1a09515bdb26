"""The fixed keys of a reward: what each says, at every verdict and stage."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings

from kernelforge.client.models import Components
from kernelforge.records import (
    Correctness,
    Evaluation,
    Metric,
    Origin,
    PredictedSpeedup,
    SideEnergy,
    SizeCheck,
    Verdict,
)
from kernelforge.rewards import components
from tests.rewards.evaluations import GPU, evaluations
from tests.support.factories import make_evaluation, make_profile, make_timing, measured, modelled

NAMES = set(Components.model_fields)


@settings(max_examples=60, deadline=None)
@given(evaluations)
def test_every_key_is_always_there_and_gates_are_zero_or_one(evaluation: Evaluation) -> None:
    result = components(evaluation)
    assert set(result.model_dump()) == NAMES
    assert set(result.numbers()) == NAMES - {"origins"}
    gates = {result.format, result.built, result.correct, result.policy}
    assert gates == {None} if evaluation.verdict is Verdict.INFRA else gates <= {0.0, 1.0}
    assert Components.model_validate_json(result.model_dump_json()) == result


def test_infra_says_nothing() -> None:
    result = components(make_evaluation(Verdict.INFRA), make_profile())
    assert set(result.numbers().values()) == {None}
    assert result.origins == {}


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(evaluations)
def test_each_component_that_has_a_value_has_an_origin(evaluation: Evaluation) -> None:
    result = components(evaluation, make_profile())
    assert set(result.origins) == {name for name, value in result.numbers().items() if value is not None}
    assert all(math.isfinite(value) for value in result.numbers().values() if value is not None)


@pytest.mark.parametrize(
    ("verdict", "stage", "share"),
    [
        (Verdict.POLICY, "parse", 0),
        (Verdict.WRONG, "small", 4 / 9),
        (Verdict.WRONG, "full", 6 / 9),
        (Verdict.OK, "done", 1),
    ],
)
def test_the_stage_is_a_share_of_the_cascade(verdict: Verdict, stage: str, share: float) -> None:
    assert components(make_evaluation(verdict, stage=stage)).stage == pytest.approx(share)


@pytest.mark.parametrize(("errors", "largest"), [((0.25, 0.5), 0.5), ((3.0,), 3.0), ((float("nan"),), 1e6), ((), None)])
def test_the_error_is_the_largest_of_all_sizes(errors: tuple[float, ...], largest: float | None) -> None:
    checks = [SizeCheck(size=f"small{index}", status="passed", error=error) for index, error in enumerate(errors)]
    sizes = (*checks, SizeCheck(size="full", status="passed"))
    assert components(make_evaluation(correctness=Correctness(sizes=sizes))).error == largest


def test_a_profile_gives_counts_against_the_least_and_the_share_of_the_floor() -> None:
    predicted = PredictedSpeedup(
        gpu="H100", speedup=2.0, low=1.5, high=3.0, eager_us=20.0, eager_origin="predicted", eager_source="model"
    )
    sizes = (SizeCheck(size="full", status="passed", launches=3),)
    evaluation = make_evaluation(performance=modelled(10.0, predicted=predicted), correctness=Correctness(sizes=sizes))
    result = components(evaluation, make_profile(dram=2400.0, loads=60.0, stores=30.0, requests=30.0, floor_us=4.0))
    counts = (result.dram_ratio, result.sector_ratio, result.sectors_per_request, result.launches)
    assert counts == pytest.approx((2.0, 2.4, 3.0, 3.0))
    assert result.floor_share == pytest.approx(0.4)
    assert (result.predicted_lower, result.predicted, result.predicted_upper) == (1.5, 2.0, 3.0)
    origins = [result.origins[name] for name in ("dram_ratio", "sector_ratio", "floor_share", "predicted", "cost")]
    assert origins == ["modelled", "counted", "modelled", "predicted", "measured"]


def test_fills_are_launches_too_where_a_profile_counted_them() -> None:
    sizes = (SizeCheck(size="full", status="passed", launches=3),)
    counted = [
        Metric(name=f"kernelforge__{what}", value=value, unit="launch", origin=Origin.COUNTED)
        for what, value in (("launches", 3.0), ("memsets", 2.0))
    ]
    profile = make_profile().model_copy(update={"metrics": tuple(counted)})
    assert components(make_evaluation(correctness=Correctness(sizes=sizes)), profile).launches == 5


def test_without_a_profile_only_launches_are_counted() -> None:
    sizes = (SizeCheck(size="full", status="passed", launches=3),)
    result = components(make_evaluation(correctness=Correctness(sizes=sizes)))
    assert result.launches == 3
    assert (result.dram_ratio, result.sector_ratio, result.sectors_per_request, result.floor_share) == (None,) * 4


@pytest.mark.parametrize(
    ("verdict", "stage", "gates"),
    [
        (Verdict.POLICY, "parse", (0, 0, 0, 0)),
        (Verdict.POLICY, "plan", (1, 0, 0, 0)),
        (Verdict.BUILD, "compile", (1, 0, 0, 1)),
        (Verdict.POLICY, "policy", (1, 0, 0, 0)),
        (Verdict.CRASH, "small", (1, 1, 0, 1)),
        (Verdict.WRONG, "hidden", (1, 1, 0, 1)),
        (Verdict.POLICY, "full", (1, 1, 0, 0)),
        (Verdict.OK, "done", (1, 1, 1, 1)),
    ],
)
def test_gates_say_how_far_it_came(verdict: Verdict, stage: str, gates: tuple[int, int, int, int]) -> None:
    result = components(make_evaluation(verdict, stage=stage))
    assert (result.format, result.built, result.correct, result.policy) == gates


def test_a_measured_speedup_comes_with_both_ends_and_coverage() -> None:
    performance = measured(
        speedup=2.0, speedup_lower=1.9, speedup_eager=3.0, timing=make_timing(speedup=2.0, coverage=0.75)
    )
    result = components(make_evaluation(fingerprint=GPU, performance=performance))
    assert (result.speedup_lower, result.speedup, result.speedup_upper, result.coverage) == (1.9, 2.0, 2.02, 0.75)


def test_energy_is_compared_where_both_sides_were_measured() -> None:
    sides = tuple(
        SideEnergy(name=name, joules=joules, interval=(0.9 * joules, 1.1 * joules), idle_w=70.0, windows=5)
        for name, joules in (("candidate", 0.02), ("eager", 0.03))
    )

    def of(**changes: object) -> Components:
        return components(make_evaluation(fingerprint=GPU, performance=measured(**changes)))

    result = of(timing=make_timing(energy=sides), speedup=2.0)
    assert (result.energy_ratio, result.origins["energy_ratio"]) == (pytest.approx(1.5), "measured")
    assert of(timing=make_timing(energy=sides[:1])).energy_ratio is None
    assert of(timing=make_timing(energy=sides), quarantined="too fast").energy_ratio is None


def test_a_modelled_time_has_no_speedup_and_no_coverage() -> None:
    result = components(make_evaluation())
    assert (result.speedup, result.speedup_lower, result.speedup_upper, result.coverage) == (None,) * 4


def test_a_time_in_quarantine_has_no_speedup_and_no_coverage() -> None:
    doubtful = measured(timing=make_timing(coverage=1.0), quarantined="below the floor")
    result = components(make_evaluation(fingerprint=GPU, performance=doubtful))
    assert (result.correct, result.speedup, result.speedup_upper, result.coverage) == (1, None, None, None)


def test_cost_is_of_compiler_oracle_and_device() -> None:
    seconds = {"build": 0.25, "oracle": 1.0, "run": 0.5, "harness": 9.0}
    assert components(make_evaluation(seconds=seconds)).cost == 1.75
