"""Energy of one execution, by the counter of the GPU: less what idling takes, and what resets and flushes take."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from kernelforge.errors import TimingError
from kernelforge.evaluation.timing.sampler import SideSampler
from kernelforge.evaluation.timing.statistics import Draws, Floats, bootstrap, serial_correlation
from kernelforge.records import SideEnergy

WINDOW_S = 1.0
"""Shortest time between two readings. NVML's sensors are read every 20 to 100 ms, and on some GPUs see a quarter of
that (Yang et al., "Part-time Power Measurements", SC 2024, arXiv 2312.02741): many readings to a window."""

WINDOWS = 5
"""Windows of each kind, in turns: idle, samples, overheads. An interval needs a few, and each takes a second."""


@dataclass(frozen=True)
class _Window:
    joules: float
    seconds: float
    samples: int = 0

    def above(self, idle_w: float) -> float:
        """Joules of each sample above idle power."""
        return (self.joules - idle_w * self.seconds) / self.samples


class EnergyMeter:
    """Reads a GPU's energy counter around windows of blocks.

    Args:
        counter: Joules since any moment, or None where the GPU does not report them.
        host_clock: The parent's monotonic clock, in seconds.
        wait: Lets so many seconds pass.
    """

    def __init__(
        self, counter: Callable[[], float | None], host_clock: Callable[[], float], wait: Callable[[float], None]
    ) -> None:
        self._counter = counter
        self._host_clock = host_clock
        self._wait = wait

    def of(self, side: SideSampler, sets: int, rng: np.random.Generator) -> SideEnergy:
        """Energy of one execution of a side that is ready.

        Args:
            side: Warm, so that it has the length of its blocks.
            sets: Executions of one sample.
            rng: For the interval.

        Raises:
            TimingError: the counter reports nothing, or no more than idling and overheads take.
        """
        joules, idle = [], []
        for _ in range(WINDOWS):
            idle.append(self._idle_w())
            spent = self._window(lambda: len(side.block(side.gapless, watch=False))).above(idle[-1])
            if len(side.flushes(1)):
                spent -= self._window(lambda: len(side.flushes(side.gapless))).above(idle[-1])
            joules.append(spent / sets)
        values = np.array(joules)

        def means(drawn: Draws) -> Floats:
            taken: Floats = values[drawn].mean(axis=1)
            return taken

        if values.min() <= 0:
            raise TimingError(f"{side.name}: its energy is within that of idling, resets and flushes")
        mean, interval = bootstrap(means, WINDOWS, rng, correlation=serial_correlation(values))
        return SideEnergy(name=side.name, joules=mean, interval=interval, idle_w=float(np.mean(idle)), windows=WINDOWS)

    def _idle_w(self) -> float:
        window = self._window(self._pause)
        return window.joules / window.seconds

    def _pause(self) -> int:
        self._wait(WINDOW_S)
        return 0

    def _window(self, run: Callable[[], int]) -> _Window:
        before, started, samples = self._read(), self._host_clock(), 0
        while self._host_clock() - started < WINDOW_S:
            samples += run()
        joules, seconds = self._read() - before, self._host_clock() - started
        if joules < 0:
            raise TimingError("the energy counter ran backwards; the driver was loaded again")
        return _Window(joules, seconds, samples)

    def _read(self) -> float:
        joules = self._counter()
        if joules is None:
            raise TimingError("this GPU does not report its energy: that takes NVML, and a whole GPU since Volta")
        return joules
