"""One number per attempt: what a strategy ranks by, and what counts for nothing."""

from __future__ import annotations

import math

import pytest

from kernelforge.records import Attempt, Origin, Performance, Verdict
from kernelforge.search.base import best_scoring, gain, rank_key, score
from tests.support.factories import (
    make_attempt,
    make_evaluation,
    make_fingerprint,
    make_passed_over,
    measured,
    modelled,
)


def timed(performance: Performance | None, device: str = "cuda:0") -> Attempt:
    fingerprint = make_fingerprint(device=device, device_kind=device.partition(":")[0])
    return make_attempt(0, evaluation=make_evaluation(fingerprint=fingerprint, performance=performance))


def test_a_measured_attempt_is_worth_the_lower_bound_of_its_speedup() -> None:
    assert score(timed(measured(speedup=3.0, speedup_lower=2.0))) == pytest.approx(math.log(2.0))


def test_without_a_baseline_the_slow_end_of_the_time_decides() -> None:
    fast, slow = (timed(measured(time, interval_us=(0.9 * time, high))) for time, high in ((10.0, 30.0), (12.0, 13.0)))
    assert score(fast) == pytest.approx(-math.log(30.0))
    assert rank_key(slow) < rank_key(fast)
    assert rank_key(timed(measured(speedup=0.5, speedup_lower=0.4))) < rank_key(slow)


def test_a_quarantined_time_is_behind_all_that_count() -> None:
    doubted = timed(measured(0.1, quarantined="faster than its bytes can move"))
    assert doubted.evaluation.verdict is Verdict.OK
    assert score(doubted) is None
    assert rank_key(doubted) > rank_key(timed(measured(1e9)))


def test_a_modelled_time_orders_kernels() -> None:
    fast, slow = (timed(modelled(time), "emulated:h100") for time in (2.0, 9.0))
    assert score(fast) == pytest.approx(-math.log(2.0))
    assert rank_key(fast) < rank_key(slow)


def test_what_failed_has_no_score() -> None:
    failed = make_attempt(0, Verdict.WRONG)
    assert score(failed) is None


def test_a_candidate_that_was_passed_over_is_behind_all_that_were_measured() -> None:
    """Its time alone is modelled, in a run that measures."""
    slow, passed_over = timed(measured(1e6)), make_attempt(0, evaluation=make_passed_over())
    assert passed_over.evaluation.performance is not None
    assert passed_over.evaluation.performance.origin is Origin.MODELLED
    assert score(passed_over) is None
    assert rank_key(slow) < rank_key(passed_over)
    assert gain(passed_over, slow) is None
    assert best_scoring([passed_over, slow]) is slow


def test_a_gain_is_the_difference_of_two_scores() -> None:
    before = timed(modelled(4.0), "emulated:h100")
    assert gain(before, timed(modelled(2.0), "emulated:h100")) == pytest.approx(math.log(2))
    assert gain(before, make_attempt(0, Verdict.WRONG)) is None
