"""Base class of the search strategies: attempt history, round limit and early stopping."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from random import Random
from typing import Any, ClassVar, Generic, TypeVar

from kernelforge.records import Attempt, Operator, Record
from kernelforge.search.base import Proposal

OptionsT = TypeVar("OptionsT", bound=Record)


class BaseStrategy(ABC, Generic[OptionsT]):
    """Base of the strategies.

    Args:
        options: the strategy's own options.
        rounds: steps at most; None for :meth:`default_rounds`.
        stop_after: end after this many steps without a new best, once there is one; None never does.
        coders: how many Coders the run has.
    """

    name: ClassVar[str]
    source: ClassVar[str]
    default_stop_after: ClassVar[int | None] = None
    """What ``stop_after`` is when the user does not say."""
    judged: ClassVar[bool] = False
    """Whether its proposals ask the Judge first, but for seeds."""
    ends_on_stop: ClassVar[bool] = False
    """Whether a Judge's ``stop`` ends the search; else the Coder is then asked without a finding."""
    Options: ClassVar[type[Record]] = Record
    """What may be set, with the paper's defaults."""

    def __init__(self, options: OptionsT, *, rounds: int | None, stop_after: int | None, coders: int = 1) -> None:
        self.options = options
        self.rounds = self.default_rounds(options) if rounds is None else rounds
        self.stop_after = stop_after
        self.coders = coders
        self.attempts: list[Attempt] = []
        """Every attempt told, by number."""
        self.steps: list[int] = []
        """Numbers of the attempts that were steps: all but tuned children."""
        self._best: int | None = None
        self._steps_at_best = 0

    @classmethod
    @abstractmethod
    def default_rounds(cls, options: Any) -> int:
        """Steps that the published method takes with these options."""

    @abstractmethod
    def _propose(self, step: int, rng: Random) -> Proposal | None:
        """The proposal for ``step`` (0-based, not yet told), or None when it depends on steps still to be told."""

    def _over(self) -> str | None:
        """Why the strategy's own rule ends the search, or None."""
        return None

    def ask(self, rng: Random, ahead: int = 0) -> Proposal | None:
        step = len(self.steps) + ahead
        if self.stopped is not None or step >= self.rounds:
            return None
        return self._propose(step, rng)

    def tell(self, attempt: Attempt) -> None:
        if attempt.number != len(self.attempts):
            raise ValueError(f"attempt {attempt.number} was told out of order, expected {len(self.attempts)}")
        self.attempts.append(attempt)
        if attempt.operator is not Operator.TUNE:
            self.steps.append(attempt.number)
        if attempt.accepted:
            self._best, self._steps_at_best = attempt.number, len(self.steps)
        self._take_in(attempt)

    def start_from(self, past: Sequence[Attempt]) -> None:
        """Begin where another strategy's search stands: its attempts are known, and none is a step of this one.

        To be called before anything is told.
        """
        self.attempts = list(past)
        self._best = max((attempt.number for attempt in past if attempt.accepted), default=None)
        self._take_over()

    def _take_over(self) -> None:
        """Update what the strategy itself keeps, from attempts that were no steps of its own."""

    def _take_in(self, attempt: Attempt) -> None:
        """Update what the strategy itself keeps."""

    @property
    def best(self) -> int | None:
        return self._best

    @property
    def stopped(self) -> str | None:
        if len(self.steps) >= self.rounds:
            return f"the budget of {self.rounds} rounds is spent"
        since_best = 0 if self._best is None else len(self.steps) - self._steps_at_best
        if self.stop_after is not None and since_best >= self.stop_after:
            return f"no new best in {self.stop_after} rounds"
        return self._over()

    def state(self) -> dict[str, Any]:
        return {"strategy": self.name, "steps": len(self.steps), "best": self._best, **self._state()}

    def _state(self) -> dict[str, Any]:
        """What the strategy itself keeps, as plain JSON."""
        return {}

    def turn(self, step: int) -> int:
        """Which Coder's turn a step is, when nothing else decides: one after the other."""
        return step % self.coders
