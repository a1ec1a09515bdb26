"""Properties of every policy, for all evaluations."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernelforge.records import Evaluation, Verdict
from kernelforge.rewards import POLICIES, Context, find_policy, rescore, reward, unscored
from kernelforge.rewards.base import believed
from tests.rewards.evaluations import correct, evaluations, incorrect, sources, timed, unscorable
from tests.support.factories import make_evaluation, measured_evaluation

few = settings(max_examples=60, deadline=None)
OF_RATIOS = ("cuda-l1/1", "cuda-l2/1")
"""Policies that pay a ratio and nothing for being correct: they give no score to a time that they cannot compare."""


@pytest.mark.slow
@few
@given(evaluations, st.lists(evaluations, max_size=2), sources)
def test_a_reward_is_none_or_a_finite_number_inside_its_bounds(
    evaluation: Evaluation, earlier: list[Evaluation], source: str | None
) -> None:
    for name, scored in rescore(evaluation, Context(source, earlier), POLICIES).items():
        low, high = find_policy(name).bounds
        assert scored.value is None or low <= scored.value <= high, name
        assert tuple(scored.components) == find_policy(name).parts
        assert not any(math.isnan(part) for part in scored.components.values() if part is not None), name


@pytest.mark.slow
@few
@given(evaluations, st.lists(evaluations, max_size=2), sources)
def test_what_was_stored_gives_the_same_reward_again(
    evaluation: Evaluation, earlier: list[Evaluation], source: str | None
) -> None:
    def stored(record: Evaluation) -> Evaluation:
        return Evaluation.model_validate_json(record.model_dump_json())

    before = rescore(evaluation, Context(source, earlier), POLICIES)
    assert rescore(evaluation, Context(source, earlier), POLICIES) == before
    assert rescore(stored(evaluation), Context(source, list(map(stored, earlier))), POLICIES) == before


@pytest.mark.slow
@few
@given(incorrect(), correct(), sources)
def test_incorrect_never_beats_correct(wrong: Evaluation, right: Evaluation, source: str | None) -> None:
    for name in POLICIES:
        lost, won = (reward(name, item, Context(source)).value for item in (wrong, right))
        assert lost is not None, name
        assert won is None or lost <= won, name


@pytest.mark.slow
@few
@given(incorrect(), st.floats(0.01, 100))
def test_incorrect_is_worse_than_any_time_that_is_believed(wrong: Evaluation, speedup: float) -> None:
    for name in POLICIES:
        lost, won = (reward(name, item, Context("x" * 250_000)).value for item in (wrong, timed(speedup)))
        assert lost is not None
        assert won is not None
        assert lost < won, name


@pytest.mark.slow
@few
@given(st.floats(1e-3, 1e4), st.floats(1e-3, 1e4), sources)
def test_a_faster_candidate_never_earns_less_under_any_policy(first: float, second: float, source: str | None) -> None:
    slow, fast = (rescore(timed(speedup), Context(source), POLICIES) for speedup in sorted((first, second)))
    for name in POLICIES:
        low, high = slow[name].value, fast[name].value
        assert low is not None
        assert high is not None
        assert low <= high, name


@pytest.mark.slow
@few
@given(unscorable())
def test_what_may_not_be_scored_is_none_under_every_policy(evaluation: Evaluation) -> None:
    for name, policy in POLICIES.items():
        if policy.rewards_host_code and evaluation.fingerprint.jail != "none" and evaluation.verdict != "INFRA":
            continue
        scored = reward(name, evaluation)
        assert scored.value is None
        assert set(scored.components.values()) == {None}
        assert unscored(evaluation, scored)


@pytest.mark.slow
@few
@given(correct() | incorrect())
def test_only_variance_or_a_missing_baseline_keeps_a_jailed_candidate_from_a_score(evaluation: Evaluation) -> None:
    for name in POLICIES:
        scored = reward(name, evaluation)
        assert (scored.value is None) == bool(unscored(evaluation, scored))
        if scored.value is None:
            ratio, measured = scored.components[find_policy(name).parts[1]], believed(evaluation)
            assert name in OF_RATIOS
            assert (scored.components.get("variance") or 0) > 0.005 or (ratio is None and measured is not None)


@pytest.mark.parametrize("name", POLICIES)
def test_without_a_time_a_correct_candidate_earns_more_than_a_wrong_one(name: str) -> None:
    alone = [] if name in OF_RATIOS else [measured_evaluation(None)]
    for right in (make_evaluation(), make_evaluation(performance=None), *alone):
        won, lost = reward(name, right).value, reward(name, make_evaluation(Verdict.WRONG)).value
        assert won is not None
        assert lost is not None
        assert lost < won


@pytest.mark.parametrize("name", POLICIES)
def test_a_policy_says_what_it_is(name: str) -> None:
    policy = find_policy(name)
    assert policy.name == name
    assert name.rpartition("/")[2].isdecimal()
    assert policy.title
    assert policy.source
    assert policy.bounds[0] < policy.bounds[1] < math.inf
    assert len(set(policy.parts)) == len(policy.parts) > 0
