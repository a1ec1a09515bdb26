"""Statistics over tasks, held against their definitions written plainly."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from statistics import median

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernelforge.report.views.statistics import (
    FAST_P,
    Estimate,
    correct_share,
    fast_p,
    fast_p_curve,
    geomean_correct,
    geomean_deployable,
    median_correct,
    share_of_floor,
    win_rate,
)

NAN = math.nan
STATISTICS: dict[str, Callable[[Sequence[float]], Estimate | None]] = {
    "fast_0": lambda values: fast_p(values, 0.0),
    "fast_1": lambda values: fast_p(values, 1.0),
    "geomean_deployable": geomean_deployable,
    "geomean_correct": geomean_correct,
    "median_correct": median_correct,
    "win_rate": win_rate,
    "share_of_floor": share_of_floor,
}
statistics = pytest.mark.parametrize("statistic", STATISTICS.values(), ids=STATISTICS)
speedups = st.lists(st.one_of(st.just(NAN), st.floats(0.01, 100)), min_size=1, max_size=12)
few = settings(max_examples=12, deadline=None)


def without_nan(values: Sequence[float]) -> list[float]:
    return [value for value in values if not math.isnan(value)]


@statistics
@few
@given(values=speedups)
def test_the_interval_holds_the_value_and_the_same_tasks_give_the_same(statistic, values: list[float]):
    result = statistic(values)
    assert result == statistic(list(values))
    if result is not None:
        assert result.low <= result.value <= result.high
        assert all(map(math.isfinite, (result.low, result.high)))


@statistics
@few
@given(values=speedups, random=st.randoms(use_true_random=False))
def test_the_order_of_tasks_does_not_matter(statistic, values: list[float], random):
    shuffled = random.sample(values, len(values))
    assert statistic(shuffled) == statistic(values)


@few
@given(values=speedups)
def test_every_value_is_its_definition(values: list[float]):
    count, there = len(values), without_nan(values)
    for p in FAST_P:
        assert fast_p(values, p).value == sum(value > p for value in there) / count
    gains = [max(value, 1.0) for value in there]
    assert geomean_deployable(values).value == pytest.approx(math.prod(gains) ** (1 / count))
    assert share_of_floor(values).value == pytest.approx(sum(min(value, 1.0) for value in there) / count)
    if there:
        assert geomean_correct(values).value == pytest.approx(math.prod(there) ** (1 / len(there)))
        assert median_correct(values).value == pytest.approx(median(there))
    else:
        assert geomean_correct(values) is None
        assert median_correct(values) is None


@few
@given(values=speedups)
def test_one_more_failure_never_helps_what_counts_all_tasks(values: list[float]):
    for statistic in (STATISTICS["fast_1"], geomean_deployable, share_of_floor, win_rate):
        assert statistic([*values, NAN]).value <= statistic(values).value + 1e-12


@few
@given(values=speedups)
def test_a_curve_falls_and_is_fast_p_at_each_of_its_points(values: list[float]):
    correct = [index % 3 > 0 or not math.isnan(value) for index, value in enumerate(values)]
    curve = fast_p_curve(values, FAST_P, correct)
    assert curve == tuple(fast_p(values, p, correct) for p in FAST_P)
    assert [point.value for point in curve] == sorted((point.value for point in curve), reverse=True)
    assert [point.high for point in curve] == sorted((point.high for point in curve), reverse=True)


def test_fast_p_asks_for_more_than_p():
    assert fast_p([1.0, 1.2, 2.0], 1.0).value == pytest.approx(2 / 3)
    assert fast_p([1.0, 1.2, 2.0], 2.0).value == 0.0
    assert [point.value for point in fast_p_curve([1.0, 2.0], (1.0, 2.0), [True, True])] == [0.5, 0.0]


def test_a_correct_task_without_a_time_counts_at_0_alone():
    values, correct = [NAN, NAN, 1.5, 0.5], [True, False, True, True]
    assert [fast_p(values, p, correct).value for p in (0.0, 1.0)] == [0.75, 0.25]
    assert [point.value for point in fast_p_curve(values, (0.0, 1.0), correct)] == [0.75, 0.25]
    assert correct_share(correct).value == 0.75


def test_failing_never_beats_a_slow_correct_kernel():
    assert geomean_deployable([0.5]).value == geomean_deployable([NAN]).value == 1.0


def test_a_time_below_the_floor_is_not_more_than_all_of_it():
    assert share_of_floor([4.0, NAN]).value == 0.5


def test_there_is_no_statistic_of_no_tasks():
    assert all(statistic([]) is None for statistic in STATISTICS.values())
    assert correct_share([]) is None
    assert fast_p_curve([], FAST_P, []) == ()


def test_equal_tasks_leave_nothing_to_chance_and_mixed_ones_do():
    alike = geomean_correct([1.5] * 9)
    assert (alike.low, alike.value, alike.high) == pytest.approx((1.5, 1.5, 1.5))
    mixed = fast_p([0.5, 2.0] * 50, 1.0)
    # A share of n tasks has a standard error of sqrt(p (1 - p) / n); 1.96 of them on either side are 95 %.
    assert mixed.high - mixed.value == pytest.approx(1.96 * math.sqrt(0.25 / 100), rel=0.1)
    assert mixed.value - mixed.low == pytest.approx(1.96 * math.sqrt(0.25 / 100), rel=0.1)
