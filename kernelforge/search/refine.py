"""``refine``: seed, then repair or optimise, one finding a round.

The loop is CudaForge's (one Judge finding per round, repair when the latest kernel does not run, optimise when it
does), with one change: the parent of an optimisation is the best attempt so far, never a regression.
"""

from __future__ import annotations

from random import Random
from typing import ClassVar

from kernelforge.records import Attempt, Operator, Record, Verdict
from kernelforge.search.base import Proposal
from kernelforge.search.told import Told

REPAIRS_IN_A_ROW = 2
"""A broken child is mended at most this often before the search goes back to its best."""
SEEDS = 3
"""A task with nothing correct is started afresh at most this often."""


class RefineOptions(Record):
    """Options of ``refine``."""


class Refine(Told[RefineOptions]):
    """One task's refinement."""

    name: ClassVar[str] = "refine"
    source: ClassVar[str] = "CudaForge"
    default_stop_after: ClassVar[int | None] = 4
    Options = RefineOptions

    def __init__(self, options: RefineOptions, *, rounds: int | None, stop_after: int | None, coders: int = 1) -> None:
        super().__init__(options, rounds=rounds, stop_after=stop_after, coders=coders)
        self._repairs = 0
        self._seeds = 0

    @classmethod
    def default_rounds(cls, options: RefineOptions) -> int:
        return 10

    def _over(self) -> str | None:
        if self.best is None and self._seeds >= SEEDS and not self._can_repair():
            return f"{SEEDS} seeds and their repairs gave nothing correct"
        return None

    def _propose(self, step: int, rng: Random) -> Proposal | None:
        if step > len(self.steps):
            return None
        coder = self.turn(step)
        if self._can_repair():
            return Proposal(Operator.REPAIR, parent=self.steps[-1], judge=True, coder=coder)
        if self.best is not None:
            return Proposal(Operator.OPTIMISE, parent=self.best, judge=True, coder=coder)
        return Proposal(Operator.SEED, coder=coder)

    def _can_repair(self) -> bool:
        if not self.steps:
            return False
        latest = self.attempts[self.steps[-1]]
        broken = latest.evaluation.verdict is not Verdict.OK
        return broken and latest.candidate is not None and self._repairs < REPAIRS_IN_A_ROW

    def _take_in(self, attempt: Attempt) -> None:
        if attempt.operator is Operator.TUNE:
            return
        self._repairs = self._repairs + 1 if attempt.operator is Operator.REPAIR else 0
        if attempt.operator is Operator.SEED:
            self._seeds += 1
        if attempt.evaluation.verdict is Verdict.OK:
            self._repairs = 0
