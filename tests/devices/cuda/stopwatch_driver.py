"""The software driver at the speed of a slow GPU: a launch takes :data:`LEAST_US` on its made-up clock, in every run.

So a candidate is slower than torch for certain. What stands beside it on the parent's side is ``told_stopwatch.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from devices.cuda import software
from devices.cuda.software import Module, SoftwareDriver

from kernelforge.devices.cuda import flush
from kernelforge.devices.cuda.driver import LaunchShape

LEAST_US = 1000.0
FLUSH_US = 1.0
"""There is no L2 to empty."""
L2_BYTES = 64 << 10
"""So small that a sample goes through few sets."""


class TimedDriver(SoftwareDriver):
    """See the module."""

    def __init__(self, ordinal: int) -> None:
        super().__init__(ordinal)
        self.facts = replace(self.facts, l2_bytes=L2_BYTES)

    def launch(self, function: tuple[Module, str], shape: LaunchShape, arguments: Sequence[bytes]) -> None:
        if function[1] in (flush.FLUSH, flush.SCRUB):
            self._put(lambda: self._pass(FLUSH_US))
            return
        super().launch(function, shape, arguments)
        self._put(lambda: self._pass(LEAST_US))


def warm_up() -> None:
    """Once, rather than in every child."""
    software.warm_up()


def create(ordinal: int) -> Any:
    return TimedDriver(ordinal)
