"""The software driver with the host's clock for events: what it times is real, though of no GPU.

A launch takes at least :data:`LEAST_S`, so that a candidate can be made slower than torch for certain.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from devices.cuda.software import Module, SoftwareDriver

from kernelforge.devices.cuda import flush
from kernelforge.devices.cuda.driver import LaunchShape

LEAST_S = 0.001
L2_BYTES = 64 << 10
"""So small that a sample goes through few sets."""


class TimedDriver(SoftwareDriver):
    """Its events are moments of the host."""

    def __init__(self, ordinal: int) -> None:
        super().__init__(ordinal)
        self.facts = replace(self.facts, l2_bytes=L2_BYTES)

    def event(self, again: int | None = None) -> int:
        self._check()
        return time.perf_counter_ns()

    def launch(self, function: tuple[Module, str], shape: LaunchShape, arguments: Sequence[bytes]) -> None:
        if function[1] in (flush.FLUSH, flush.SCRUB):
            return  # there is no L2 to empty, and on the baseline's side torch is as good as done at once
        super().launch(function, shape, arguments)
        self._put(lambda: time.sleep(LEAST_S))


def create(ordinal: int) -> Any:
    return TimedDriver(ordinal)
