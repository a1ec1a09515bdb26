"""Parent side: a baseline that the oracle's child holds, to be timed in turn with a candidate."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from kernelforge.errors import BaselineError, SandboxError

Ask = Callable[[dict[str, Any]], dict[str, Any]]
"""Sends one request to the child that holds the baseline and gives back its reply."""


@dataclass
class BaselineSide:
    """One armed baseline: a :class:`~kernelforge.devices.base.TimedSide`.

    A sample is one execution on each of its sets; inputs that the work changes are restored before. A reply is checked
    like any other of a child that runs third-party code: as many positive times as samples were asked for.
    """

    name: str
    captured: bool
    """Whether samples are replays of a CUDA graph."""
    note: str
    """What a reader of its times should know; empty for nothing."""
    number: int
    """Its name towards the child."""
    ask: Ask
    _closed: bool = False

    def block(self, samples: int, *, gaps_us: Sequence[float] = ()) -> tuple[float, ...]:
        """Time of each of ``samples`` samples in µs, resets and flushes included.

        Args:
            samples: How many, at least 1.
            gaps_us: Idle time before each, in µs, which is not part of it; none means back to back.

        Raises:
            BaselineError: it is closed, or failed while it ran.
        """
        times = self._times(samples, gaps_us, overheads_only=False)
        if not all(time > 0 for time in times):
            raise SandboxError(f"baseline {self.name}: the oracle child sent times that are none")
        return times

    def flush_block(self, samples: int) -> tuple[float, ...]:
        """The same without the executions; zeros where nothing is flushed."""
        return self._times(samples, (), overheads_only=True)

    def close(self) -> None:
        """Let the child free its sets; safe to call twice."""
        if not self._closed:
            self._closed = True
            self.ask({"op": "disarm", "side": self.number})

    def _times(self, samples: int, gaps_us: Sequence[float], *, overheads_only: bool) -> tuple[float, ...]:
        if self._closed:
            raise BaselineError(f"baseline {self.name} is closed")
        if samples < 1 or (gaps_us and len(gaps_us) != samples):
            raise ValueError(f"{samples} samples with {len(gaps_us)} gaps: there is one gap before each, or none")
        request = {"op": "block", "side": self.number, "samples": samples, "gaps_us": list(gaps_us)}
        reply = self.ask({**request, "overheads_only": overheads_only})
        times = tuple(float(time) for time in reply["times_us"])
        if len(times) != samples or not all(0 <= time < math.inf for time in times):
            raise SandboxError(f"baseline {self.name}: the oracle child sent times that are none")
        return times
