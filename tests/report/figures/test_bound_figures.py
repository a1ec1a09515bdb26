"""Tests of charts of modelled times: limits of each kernel, and predictions against the floor."""

from __future__ import annotations

from typing import Any

import pytest

from kernelforge.records import KernelProfile, Metric, Origin
from kernelforge.report import attempt_view
from kernelforge.report.figures import Absent, Figure
from kernelforge.report.figures.bounds import MOST_KERNELS, against_floor, kernel_limits
from kernelforge.report.views.attempt import AttemptView
from kernelforge.report.views.bounds import KernelBounds, kernel_bounds
from tests.report.golden.golden_runs import golden_records


def viewed(run: str = "modelled") -> AttemptView:
    records = golden_records(run)
    return attempt_view(next(attempt for attempt in records.of_task("softmax") if attempt.profile), None)


def data(figure: Any) -> list[dict[str, Any]]:
    assert isinstance(figure, Figure)
    return list(figure.spec["data"]["values"])


def kernel(name: str, **limits_us: float) -> KernelProfile:
    metrics = tuple(
        Metric(name=f"kernelforge__limit_{limit}_us", value=value, unit="us", origin=Origin.MODELLED)
        for limit, value in limits_us.items()
    )
    return KernelProfile(
        kernel=name, launches=2, grid=(1, 1, 1), block=(32, 1, 1), sampled=1.0, metrics=metrics, hot_spots=()
    )


def bounds_of(*kernels: KernelProfile) -> tuple[KernelBounds, ...]:
    profile = next(attempt.profile for attempt in golden_records("modelled").attempts if attempt.profile)
    return kernel_bounds(profile.model_copy(update={"kernels": kernels}))


def test_limits_are_those_of_the_profile_the_longest_first() -> None:
    (kernel_times,) = viewed().bounds
    speed = viewed().performance
    assert speed is not None
    time_us = speed.time_us
    assert kernel_times.time_us == pytest.approx(time_us)
    assert [bound.title for bound in kernel_times.bounds[:3]] == ["DRAM", "latency", "L2"]
    assert kernel_times.bounds[0].time_us == pytest.approx(0.8 * time_us)
    assert {bound.name for bound in kernel_times.bounds} >= {"blocks", "launch", "issue"}


def test_kernels_with_most_time_come_first_and_limits_without_time_are_left_out() -> None:
    short, long, empty = kernel("short", dram=2.0, atomics=0.0), kernel("long", tensor=9.0, l2=1.0), kernel("empty")
    kernels = bounds_of(short, long, empty)
    assert [item.kernel for item in kernels] == ["long", "short"]
    assert [bound.name for bound in kernels[1].bounds] == ["dram"]
    assert bounds_of(kernel("new", sideways=1.0))[0].bounds[0].title == "sideways", "a limit of a later version"


def test_a_bar_stands_for_each_limit_and_for_the_time() -> None:
    view = viewed()
    rows = data(kernel_limits(view.bounds))
    (kernel_times,) = view.bounds
    assert [row["us"] for row in rows] == [kernel_times.time_us, *(bound.time_us for bound in kernel_times.bounds)]
    assert [row["what"] for row in rows[:3]] == ["modelled time", "the longest", "others"]
    many = bounds_of(*(kernel(f"k{number}", dram=1.0 + number, l2=0.5) for number in range(MOST_KERNELS + 2)))
    drawn = kernel_limits(many)
    assert isinstance(drawn, Figure)
    assert "2 shorter kernels left out" in drawn.title
    assert len({row["kernel"] for row in data(drawn)}) == MOST_KERNELS


def test_a_prediction_lies_between_the_floor_and_pytorch_with_its_interval() -> None:
    view = viewed()
    assert view.performance is not None
    predicted = view.performance.predicted
    assert predicted is not None
    rows = {row["what"]: row for row in data(against_floor(view.reach))}
    own = rows["this attempt"]
    assert own["us"] == view.performance.time_us
    assert (own["low"], own["high"]) == (predicted.eager_us / predicted.high, predicted.eager_us / predicted.low)
    assert rows["floor: least bytes"]["us"] == view.floor_us
    assert rows["eager PyTorch (published)"]["us"] == predicted.eager_us
    assert rows["this attempt"]["speedup"] == pytest.approx(predicted.speedup)


def test_a_measured_attempt_has_neither_and_says_why() -> None:
    view = viewed("measured-a")
    assert view.bounds == ()
    for drawing in (kernel_limits(view.bounds), against_floor(view.reach)):
        assert isinstance(drawing, Absent)
        assert drawing.why
