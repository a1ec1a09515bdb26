"""The fixed keys of a reward: what each says, at every verdict and stage."""

from __future__ import annotations

import pytest
from hypothesis import given, settings

from kernelforge.client.models import Components
from kernelforge.records import Evaluation, Verdict
from kernelforge.rewards import components
from tests.rewards.evaluations import GPU, evaluations
from tests.support.factories import make_evaluation, make_timing, measured

NAMES = set(Components.model_fields)


@settings(max_examples=60, deadline=None)
@given(evaluations)
def test_every_key_is_always_there_and_gates_are_zero_or_one(evaluation: Evaluation) -> None:
    result = components(evaluation)
    assert set(result.model_dump()) == NAMES
    gates = {result.format, result.built, result.correct, result.policy}
    assert gates == {None} if evaluation.verdict is Verdict.INFRA else gates <= {0.0, 1.0}
    assert Components.model_validate_json(result.model_dump_json()) == result


def test_infra_says_nothing() -> None:
    assert set(components(make_evaluation(Verdict.INFRA)).model_dump().values()) == {None}


@pytest.mark.parametrize(
    ("verdict", "stage", "gates"),
    [
        (Verdict.POLICY, "parse", (0, 0, 0, 1)),
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
