"""``beam``: keeps the best few kernels and improves each at each of its worst bottlenecks, one round at a time.

KernelAgent's optimisation loop. A round expands every member of the beam at the bottlenecks that the Judge ranks first
to k-th, repairs what failed, and keeps the best members. The beam holds no kernel twice: members with equal PTX are
one, and so are a candidate and its tuned child, of which the better stands for both.

A round is one generation of expansions and up to ``repairs`` generations of repairs: within KernelAgent's worker a
candidate that fails is repaired before the round ends. While the beam is short of members, a round has fewer steps;
KernelAgent fills it with copies of its start.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any, ClassVar, Literal

from pydantic import Field

from kernelforge.records import Attempt, Operator
from kernelforge.search.base import (
    GenerationalStrategy,
    Proposal,
    StrategyOptions,
    current_best,
    is_correct,
    is_repairable,
    parent_number,
    rank_key,
)

ROUNDS = 10
"""Rounds of expansions by default: KernelAgent's ``OptimizationManager``."""


class BeamOptions(StrategyOptions):
    """Options of ``beam``. ``width=1``, ``bottlenecks=1``, ``patience=5`` is KernelAgent's greedy strategy."""

    width: int = Field(default=2, ge=1)
    """Members of the beam. KernelAgent: 2."""
    bottlenecks: int = Field(default=2, ge=1)
    """Bottlenecks that each member is improved at, the most important first. KernelAgent: 2."""
    seeds: int = Field(default=4, ge=1)
    """Candidates written from nothing at the start. KernelAgent: 4."""
    repairs: int = Field(default=3, ge=0)
    """Times that a failing candidate is repaired; seeds only while none is correct. KernelAgent: 3."""
    patience: int = Field(default=0, ge=0)
    """End after this many rounds without a better kernel; rounds in which nothing ran right do not count. 0 never does,
    as in KernelAgent's beam; its greedy strategy has 5."""


class Beam(GenerationalStrategy[BeamOptions]):
    """One task's beam search."""

    name: ClassVar[str] = "beam"
    source: ClassVar[str] = "KernelAgent (meta-pytorch), beam search with deduplication by PTX"
    uses_judge: ClassVar[bool] = True
    Options = BeamOptions

    def __init__(self, options: BeamOptions, *, rounds: int | None, stop_after: int | None, coders: int = 1) -> None:
        super().__init__(options, rounds=rounds, stop_after=stop_after, coders=coders)
        self.members: list[int] = []
        """Numbers of the attempts in the beam, best first."""
        self._phase: Literal["seed", "repair", "expand"] = "seed"
        """What the generation does that follows what is known."""
        self._failing: list[int] = []
        """Attempts that the generation repairs, if it is one of repairs."""
        self._repairs_done = 0
        self._ran_right = False
        self._leader: int | None = None
        self._misses = 0

    @classmethod
    def default_rounds(cls, options: BeamOptions) -> int:
        return options.seeds + ROUNDS * options.width * options.bottlenecks

    def _stop_reason(self) -> str | None:
        seeded = any(self.attempts[number].operator is Operator.SEED for number in self.steps)
        if seeded and not self._open and self._phase == "seed":
            return f"{self.options.seeds} seeds and their repairs gave nothing correct"
        if self.options.patience and self._misses >= self.options.patience:
            return f"{self.options.patience} rounds without a better kernel"
        return None

    def _size(self) -> int:
        sizes = {
            "seed": self.options.seeds,
            "repair": len(self._failing),
            "expand": len(self.members) * self.options.bottlenecks,
        }
        return sizes[self._phase]

    def _member(self, slot: int, rng: Random) -> Proposal:
        # Turned by generation as well, so that no Coder gets the first bottleneck of every round.
        coder = self.turn(slot + self._index)
        if self._phase == "seed":
            return Proposal(Operator.SEED, coder=coder, sample=slot)
        if self._phase == "repair":
            return Proposal(Operator.REPAIR, parent=self._failing[slot], judge=True, coder=coder)
        member, rank = divmod(slot, self.options.bottlenecks)
        return Proposal(Operator.OPTIMISE, parent=self.members[member], judge=True, rank=rank + 1, coder=coder)

    def _learn(self, attempts: Sequence[Attempt]) -> None:
        seeding = not self.members
        self.members = beam_of(self.known, self.options.width)
        best = current_best(self.known)
        steps = [attempt for attempt in attempts if attempt.number in self.steps or attempt is self._failed_start]
        if steps:
            self._ran_right |= any(is_correct(attempt) for attempt in attempts)
            self._repairs_done = self._repairs_done + 1 if self._phase == "repair" else 0
            # One correct seed is enough to go on with, as one is to KernelAgent's early end of seeding.
            enough = self._repairs_done >= self.options.repairs or (seeding and bool(self.members))
            self._failing = [] if enough else [attempt.number for attempt in steps if is_repairable(attempt)]
            if not self._failing:
                self._misses += self._ran_right and best == self._leader
                self._ran_right = False
        if best != self._leader and not self._failing:
            self._leader, self._misses = best, 0
        self._phase = "repair" if self._failing else "expand" if self.members else "seed"

    def _state(self) -> dict[str, Any]:
        return {
            "generation": self.generation,
            "next": self._phase,
            "beam": self.members,
            "failing": self._failing,
            "rounds_without_gain": self._misses,
        }


def beam_of(attempts: Sequence[Attempt], width: int) -> list[int]:
    """Numbers of the best ``width`` correct attempts, of which no two are one kernel; the task's best comes first.

    Attempts are one kernel when their PTX is, or when one is the other with its ``# tune:`` names at other values.
    """
    beam: list[int] = []
    taken: set[str | int] = set()
    best = current_best(attempts)
    for attempt in sorted(
        filter(is_correct, attempts),
        key=lambda candidate: (candidate.number != best, rank_key(candidate), candidate.number),
    ):
        names = kernel_names(attempt, attempts)
        if len(beam) < width and taken.isdisjoint(names):
            beam.append(attempt.number)
        taken |= names
    return beam


def kernel_names(attempt: Attempt, attempts: Sequence[Attempt]) -> set[str | int]:
    """Names of the kernel of a correct attempt: its PTX (its text, where there is no PTX) and the number of the attempt
    that it was tuned from in the end."""
    assert attempt.candidate is not None
    build = attempt.evaluation.build
    text = None if build is None else build.ptx_hash
    origin = attempt
    while origin.operator is Operator.TUNE:
        number = parent_number(origin)
        assert number is not None
        origin = attempts[number]
    return {text or attempt.candidate.hash, origin.number}
