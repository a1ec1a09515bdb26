"""Tests of new bests that count, and of cascades of Coders."""

from __future__ import annotations

from typing import Any

import pytest

from kernelforge.search import STRATEGIES
from tests.search.attempt_records import WRONG, Search, ok


def refine(**how: Any) -> Search:
    return Search(STRATEGIES["refine"].make(rounds=50, **how))


def test_a_gain_below_the_least_does_not_keep_a_search_going() -> None:
    search = refine(stop_after=3, stop_gain=0.10)
    search.steps(ok(100), ok(97), ok(95), ok(94))
    assert search.strategy.best == 3
    assert search.strategy.stopped == "no new best faster by 10% in 3 rounds"


def test_small_gains_add_up_to_one_that_counts() -> None:
    search = refine(stop_after=3, stop_gain=0.10)
    search.steps(ok(100), ok(96), ok(90), ok(89), ok(88))
    assert search.strategy.stopped is None
    search.step(ok(87))
    assert search.strategy.stopped


def coders(search: Search, *outcomes: Any) -> list[int]:
    return [proposal.coder for proposal in search.steps(*outcomes)]


def test_the_next_coder_writes_after_so_many_rounds_without_a_new_best() -> None:
    search = refine(coders=3, cascade=2)
    assert coders(search, ok(100), ok(90), ok(95), ok(95), ok(80), ok(85), ok(85), ok(85)) == [0, 0, 0, 0, 1, 1, 1, 2]


def test_a_coder_that_brings_nothing_correct_hands_on() -> None:
    search = refine(coders=2, cascade=2)
    assert coders(search, WRONG, WRONG, WRONG, ok(10)) == [0, 0, 1, 1]


def test_only_the_last_coders_rounds_end_the_search() -> None:
    search = refine(coders=2, cascade=2, stop_after=1)
    search.steps(ok(10), ok(11), ok(11))
    assert search.strategy.stopped is None
    search.step(ok(11))
    assert search.strategy.stopped == "no new best in 1 rounds"


def test_a_tuned_child_that_is_better_keeps_the_coder() -> None:
    search = refine(coders=2, cascade=2)
    search.steps(ok(10), ok(11), ok(11))
    search.tuned(ok(5))
    assert coders(search, ok(6)) == [0]


@pytest.mark.parametrize("name", ["beam", "mcts"])
def test_a_generation_is_written_by_one_coder(name: str) -> None:
    search = Search(STRATEGIES[name].make({"seeds": 4}, rounds=50, coders=2, cascade=2))
    assert [proposal.coder for proposal in search.generation()] == [0, 0, 0, 0]
    assert coders(search, ok(10), ok(11), ok(11), ok(11)) == [0, 0, 0, 0]
    assert {proposal.coder for proposal in search.generation()} == {1}
