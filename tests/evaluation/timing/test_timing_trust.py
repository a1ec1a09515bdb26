"""Timings that are measured again, and those that are quarantined then."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from kernelforge.evaluation.timing import (
    SamplePlan,
    cache_resident,
    clock_jump,
    differ,
    implausible_reason,
    physical_floor_us,
)
from kernelforge.evaluation.timing.candidate_timer import confirm
from kernelforge.records import HostClock, Ratio, SideTimes, Timing
from kernelforge.records.timing import Interval


def side(name: str, time_us: float, width: float = 0.01) -> SideTimes:
    interval = (time_us * (1 - width), time_us * (1 + width))
    return SideTimes(name=name, samples_us=(time_us,), median_us=time_us, interval_us=interval, captured=True)


def timing(speedup: float = 1.5, *, time_us: float = 100.0, width: float = 0.01, agrees: bool = True) -> Timing:
    interval: Interval = (speedup * (1 - width), speedup * (1 + width))
    return Timing(
        protocol="graph/1",
        sets=1,
        set_bytes=1,
        flush_bytes=0,
        candidate=side("candidate", time_us, width),
        baselines=(side("eager", time_us * speedup),),
        ratios=(Ratio(baseline="eager", speedup=speedup, interval=interval, blocks=12),),
        fastest="eager",
        settled=True,
        budget_s=1.0,
        host=HostClock(events_us=time_us, slope_us=time_us, agrees=agrees),
    )


def test_the_floor_is_bytes_over_bandwidth() -> None:
    assert physical_floor_us(480_000_000, 4800.0) == pytest.approx(100.0)
    assert physical_floor_us(480_000_000, 4800.0, resident_bytes=48_000_000) == pytest.approx(90.0)
    assert physical_floor_us(1000, 4800.0, resident_bytes=2000) == 0


def test_bytes_of_host_memory_take_the_raw_rate_of_the_link() -> None:
    from_host = {"resident_bytes": 48_000_000, "host_bytes": 111_000_000}
    assert physical_floor_us(480_000_000, 4800.0, host_link_gbps=63.0, **from_host) == pytest.approx(1000.0)
    assert physical_floor_us(480_000_000, 4800.0, **from_host) == pytest.approx(90.0)


def test_without_a_known_bandwidth_there_is_no_floor() -> None:
    assert physical_floor_us(1 << 30, 0.0) == 0.0


def test_what_the_cache_may_keep_shrinks_with_the_sets() -> None:
    assert cache_resident(SamplePlan(1, 0), 60) == 60
    assert cache_resident(SamplePlan(4, 0), 60) == 15
    assert cache_resident(SamplePlan(4, 120), 60) == 15
    assert cache_resident(SamplePlan(8, 120, flush_each=True), 60) == 60


def test_a_time_under_the_floor_is_suspicious_and_one_at_it_is_not() -> None:
    assert "below 120 µs" in (implausible_reason(timing(), 120.0) or "")
    assert implausible_reason(timing(), 100.5) is None, "the interval still reaches the floor"
    assert implausible_reason(timing(), 99.0) is None
    assert implausible_reason(timing(), 0.0) is None


def test_clocks_that_disagree_are_suspicious() -> None:
    assert "the parent's clock" in (implausible_reason(timing(agrees=False), 0.0) or "")


@pytest.mark.parametrize(
    ("speedup", "best", "repeated"), [(2.9, None, False), (3.1, None, True), (2.1, 1.0, True), (1.9, 1.0, False)]
)
def test_jumps_are_measured_again(speedup: float, best: float | None, repeated: bool) -> None:
    assert (clock_jump(timing(speedup), best) is not None) == repeated


def test_two_measurements_contradict_each_other_when_far_apart_and_sure_of_it() -> None:
    assert differ(timing(4.0), timing(4.1)) is None
    assert "4 and 3" in (differ(timing(4.0), timing(3.0)) or "")
    assert differ(timing(4.0, width=0.3), timing(3.0)) is None, "unsure"
    assert differ(timing(4.0, width=0.001), timing(4.3, width=0.001)) is None, "within a tenth"


def test_nothing_is_said_of_a_candidate_without_baselines() -> None:
    alone = timing().model_copy(update={"baselines": (), "ratios": (), "fastest": None})
    assert clock_jump(alone) is None
    assert differ(alone, timing()) is None


def against(*others: str, **speedups: float) -> Timing:
    """Compared with the first baseline, which is the fastest, and with ``others``; the rest were only timed."""
    fastest = next(iter(speedups))
    ratios = tuple(
        Ratio(baseline=name, speedup=speedups[name], interval=(0.99 * speedups[name], 1.01 * speedups[name]), blocks=12)
        for name in (fastest, *others)
    )
    sides = tuple(side(name, 100.0 * speedup) for name, speedup in speedups.items())
    return timing().model_copy(update={"baselines": sides, "ratios": ratios, "fastest": fastest})


def test_speedups_are_compared_over_a_baseline_that_both_have() -> None:
    assert differ(against("eager", compile=5.0, eager=6.0), against(eager=6.1, compile=6.4)) is None
    assert "6 and 1.2 over eager" in (differ(against("eager", compile=5.0, eager=6.0), against(eager=1.2)) or "")
    assert "5 and 1.2 over eager" in (differ(against(eager=5.0), against("eager", compile=1.0, eager=1.2)) or "")


def test_without_a_ratio_in_common_those_of_the_medians_are_compared() -> None:
    assert differ(against(compile=5.0, eager=6.0), against(eager=6.1, compile=5.1)) is None
    assert "5 and 1.1 over compile" in (differ(against(compile=5.0), against(eager=1.0, compile=1.1)) or "")
    assert "6 and 1.2 over eager" in (differ(against(compile=5.0, eager=6.0), against(eager=1.2)) or "")


def test_a_jump_that_no_common_baseline_confirms_is_doubted() -> None:
    for first, second in ((5.0, 1.2), (1.2, 5.0), (5.0, 5.0)):
        assert "no baseline in common" in (differ(against(compile=first), against(eager=second)) or "")
    assert differ(against(compile=2.0), against(eager=1.2)) is None, "neither is above 3"
    synchronised = {"eager-synchronised": 9.0}
    assert differ(against(compile=5.0, **synchronised), against(eager=5.0, **synchronised)) is not None


@pytest.mark.parametrize(
    ("first", "second", "recorded", "doubted"),
    [
        (timing(2.9), timing(2.0), "first", False),
        (timing(3.5), timing(3.4, time_us=99.0), "first", False),
        (timing(3.5), timing(3.4, time_us=101.0), "second", False),
        (timing(2.0, time_us=100.0, agrees=False), timing(2.0, time_us=99.0), "second", False),
        (timing(2.0, time_us=50.0), timing(2.0, time_us=99.0), "second", False),
        (timing(2.0, agrees=False), timing(2.0, time_us=99.0, agrees=False), "second", True),
        (timing(3.5), timing(3.5, time_us=99.0, agrees=False), "first", True),
    ],
)
def test_a_time_that_is_implausible_is_not_recorded_beside_a_plausible_one(
    first: Timing, second: Timing, recorded: str, *, doubted: bool
) -> None:
    timer = SimpleNamespace(floor_us=60.0, time=lambda session: second)
    final, doubt = confirm(timer, nullcontext, first)  # type: ignore[arg-type]
    assert final is (first if recorded == "first" else second)
    assert (doubt is not None) == doubted


@pytest.mark.parametrize(
    ("third", "recorded", "why"),
    [
        (timing(5.1, time_us=98.0), "second", None),
        (timing(4.9, time_us=102.0), "third", None),
        (timing(1.2, time_us=400.0), "third", "speedups of 5 and 1.2"),
        (timing(5.0, time_us=99.0, agrees=False), "second", "the parent's clock"),
    ],
)
def test_an_implausible_time_confirms_no_jump(third: Timing, recorded: str, why: str | None) -> None:
    second = timing(5.0)
    times = iter([second, third])
    timer = SimpleNamespace(floor_us=60.0, time=lambda session: next(times))
    final, doubt = confirm(timer, nullcontext, timing(5.0, agrees=False))  # type: ignore[arg-type]
    assert final is (second if recorded == "second" else third)
    assert (why or "") in (doubt or "")
    assert (doubt is None) == (why is None)


def test_no_third_time_is_taken_where_the_second_is_implausible_too() -> None:
    times = iter([timing(5.0, time_us=99.0, agrees=False)])
    timer = SimpleNamespace(floor_us=60.0, time=lambda session: next(times))
    _, doubt = confirm(timer, nullcontext, timing(5.0, agrees=False))  # type: ignore[arg-type]
    assert "the parent's clock" in (doubt or "")
