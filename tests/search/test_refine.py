"""``refine`` follows its rule: seed, at most two repairs, then back to the best parent."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelforge.records import Attempt, Operator, Verdict
from kernelforge.search import ProfileVisibility, Proposal, Refine, Strategy
from tests.support.factories import make_attempt, make_evaluation, modelled

OK, WRONG, BUILD, POLICY = Verdict.OK, Verdict.WRONG, Verdict.BUILD, Verdict.POLICY
SEED, SECOND_SEED, THIRD_SEED = (Proposal(Operator.SEED, sample=number) for number in range(3))
Outcome = tuple[Verdict, bool]
"""Verdict, and: accepted for OK, has a candidate otherwise."""


def repair(parent: int) -> Proposal:
    return Proposal(Operator.REPAIR, parent=parent, judge=True)


def optimise(parent: int) -> Proposal:
    return Proposal(Operator.OPTIMISE, parent=parent, judge=True)


def carry_out(number: int, proposal: Proposal, outcome: Outcome) -> Attempt:
    verdict, flag = outcome
    return make_attempt(
        number,
        verdict,
        operator=proposal.operator,
        parent=proposal.parent,
        accepted=verdict is OK and flag,
        **({} if verdict is OK or flag else {"candidate": None}),
    )


def play(strategy: Strategy, outcomes: list[Outcome]) -> tuple[list[Proposal | None], list[Attempt]]:
    """Ask and tell until the outcomes are used up or the strategy ends; the last ask is included."""
    rng, requested, attempts = Random(0), [], []
    for number, outcome in enumerate(outcomes):
        proposal = strategy.ask(rng)
        requested.append(proposal)
        if proposal is None:
            return requested, attempts
        attempts.append(carry_out(number, proposal, outcome))
        strategy.tell(attempts[-1])
    requested.append(strategy.ask(rng))
    return requested, attempts


def refine(*, rounds: int | None = 20, stop_after: int | None = None, coders: int = 1, **options: Any) -> Refine:
    return Refine(Refine.Options(**options), rounds=rounds, stop_after=stop_after, coders=coders)


def asks(outcomes: list[Outcome], **settings: Any) -> list[Proposal | None]:
    return play(refine(**settings), outcomes)[0]


def test_the_first_proposal_is_a_seed_without_a_judge() -> None:
    assert asks([]) == [SEED]


def test_a_correct_seed_is_optimised() -> None:
    assert asks([(OK, True)]) == [SEED, optimise(0)]


def test_a_broken_seed_is_repaired_twice_and_then_seeded_afresh() -> None:
    assert asks([(BUILD, True)] * 3) == [SEED, repair(0), repair(1), SECOND_SEED]


def test_a_repaired_candidate_is_optimised() -> None:
    assert asks([(WRONG, True), (OK, True)]) == [SEED, repair(0), optimise(1)]


def test_a_broken_optimisation_goes_back_to_the_best_after_two_repairs() -> None:
    outcomes = [(OK, True), (WRONG, True), (BUILD, True), (WRONG, True)]
    assert asks(outcomes) == [SEED, optimise(0), repair(1), repair(2), optimise(0)]


def test_a_regression_is_not_a_parent() -> None:
    outcomes = [(OK, True), (OK, True), (OK, False), (OK, False)]
    assert asks(outcomes) == [SEED, optimise(0), optimise(1), optimise(1), optimise(1)]


def test_each_broken_optimisation_has_its_own_two_repairs() -> None:
    outcomes = [(OK, True), (WRONG, True), (OK, False), (WRONG, True), (WRONG, True), (WRONG, True)]
    assert asks(outcomes) == [SEED, optimise(0), repair(1), optimise(0), repair(3), repair(4), optimise(0)]


def test_a_reply_without_code_cannot_be_repaired() -> None:
    assert asks([(OK, True), (POLICY, False)]) == [SEED, optimise(0), optimise(0)]
    assert asks([(POLICY, False)]) == [SEED, SECOND_SEED]


def test_three_seeds_that_give_nothing_end_the_search() -> None:
    strategy = refine(rounds=50, stop_after=50)
    requested, attempts = play(strategy, [(WRONG, True)] * 50)
    assert len(attempts) == 9
    assert requested[-1] is None
    assert strategy.stopped == "3 seeds and their repairs gave nothing correct"
    assert strategy.best is None


def test_replies_without_code_end_the_search_after_three_seeds() -> None:
    assert asks([(POLICY, False)] * 9) == [SEED, SECOND_SEED, THIRD_SEED, None]


def test_rounds_include_the_seed() -> None:
    strategy = refine(rounds=3, stop_after=9)
    requested, attempts = play(strategy, [(OK, True)] * 9)
    assert len(attempts) == 3
    assert requested[-1] is None
    assert strategy.stopped == "the budget of 3 rounds is spent"


def test_it_stops_when_nothing_better_comes() -> None:
    strategy = refine(rounds=50, stop_after=3)
    requested, attempts = play(strategy, [(OK, True), (OK, False), (WRONG, True), (OK, False), (OK, True)])
    assert len(attempts) == 4
    assert requested[-1] is None
    assert strategy.stopped == "no new best in 3 rounds"
    assert strategy.best == 0


def test_a_new_best_starts_the_count_again() -> None:
    strategy = refine(rounds=50, stop_after=2)
    _, attempts = play(strategy, [(OK, True), (OK, False), (OK, True), (OK, False), (OK, False)])
    assert len(attempts) == 5
    assert strategy.best == 2
    assert strategy.stopped == "no new best in 2 rounds"


def test_failures_before_the_first_correct_candidate_do_not_count_as_rounds_without_a_best() -> None:
    assert asks([(WRONG, True)] * 4, stop_after=1) == [SEED, repair(0), repair(1), SECOND_SEED, repair(3)]


def test_attempts_come_in_order() -> None:
    strategy = refine(rounds=9, stop_after=9)
    with pytest.raises(ValueError, match="attempt 1 came out of order, expected 0"):
        strategy.tell(make_attempt(1))


outcome = st.tuples(st.sampled_from(list(Verdict)), st.booleans())


@pytest.mark.slow
@given(st.lists(outcome, min_size=30, max_size=30), st.integers(1, 12), st.integers(1, 6))
def test_it_keeps_its_promises_whatever_happens(outcomes: list[Outcome], rounds: int, stop_after: int) -> None:
    strategy = refine(rounds=rounds, stop_after=stop_after)
    requested, attempts = play(strategy, outcomes)
    assert requested[0] == SEED
    assert len(attempts) <= rounds
    assert requested[-1] is None
    assert strategy.stopped
    repairs = "".join("r" if item is not None and item.operator is Operator.REPAIR else "." for item in requested)
    assert "rrr" not in repairs
    for number, proposal in enumerate(requested):
        if proposal is not None and proposal.operator is Operator.OPTIMISE:
            assert proposal.parent == max(a.number for a in attempts[:number] if a.accepted)


def tuned(number: int, parent: int, *, time_us: float, accepted: bool) -> Attempt:
    attempt = make_attempt(number, operator=Operator.TUNE, parent=parent, accepted=accepted)
    evaluation = make_evaluation(candidate=attempt.evaluation.candidate, performance=modelled(time_us))
    return attempt.model_copy(update={"evaluation": evaluation})


def test_a_better_tuned_child_is_what_is_optimised_next() -> None:
    strategy = refine()
    strategy.tell(make_attempt(0, accepted=True))
    strategy.tell(tuned(1, 0, time_us=5.0, accepted=True))
    assert strategy.ask(Random(0)) == optimise(1)
    assert strategy.state()["steps"] == 1


def test_a_tuned_child_does_not_hide_a_broken_step_or_use_up_its_repairs() -> None:
    strategy = refine()
    strategy.tell(make_attempt(0, accepted=True))
    strategy.tell(make_attempt(1, WRONG, operator=Operator.OPTIMISE, parent=0))
    strategy.tell(tuned(2, 0, time_us=50.0, accepted=False))
    assert strategy.ask(Random(0)) == repair(1)


def test_the_published_number_of_rounds_is_ten() -> None:
    assert len(play(refine(rounds=None), [(OK, True)] * 30)[1]) == 10


def test_no_round_can_be_proposed_before_the_one_before_it_is_told() -> None:
    assert refine().ask(Random(0), 1) is None


def test_mixed_coders_take_turns() -> None:
    requested = asks([(OK, True)] * 4, coders=3)
    assert [proposal.coder for proposal in requested if proposal] == [0, 1, 2, 0, 1]


# CudaForge as published: no rollback, no times.


def test_without_rollback_the_latest_kernel_is_optimised_even_when_it_is_a_regression() -> None:
    outcomes = [(OK, True), (OK, False), (OK, False)]
    assert asks(outcomes, rollback=False) == [SEED, optimise(0), optimise(1), optimise(2)]


def test_without_rollback_a_kernel_is_repaired_for_as_long_as_it_fails() -> None:
    outcomes = [(OK, True), (WRONG, True), (BUILD, True), (WRONG, True), (OK, False)]
    assert asks(outcomes, rollback=False) == [SEED, optimise(0), *(repair(number) for number in (1, 2, 3)), optimise(4)]


def test_without_rollback_a_failing_seed_is_never_given_up() -> None:
    requested = asks([(BUILD, True)] * 20, rollback=False)
    assert requested == [SEED, *(repair(number) for number in range(19)), None]


def test_without_rollback_a_reply_without_code_leaves_the_latest_kernel_as_it_is() -> None:
    outcomes = [(POLICY, False), (WRONG, True), (POLICY, False), (OK, True), (POLICY, False)]
    assert asks(outcomes, rollback=False) == [SEED, SECOND_SEED, repair(1), repair(1), optimise(3), optimise(3)]


def test_without_rollback_there_are_fresh_seeds_for_as_long_as_no_reply_has_code() -> None:
    requested = asks([(POLICY, False)] * 9, rollback=False)
    assert requested == [Proposal(Operator.SEED, sample=number) for number in range(10)]


def test_without_rollback_a_better_tuned_child_takes_its_parents_place() -> None:
    strategy = refine(rollback=False)
    strategy.tell(make_attempt(0, accepted=True))
    strategy.tell(tuned(1, 0, time_us=50.0, accepted=False))
    assert strategy.ask(Random(0)) == optimise(0)
    strategy.tell(tuned(2, 0, time_us=5.0, accepted=True))
    assert strategy.ask(Random(0)) == optimise(2)


@pytest.mark.parametrize("metrics", ["subset", "full"])
@pytest.mark.parametrize("latency", [True, False])
def test_every_proposal_says_what_the_agents_may_see(metrics: Any, latency: bool) -> None:
    outcomes = [(WRONG, True), (OK, True), (OK, True)]
    requested = asks(outcomes, metrics=metrics, latency=latency)
    assert [proposal.sight for proposal in requested if proposal] == [
        ProfileVisibility(metrics=metrics, latency=latency)
    ] * 4


def test_by_default_the_agents_see_all_of_the_profile_and_times() -> None:
    (seed,) = asks([])
    assert seed is not None
    assert seed.sight == ProfileVisibility(metrics="full", latency=True)
