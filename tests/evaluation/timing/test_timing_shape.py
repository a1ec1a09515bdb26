"""Sets exceed twice the L2 and it is flushed once, or it is flushed before each."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelforge.errors import TimingError
from kernelforge.evaluation.timing import SamplePlan, plan_sets
from kernelforge.evaluation.timing.sampler import FLUSHED_SETS, MAX_SETS

MB = 1 << 20
L2 = 60 * MB


@given(
    set_bytes=st.integers(1, 1 << 40),
    l2=st.integers(0, 1 << 28),
    more=st.integers(0, 1 << 38),
    limit=st.integers(1, 99),
)
def test_either_the_sets_or_the_flush_exceed_the_cache(set_bytes: int, l2: int, more: int, limit: int) -> None:
    free = set_bytes + more
    shape = plan_sets(set_bytes, l2, free, limit=limit)
    assert 1 <= shape.sets <= limit
    assert shape.sets * set_bytes <= free
    assert shape.flush_bytes == 2 * l2
    if not shape.flush_each:
        assert shape.sets * set_bytes > 2 * l2
        assert (shape.sets - 1) * set_bytes <= 2 * l2, "more sets than needed"


def test_a_large_set_needs_no_other() -> None:
    assert plan_sets(512 * MB, L2, 16 << 30) == plan_sets(512 * MB, L2, 512 * MB)
    assert plan_sets(512 * MB, L2, 16 << 30) == SamplePlan(1, 2 * L2)


def test_middling_sets_take_turns() -> None:
    assert plan_sets(30 * MB, L2, 16 << 30) == SamplePlan(5, 2 * L2)


def test_small_sets_are_flushed_and_few() -> None:
    shape = plan_sets(4096, L2, 16 << 30)
    assert shape == SamplePlan(FLUSHED_SETS, 2 * L2, flush_each=True)


def test_two_megabytes_still_go_with_one_flush() -> None:
    shape = plan_sets(2 * MB, L2, 16 << 30)
    assert shape == SamplePlan(61, 2 * L2)
    assert shape.sets <= MAX_SETS


def test_memory_limits_the_sets() -> None:
    shape = plan_sets(30 * MB, L2, 70 * MB)
    assert shape == SamplePlan(2, 2 * L2, flush_each=True)


def test_server_mode_has_one_set() -> None:
    assert plan_sets(30 * MB, L2, 16 << 30, limit=1) == SamplePlan(1, 2 * L2, flush_each=True)


def test_a_set_that_does_not_fit_is_said_to() -> None:
    with pytest.raises(TimingError, match="2,000 bytes, and 1,000"):
        plan_sets(2000, L2, 1000)


@pytest.mark.parametrize(("set_bytes", "l2", "limit"), [(0, L2, 4), (1, -1, 4), (1, L2, 0)])
def test_sizes_that_are_no_sizes_are_refused(set_bytes: int, l2: int, limit: int) -> None:
    with pytest.raises(ValueError, match="no sample"):
        plan_sets(set_bytes, l2, 1 << 30, limit=limit)
