"""Several slow software GPUs, each with a UUID of its own; the second may be one that dies."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

from kernelforge.devices.cuda.worker.driver import DriverError
from tests.devices.cuda import software
from tests.devices.cuda.timer_driver import TimedDriver


class Numbered(TimedDriver):
    def __init__(self, ordinal: int) -> None:
        super().__init__(ordinal)
        self.facts = replace(self.facts, uuid=f"GPU-00000000-0000-0000-0000-{ordinal:012d}")


class Dying(Numbered):
    """Runs plans, takes its process with it when it is timed, and does not pass its probe afterwards."""

    def event(self, reuse: int | None = None) -> int:
        os.abort()

    def copy(self, target: int, source: int, nbytes: int) -> None:
        super().copy(target, source, nbytes - 1)


def warm_up() -> None:
    """Once, rather than in every child."""
    software.warm_up()


def create(ordinal: int) -> Any:
    return Numbered(ordinal)


def create_dying(ordinal: int) -> Any:
    return Dying(ordinal)


def create_fallen(ordinal: int) -> Any:
    """A GPU that has fallen off the bus."""
    raise DriverError("CUDA_ERROR_NO_DEVICE", f"opening GPU {ordinal}")
