"""``portfolio`` gives its members turns, and the next one its turn exactly when there was no new best for so long."""

from __future__ import annotations

from typing import Any

import pytest

from kernelforge.errors import UsageError
from kernelforge.records import Operator, Verdict
from kernelforge.search import Proposal
from kernelforge.search.portfolio import MEMBERS, Portfolio, PortfolioOptions
from tests.search.attempt_records import NO_CODE, WRONG, Outcome, Search, ok


def portfolio(*, rounds: int | None = 500, stop_after: int | None = None, coders: int = 1, **options: Any) -> Search:
    return Search(Portfolio(PortfolioOptions(**options), rounds=rounds, stop_after=stop_after, coders=coders))


def member(search: Search) -> str:
    assert isinstance(search.strategy, Portfolio)
    return search.strategy.member.name


def test_its_members_are_refine_beam_and_evolve_and_its_rounds_are_theirs() -> None:
    options = PortfolioOptions()
    assert options.members == "refine,beam,evolve"
    assert Portfolio.default_rounds(options) == sum(
        MEMBERS[name].default_rounds(MEMBERS[name].Options()) for name in options.members.split(",")
    )


def test_the_first_member_begins_as_it_would_alone() -> None:
    assert portfolio().generation() == [Proposal(Operator.SEED)]
    assert portfolio(members="beam,refine").generation() == [
        Proposal(Operator.SEED, sample=number) for number in range(4)
    ]


def test_the_turn_passes_exactly_at_the_plateau() -> None:
    search = portfolio(plateau=3)
    search.steps(ok(10), ok(11), ok(11))
    assert search.ask() == Proposal(Operator.OPTIMISE, parent=0, judge=True)
    search.step(ok(11))
    assert search.generation() == [Proposal(Operator.OPTIMISE, parent=0, judge=True, rank=rank) for rank in (1, 2)] + [
        Proposal(Operator.OPTIMISE, parent=1, judge=True, rank=1)
    ], "beam's first round, up to its own plateau"
    search.step(ok(11))
    assert member(search) == "beam"


def test_a_new_best_lengthens_the_turn() -> None:
    search = portfolio(plateau=3)
    search.steps(ok(10), ok(11), ok(11), ok(9), ok(11), ok(11))
    assert member(search) == "refine"
    search.steps(ok(11), ok(11))
    assert member(search) == "beam"


def test_a_tuned_child_that_is_a_new_best_lengthens_the_turn_even_at_its_last_step() -> None:
    search = portfolio(plateau=2)
    search.steps(ok(10), ok(11), ok(11))
    search.tuned(ok(9))
    search.steps(ok(11), ok(11))
    assert member(search) == "refine"
    search.step(ok(11))
    assert member(search) == "beam"


def test_a_member_that_ends_by_its_own_rule_hands_on() -> None:
    search = portfolio(plateau=50)
    search.steps(*[NO_CODE] * 3)
    assert search.generation() == [Proposal(Operator.SEED, sample=number) for number in range(4)]
    search.step(ok(10))
    assert member(search) == "beam"


def test_the_next_member_starts_from_the_best_and_repairs_nothing_of_others() -> None:
    search = portfolio(members="best-of-n,refine", plateau=4)
    search.steps(ok(10), ok(5), ok(20), WRONG, WRONG, WRONG)
    assert search.step(ok(6)) == Proposal(Operator.OPTIMISE, parent=1, judge=True)
    assert member(search) == "refine"


def test_it_is_over_when_every_member_in_turn_found_nothing() -> None:
    search = portfolio(plateau=2)
    search.step(ok(10))
    search.play(lambda proposal, rng: ok(11))
    assert len(search.attempts) == 1 + 2 + 2 * 3, "refine's turn brought the first best, so it has another one"
    assert search.strategy.stopped == "every member had a turn without a new best"
    assert search.strategy.best == 0


def test_a_restarted_member_begins_afresh() -> None:
    """refine gives up after three seeds of its own; in its second turn it has three more."""
    search = portfolio(members="refine,best-of-n", plateau=50, rounds=30)
    search.steps(*[NO_CODE] * 3)
    assert search.step(ok(10)).operator is Operator.SEED
    assert member(search) == "best-of-n"
    search.steps(*[ok(11)] * 9)
    assert search.step(ok(9)).operator is Operator.OPTIMISE
    assert member(search) == "refine"


def test_its_best_is_the_best_of_all_members() -> None:
    search = portfolio(plateau=2)
    times = iter([10, 11, 11, 12, 8, 13, 13, 13, 7, 20, 20, 20, 20, 20, 20, 20, 20, 20, 20, 20, 20])
    search.play(lambda proposal, rng: ok(next(times)), steps=20)
    fastest = min(search.attempts, key=lambda attempt: attempt.evaluation.performance.time_us)  # type: ignore[union-attr]
    assert search.strategy.best == fastest.number
    assert fastest.evaluation.performance is not None
    assert fastest.evaluation.performance.time_us == 7


def test_a_resumed_portfolio_stands_where_the_killed_one_stood() -> None:
    verdicts = [Verdict.OK, Verdict.OK, Verdict.WRONG, Verdict.BUILD]
    search = portfolio(plateau=3, coders=2)
    requested: list[tuple[list[Proposal], dict[str, Any]]] = []
    for number in range(60):
        requested.append((search.generation(), search.strategy.state()))
        if not requested[-1][0]:
            break
        search.step(Outcome(verdicts[number * 7 % 4], time_us=10.0 + (number * 37) % 23 - number / 10))
    assert {item[1]["member"]["strategy"] for item in requested} == {"refine", "beam", "evolve"}
    for message, (generation, state) in enumerate(requested):
        resumed = portfolio(plateau=3, coders=2)
        for attempt in search.attempts[:message]:
            resumed.strategy.tell(attempt)
        assert resumed.strategy.state() == state
        assert resumed.generation() == generation


@pytest.mark.parametrize(
    ("members", "problem"),
    [
        ("refine,guess", "'guess' is not a strategy that a portfolio can have; choose of refine, "),
        ("refine,portfolio", "'portfolio' is not a strategy that a portfolio can have"),
        ("refine, beam", "' beam' is not a strategy"),
        ("", "'' is not a strategy"),
        ("beam,beam", "a member is named twice"),
    ],
)
def test_members_must_be_other_strategies_each_once(members: str, problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        Portfolio.settle({"members": members})
