"""The software driver with a clock that counts: a launch takes as long as it executes instructions, in every run.

So a cheat that leaves work out is faster here for certain, and one that does it all is not. Nothing waits.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tests.devices.cuda import software
from tests.devices.cuda.software import SoftwareDriver

SLOWNESS = 100
"""How much slower than the software driver says: few samples fill a block then."""
L2_BYTES = 16 << 10
"""So small that a sample goes through few sets."""


class CountingDriver(SoftwareDriver):
    """See the module."""

    def __init__(self, ordinal: int) -> None:
        super().__init__(ordinal)
        self.facts = replace(self.facts, l2_bytes=L2_BYTES)

    def _pass(self, microseconds: float) -> None:
        super()._pass(SLOWNESS * microseconds)


def warm_up() -> None:
    """Once, rather than in every child."""
    software.warm_up()


def create(ordinal: int) -> Any:
    return CountingDriver(ordinal)
