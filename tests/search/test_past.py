"""History as strategies read it: what stands for each step, and which kernel is the fastest."""

from __future__ import annotations

from typing import Any

from kernelforge.records import Attempt, Operator, Verdict
from kernelforge.search.base import best_per_step, best_scoring
from tests.support.factories import make_attempt, make_evaluation, modelled


def correct(number: int, time_us: float | None, **changes: Any) -> Attempt:
    attempt = make_attempt(number, **changes)
    performance = None if time_us is None else modelled(time_us)
    evaluation = make_evaluation(candidate=attempt.evaluation.candidate, performance=performance)
    return attempt.model_copy(update={"evaluation": evaluation})


def tuned(number: int, parent: int, time_us: float | None) -> Attempt:
    return correct(number, time_us, operator=Operator.TUNE, parent=parent)


def test_the_best_tuned_child_stands_for_its_step() -> None:
    attempts = [correct(0, 10.0), tuned(1, 0, 8.0), tuned(2, 0, 5.0), tuned(3, 0, 6.0), correct(4, 1.0)]
    assert [attempt.number for attempt in best_per_step(attempts)] == [2, 4]


def test_a_tuned_child_that_is_no_faster_stands_for_nothing() -> None:
    attempts = [correct(0, 10.0), tuned(1, 0, 10.0), tuned(2, 0, None), correct(3, None), tuned(4, 3, None)]
    assert [attempt.number for attempt in best_per_step(attempts)] == [0, 3]


def test_a_tuned_child_of_a_tuned_child_stands_for_the_step_of_both() -> None:
    attempts = [correct(0, 10.0), tuned(1, 0, 8.0), tuned(2, 1, 5.0)]
    assert [attempt.number for attempt in best_per_step(attempts)] == [2]


def test_failed_steps_stand_for_themselves() -> None:
    assert [attempt.number for attempt in best_per_step([make_attempt(0, Verdict.BUILD), correct(1, 1.0)])] == [0, 1]


def test_the_fastest_has_the_highest_score_and_of_equals_the_oldest_counts() -> None:
    attempts = [correct(0, 10.0, accepted=True), make_attempt(1, Verdict.WRONG), correct(2, 5.0), correct(3, 5.0)]
    result = best_scoring(attempts)
    assert result is not None
    assert result.number == 2


def test_without_any_time_the_last_accepted_is_the_fastest_known() -> None:
    result = best_scoring([correct(0, None, accepted=True), correct(1, None)])
    assert result is not None
    assert result.number == 0
    assert best_scoring([make_attempt(0, Verdict.WRONG)]) is None
