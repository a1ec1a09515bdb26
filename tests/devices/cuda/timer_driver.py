"""The software driver at the speed of a slow GPU: a launch takes :data:`LEAST_US` on its made-up clock, in every run.

So a candidate is slower than torch for certain. Its counterpart in the parent is ``fake_timer.py``.
As on a GPU there is a gap before each kernel, and an SM that has to divide its memory into L1 and shared memory in
another way takes a moment for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from kernelforge.devices.cuda.worker import l2_flush
from kernelforge.devices.cuda.worker.driver import LaunchShape
from tests.devices.cuda import software
from tests.devices.cuda.software import Module, SoftwareDriver

LEAST_US = 1000.0
FLUSH_US = 1.0
"""There is no L2 to empty."""
NODE_GAP_US = 1.25
"""Before each kernel, an empty one included."""
CARVE_OUT_US = 0.5
"""What a kernel waits for when the one before had another amount of shared memory."""
L2_BYTES = 64 << 10
"""So small that a sample goes through few sets."""


class TimedDriver(SoftwareDriver):
    """See the module."""

    def __init__(self, ordinal: int) -> None:
        super().__init__(ordinal)
        self.facts = replace(self.facts, l2_bytes=L2_BYTES)
        self._shared_bytes = 0

    def launch(self, function: tuple[Module, str], shape: LaunchShape, arguments: Sequence[bytes]) -> None:
        module, symbol = function
        static = module.machine.entries[symbol].static_shared_bytes
        self._put(lambda: self._wait_for(static + shape.shared_bytes))
        if symbol in (l2_flush.FLUSH, l2_flush.SCRUB, l2_flush.EMPTY):
            self._put(lambda: self._pass(0.0 if symbol == l2_flush.EMPTY else FLUSH_US))
            return
        super().launch(function, shape, arguments)
        self._put(lambda: self._pass(LEAST_US))

    def _wait_for(self, shared_bytes: int) -> None:
        """Advance the clock by the gap between two kernels."""
        self._pass(NODE_GAP_US + (CARVE_OUT_US if shared_bytes != self._shared_bytes else 0.0))
        self._shared_bytes = shared_bytes


def warm_up() -> None:
    """Once, rather than in every child."""
    software.warm_up()


def create(ordinal: int) -> Any:
    return TimedDriver(ordinal)
