"""Ranks within a round: by predicted time, over what was concluded before, and without what has no prediction."""

from __future__ import annotations

import itertools

from kernelforge.evaluation.evaluator import BegunEvaluation
from kernelforge.evaluation.stages.candidate_runs import EvaluationState
from kernelforge.records import Evaluation, Screening
from kernelforge.run.ranking import RoundRanking
from tests.support.factories import make_candidate, make_forecast, measured_evaluation


def begun(time_us: float | None, outcome: str = "passed", text: str = "") -> BegunEvaluation:
    """An evaluation of a candidate of its own, unless it has a text, with a predicted time, or one that the emulated
    device could not run."""
    forecast = None if time_us is None else make_forecast(time_us)
    message = "" if forecast else "no such instruction"
    work = EvaluationState(seed=1)
    work.screening = Screening.model_validate(
        {"device": "emulated:h100", "outcome": outcome, "message": message, "forecast": forecast}
    )
    return BegunEvaluation(make_candidate(text or f"v{next(_numbers)}"), work, None, 1.0)


_numbers = itertools.count()


def concluded(time_us: float) -> Evaluation:
    """An evaluation of an earlier sitting that was measured."""
    forecast = make_forecast(time_us)
    return measured_evaluation(screening=Screening(device="emulated:h100", outcome="passed", forecast=forecast))


def positions(ranking: RoundRanking, steps: range) -> list[int | None]:
    taken = [ranking.take(step) for step in steps]
    ranks = [item.work.screening.rank if item is not None and item.work.screening else None for item in taken]
    return [None if rank is None else rank.position for rank in ranks]


def ranked(times: list[float | None], earlier: dict[int, Evaluation] | None = None, measured: int = 2) -> RoundRanking:
    """A round whose first step without a concluded evaluation is the number of those that are."""
    ranking, first = RoundRanking(measured), len(earlier or {})
    ranking.reach(0, first + len(times))
    for step, time_us in enumerate(times, first):
        ranking.begin(step, begun(time_us))
    ranking.rank(earlier or {})
    return ranking


def test_the_fastest_by_predicted_time_come_first_and_the_earlier_of_equals() -> None:
    assert positions(ranked([7.0, 3.0, 7.0, 1.0]), range(4)) == [3, 2, 4, 1]


def test_what_has_no_predicted_time_takes_no_rank_and_is_measured() -> None:
    ranking = ranked([7.0, None, 3.0, 5.0])
    taken = [ranking.take(step) for step in range(4)]
    assert [item.passed_over for item in taken if item is not None] == [True, False, False, False]


def test_a_round_that_was_interrupted_is_ranked_with_what_was_concluded_in_it() -> None:
    """The same candidates are measured as without the interruption, though nothing was kept but records."""
    times = [7.0, 3.0, 1.0, 5.0, 2.0]
    complete = positions(ranked(list(times)), range(5))
    resumed = ranked(list(times[2:]), {step: concluded(times[step]) for step in range(2)})
    assert positions(resumed, range(2, 5)) == complete[2:]


def test_a_step_is_begun_once_and_a_step_beyond_the_round_begins_the_next() -> None:
    ranking = RoundRanking(1)
    ranking.reach(0, 2)
    assert [ranking.lacks(step) for step in range(3)] == [True, True, False]
    ranking.begin(0, begun(1.0))
    ranking.reach(1, 1)
    assert [ranking.lacks(step) for step in range(3)] == [False, True, False]
    assert ranking.take(0) is not None
    assert ranking.take(0) is None
    assert not ranking.lacks(0)
    ranking.reach(2, 3)
    assert list(ranking.steps) == [2, 3, 4]
    assert ranking.take(1) is None


def test_equal_candidates_share_a_rank() -> None:
    ranking = RoundRanking(2)
    ranking.reach(0, 4)
    for step, text in enumerate(("a", "a", "a", "b")):
        ranking.begin(step, begun(3.0 if text == "a" else 5.0, text=text))
    ranking.rank({})
    taken = [item for step in range(4) if (item := ranking.take(step)) is not None]
    ranks = [item.work.screening.rank for item in taken if item.work.screening]
    assert [(rank.position, rank.of) for rank in ranks if rank] == [(1, 2), (1, 2), (1, 2), (2, 2)]
    assert not any(item.passed_over for item in taken)
