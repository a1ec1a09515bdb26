"""A side whose events lie is exposed by the parent's clock; one that does not is believed."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from kernelforge.evaluation.timing import SamplePlan, implausible_reason, measure, reset_allowance
from kernelforge.records import HostClock, MeasureSettings, Timing
from tests.evaluation.timing.simulated_gpu import SimulatedSide, World


def timed(
    world: World,
    *,
    flush_us: float = 0.0,
    execution_us: float = 100.0,
    sets: int = 4,
    qps: float | None = None,
    with_baseline: bool = True,
    allowed_us: float = 0.0,
    **candidate: Any,
) -> Timing:
    """A candidate that may lie against an honest baseline."""
    baseline = SimulatedSide(world, "eager", 1.5 * execution_us, sets=sets, flush_us=flush_us)
    return measure(
        SimulatedSide(world, "candidate", execution_us, sets=sets, flush_us=flush_us, **candidate),
        [baseline] if with_baseline else [],
        SamplePlan(sets, 1 << 20 if flush_us else 0, flush_each=True),
        MeasureSettings(qps=qps, seconds=5.0),
        set_bytes=1,
        clocks=world.clocks,
        host_clock=world.clock,
        between=world.between,
        rng=random.Random(0),
        reset_us=allowed_us,
    )


def host(timing: Timing) -> HostClock:
    assert timing.host is not None
    return timing.host


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("execution_us", [6.0, 100.0, 30_000.0])
def test_honest_events_are_believed(seed: int, execution_us: float) -> None:
    world = World(seed, lambda seconds: 1.1 if seconds % 0.5 > 0.3 else 1.0)
    timing = timed(world, execution_us=execution_us, gap_us=6.0, overhead_us=1500.0)
    assert host(timing).agrees
    assert host(timing).slope_us == pytest.approx(host(timing).events_us, rel=0.05, abs=2.0)
    assert implausible_reason(timing, 0.0) is None


def test_honest_flushes_are_believed() -> None:
    timing = timed(World(0), flush_us=30.0, execution_us=5.0, sets=8)
    assert host(timing).agrees
    assert host(timing).events_us == pytest.approx(5.0, abs=1.0)


@pytest.mark.parametrize("claims", [0.1, 0.5, 0.9, 1.2])
def test_events_that_lie_are_exposed(claims: float) -> None:
    timing = timed(World(1), claims=claims)
    assert not host(timing).agrees
    assert host(timing).slope_us == pytest.approx(100, rel=0.05)
    assert host(timing).events_us == pytest.approx(100 * claims, rel=0.05)
    reason = implausible_reason(timing, 0.0)
    assert reason is not None
    assert "the parent's clock" in reason


def test_answers_that_are_held_back_do_not_hide_a_lie() -> None:
    """Short blocks held back by just as much as bends the slope to what the events say."""
    lie, sample_us = 0.5, 400.0

    def hold(count: int) -> float:
        return (1 - lie) * sample_us * count if 1 < count < 150 else 0.0

    world = World(1)
    timing = timed(world, claims=lie, hold_us=hold)
    began = world.log.index(("caller", "between", 0))
    usual, longest = sorted({count for who, _, count in world.log[began:] if who == "candidate" and count > 1})
    assert usual < 150 < longest == 2 * usual, "what is held back is the usual block"
    assert host(timing).slope_us == pytest.approx(host(timing).events_us, rel=0.05)
    assert not host(timing).agrees


def test_overheads_that_are_said_to_be_long_are_exposed() -> None:
    """By the parent's clock, which shows less than was said."""
    timing = timed(World(1), flush_us=30.0, execution_us=40.0, flush_claims=1.2)
    assert not host(timing).agrees


def test_overheads_that_are_made_long_are_exposed_by_the_baselines() -> None:
    """They do take as long as they are said to, when no execution is near."""
    assert not host(timed(World(1), flush_us=30.0, execution_us=40.0, reset_us=20.0)).agrees


def test_a_candidate_with_much_to_reset_is_believed_within_what_that_may_take() -> None:
    wide = timed(World(1), flush_us=30.0, execution_us=40.0, reset_us=20.0, allowed_us=4 * 8.0)
    assert host(wide).agrees
    assert wide.candidate.median_us == pytest.approx(40, rel=0.05)


def test_what_resets_may_take_grows_with_buffers_and_bytes() -> None:
    assert reset_allowance(0, 0, 4000.0) == 0
    assert reset_allowance(3, 0, 4000.0) == 3 * reset_allowance(1, 0, 4000.0)
    assert reset_allowance(1, 40_000_000, 4000.0) - reset_allowance(1, 0, 4000.0) == pytest.approx(40)
    assert reset_allowance(1, 1 << 30, 0.0) == reset_allowance(1, 0, 0.0)


def test_without_a_baseline_the_events_are_checked_all_the_same() -> None:
    assert host(timed(World(1), with_baseline=False)).agrees
    assert not host(timed(World(1), with_baseline=False, claims=0.5)).agrees


@pytest.mark.parametrize("seed", range(5))
def test_answers_that_are_held_back_at_random_do_not_hide_a_lie(seed: int) -> None:
    late = random.Random(seed)
    timing = timed(World(seed), claims=0.7, hold_us=lambda count: late.uniform(0, 100_000))
    assert not host(timing).agrees


def test_a_parent_that_was_busy_for_a_moment_looks_again() -> None:
    world, delays = World(1), [0]

    def busy(count: int) -> float:
        """Late answers to the first blocks of twice the length, all of them."""
        delays[0] += count > 200
        return 30_000.0 if count > 200 and delays[0] <= 3 else 0.0

    assert host(timed(world, hold_us=busy, execution_us=50.0)).agrees
    assert delays[0] > 3


def test_seldom_requests_are_no_reason_to_distrust_the_clocks() -> None:
    timing = timed(World(1), qps=10.0, sets=1, execution_us=40.0, with_baseline=False)
    assert host(timing).agrees


def test_lies_are_exposed_in_server_mode() -> None:
    assert host(timed(World(1), qps=1000.0, sets=1, execution_us=400.0)).agrees
    assert not host(timed(World(1), qps=1000.0, sets=1, execution_us=400.0, claims=0.5)).agrees


def hold_nothing(samples: int) -> float:
    return 0.0


@pytest.mark.parametrize("read_us", [2.0, 4.0, 8.0])
def test_events_that_are_read_slowly_are_no_time_of_the_samples(read_us: float) -> None:
    """Samples of 60 us, with 9 us for launching each: as a part of the slope the reading would make them a lie."""
    timing = timed(World(3), execution_us=15.0, gap_us=9.0, read_us=read_us)
    assert host(timing).agrees
    assert host(timing).slope_us == pytest.approx(15 + 9 / 4, abs=0.5)


@pytest.mark.parametrize("part", [0.3, 0.5, 0.9])
def test_work_that_is_put_off_until_its_times_are_asked_for_is_exposed(part: float) -> None:
    """It claims what the block took; the rest it does while its events are said to be read."""
    timing = timed(World(3), execution_us=100.0, put_off=part, claims=1 - part)
    assert not host(timing).agrees


def test_one_late_answer_spoils_nothing() -> None:
    late: list[int] = []

    def once(count: int) -> float:
        late.append(count)
        return 200_000.0 if len(late) == 9 else 0.0

    holds: list[Callable[[int], float]] = [hold_nothing, once]
    for hold in holds:
        assert host(timed(World(2), hold_us=hold)).agrees
    assert len(late) > 9
