"""``refine``: seed, then repair or optimise, one finding a round.

The loop is CudaForge's (one Judge finding per round, repair when the latest kernel does not run, optimise when it
does), with one change: the parent of an optimisation is the best attempt so far, never a regression.
"""

from __future__ import annotations

from random import Random

from kernelforge.records import Attempt, Operator, Verdict
from kernelforge.search.base import Proposal

REPAIRS_IN_A_ROW = 2
"""A broken child is mended at most this often before the search goes back to its best."""
SEEDS = 3
"""A task with nothing correct is started afresh at most this often."""


class Refine:
    """One task's refinement. ``rounds`` counts attempts, the seed included."""

    def __init__(self, *, rounds: int, stop_after: int) -> None:
        self.rounds = rounds
        self.stop_after = stop_after
        self._attempts: list[Attempt] = []
        self._best: int | None = None
        self._since_best = 0
        self._repairs = 0
        self._seeds = 0

    @property
    def best(self) -> int | None:
        return self._best

    @property
    def stopped(self) -> str | None:
        if len(self._attempts) >= self.rounds:
            return f"the budget of {self.rounds} rounds is spent"
        if self._best is not None and self._since_best >= self.stop_after:
            return f"no new best in {self.stop_after} rounds"
        if self._best is None and self._seeds >= SEEDS and not self._can_repair():
            return f"{SEEDS} seeds and their repairs gave nothing correct"
        return None

    def ask(self, rng: Random) -> Proposal | None:
        if self.stopped is not None:
            return None
        if not self._attempts:
            return Proposal(Operator.SEED)
        if self._can_repair():
            return Proposal(Operator.REPAIR, parent=self._attempts[-1].number, judge=True)
        if self._best is not None:
            return Proposal(Operator.OPTIMISE, parent=self._best, judge=True)
        return Proposal(Operator.SEED)

    def _can_repair(self) -> bool:
        latest = self._attempts[-1]
        broken = latest.evaluation.verdict is not Verdict.OK
        return broken and latest.candidate is not None and self._repairs < REPAIRS_IN_A_ROW

    def tell(self, attempt: Attempt) -> None:
        if attempt.number != len(self._attempts):
            raise ValueError(f"attempt {attempt.number} was told out of order, expected {len(self._attempts)}")
        self._attempts.append(attempt)
        if attempt.operator is Operator.REPAIR:
            self._repairs += 1
        else:
            self._repairs = 0
        if attempt.operator is Operator.SEED:
            self._seeds += 1
        if attempt.evaluation.verdict is Verdict.OK:
            self._repairs = 0
        if attempt.accepted:
            self._best = attempt.number
            self._since_best = 0
        elif self._best is not None:
            self._since_best += 1
