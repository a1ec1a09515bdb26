"""``portfolio``: several strategies in turn, each starting from the best result so far.

A member searches until it has brought no new best in ``plateau`` steps, or ends by its own rule. The next one then
starts again from everything that was tried, with nothing in its own past. When every member in turn has brought
nothing, the search is over. On Frontier-CS a portfolio with restarts beat each of its members at equal cost, as its
authors report; which member wins differs from task to task.
"""

from __future__ import annotations

from random import Random
from typing import Any, ClassVar

from pydantic import Field, field_validator

from kernelforge.records import Attempt, Operator
from kernelforge.search.base import Proposal, Strategy, StrategyOptions
from kernelforge.search.beam import Beam
from kernelforge.search.best_of_n import BestOfN
from kernelforge.search.contrast import Contrast
from kernelforge.search.evolve import Evolve
from kernelforge.search.fsr import Fsr
from kernelforge.search.mcts import Mcts
from kernelforge.search.refine import Refine

MEMBERS: dict[str, type[Strategy[Any]]] = {
    strategy.name: strategy for strategy in (Refine, BestOfN, Contrast, Fsr, Beam, Mcts, Evolve)
}
"""Strategies that may be members."""


class PortfolioOptions(StrategyOptions):
    """Options of ``portfolio``."""

    members: str = "refine,beam,evolve"
    """Strategies with commas between them, in the order of their turns; each has its own defaults, but all
    see what ``metrics`` says. Ours: the cheapest first."""
    plateau: int = Field(default=10, ge=1)
    """Steps without a new best after which the next member has its turn. Ours: over two rounds of the beam."""

    @field_validator("members")
    @classmethod
    def _check_members(cls, value: str) -> str:
        names = value.split(",")
        for name in names:
            if name not in MEMBERS:
                raise ValueError(
                    f"{name!r} is not a strategy that a portfolio can have; choose of {', '.join(MEMBERS)}"
                )
        if len(set(names)) != len(names):
            raise ValueError("a member is named twice")
        return value

    @property
    def classes(self) -> tuple[type[Strategy[Any]], ...]:
        """The members' classes, in the order of their turns."""
        return tuple(MEMBERS[name] for name in self.members.split(","))


class Portfolio(Strategy[PortfolioOptions]):
    """One task's portfolio."""

    name: ClassVar[str] = "portfolio"
    source: ClassVar[str] = "Portfolio with restarts on a plateau, as in Frontier-CS; members by their own sources"
    uses_judge: ClassVar[bool] = True
    cascades: ClassVar[bool] = False
    Options = PortfolioOptions

    def __init__(
        self, options: PortfolioOptions, *, rounds: int | None, stop_after: int | None, coders: int = 1
    ) -> None:
        super().__init__(options, rounds=rounds, stop_after=stop_after, coders=coders)
        self.turns = 0
        """Turns that have ended."""
        self.member = self._fresh(0)
        """Whose turn it is."""
        self._since_best = 0
        self._gained = False
        self._idle_turns = 0

    @classmethod
    def default_rounds(cls, options: PortfolioOptions) -> int:
        return sum(member.default_rounds(member.Options()) for member in options.classes)

    def _fresh(self, turn: int) -> Strategy[Any]:
        classes = self.options.classes
        member = classes[turn % len(classes)]
        return member(member.Options(), rounds=None, stop_after=None, coders=self.coders)

    @property
    def _turn_is_over(self) -> bool:
        return self._since_best >= self.options.plateau or self.member.stopped is not None

    @property
    def _idle_when_over(self) -> int:
        """Turns in a row without a new best, this one included."""
        return 0 if self._gained else self._idle_turns + 1

    def _stop_reason(self) -> str | None:
        if self._turn_is_over and self._idle_when_over >= len(self.options.classes):
            return "every member had a turn without a new best"
        return None

    def _propose(self, step: int, rng: Random) -> Proposal | None:
        ahead = step - len(self.steps)
        member, since_best = self.member, self._since_best
        # The turn passes when the next step is recorded: until then a tuned child may still be a new best.
        if self._turn_is_over:
            member, since_best = self._fresh(self.turns + 1), 0
            member.start_from(self.attempts)
        if since_best + ahead >= self.options.plateau:
            return None
        return member.ask(rng, ahead)

    def _update(self, attempt: Attempt) -> None:
        step = attempt.operator is not Operator.TUNE
        if step and self._turn_is_over:
            self._idle_turns = self._idle_when_over
            self.turns += 1
            self.member = self._fresh(self.turns)
            self.member.start_from(self.attempts[:-1])
            self._since_best, self._gained = 0, False
        self.member.tell(attempt)
        self._gained = self._gained or (attempt.accepted and bool(self.steps))
        self._since_best = 0 if attempt.accepted else self._since_best + step

    def _adopt_past(self) -> None:
        self.member.start_from(self.attempts)

    def _state(self) -> dict[str, Any]:
        return {
            "turn": self.turns,
            "steps_since_best": self._since_best,
            "idle_turns": self._idle_turns,
            "member": self.member.state(),
        }
