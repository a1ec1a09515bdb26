"""Waits that a stop ends."""

from __future__ import annotations

import time
from collections.abc import Callable

from kernelforge.errors import BudgetExhausted

LOOK_S = 0.1
"""How often a wait looks whether it is to end."""


def pause(seconds: float, stopped: Callable[[], bool], why: str) -> None:
    """Wait, looking often whether to stop.

    Raises:
        BudgetExhausted: ``stopped`` said so; the message names ``why`` there was a wait.
    """
    deadline = time.monotonic() + seconds
    while True:
        if stopped():
            raise BudgetExhausted(f"stopped while waiting {why}")
        left = deadline - time.monotonic()
        if left <= 0:
            return
        time.sleep(min(left, LOOK_S))
