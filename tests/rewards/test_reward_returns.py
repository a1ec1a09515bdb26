"""Values made of several rewards: returns of turns, and what a learner does with a group."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelforge.errors import UsageError
from kernelforge.rewards import discounted_returns
from kernelforge.rewards.advantages import leave_one_out, smoothed

rewards = st.lists(st.none() | st.floats(-10, 10), max_size=6)


def test_kevins_returns() -> None:
    # 1 + 0.4 * (2 + 0.4 * 3), 2 + 0.4 * 3, 3
    assert discounted_returns([1.0, 2.0, 3.0]) == pytest.approx([2.28, 3.2, 3.0])


def test_a_turn_without_a_score_leaves_the_earlier_ones_unknown() -> None:
    assert discounted_returns([1.0, None, 3.0], 0.4) == [None, None, 3.0]


def test_without_discount_each_turn_is_its_own() -> None:
    assert discounted_returns([1.0, None, 3.0], 0.0) == [1.0, None, 3.0]


@pytest.mark.slow
@given(rewards, st.floats(0, 1))
def test_a_return_is_the_discounted_sum_of_what_follows(turns: list[float | None], discount: float) -> None:
    for position, item in enumerate(discounted_returns(turns, discount)):
        later = turns[position:] if discount else turns[position : position + 1]
        if None in later:
            assert item is None
        else:
            existing = [score for score in later if score is not None]
            assert item == pytest.approx(math.fsum(discount**at * score for at, score in enumerate(existing)))


@pytest.mark.parametrize("discount", [-0.1, 1.1, math.nan])
def test_a_discount_lies_between_0_and_1(discount: float) -> None:
    with pytest.raises(UsageError, match="between 0 and 1"):
        discounted_returns([1.0], discount)


def test_a_reward_that_is_no_number_is_refused_by_its_turn() -> None:
    with pytest.raises(UsageError, match="turn 2"):
        discounted_returns([1.0, math.nan])


def test_smoothing_clips_at_one_and_a_half_deviations() -> None:
    # The mean is 2.5, the deviation sqrt(18.75) = 4.33; 7.5 / 4.33 = 1.73.
    assert smoothed([0.0, 0.0, 0.0, 10.0]) == pytest.approx([-0.57735, -0.57735, -0.57735, 1.5], abs=1e-5)
    assert smoothed([2.0, None, 2.0]) == [0.0, None, 0.0]


@pytest.mark.slow
@given(rewards)
def test_leaving_one_out_compares_with_the_mean_of_the_others(returns: list[float | None]) -> None:
    for position, item in enumerate(leave_one_out(returns)):
        own = returns[position]
        others = [score for at, score in enumerate(returns) if at != position and score is not None]
        if own is None:
            assert item is None
        elif not others:
            assert item == 0
        else:
            assert item == pytest.approx(own - math.fsum(others) / len(others), abs=1e-9)
