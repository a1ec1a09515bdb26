"""A stopwatch for tests, which no load on the machine disturbs: real work in real children, on clocks that are told.

The candidate's events are the software driver's, which are the same in every run. Baselines run for real, and what they
take is made up. The parent's own clock moves by what each block is said to take, as it would beside an honest runner
where nobody is ever late.
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


class ToldClock:
    """Moves by what it is told, and by nothing else."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


class Watched(Timeable):
    """A side whose blocks move the clock by their own times. Reading events takes no time there."""

    def __init__(self, side: Timeable, clock: ToldClock) -> None:
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


class MadeUp(Watched):
    """A baseline that takes the same time in every run, whatever torch took."""

    def __init__(self, side: Timeable, clock: ToldClock, sets: int, flushed: bool) -> None:
        super().__init__(side, clock)
        flush_us = FLUSH_US if flushed else 0.0
        empty_us = flush_us + sets * NODE_GAP_US if flushed else 0.0
        self._all_us = {"sample": flush_us + sets * BASELINE_US, "overhead": flush_us, "empty": empty_us}

    def _of(self, times: tuple[float, ...], work: SampleWork) -> tuple[float, ...]:
        assert work != "sample" or all(time > 0 for time in times)
        return (self._all_us[work],) * len(times)


class ToldStopwatch(CandidateTimer):
    """See the module."""

    def _clocked(self, armed: TimedPlan, baselines: Sequence[Timeable], sets: Any, reset_us: float) -> Timing:
        self.host_clock = clock = ToldClock()
        made_up: list[Timeable] = [MadeUp(one, clock, self.shape.sets, self.shape.flush_bytes > 0) for one in baselines]
        return super()._clocked(Watched(armed, clock), made_up, sets, reset_us)  # type: ignore[arg-type]
