"""A stopwatch for tests, which no load on the machine disturbs: real work in real children, on clocks that are told.

The candidate's events are the software driver's, which are the same in every run. Baselines run for real, and what they
take is made up. The parent's own clock moves by what each block is said to take, as it would beside an honest runner
where nobody is ever late.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kernelforge.devices.base import Armed, TimedSide
from kernelforge.evaluate.stopwatch import Stopwatch
from kernelforge.records import Timing

BASELINE_US = 100.0
"""Of one execution."""
FLUSH_US = 10.0


class ToldClock:
    """Moves by what it is told, and by nothing else."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


class Watched:
    """A side whose blocks move the clock by their own times."""

    def __init__(self, side: TimedSide, clock: ToldClock) -> None:
        self._side = side
        self._clock = clock

    def __getattr__(self, name: str) -> Any:
        return getattr(self._side, name)

    def block(self, samples: int, *, gaps_us: Sequence[float] = ()) -> tuple[float, ...]:
        return self._passed(self._side.block(samples, gaps_us=gaps_us))

    def flush_block(self, samples: int) -> tuple[float, ...]:
        return self._passed(self._side.flush_block(samples))

    def _passed(self, times: tuple[float, ...]) -> tuple[float, ...]:
        self._clock.seconds += sum(times) / 1e6
        return times


class MadeUp(Watched):
    """A baseline that takes the same time in every run, whatever torch took."""

    def __init__(self, side: TimedSide, clock: ToldClock, sets: int, flushed: bool) -> None:
        super().__init__(side, clock)
        self._flush_us = FLUSH_US if flushed else 0.0
        self._sample_us = self._flush_us + sets * BASELINE_US

    def block(self, samples: int, *, gaps_us: Sequence[float] = ()) -> tuple[float, ...]:
        times = self._side.block(samples, gaps_us=gaps_us)
        assert all(time > 0 for time in times)
        return self._passed((self._sample_us,) * len(times))

    def flush_block(self, samples: int) -> tuple[float, ...]:
        return self._passed((self._flush_us,) * len(self._side.flush_block(samples)))


class ToldStopwatch(Stopwatch):
    """See the module."""

    def _clocked(self, armed: Armed, baselines: list[TimedSide], sets: Any, reset_us: float) -> Timing:
        self.host_clock = clock = ToldClock()
        made_up: list[TimedSide] = [
            MadeUp(one, clock, self.shape.sets, self.shape.flush_bytes > 0) for one in baselines
        ]
        return super()._clocked(Watched(armed, clock), made_up, sets, reset_us)  # type: ignore[arg-type]
