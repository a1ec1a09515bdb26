"""What a run may spend, and what it has spent, over all its tasks."""

from __future__ import annotations

import threading
import time

from kernelforge.errors import BudgetExhausted
from kernelforge.records import Budget, Usage
from kernelforge.run.events import StopSignal


class Spending:
    """What a run has spent of its budget, over all tasks. Shared between threads."""

    def __init__(self, budget: Budget, *, evaluations: int, stop: StopSignal) -> None:
        self._budget = budget
        self._stop = stop
        self._started = time.monotonic()
        self._evaluations = evaluations
        self._lock = threading.Lock()

    def refusal(self) -> str | None:
        """Why no further attempt may start, or None."""
        if self._stop.draining:
            return "asked to stop"
        limit = self._budget.wall_seconds
        if limit is not None and time.monotonic() - self._started >= limit:
            return f"the budget of {limit:g} s wall time is spent"
        return None

    def check(self) -> None:
        """
        Raises:
            BudgetExhausted: no further call may start.
        """
        reason = self.refusal()
        if reason is not None:
            raise BudgetExhausted(reason)

    def spent(self, usage: Usage) -> None:
        """Take note of a call's cost."""

    def take_evaluation(self) -> None:
        """Claim one evaluation.

        Raises:
            BudgetExhausted: there is none left, or the run is to stop.
        """
        with self._lock:
            reason = self.refusal()
            limit = self._budget.evaluations
            if reason is None and limit is not None and self._evaluations >= limit:
                reason = f"the budget of {limit} evaluations is spent"
            if reason is not None:
                raise BudgetExhausted(reason)
            self._evaluations += 1

    def give_back_evaluation(self) -> None:
        """Return a claim that came to nothing."""
        with self._lock:
            self._evaluations -= 1
