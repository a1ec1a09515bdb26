"""``best-of-n`` draws independent samples, and pass@k is what it should be."""

from __future__ import annotations

from math import comb
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelforge.records import Operator, Verdict
from kernelforge.search import BestOfN, Proposal, pass_at_k
from tests.support.factories import make_attempt, make_passed_over


def best_of_n(samples: int = 10, *, coders: int = 1, rounds: int | None = None) -> BestOfN:
    return BestOfN(BestOfN.Options(samples=samples), rounds=rounds, stop_after=None, coders=coders)


def test_samples_that_were_not_measured_are_no_rounds_without_a_new_best() -> None:
    strategy = BestOfN.make({"samples": 9}, stop_after=2)
    strategy.tell(make_attempt(0, accepted=True))
    for number in range(1, 5):
        attempt = make_attempt(number)
        assert attempt.candidate is not None
        strategy.tell(attempt.model_copy(update={"evaluation": make_passed_over(candidate=attempt.candidate.hash)}))
    assert strategy.stopped is None
    for number in (5, 6):
        strategy.tell(make_attempt(number))
    assert strategy.stopped == "no new best in 2 rounds"


def test_all_samples_can_be_asked_for_at_once() -> None:
    strategy = best_of_n(4)
    requested = [strategy.ask(Random(0), ahead) for ahead in range(5)]
    assert requested == [*(Proposal(Operator.SEED, sample=number) for number in range(4)), None]


def test_a_sample_does_not_depend_on_what_came_of_the_others() -> None:
    strategy = best_of_n(4)
    strategy.tell(make_attempt(0, accepted=True))
    strategy.tell(make_attempt(1, Verdict.BUILD))
    assert strategy.ask(Random(0)) == Proposal(Operator.SEED, sample=2)


def test_mixed_coders_take_turns() -> None:
    strategy = best_of_n(5, coders=2)
    requested = [strategy.ask(Random(0), ahead) for ahead in range(5)]
    assert [proposal.coder for proposal in requested if proposal] == [0, 1, 0, 1, 0]


def test_ten_samples_are_drawn_by_default_and_no_failure_ends_the_search_early() -> None:
    strategy = BestOfN(BestOfN.Options(), rounds=None, stop_after=BestOfN.default_stop_after)
    for number in range(10):
        assert strategy.stopped is None
        strategy.tell(make_attempt(number, Verdict.OK if number == 0 else Verdict.WRONG, accepted=number == 0))
    assert strategy.stopped is not None
    assert strategy.ask(Random(0)) is None


def test_more_rounds_than_samples_are_not_used() -> None:
    strategy = best_of_n(2, rounds=9)
    assert [strategy.ask(Random(0), ahead) is None for ahead in range(4)] == [False, False, True, True]
    strategy.tell(make_attempt(0, Verdict.WRONG))
    strategy.tell(make_attempt(1, Verdict.WRONG))
    assert strategy.stopped == "all 2 samples are drawn"
    assert strategy.ask(Random(0)) is None


def test_fewer_rounds_than_samples_are_kept_to() -> None:
    strategy = best_of_n(5, rounds=3)
    assert [strategy.ask(Random(0), ahead) is None for ahead in range(5)] == [False] * 3 + [True] * 2


@pytest.mark.parametrize(
    ("samples", "correct", "k", "expected"),
    [(10, 0, 5, 0.0), (10, 10, 1, 1.0), (10, 3, 1, 0.3), (2, 1, 2, 1.0), (5, 2, 2, 0.7), (4, 1, 2, 0.5)],
)
def test_pass_at_k_of_small_numbers(samples: int, correct: int, k: int, expected: float) -> None:
    assert pass_at_k(samples, correct, k) == pytest.approx(expected, abs=1e-12)


@given(st.integers(1, 400), st.data())
def test_pass_at_k_is_the_exact_ratio_of_binomials(samples: int, data: st.DataObject) -> None:
    correct, k = data.draw(st.integers(0, samples)), data.draw(st.integers(1, samples))
    exact = 1 - comb(samples - correct, k) / comb(samples, k)
    assert pass_at_k(samples, correct, k) == pytest.approx(exact, abs=1e-12)


def test_pass_at_k_holds_where_binomials_overflow_a_float() -> None:
    assert pass_at_k(100_000, 1, 50_000) == pytest.approx(0.5)


@pytest.mark.parametrize(("samples", "correct", "k"), [(5, 6, 1), (5, -1, 1), (5, 1, 0), (5, 1, 6), (0, 0, 1)])
def test_pass_at_k_refuses_what_cannot_be_estimated(samples: int, correct: int, k: int) -> None:
    with pytest.raises(ValueError, match="cannot be"):
        pass_at_k(samples, correct, k)
