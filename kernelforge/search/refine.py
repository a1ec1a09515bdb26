"""``refine``: seed, then repair or optimise, one finding a round.

The loop is CudaForge's: ten rounds, the seed included; a round repairs when the latest kernel fails and optimises
otherwise; the Judge names one thing; the agents see 24 metrics of Nsight Compute. Three changes are on by default and
can be switched off, which gives the published loop: an optimisation starts from the best attempt instead of the latest
(``rollback``), and the agents see times (``latency``) and all of the profile (``metrics``).

CudaForge does not stop early; here ``stop_after`` and the Judge's ``stop`` do. Nor does it say what follows a reply
without a kernel (its program ends there): such a reply cannot be repaired, so the next round goes on from the best
attempt, or without ``rollback`` from the latest kernel there is, or with a fresh seed.
"""

from __future__ import annotations

from random import Random
from typing import Any, ClassVar

from kernelforge.records import Attempt, Operator, Verdict
from kernelforge.search.base import ProfileVisibility, Proposal, Strategy, StrategyOptions, best_per_step

ROUNDS = 10
"""Rounds of a task, the seed included: the default of CudaForge and of its main results."""
REPAIRS_IN_A_ROW = 2
"""With ``rollback``, a failing child is repaired at most this often before the search goes back to its best. Ours."""
SEEDS = 3
"""With ``rollback``, a task with nothing correct is started again at most this often. Ours."""


class RefineOptions(StrategyOptions):
    """Options of ``refine``. With ``rollback`` and ``latency`` off and ``metrics=subset`` it is CudaForge's loop."""

    rollback: bool = True
    """Optimise the best attempt so far. Off, as in CudaForge: always work on the latest kernel."""
    latency: bool = True
    """Show the agents times and speedups. Off, as in CudaForge: metrics alone."""


class Refine(Strategy[RefineOptions]):
    """One task's refinement."""

    name: ClassVar[str] = "refine"
    source: ClassVar[str] = "CudaForge (arXiv 2511.01884)"
    default_stop_after: ClassVar[int | None] = 4
    uses_judge: ClassVar[bool] = True
    ends_on_stop: ClassVar[bool] = True
    Options = RefineOptions

    def __init__(
        self, options: RefineOptions, *, rounds: int | None = None, stop_after: int | None = None, coders: int = 1
    ) -> None:
        super().__init__(options, rounds=rounds, stop_after=stop_after, coders=coders)
        self.sight = ProfileVisibility(metrics=options.metrics, latency=options.latency)
        self._repairs = 0
        self._seeds = 0

    @classmethod
    def default_rounds(cls, options: RefineOptions) -> int:
        return ROUNDS

    def _stop_reason(self) -> str | None:
        if self.options.rollback and self.best is None and self._seeds >= SEEDS and self._broken() is None:
            return f"{SEEDS} seeds and their repairs gave nothing correct"
        return None

    def _propose(self, step: int, rng: Random) -> Proposal | None:
        if step > len(self.steps):
            return None  # every round depends on the one before
        coder = self.turn(step)
        broken = self._broken()
        if broken is not None:
            return Proposal(Operator.REPAIR, parent=broken, judge=True, coder=coder)
        parent = self.best if self.options.rollback else self._latest()
        if parent is not None:
            return Proposal(Operator.OPTIMISE, parent=parent, judge=True, coder=coder)
        return Proposal(Operator.SEED, coder=coder, sample=self._seeds)

    def _broken(self) -> int | None:
        """The failed kernel that the next round has to repair, if there is one."""
        if self.options.rollback:
            untried = self.start if len(self.attempts) == 1 else None
            latest = self.attempts[self.steps[-1]] if self.steps else untried
            if latest is None or latest.candidate is None or self._repairs >= REPAIRS_IN_A_ROW:
                return None
        else:
            number = self._latest()
            latest = None if number is None else self.attempts[number]
        return None if latest is None or latest.evaluation.verdict is Verdict.OK else latest.number

    def _latest(self) -> int | None:
        """The latest kernel there is, tuned where that made it better."""
        kernels = [attempt.number for attempt in best_per_step(self.attempts) if attempt.candidate is not None]
        return kernels[-1] if kernels else None

    def _update(self, attempt: Attempt) -> None:
        if attempt.operator is Operator.TUNE:
            return
        repaired = attempt.operator is Operator.REPAIR and attempt.evaluation.verdict is not Verdict.OK
        self._repairs = self._repairs + 1 if repaired else 0
        if attempt.operator is Operator.SEED:
            self._seeds += 1

    def _state(self) -> dict[str, Any]:
        return {"seeds": self._seeds, "repairs_in_a_row": self._repairs, "mending": self._broken()}
