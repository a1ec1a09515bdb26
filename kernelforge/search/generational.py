"""Base class of generational strategies: the steps of a generation do not see each other's results.

So all steps of a generation can be asked for at once, and what is asked does not depend on which of them were told. A
strategy *knows* the attempts up to the end of the last whole generation, tuned children included; the others wait.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from random import Random

from kernelforge.records import Attempt, Operator
from kernelforge.search.base import Proposal
from kernelforge.search.base_strategy import BaseStrategy, OptionsT


class Generational(BaseStrategy[OptionsT]):
    """Base of the strategies that work in generations."""

    def __init__(self, options: OptionsT, *, rounds: int | None, stop_after: int | None, coders: int = 1) -> None:
        super().__init__(options, rounds=rounds, stop_after=stop_after, coders=coders)
        self.known: list[Attempt] = []
        """Attempts that the next proposal may depend on."""
        self.generation = 0
        """Generations that were begun."""
        self._first = self._end = 0

    @abstractmethod
    def _size(self) -> int:
        """Steps of the generation that follows what is known."""

    @abstractmethod
    def _member(self, slot: int, rng: Random) -> Proposal:
        """The proposal for the 0-based ``slot`` of the generation that follows what is known."""

    @abstractmethod
    def _learn(self, told: Sequence[Attempt]) -> None:
        """Take in what has just become known: a whole generation with its tuned children, or the tuned child of its
        last step, or what :meth:`start_from` was given."""

    def _propose(self, step: int, rng: Random) -> Proposal | None:
        # While a generation is under way, nothing becomes known: its slots are the same as when it was begun.
        slot = step - self._first_step
        return self._member(slot, rng) if slot < self._size() else None

    @property
    def _open(self) -> bool:
        return len(self.steps) < self._end

    def _take_in(self, attempt: Attempt) -> None:
        if attempt.operator is not Operator.TUNE and len(self.steps) > self._end:
            self._first, self._end = self._end, self._end + max(1, self._size())
            self.generation += 1
        if not self._open:
            self._catch_up()

    def _take_over(self) -> None:
        self._catch_up()

    def _catch_up(self) -> None:
        told = self.attempts[len(self.known) :]
        self.known += told
        self._learn(told)

    @property
    def _index(self) -> int:
        """0-based number of the generation that :meth:`_member` is asked for."""
        return self.generation - 1 if self._open else self.generation

    @property
    def _first_step(self) -> int:
        """0-based step of slot 0 of that generation."""
        return self._first if self._open else self._end
