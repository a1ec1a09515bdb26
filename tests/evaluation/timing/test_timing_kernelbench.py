"""KernelBench's protocol as it was published."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from kernelforge.devices.base import SampleWork
from kernelforge.errors import BaselineError, TimingError
from kernelforge.evaluation.timing import kernelbench, reported_time
from kernelforge.records import Timing
from tests.evaluation.timing.simulated_gpu import SimulatedSide, World


def published(world: World, *, baselines: tuple[str, ...] = ("eager", "compile")) -> Timing:
    sides = [SimulatedSide(world, name, 150.0, sets=1, captured=False) for name in baselines]
    return kernelbench(SimulatedSide(world, "candidate", 100.0, sets=1), sides, set_bytes=7, clocks=world.clocks)


def test_calls_are_waited_for_one_by_one_and_warm_ups_left_out() -> None:
    world = World(1)
    published(world)
    assert world.log == [("candidate", "block", 1)] * 103 + [("eager", "block", 1)] * 103


def test_the_ratio_is_that_of_the_means_against_eager() -> None:
    timing = published(World(2))
    candidate, eager = timing.candidate.samples_us, timing.baselines[0].samples_us
    assert (len(candidate), len(eager)) == (100, 100)
    ratio = timing.ratio("eager")
    assert ratio is not None
    assert ratio.speedup == pytest.approx(np.mean(eager) / np.mean(candidate), rel=1e-12)
    assert ratio.interval[0] < ratio.speedup < ratio.interval[1]
    assert [side.name for side in timing.baselines] == ["eager"]
    assert (timing.protocol, timing.sets, timing.flush_bytes) == ("kernelbench/1", 1, 0)


def test_the_time_reported_is_the_mean_there_and_the_median_elsewhere() -> None:
    timing = published(World(3))
    time_us, (low, high) = reported_time(timing)
    assert time_us == pytest.approx(np.mean(timing.candidate.samples_us), rel=1e-12)
    assert low < time_us < high
    assert time_us != timing.candidate.median_us
    changed = timing.model_copy(update={"protocol": "graph/1"})
    assert reported_time(changed) == (changed.candidate.median_us, changed.candidate.interval_us)


def test_it_is_the_same_every_time() -> None:
    first, second = (published(World(4)).model_copy(update={"budget_s": 1.0}) for _ in range(2))
    assert first == second


def test_without_eager_there_is_a_time_and_a_note() -> None:
    timing = published(World(1), baselines=("compile",))
    assert (timing.fastest, timing.baselines, timing.ratios) == (None, (), ())
    assert any("no eager baseline" in note for note in timing.notes)


class Failing(SimulatedSide):
    """Fails in its first blocks."""

    def __init__(self, world: World, name: str, errors: list[Exception]) -> None:
        super().__init__(world, name, 150.0, sets=1)
        self.errors = errors
        self.rests = 0

    def rest(self) -> None:
        self.rests += 1

    def run(self, samples: int, work: SampleWork = "sample", *, gaps_us: Sequence[float] = ()) -> None:
        if self.errors:
            raise self.errors.pop(0)
        super().run(samples, work, gaps_us=gaps_us)


ERRORS = [BaselineError("out of memory"), TimingError("a sample of 0 µs")]


@pytest.mark.parametrize("error", ERRORS)
def test_an_eager_baseline_that_fails_once_is_tried_again(error: Exception) -> None:
    world = World(1)
    eager = Failing(world, "eager", [error])
    timing = kernelbench(SimulatedSide(world, "candidate", 100.0, sets=1), [eager], set_bytes=7, clocks=world.clocks)
    assert (timing.fastest, timing.absent, len(timing.ratios)) == ("eager", {}, 1)
    assert eager.rests == 1, "the second try begins with nothing in memory"


@pytest.mark.parametrize("error", ERRORS)
def test_an_eager_baseline_that_fails_twice_is_a_note(error: Exception) -> None:
    world = World(1)
    eager = Failing(world, "eager", [BaselineError("at first"), error])
    timing = kernelbench(SimulatedSide(world, "candidate", 100.0, sets=1), [eager], set_bytes=7, clocks=world.clocks)
    assert (timing.fastest, timing.baselines, timing.ratios) == (None, (), ())
    assert timing.absent == {"eager": str(error)}
    assert any("no eager baseline" in note for note in timing.notes)
