"""A candidate timer for tests, independent of the machine's load: real work in real children, on fake clocks.

The candidate's events are the software driver's, which are equal in every run. Baselines run, with fake times. The
parent's clock advances by the reported time of each block, as with an honest runner and no delays.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kernelforge.devices.base import SampleWork, Timeable, TimedPlan
from kernelforge.evaluation.timing.candidate_timer import CandidateTimer
from kernelforge.records import Timing

BASELINE_US = 100.0
"""Of one execution."""
FLUSH_US = 10.0
NODE_GAP_US = 1.5


class FakeClock:
    """Advances only by assignment."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


class ClockedSide(Timeable):
    """A side whose blocks move the clock by their own times. Reading events takes no time there."""

    def __init__(self, side: Timeable, clock: FakeClock) -> None:
        self.name = side.name
        self._side = side
        self._clock = clock
        self._times: tuple[float, ...] = ()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._side, name)

    @property
    def captured(self) -> bool:
        return self._side.captured

    def ready(self) -> None:
        self._side.ready()

    def rest(self) -> None:
        self._side.rest()

    def run(self, samples: int, work: SampleWork = "sample", *, gaps_us: Sequence[float] = ()) -> None:
        self._side.run(samples, work, gaps_us=gaps_us)
        self._times = self._of(self._side.times(), work)
        self._clock.seconds += sum(self._times) / 1e6

    def times(self) -> tuple[float, ...]:
        return self._times

    def _of(self, times: tuple[float, ...], work: SampleWork) -> tuple[float, ...]:
        return times


class FakeBaseline(ClockedSide):
    """A baseline with the same time in every run, independent of torch's."""

    def __init__(self, side: Timeable, clock: FakeClock, sets: int, flushed: bool) -> None:
        super().__init__(side, clock)
        flush_us = FLUSH_US if flushed else 0.0
        empty_us = flush_us + sets * NODE_GAP_US if flushed else 0.0
        self._all_us = {"sample": flush_us + sets * BASELINE_US, "overhead": flush_us, "empty": empty_us}

    def _of(self, times: tuple[float, ...], work: SampleWork) -> tuple[float, ...]:
        assert work != "sample" or all(time > 0 for time in times)
        return (self._all_us[work],) * len(times)


class FakeTimer(CandidateTimer):
    """See the module."""

    def _clocked(self, armed: TimedPlan, baselines: Sequence[Timeable], sets: Any, reset_us: float) -> Timing:
        self.host_clock = clock = FakeClock()
        made_up: list[Timeable] = [
            FakeBaseline(baseline, clock, self.shape.sets, self.shape.flush_bytes > 0) for baseline in baselines
        ]
        return super()._clocked(ClockedSide(armed, clock), made_up, sets, reset_us)  # type: ignore[arg-type]
