"""``evolve``: an archive of diverse kernels, and a bandit that chooses the Coder and the operator.

ShinkaEvolve's loop, made for kernels. What is the same: parents are drawn by how far they are above the median and how
few children they have; a cost-aware bandit learns from gains over the parent; while nothing is correct, failures are
repaired; islands with migration. What differs:

- the archive keeps the best kernel of each kind (:mod:`kernelforge.search.archive`), not the best 40 programs;
- a candidate is new or not by its tokens and its PTX (:mod:`kernelforge.search.novelty`), not by embeddings; with
  ``alike`` below 1, by the BLEU of its tokens too;
- an arm is a Coder together with an operator: improve a parent by the Judge's finding, or cross it with a kernel of
  another kind. Shinka draws diff, full and cross at 0.6, 0.3 and 0.1, but here every reply is a whole kernel, and what
  an operator is worth is what the bandit is there to learn;
- islands begin late: ``islands_after`` says when, and the archive is then dealt out to them by rank.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from random import Random
from statistics import median
from typing import Any, ClassVar

from pydantic import Field

from kernelforge.records import Attempt, Operator
from kernelforge.search.archive import Cell, behaviour_cell, elites
from kernelforge.search.bandit import CostAwareUCB, cost_of
from kernelforge.search.base import (
    GenerationalStrategy,
    Proposal,
    StrategyOptions,
    best_per_step,
    current_best,
    gain,
    is_correct,
    is_repairable,
    parent_number,
    rank_key,
    score,
)
from kernelforge.search.novelty import Likeness, Novelty

OPERATORS = (Operator.OPTIMISE, Operator.CROSSOVER)
"""What an arm of the bandit may do."""
_SMALLEST_SCALE = 1e-6

Arm = tuple[int, Operator]
"""Which Coder, doing what."""


class EvolveOptions(StrategyOptions):
    """Options of ``evolve``."""

    batch: int = Field(default=6, ge=1)
    """Proposals that are under way at a time and do not know of each other. Shinka: 6 proposals at a time."""
    seeds: int = Field(default=2, ge=1)
    """Candidates written from nothing at the start. Ours: Shinka is given its first program."""
    repairs: int = Field(default=3, ge=0)
    """Repairs in a row, while nothing is correct, before a new seed takes the place of a failing candidate. Ours:
    Shinka repairs without end."""
    sharpness: float = Field(default=10.0, gt=0, allow_inf_nan=False)
    """How much more often a parent above the median is drawn: weight sigmoid(sharpness * (score - median) / MAD) /
    (1 + children). Shinka: 10."""
    exploration: float = Field(default=1.0, ge=0, allow_inf_nan=False)
    """Factor of the bandit's UCB bonus. Shinka: 1."""
    epsilon: float = Field(default=0.2, ge=0, le=1)
    """Share of the bandit's draws that go to an arm that is not the best. Shinka: 0.2."""
    decay: float = Field(default=0.95, gt=0, le=1)
    """Factor by which the bandit forgets gains at each new one. Shinka: 0.95."""
    cost_weight: float = Field(default=0.5, ge=0, le=1)
    """Weight of the cost of an arm against its gain, from 0 to 1. Shinka's ``cost_aware_coef``: 0.5."""
    alike: float = Field(default=1.0, gt=0, le=1)
    """Token BLEU to an earlier candidate from which on one that is no better is a copy: it is not new, gets no place
    and earns its arm nothing; kernels as alike are not crossed either. At 1, the default, copies are equal but for
    names. Ours, in place of Shinka's likeness of embeddings, 0.95: 0.9 separates copies from rewritten kernels."""
    islands: int = Field(default=2, ge=1)
    """Populations that breed apart. Shinka: 2."""
    islands_after: int = Field(default=100, ge=0)
    """Attempts after which the islands part. Ours, a guess: with fewer, an island has too few kernels to choose from;
    Shinka parts them from the start."""
    migration_interval: int = Field(default=10, ge=1)
    """Steps between migrations. Shinka: 10."""
    migration_rate: float = Field(default=0.0, ge=0, le=1)
    """Share of an island's kernels that move on to the next island, at least one; 0 for none. Shinka: 0.0, its presets
    0.1."""


class Evolve(GenerationalStrategy[EvolveOptions]):
    """One task's evolution."""

    name: ClassVar[str] = "evolve"
    source: ClassVar[str] = "ShinkaEvolve (arXiv 2509.19349), with an archive in the manner of MAP-Elites"
    uses_judge: ClassVar[bool] = True
    cascades: ClassVar[bool] = False
    Options = EvolveOptions

    def __init__(self, options: EvolveOptions, *, rounds: int | None, stop_after: int | None, coders: int = 1) -> None:
        super().__init__(options, rounds=rounds, stop_after=stop_after, coders=coders)
        self.bandit: CostAwareUCB[Arm] = CostAwareUCB(
            exploration=options.exploration,
            epsilon=options.epsilon,
            decay=options.decay,
            cost_weight=options.cost_weight,
        )
        self.archives: list[dict[Cell, Attempt]] = []
        """The best kernel of each kind, by island; empty islands are left out."""
        self._all = Novelty()
        self._correct = Novelty()
        self._likeness = Likeness(options.alike) if options.alike < 1 else None
        self._tested = self._new = 0
        self._cells: dict[int, Cell] = {}
        """Of every attempt that may have a place in an archive."""
        self._first_scored: Attempt | None = None
        self._children: Counter[int] = Counter()
        self._names: dict[int, str] = {}
        self._island: dict[int, int] = {}
        """Of every attempt with a cell, but for those that got none when the islands parted."""
        self._parted = False
        self._migrated = 0
        self._failing: list[int] = []

    @classmethod
    def default_rounds(cls, options: EvolveOptions) -> int:
        return 50

    @property
    def _by_name(self) -> dict[str, int]:
        """Coders by name, as far as names are known; one that the run has twice is one."""
        return {name: coder for coder, name in sorted(self._names.items(), reverse=True)}

    @property
    def novelty_rate(self) -> float | None:
        """Share of the steps with a candidate whose candidate was new; None before there are any."""
        return self._new / self._tested if self._tested else None

    def _size(self) -> int:
        if self.archives:
            return self.options.batch
        return max(len(self._failing), self.options.seeds)

    def _member(self, slot: int, rng: Random) -> Proposal:
        if not self.archives:
            coder = self.turn(self._first_step + slot)
            if self._failing and (slot < len(self._failing) or self._failed_start is not None):
                repeat, failing = divmod(slot, len(self._failing))
                return Proposal(Operator.REPAIR, self._failing[failing], judge=True, coder=coder, sample=repeat)
            return Proposal(Operator.SEED, coder=coder, sample=slot)
        island = rng.choice(self.archives)
        coder, operator = self._arm(slot, rng)
        members = list(island.values())
        parent = rng.choices(members, weights=parent_weights(members, self._children, self.options.sharpness))[0]
        if operator is Operator.CROSSOVER and len(members) > 1:
            others = [member for member in members if member is not parent]
            other = rng.choice(self._unlike(parent, others) or others)
            return Proposal(operator, parent=parent.number, inspirations=(other.number,), coder=coder, sample=slot)
        return Proposal(Operator.OPTIMISE, parent=parent.number, judge=True, coder=coder, sample=slot)

    def _unlike(self, parent: Attempt, others: Sequence[Attempt]) -> list[Attempt]:
        """Members of an archive that are no near copies of a parent."""
        likeness = self._likeness
        return [item for item in others if likeness is None or not likeness.between(parent.number, item.number)]

    def _arm(self, slot: int, rng: Random) -> Arm:
        operators = OPERATORS if any(len(island) > 1 for island in self.archives) else OPERATORS[:1]
        arms = [(coder, operator) for operator in operators for coder in sorted(self._by_name.values()) or [0]]
        coder, operator = self.bandit.choose(arms, slot, rng)
        # An attempt says who wrote it by name. Until all names are known, turns tell whose is whose.
        if len(self._names) < self.coders:
            coder = self.turn(self._first_step + slot)
        return coder, operator

    def _learn(self, attempts: Sequence[Attempt]) -> None:
        steps = [attempt for attempt in attempts if attempt.number in self.steps]
        if len(self._names) < self.coders:
            started = len(self.steps) - len(steps)
            for position, attempt in enumerate(steps):
                self._names.setdefault(self.turn(started + position), attempt.coder)
        for attempt in attempts:
            self._take_note(attempt)
        self._settle()
        self._failing = [] if self.archives else self._to_repair()

    def _take_note(self, attempt: Attempt) -> None:
        copied = self._is_near_copy(attempt)
        new = self._all.add(attempt) and not copied
        if attempt.number in self.steps and attempt.candidate is not None:
            self._tested += 1
            self._new += new
        parent = parent_number(attempt)
        # A kernel that an earlier correct one equals gets no place.
        if is_correct(attempt) and self._correct.add(attempt) and not copied:
            self._cells[attempt.number] = behaviour_cell(attempt)
            self._island[attempt.number] = 0 if parent is None else self._island.get(parent, 0)
            if self._first_scored is None and score(attempt) is not None:
                self._first_scored = attempt
        if parent is None or attempt.operator is Operator.TUNE:
            return
        self._children[parent] += 1
        coder = self._by_name.get(attempt.coder)
        if attempt.operator in OPERATORS and coder is not None:
            start = min(filter(None, (self.known[parent], self._first_scored)), key=rank_key)
            gained = gain(start, attempt) if new else None
            self.bandit.update((coder, attempt.operator), gained or 0.0, cost_of(attempt))

    def _is_near_copy(self, attempt: Attempt) -> bool:
        """Whether an earlier candidate is alike and at least as good."""
        alike = {} if self._likeness is None else self._likeness.add(attempt)
        return any(rank_key(self.known[number]) <= rank_key(attempt) for number in alike)

    def _settle(self) -> None:
        """Rebuild the archives; part the islands, or let kernels migrate, when it is time."""
        best = current_best(self.known)
        kernels = best_per_step([attempt for attempt in self.known if attempt.number in self._cells])
        everything = _ranked(elites(kernels, self._cells, best))
        if not self._parted and self.options.islands > 1 and len(self.known) >= self.options.islands_after:
            self._parted = bool(everything)
            if self._parted:
                self._island = {attempt.number: rank % self.options.islands for rank, attempt in enumerate(everything)}
                self._migrated = len(self.steps)
        if self._parted and len(self.steps) - self._migrated >= self.options.migration_interval:
            self._migrated = len(self.steps)
            self._migrate(kernels)
        grids = [elites(self._on(island, kernels), self._cells, best) for island in range(self.options.islands)]
        self.archives = [grid for grid in grids if grid]

    def _on(self, island: int, kernels: Sequence[Attempt]) -> list[Attempt]:
        return [attempt for attempt in kernels if self._island.get(attempt.number) == island]

    def _migrate(self, kernels: Sequence[Attempt]) -> None:
        """Move an island's next best kernels to the next island; its best stays, as with Shinka's elitism.

        Shinka draws migrants and where they go. ``tell`` may not draw random numbers, so the order decides.
        """
        if self.options.migration_rate == 0:
            return
        best = current_best(self.known)
        moves: dict[int, int] = {}
        for island in range(self.options.islands):
            ranked = _ranked(elites(self._on(island, kernels), self._cells, best))
            count = max(1, int(len(ranked) * self.options.migration_rate))
            moves |= {attempt.number: (island + 1) % self.options.islands for attempt in ranked[1 : 1 + count]}
        self._island |= moves

    def _to_repair(self) -> list[int]:
        """Failing candidates without children, the latest ``batch`` of those not repaired too often."""
        leaves = [attempt for attempt in self.known if is_repairable(attempt) and not self._children[attempt.number]]
        return [attempt.number for attempt in leaves if self._repairs_before(attempt) < self.options.repairs][
            -self.options.batch :
        ]

    def _repairs_before(self, attempt: Attempt) -> int:
        """Repairs in a row that led to an attempt."""
        count = 0
        while attempt.operator is Operator.REPAIR:
            count += 1
            number = parent_number(attempt)
            assert number is not None
            attempt = self.known[number]
        return count

    def _state(self) -> dict[str, Any]:
        return {
            "generation": self.generation,
            "islands": [
                {"/".join(map(str, cell)): elite.number for cell, elite in sorted(grid.items())}
                for grid in self.archives
            ],
            "bandit": self.bandit.state(),
            "novelty": None if self.novelty_rate is None else round(self.novelty_rate, 6),
        }


def _ranked(archive: dict[Cell, Attempt]) -> list[Attempt]:
    """Attempts of an archive, the best first; of equals the oldest."""
    return sorted(archive.values(), key=lambda attempt: (rank_key(attempt), attempt.number))


def parent_weights(members: Sequence[Attempt], children: Counter[int], sharpness: float) -> list[float]:
    """Weight with which each member is drawn: sigmoid(sharpness * (score - median) / MAD) / (1 + children).

    MAD is the median of the absolute deviations from the median, at least 1e-6 (ShinkaEvolve, ``database/parents.py``).
    A member without a score is drawn when no other can be.
    """
    scores = [score(member) for member in members]
    finite = [number for number in scores if number is not None]
    if not finite:
        return [1.0] * len(members)
    middle = median(finite)
    scale = max(median(abs(number - middle) for number in finite), _SMALLEST_SCALE)
    return [
        0.0 if number is None else _sigmoid(sharpness * (number - middle) / scale) / (1 + children[member.number])
        for number, member in zip(scores, members, strict=True)
    ]


def _sigmoid(x: float) -> float:
    return 1.0 / (1.0 + math.exp(-x)) if x >= 0 else math.exp(x) / (1.0 + math.exp(x))
