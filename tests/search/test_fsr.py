"""``fsr`` follows its rule: rounds of samples, from errors while nothing is valid, from the fastest kernel after."""

from __future__ import annotations

import math
from random import Random
from typing import Any

import pytest

from kernelforge.records import Attempt, Operator, Verdict
from kernelforge.search import Fsr, Proposal
from kernelforge.search.fsr import TECHNIQUES, Arm, deepest_failure, pick_techniques_ucb1
from tests.support.factories import make_attempt, make_build, make_evaluation, modelled

WRONG, BUILD, POLICY, INFRA = Verdict.WRONG, Verdict.BUILD, Verdict.POLICY, Verdict.INFRA


def correct(number: int, time_us: float = 10.0, **changes: Any) -> Attempt:
    attempt = make_attempt(number, **changes)
    evaluation = make_evaluation(candidate=attempt.evaluation.candidate, performance=modelled(time_us))
    return attempt.model_copy(update={"evaluation": evaluation})


def failed(number: int, verdict: Verdict, stage: str, **changes: Any) -> Attempt:
    attempt = make_attempt(number, verdict, **changes)
    evaluation = make_evaluation(
        verdict, candidate=attempt.evaluation.candidate, stage=stage, build=None if verdict is POLICY else make_build()
    )
    return attempt.model_copy(update={"evaluation": evaluation})


def speechless(number: int) -> Attempt:
    return make_attempt(number, POLICY, candidate=None)


def fsr(*attempts: Attempt, rounds: int | None = None, coders: int = 1, **options: Any) -> Fsr:
    strategy = Fsr(Fsr.Options(**({"samples": 2, "depth": 5} | options)), rounds=rounds, coders=coders)
    for attempt in attempts:
        strategy.tell(attempt)
    return strategy


def parent(strategy: Fsr) -> int | None:
    proposal = strategy.ask(Random(0))
    assert proposal is not None
    assert proposal.operator is (Operator.SEED if proposal.parent is None else Operator.FSR)
    return proposal.parent


def from_parent(number: int, *, sample: int = 0) -> Proposal:
    return Proposal(Operator.FSR, parent=number, sample=sample)


def test_the_first_round_is_seeds_that_can_all_be_asked_for_at_once() -> None:
    requested = [fsr(samples=3).ask(Random(0), ahead) for ahead in range(4)]
    assert requested == [*(Proposal(Operator.SEED, sample=number) for number in range(3)), None]


def test_after_a_valid_round_all_samples_start_from_the_fastest() -> None:
    strategy = fsr(correct(0, 10.0), correct(1, 5.0), samples=2)
    assert [strategy.ask(Random(0), ahead) for ahead in range(3)] == [from_parent(1), from_parent(1, sample=1), None]


def test_what_is_told_of_a_round_changes_nothing_before_its_end() -> None:
    strategy = fsr(correct(0, 10.0), correct(1, 5.0), correct(2, 1.0))
    assert strategy.ask(Random(0)) == from_parent(1, sample=1)
    strategy.tell(failed(3, WRONG, "small"))
    assert strategy.ask(Random(0)) == from_parent(2)


def test_the_fastest_of_all_rounds_counts_not_of_the_last_one() -> None:
    assert parent(fsr(correct(0, 1.0), correct(1), correct(2, 5.0), failed(3, WRONG, "small"))) == 0


def test_of_equally_fast_kernels_the_oldest_is_built_on() -> None:
    assert parent(fsr(correct(0, 5.0), correct(1, 5.0))) == 0


def test_a_faster_tuned_child_is_built_on() -> None:
    tuned = correct(2, 2.0, operator=Operator.TUNE, parent=1)
    assert parent(fsr(correct(0, 10.0), correct(1, 5.0), tuned)) == 2


def test_a_round_without_a_valid_kernel_is_followed_by_one_from_the_failure_that_got_furthest() -> None:
    attempts = [failed(0, WRONG, "hidden"), failed(1, BUILD, "compile"), failed(2, WRONG, "small")]
    assert parent(fsr(*attempts, samples=3)) == 0


def test_of_failures_at_the_same_stage_the_latest_is_built_on() -> None:
    assert parent(fsr(failed(0, WRONG, "small"), failed(1, WRONG, "small"))) == 1


def test_only_the_last_round_decides_whether_errors_are_mended() -> None:
    attempts = [correct(0), correct(1, 5.0), failed(2, WRONG, "small"), failed(3, BUILD, "compile")]
    assert parent(fsr(*attempts)) == 2


def test_a_failure_that_was_not_the_kernels_own_is_built_on_only_where_there_is_no_other() -> None:
    own, its_own = failed(0, INFRA, "full"), failed(1, BUILD, "compile")
    assert deepest_failure([own, its_own]) == its_own
    assert deepest_failure([own]) == own


def test_replies_without_a_candidate_are_never_built_on() -> None:
    assert parent(fsr(speechless(0), failed(1, BUILD, "compile"))) == 1
    assert parent(fsr(speechless(0), speechless(1))) is None
    assert parent(fsr(correct(0), correct(1), speechless(2), speechless(3))) == 0
    assert parent(fsr(failed(0, BUILD, "compile"), failed(1, POLICY, "plan"), speechless(2), speechless(3))) == 0


def test_seeds_of_a_later_round_are_numbered_on() -> None:
    strategy = fsr(speechless(0), speechless(1))
    assert strategy.ask(Random(0), 1) == Proposal(Operator.SEED, sample=3)


def test_it_ends_at_its_depth_and_not_before() -> None:
    strategy = fsr(samples=2, depth=3, rounds=50)
    for number in range(6):
        assert strategy.stopped is None
        strategy.tell(failed(number, WRONG, "small"))
    assert strategy.stopped == "all 3 rounds of 2 samples are done"
    assert strategy.ask(Random(0)) is None


def test_the_last_round_leads_to_no_further_one() -> None:
    strategy = fsr(correct(0), correct(1), samples=2, depth=2, rounds=50)
    assert [strategy.ask(Random(0), ahead) is None for ahead in range(4)] == [False, False, True, True]
    strategy.tell(correct(2))
    assert [strategy.ask(Random(0), ahead) is None for ahead in range(3)] == [False, True, True]


def test_by_default_its_rounds_are_samples_times_depth() -> None:
    options = Fsr.Options()
    assert Fsr(options).rounds == options.samples * options.depth == 20


def test_mixed_coders_take_turns() -> None:
    strategy = fsr(samples=3, coders=2)
    assert [p.coder for p in (strategy.ask(Random(0), ahead) for ahead in range(3)) if p] == [0, 1, 0]


# Features.


def test_without_features_no_technique_is_named() -> None:
    proposal = fsr(correct(0), correct(1)).ask(Random(0))
    assert proposal is not None
    assert proposal.technique is None


def test_a_round_from_a_valid_kernel_names_a_technique_for_each_sample() -> None:
    strategy = fsr(*(correct(number) for number in range(4)), samples=4, features=True)
    requested = [strategy.ask(Random(0), ahead) for ahead in range(4)]
    assert [proposal.technique for proposal in requested if proposal] == list(TECHNIQUES[:4])


def test_neither_a_seed_nor_a_mended_failure_is_asked_for_a_technique() -> None:
    for attempts in ([], [failed(0, WRONG, "small"), failed(1, WRONG, "small")]):
        proposal = fsr(*attempts, features=True).ask(Random(0))
        assert proposal is not None
        assert proposal.technique is None


def test_techniques_depend_on_the_rounds_before_alone() -> None:
    strategy = fsr(correct(0), correct(1), features=True)
    before = [strategy.ask(Random(seed), 1) for seed in range(3)]
    strategy.tell(correct(2, 1.0, operator=Operator.FSR, parent=0, technique=TECHNIQUES[0]))
    assert [strategy.ask(Random(seed)) for seed in range(3)] == before


def worth(attempt: Attempt) -> float:
    strategy = fsr(correct(0, 10.0), samples=1, features=True)
    strategy.tell(attempt)
    arm = strategy.state()["arms"][TECHNIQUES[0]]
    return float(arm["mean"]) if arm["pulls"] else math.nan


@pytest.mark.parametrize(
    ("attempt", "expected"),
    [
        (failed(1, BUILD, "compile", operator=Operator.FSR, parent=0, technique=TECHNIQUES[0]), 0.0),
        (failed(1, WRONG, "small", operator=Operator.FSR, parent=0, technique=TECHNIQUES[0]), 1 / 3),
        (correct(1, 20.0, operator=Operator.FSR, parent=0, technique=TECHNIQUES[0]), 2 / 3),
        (correct(1, 10.0, operator=Operator.FSR, parent=0, technique=TECHNIQUES[0]), 2 / 3),
        (correct(1, 10.0 / math.sqrt(2), operator=Operator.FSR, parent=0, technique=TECHNIQUES[0]), 5 / 6),
        (correct(1, 5.0, operator=Operator.FSR, parent=0, technique=TECHNIQUES[0]), 1.0),
        (correct(1, 0.1, operator=Operator.FSR, parent=0, technique=TECHNIQUES[0]), 1.0),
    ],
)
def test_a_technique_earns_thirds_for_compiling_for_being_correct_and_for_speed(
    attempt: Attempt, expected: float
) -> None:
    assert worth(attempt) == pytest.approx(expected)


def test_a_failure_of_ours_is_not_held_against_a_technique() -> None:
    own = failed(1, INFRA, "compile", operator=Operator.FSR, parent=0, technique=TECHNIQUES[0])
    assert math.isnan(worth(own))


def test_untried_techniques_come_first() -> None:
    arms = {"a": Arm(3, 3.0), "b": Arm(), "c": Arm(2, 0.0), "d": Arm()}
    assert pick_techniques_ucb1(arms, 2) == ["b", "d"]


def test_then_the_highest_upper_confidence_bound_counts() -> None:
    arms = {"a": Arm(10, 5.0), "b": Arm(10, 6.0), "c": Arm(2, 0.8)}
    bounds = {name: arm.mean + math.sqrt(2 * math.log(22) / arm.pulls) for name, arm in arms.items()}
    assert pick_techniques_ucb1(arms, 1) == [max(bounds, key=bounds.__getitem__)] == ["c"]
    assert pick_techniques_ucb1({"a": Arm(10, 5.0), "b": Arm(10, 6.0), "c": Arm(10, 4.0)}, 1) == ["b"]


def test_equal_techniques_are_spread_over_a_round() -> None:
    arms = {name: Arm(2, 1.0) for name in "abc"}
    assert pick_techniques_ucb1(arms, 6) == ["a", "b", "c"] * 2


def test_a_much_better_technique_gets_most_of_a_round() -> None:
    arms = {"a": Arm(20, 0.0), "b": Arm(20, 20.0), "c": Arm(20, 2.0)}
    assert pick_techniques_ucb1(arms, 5) == ["b"] * 5


def test_dealing_does_not_count_before_results_are_told() -> None:
    arms = {"a": Arm(1, 1.0), "b": Arm(1, 0.0)}
    assert pick_techniques_ucb1(arms, 4) == pick_techniques_ucb1(arms, 4)
    assert arms == {"a": Arm(1, 1.0), "b": Arm(1, 0.0)}
