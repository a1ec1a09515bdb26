"""``refine`` follows its rule: seed, at most two repairs, then back to the best parent."""

from __future__ import annotations

from random import Random

import pytest
from builders import make_attempt
from hypothesis import given
from hypothesis import strategies as st

from kernelforge.errors import UsageError
from kernelforge.records import Attempt, Operator, Verdict
from kernelforge.search import Proposal, Refine, Strategy, make_strategy

OK, WRONG, BUILD, POLICY = Verdict.OK, Verdict.WRONG, Verdict.BUILD, Verdict.POLICY
SEED = Proposal(Operator.SEED)
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
    rng, asked, attempts = Random(0), [], []
    for number, outcome in enumerate(outcomes):
        proposal = strategy.ask(rng)
        asked.append(proposal)
        if proposal is None:
            return asked, attempts
        attempts.append(carry_out(number, proposal, outcome))
        strategy.tell(attempts[-1])
    asked.append(strategy.ask(rng))
    return asked, attempts


def asks(outcomes: list[Outcome], *, rounds: int = 20, stop_after: int = 20) -> list[Proposal | None]:
    return play(Refine(rounds=rounds, stop_after=stop_after), outcomes)[0]


def test_the_first_proposal_is_a_seed_without_a_judge() -> None:
    assert asks([]) == [SEED]


def test_a_correct_seed_is_optimised() -> None:
    assert asks([(OK, True)]) == [SEED, optimise(0)]


def test_a_broken_seed_is_repaired_twice_and_then_seeded_afresh() -> None:
    assert asks([(BUILD, True)] * 3) == [SEED, repair(0), repair(1), SEED]


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
    assert asks([(POLICY, False)]) == [SEED, SEED]


def test_three_seeds_that_give_nothing_end_the_search() -> None:
    strategy = Refine(rounds=50, stop_after=50)
    asked, attempts = play(strategy, [(WRONG, True)] * 50)
    assert len(attempts) == 9
    assert asked[-1] is None
    assert strategy.stopped == "3 seeds and their repairs gave nothing correct"
    assert strategy.best is None


def test_replies_without_code_end_the_search_after_three_seeds() -> None:
    assert asks([(POLICY, False)] * 9) == [SEED, SEED, SEED, None]


def test_rounds_include_the_seed() -> None:
    strategy = Refine(rounds=3, stop_after=9)
    asked, attempts = play(strategy, [(OK, True)] * 9)
    assert len(attempts) == 3
    assert asked[-1] is None
    assert strategy.stopped == "the budget of 3 rounds is spent"


def test_it_stops_when_nothing_better_comes() -> None:
    strategy = Refine(rounds=50, stop_after=3)
    asked, attempts = play(strategy, [(OK, True), (OK, False), (WRONG, True), (OK, False), (OK, True)])
    assert len(attempts) == 4
    assert asked[-1] is None
    assert strategy.stopped == "no new best in 3 rounds"
    assert strategy.best == 0


def test_a_new_best_starts_the_count_again() -> None:
    strategy = Refine(rounds=50, stop_after=2)
    _, attempts = play(strategy, [(OK, True), (OK, False), (OK, True), (OK, False), (OK, False)])
    assert len(attempts) == 5
    assert strategy.best == 2
    assert strategy.stopped == "no new best in 2 rounds"


def test_failures_before_the_first_correct_candidate_do_not_count_as_rounds_without_a_best() -> None:
    assert asks([(WRONG, True)] * 4, stop_after=1) == [SEED, repair(0), repair(1), SEED, repair(3)]


def test_attempts_are_told_in_order() -> None:
    strategy = Refine(rounds=9, stop_after=9)
    with pytest.raises(ValueError, match="attempt 1 was told out of order, expected 0"):
        strategy.tell(make_attempt(1))


def test_asking_changes_nothing() -> None:
    strategy = Refine(rounds=9, stop_after=9)
    strategy.tell(make_attempt(0, accepted=True))
    assert [strategy.ask(Random(seed)) for seed in range(3)] == [optimise(0)] * 3


outcome = st.tuples(st.sampled_from(list(Verdict)), st.booleans())


@given(st.lists(outcome, max_size=24), st.integers(1, 24), st.integers(1, 6), st.data())
def test_replaying_the_past_gives_the_same_future(
    outcomes: list[Outcome], rounds: int, stop_after: int, data: st.DataObject
) -> None:
    """A resumed search goes on exactly where the killed one was."""
    # A first correct attempt is always accepted.
    fixed: list[Outcome] = []
    for verdict, flag in outcomes:
        first = verdict is OK and not any(v is OK for v, _ in fixed)
        fixed.append((verdict, flag or first))
    whole, attempts = play(Refine(rounds=rounds, stop_after=stop_after), fixed)
    killed_at = data.draw(st.integers(0, len(attempts)))
    resumed = Refine(rounds=rounds, stop_after=stop_after)
    for attempt in attempts[:killed_at]:
        resumed.tell(attempt)
    for position in range(killed_at, len(attempts)):
        assert resumed.ask(Random(position)) == whole[position]
        resumed.tell(attempts[position])
    assert resumed.ask(Random(0)) == whole[-1]


@given(st.lists(outcome, min_size=30, max_size=30), st.integers(1, 12), st.integers(1, 6))
def test_it_keeps_its_promises_whatever_happens(outcomes: list[Outcome], rounds: int, stop_after: int) -> None:
    strategy = Refine(rounds=rounds, stop_after=stop_after)
    asked, attempts = play(strategy, outcomes)
    assert asked[0] == SEED
    assert len(attempts) <= rounds
    assert asked[-1] is None
    assert strategy.stopped
    repairs = "".join("r" if one is not None and one.operator is Operator.REPAIR else "." for one in asked)
    assert "rrr" not in repairs
    for number, proposal in enumerate(asked):
        if proposal is not None and proposal.operator is Operator.OPTIMISE:
            assert proposal.parent == max(a.number for a in attempts[:number] if a.accepted)


def test_a_strategy_is_found_by_name() -> None:
    assert isinstance(make_strategy("refine", rounds=3, stop_after=2), Refine)
    with pytest.raises(UsageError, match="no strategy 'guess'; choose 'refine'"):
        make_strategy("guess", rounds=3, stop_after=2)
