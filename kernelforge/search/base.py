"""The interface of every strategy: ``ask()`` gives a proposal, ``tell()`` takes what became of it.

A strategy does no I/O, reads no clock and draws randomness only from the generator it is handed. Its whole state is
a function of what it was told, so ``resume`` needs no checkpoint: it tells the strategy the journalled attempts.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Protocol

from kernelforge.records import Attempt, Operator


@dataclass(frozen=True)
class Proposal:
    """What to do next. ``parent`` is an attempt number; ``judge`` asks for a finding first."""

    operator: Operator
    parent: int | None = None
    judge: bool = False


class Strategy(Protocol):
    """One task's search."""

    def ask(self, rng: Random) -> Proposal | None:
        """The next proposal, or None when the search is over; ``stopped`` then says why."""
        ...

    def tell(self, attempt: Attempt) -> None:
        """Take in a finished attempt. Attempts come in order of their numbers."""
        ...

    @property
    def best(self) -> int | None:
        """Number of the best attempt so far."""
        ...

    @property
    def stopped(self) -> str | None: ...
