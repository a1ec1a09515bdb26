"""The default reward: its formula, its cap, and what is never a score."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelforge.errors import UsageError
from kernelforge.records import Evaluation, Verdict
from kernelforge.rewards import DEFAULT_POLICY, MODELNEW_POLICY, POLICIES, components, reward
from kernelforge.rewards.policies import unscored
from tests.support.factories import (
    make_evaluation,
    make_fingerprint,
    make_passed_over,
    measured,
    measured_evaluation,
    uncompared_evaluation,
)

GATE = 0.3


def value_of(evaluation: Evaluation) -> float | None:
    return reward(DEFAULT_POLICY, evaluation).value


@pytest.mark.parametrize("verdict", [v for v in Verdict if v not in (Verdict.OK, Verdict.INFRA)])
def test_what_is_not_ok_earns_nothing(verdict: Verdict) -> None:
    assert value_of(make_evaluation(verdict)) == 0.0


def test_infra_is_not_a_score() -> None:
    scored = reward(DEFAULT_POLICY, make_evaluation(Verdict.INFRA))
    assert scored.value is None
    assert set(scored.components.values()) == {None}


def test_a_run_without_a_jail_is_never_rewarded() -> None:
    assert value_of(make_evaluation(fingerprint=make_fingerprint(jail="none"))) is None
    bare = make_fingerprint(device="cuda:0", device_kind="cuda", jail="none")
    assert value_of(measured_evaluation(4.0, fingerprint=bare)) is None


def test_what_was_predicted_and_not_measured_has_no_score() -> None:
    evaluation = make_passed_over()
    assert reward(DEFAULT_POLICY, evaluation).value is None
    assert "not measured" in unscored(evaluation, reward(DEFAULT_POLICY, evaluation))


def test_a_class_with_host_code_is_rewarded_by_its_own_policy_alone_and_less_than_a_plan() -> None:
    host_code = measured_evaluation(4.0, lane="modelnew", build=None)
    values = {name: reward(name, host_code).value for name in POLICIES}
    assert [name for name, value in values.items() if value is not None] == [MODELNEW_POLICY]
    assert values[MODELNEW_POLICY] == pytest.approx(0.1 + math.log(4))
    assert value_of(measured_evaluation(4.0)) - values[MODELNEW_POLICY] == pytest.approx(0.2)
    assert reward(MODELNEW_POLICY, make_evaluation(Verdict.WRONG, lane="modelnew", build=None)).value == 0
    bare = host_code.fingerprint.model_copy(update={"jail": "none"})
    assert reward(MODELNEW_POLICY, host_code.model_copy(update={"fingerprint": bare})).value is None


@pytest.mark.parametrize("policy", POLICIES)
def test_what_was_not_compared_at_its_full_size_earns_what_a_wrong_answer_earns(policy: str) -> None:
    uncompared = uncompared_evaluation()
    assert uncompared.outcome == "OK, full size not compared"
    assert reward(policy, uncompared).value == reward(policy, make_evaluation(Verdict.WRONG, stage="full")).value
    assert components(uncompared).correct == 0
    assert components(make_evaluation()).correct == 1


def test_a_quarantined_time_earns_the_gate_alone() -> None:
    performance = measured(10.0, quarantined="below the floor")
    assert value_of(measured_evaluation(performance=performance)) == GATE


def test_an_emulated_device_earns_the_gate_and_has_no_speed_part() -> None:
    scored = reward(DEFAULT_POLICY, make_evaluation())
    assert scored.value == GATE
    assert scored.components == {"correct": GATE, "log_speedup": None, "log_predicted": None}


@pytest.mark.parametrize(
    ("speedup", "value"),
    [(0.2, GATE), (1.0, GATE), (2.0, GATE + math.log(2)), (8.0, GATE + math.log(8)), (100.0, GATE + math.log(8))],
)
def test_the_speed_part_is_the_logarithm_of_the_speedup_capped(speedup: float, value: float) -> None:
    assert value_of(measured_evaluation(speedup)) == pytest.approx(value)


def test_the_lower_bound_counts_not_the_point_estimate() -> None:
    evaluation = measured_evaluation(performance=measured(speedup=4.0, speedup_lower=2.0, speedup_eager=6.0))
    assert value_of(evaluation) == pytest.approx(GATE + math.log(2))


def test_a_measured_time_with_no_baseline_earns_the_gate() -> None:
    components = reward(DEFAULT_POLICY, measured_evaluation(None)).components
    assert components == {"correct": GATE, "log_speedup": None, "log_predicted": None}


@given(st.floats(1e-3, 1e3), st.floats(1e-3, 1e3))
def test_a_faster_candidate_never_earns_less(first: float, second: float) -> None:
    slow, fast = (value_of(measured_evaluation(speedup)) for speedup in sorted((first, second)))
    assert slow is not None
    assert fast is not None
    assert 0 < slow <= fast


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_a_policy_is_a_pure_function_that_signs_with_its_name(policy: str) -> None:
    evaluation = measured_evaluation(2.0)
    scored = reward(policy, evaluation)
    assert scored.policy == policy
    assert scored == reward(policy, Evaluation.model_validate_json(evaluation.model_dump_json()))


def test_an_unknown_policy_is_refused_with_the_names_there_are() -> None:
    with pytest.raises(UsageError, match=r"no reward policy 'x/1'; choose one of kernelforge/2"):
        reward("x/1", make_evaluation())
