"""A baseline in the oracle's child, timed in turn with a candidate."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from kernelforge.devices.base import SampleWork, Timeable
from kernelforge.errors import BaselineError, SandboxError
from kernelforge.records import LaunchQueue

Ask = Callable[[dict[str, Any]], dict[str, Any]]
"""Sends one request to the child that holds the baseline and gives back its reply."""


@dataclass
class RemoteBaseline(Timeable):
    """One armed baseline: a :class:`~kernelforge.devices.base.Timeable`.

    A sample is one execution on each of its sets; inputs that the work changes are restored before. A reply is checked
    like any other of a child that runs third-party code: as many positive times as samples were asked for.
    """

    name: str
    in_graph: bool
    """Whether samples are replays of a CUDA graph."""
    note: str
    """What a reader of its times should know; empty for nothing."""
    number: int
    """Its name towards the child."""
    ask: Ask
    _closed: bool = False
    _last: tuple[int, SampleWork] = (0, "sample")

    @property
    def captured(self) -> bool:
        """Whether samples are replays of a CUDA graph."""
        return self.in_graph

    def run(self, samples: int, work: SampleWork = "sample", *, gaps_us: Sequence[float] = ()) -> None:
        """Run ``samples`` samples and wait for them.

        Args:
            samples: How many, at least 1.
            work: What each holds.
            gaps_us: Idle time before each, in µs, which is not part of it; none means back to back.

        Raises:
            BaselineError: it is closed.
        """
        if samples < 1 or (gaps_us and len(gaps_us) != samples):
            raise ValueError(f"{samples} samples with {len(gaps_us)} gaps: there is one gap before each, or none")
        self._last = samples, work
        self._ask_open({"op": "block", "work": work, "samples": samples, "gaps_us": list(gaps_us)})

    def times(self) -> tuple[float, ...]:
        """Time of each sample that ran last in µs, resets and flushes included.

        Raises:
            BaselineError: it is closed.
            SandboxError: the child sent no such times.
        """
        samples, work = self._last
        times = tuple(float(time) for time in self._ask_open({"op": "times"})["times_us"])
        positive = work != "sample" or all(time > 0 for time in times)
        if len(times) != samples or not positive or not all(0 <= time < math.inf for time in times):
            raise SandboxError(f"baseline {self.name}: the oracle child sent times that are none")
        return times

    def launches(self) -> LaunchQueue:
        """Launch and queue time of one execution, traced.

        Raises:
            BaselineError: it is closed, or there is no trace of it.
            SandboxError: the child sent no such times.
        """
        reply = self._ask_open({"op": "launches"})
        try:
            queue = LaunchQueue.model_validate(reply["launches"])
        except (KeyError, ValidationError) as error:
            raise SandboxError(f"baseline {self.name}: the oracle child sent launches that are none") from error
        if queue.origin != "measured":
            raise SandboxError(f"baseline {self.name}: the oracle child sent launches that it did not trace")
        return queue

    def close(self) -> None:
        """Let the child free its sets; safe to call twice."""
        if not self._closed:
            self._closed = True
            self.ask({"op": "disarm", "side": self.number})

    def _ask_open(self, request: dict[str, Any]) -> dict[str, Any]:
        if self._closed:
            raise BaselineError(f"baseline {self.name} is closed")
        return self.ask({**request, "side": self.number})
