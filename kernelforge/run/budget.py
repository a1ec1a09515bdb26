"""Budgets of a run and of its tasks: evaluations, wall time, tokens, dollars; limits and use.

Budgets are looked at before each call of a model and before each evaluation. A call in flight is not cut off, so what
is spent may pass a limit by less than one call for each call that was in flight.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable

from kernelforge.errors import BudgetExhausted, TaskBudgetExhausted
from kernelforge.records import Budget, Limits, Message, Usage
from kernelforge.run.events import StopSignal, Totals


class UsageAccount:
    """Use under one set of limits. Not safe between threads by itself."""

    def __init__(self, limits: Limits, owner: str) -> None:
        self.limits = limits
        self.owner = owner
        """Whose limits they are, for messages: ``the run`` or ``the task``."""
        self.started = time.monotonic()
        self.evaluations = 0
        self.tokens = 0
        self.dollars = 0.0
        self.uncounted = 0
        """Calls whose tokens are unknown."""
        self.unpriced = 0
        """Calls whose price is unknown."""

    def add(self, usage: Usage) -> None:
        if usage.tokens is None:
            self.uncounted += 1
        else:
            self.tokens += usage.tokens
        if usage.dollars is None:
            self.unpriced += 1
        else:
            self.dollars += usage.dollars

    def exhausted_reason(self) -> str | None:
        """Reason why no further call of a model may start, or None."""
        limits = self.limits
        if limits.wall_seconds is not None and time.monotonic() - self.started >= limits.wall_seconds:
            return f"{self.owner}'s budget of {limits.wall_seconds:g} s wall time is spent"
        if limits.tokens is not None:
            if self.tokens >= limits.tokens:
                return f"{self.owner}'s budget of {limits.tokens:,} tokens is spent ({self.tokens:,})"
            if self.uncounted:
                return f"{self.owner}'s token budget cannot be held: a server did not say what a call took"
        if limits.dollars is not None:
            if self.dollars >= limits.dollars:
                return f"{self.owner}'s budget of ${limits.dollars:g} is spent (${self.dollars:.4f})"
            if self.unpriced:
                return f"{self.owner}'s dollar budget cannot be held: the price of a call is unknown (see --prices)"
        return None

    def evaluations_exhausted_reason(self) -> str | None:
        limit = self.limits.evaluations
        if limit is not None and self.evaluations >= limit:
            return f"{self.owner}'s budget of {limit} evaluations is spent"
        return None


class RunBudget:
    """Use of a run over all its tasks. Shared between threads."""

    def __init__(self, budget: Budget, *, stop: StopSignal) -> None:
        self._budget = budget
        self._stop = stop
        self._account = UsageAccount(budget, "the run")
        self._lock = threading.Lock()

    def task(self, evaluations: int = 0, messages: Iterable[Message] = ()) -> TaskBudget:
        """The budget of one task; the use that its journal holds is charged at once."""
        return TaskBudget(self, UsageAccount(self._budget.per_task, "the task"), evaluations, messages)

    def exhausted_reason(self) -> str | None:
        """Reason why no further work may start in the run, or None."""
        if self._stop.draining:
            return "asked to stop"
        with self._lock:
            return self._account.exhausted_reason()

    def totals(self) -> Totals:
        """Use of the run so far."""
        with self._lock:
            account = self._account
            return Totals(account.evaluations, account.tokens, account.dollars, account.uncounted, account.unpriced)

    def out_of_time(self) -> bool:
        """Whether waiting calls should give up: the run is to stop, or its wall time is over."""
        limit = self._budget.wall_seconds
        return self._stop.draining or (limit is not None and time.monotonic() - self._account.started >= limit)


class TaskBudget:
    """Budget of one task within that of the run: the meter of its agents. Shared between threads."""

    def __init__(self, run: RunBudget, account: UsageAccount, evaluations: int, messages: Iterable[Message]) -> None:
        self._run = run
        self._account = account
        self._add_evaluations(evaluations)
        for message in messages:
            if message.usage is not None:
                self.spent(message.usage)

    def check(self) -> None:
        """
        Raises:
            BudgetExhausted: no further call may start in the run.
            TaskBudgetExhausted: none may start for this task.
        """
        reason = self._run.exhausted_reason()
        if reason is not None:
            raise BudgetExhausted(reason)
        with self._run._lock:
            reason = self._account.exhausted_reason()
        if reason is not None:
            raise TaskBudgetExhausted(reason)

    def check_time(self) -> None:
        """See that work may go on that needs no call of a model: evaluating a reply that was paid for.

        Raises:
            BudgetExhausted: the run is to stop, or its wall time is over.
        """
        if self.stopped():
            raise BudgetExhausted(self._run.exhausted_reason() or "asked to stop")

    def stopped(self) -> bool:
        """Whether waiting calls should give up."""
        return self._run.out_of_time()

    @property
    def aborted(self) -> bool:
        """Whether the run was aborted: helper processes are killed while they work, so results from now on say
        nothing about a candidate or a task."""
        return self._run._stop.aborting

    def check_abort(self) -> None:
        """
        Raises:
            BudgetExhausted: the run was aborted.
        """
        if self.aborted:
            raise BudgetExhausted("aborted")

    def spent(self, usage: Usage) -> None:
        with self._run._lock:
            self._account.add(usage)
            self._run._account.add(usage)

    def take_evaluation(self) -> None:
        """Claim one evaluation. It needs no call of a model, so a spent token or dollar budget does not refuse it.

        Raises:
            BudgetExhausted, TaskBudgetExhausted: there is none left, or the time is over.
        """
        self.check_time()
        with self._run._lock:
            for account, error in ((self._run._account, BudgetExhausted), (self._account, TaskBudgetExhausted)):
                reason = account.evaluations_exhausted_reason()
                if reason is not None:
                    raise error(reason)
            self._run._account.evaluations += 1
            self._account.evaluations += 1

    def give_back_evaluation(self) -> None:
        """Return a claim that came to nothing."""
        with self._run._lock:
            self._add_evaluations(-1)

    def _add_evaluations(self, count: int) -> None:
        self._account.evaluations += count
        self._run._account.evaluations += count
