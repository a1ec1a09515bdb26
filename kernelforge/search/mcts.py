"""``mcts``: Monte Carlo tree search over kernels, with UCT and progressive widening.

A node is a kernel: a candidate, its repairs and its tuned children, of which the best stands for all. The root is the
kernel that the search is started from; without one it stands for nothing, and its children are seeds. From the root the
search descends to the child with the highest

    (Q - q_min) / (q_max - q_min) + exploration * rest * sqrt(ln(N_parent + 1) / N)

and adds a child to the first node that may have another, which one of ``N`` visits may while it has at most
``floor(N ** widening)``. ``Q`` is the best score below and at a node, ``N`` the number of nodes there, ``rest`` the
share of the rounds that is left. So far it is MCTS-AHD, with its constants. A score is the logarithm of the measured
or modelled speed, as in all strategies, so there are no playouts: every kernel is evaluated.

KernelPro searches over moves and rewrites. A node's first children here are moves, each at a bottleneck that the Judge
ranks one lower; the next is a rewrite, which joins it with the best kernel that is not below it; and so on in turn.
KernelPro's own constants are in none of its texts that could be read.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, ClassVar

from pydantic import Field

from kernelforge.records import Attempt, Operator
from kernelforge.search.base import (
    GenerationalStrategy,
    Proposal,
    StrategyOptions,
    is_correct,
    is_repairable,
    parent_number,
    rank_key,
    score,
)

ROUNDS = 40
"""Steps after the seeds by default. Ours: as many as ``beam`` has, so that the two can be compared."""


class MctsOptions(StrategyOptions):
    """Options of ``mcts``."""

    seeds: int = Field(default=4, ge=1)
    """Candidates written from nothing at the start. MCTS-AHD: 4."""
    exploration: float = Field(default=0.1, ge=0.0)
    """Factor of the term for nodes that were visited little; it falls to 0 with the rounds. MCTS-AHD: 0.1."""
    widening: float = Field(default=0.5, ge=0.0, le=1.0)
    """Exponent of a node's visits that bounds its children. MCTS-AHD: 0.5."""
    depth: int = Field(default=10, ge=1)
    """Most moves between a seed and a kernel. MCTS-AHD: 10."""
    moves: int = Field(default=3, ge=1)
    """Bottlenecks that a kernel is improved at before it is rewritten. Ours."""
    repairs: int = Field(default=3, ge=0)
    """Times that a failing candidate is repaired. KernelAgent: 3."""
    batch: int = Field(default=1, ge=1)
    """Kernels that are added at once; those before one in its batch count as visits. 1 knows most at each step."""


@dataclass
class _Node:
    """A kernel in the tree, or the root."""

    number: int | None
    """The attempt that stands for it; None for a root without a kernel."""
    alive: bool
    """Whether it is correct; the root counts as such."""
    depth: int
    own: float | None = None
    """Its score."""
    value: float | None = None
    """The best score at it and below it."""
    visits: int = 0
    """Kernels at it and below it."""
    children: list[_Node] = field(default_factory=list)

    def below(self) -> Iterator[_Node]:
        """The node, and all below it."""
        yield self
        for child in self.children:
            yield from child.below()


class Mcts(GenerationalStrategy[MctsOptions]):
    """One task's tree search."""

    name: ClassVar[str] = "mcts"
    source: ClassVar[str] = "MCTS-AHD (arXiv 2501.08603), with the moves and rewrites of KernelPro (arXiv 2606.26453)"
    uses_judge: ClassVar[bool] = True
    Options = MctsOptions

    def __init__(self, options: MctsOptions, *, rounds: int | None, stop_after: int | None, coders: int = 1) -> None:
        super().__init__(options, rounds=rounds, stop_after=stop_after, coders=coders)
        self._root = _Node(None, alive=True, depth=0)
        self._failing: list[int] = []
        """Attempts that the generation repairs, if it is one of repairs."""
        self._repairs_done = 0

    @classmethod
    def default_rounds(cls, options: MctsOptions) -> int:
        return options.seeds + ROUNDS

    @property
    def _seeding(self) -> bool:
        return self._root.number is None and not any(child.alive for child in self._root.children)

    def _stop_reason(self) -> str | None:
        seeded = any(self.attempts[number].operator is Operator.SEED for number in self.steps)
        if seeded and not self._open and not self._failing and self._seeding:
            return f"{self.options.seeds} seeds and their repairs gave nothing correct"
        return None

    def _size(self) -> int:
        if self._failing:
            return len(self._failing)
        return self.options.seeds if self._seeding else self.options.batch

    def _member(self, slot: int, rng: Random) -> Proposal:
        coder = self.turn(slot + self._index)
        if self._failing:
            return Proposal(Operator.REPAIR, parent=self._failing[slot], judge=True, coder=coder)
        if self._seeding:
            return Proposal(Operator.SEED, coder=coder, sample=slot)
        visits, children = Counter[int | None](), Counter[int | None]()
        for _ in range(slot):
            path = self._descend(visits, children)
            visits.update(node.number for node in path)
            children[path[-1].number] += 1
        path = self._descend(visits, children)
        return self._expansion(path, len(path[-1].children) + children[path[-1].number], coder)

    def _descend(self, visits: Counter[int | None], children: Counter[int | None]) -> list[_Node]:
        """Nodes from the root to the one that gets a child.

        Args:
            visits: those of nodes in this batch, by number.
            children: those that nodes get in this batch, by number.
        """
        path, node = [self._root], self._root
        while not self._may_grow(node, visits, children):
            ways = [child for child in node.children if self._leads_on(child)]
            if not ways:
                break  # all its children failed: it gets another all the same
            parent = node
            node = max(ways, key=lambda child: self._uct(child, parent, visits))
            path.append(node)
        return path

    def _may_grow(self, node: _Node, visits: Counter[int | None], children: Counter[int | None]) -> bool:
        if not node.alive or node.depth >= self.options.depth:
            return False
        bound = math.pow(node.visits + visits[node.number], self.options.widening)
        return len(node.children) + children[node.number] <= bound

    def _leads_on(self, node: _Node) -> bool:
        """Whether a child can be added at the node or below it."""
        return any(item.alive and item.depth < self.options.depth for item in node.below())

    def _uct(self, node: _Node, parent: _Node, visits: Counter[int | None]) -> float:
        values = [item.value for item in self._root.below() if item.value is not None]
        worth = 0.0
        if node.value is not None:
            spread = max(values) - min(values)
            worth = (node.value - min(values)) / spread if spread else 1.0
        rest = max(0.0, 1.0 - self._first_step / self.rounds)
        count, above = node.visits + visits[node.number], parent.visits + visits[parent.number]
        return worth + self.options.exploration * rest * math.sqrt(math.log(above + 1) / count)

    def _expansion(self, path: Sequence[_Node], child: int, coder: int) -> Proposal:
        """The proposal for the last node's child of that 0-based place."""
        node = path[-1]
        if node.number is None:
            return Proposal(Operator.SEED, coder=coder, sample=child)
        turn, move = divmod(child, self.options.moves + 1)
        if move == self.options.moves:
            line = {item.number for item in (*path, *node.below())}
            others = [item.number for item in self._root.below() if item.alive and item.number not in line]
            apart = [self.known[number] for number in others if number is not None]
            if apart:
                best = min(apart, key=lambda attempt: (rank_key(attempt), attempt.number))
                return Proposal(Operator.CROSSOVER, parent=node.number, inspirations=(best.number,), coder=coder)
            move = 0
        return Proposal(Operator.OPTIMISE, parent=node.number, judge=True, rank=move + 1, coder=coder, sample=turn)

    def _learn(self, attempts: Sequence[Attempt]) -> None:
        seeding = self._seeding
        self._root = tree_of(self.known)
        steps = [attempt for attempt in attempts if attempt.number in self.steps or attempt is self._failed_start]
        if steps:
            self._repairs_done = self._repairs_done + 1 if self._failing else 0
            # One correct seed is enough to go on with.
            enough = self._repairs_done >= self.options.repairs or (seeding and not self._seeding)
            enough = enough and self._failed_start is None
            self._failing = [] if enough else [attempt.number for attempt in steps if is_repairable(attempt)]

    def _state(self) -> dict[str, Any]:
        return {
            "generation": self.generation,
            "failing": self._failing,
            "tree": [
                [item.number, item.visits, None if item.value is None else round(item.value, 9)]
                for item in self._root.below()
                if item.number is not None
            ],
        }


def tree_of(attempts: Sequence[Attempt]) -> _Node:
    """The root of the tree that a task's attempts make, with visits and values from the leaves upwards."""
    kernel: dict[int, int] = {}
    """Number of each attempt's kernel: that of the first attempt of it."""
    members: dict[int, list[Attempt]] = {}
    over: dict[int, int | None] = {}
    for attempt in attempts:
        parent = parent_number(attempt)
        same = attempt.operator in (Operator.TUNE, Operator.REPAIR) and parent is not None
        kernel[attempt.number] = kernel[parent] if same and parent is not None else attempt.number
        members.setdefault(kernel[attempt.number], []).append(attempt)
        over.setdefault(kernel[attempt.number], None if parent is None else kernel[parent])
    root = _Node(None, alive=True, depth=0)
    nodes: dict[int | None, _Node] = {None: root}
    for number, versions in members.items():
        above = nodes[over[number]]
        right = [version for version in versions if is_correct(version)]
        best = min(right, key=lambda version: (rank_key(version), version.number)) if right else versions[-1]
        if right and versions[0].operator is Operator.START:
            root.number, root.own, nodes[number] = best.number, score(best), root
            continue
        nodes[number] = _Node(best.number, alive=bool(right), depth=above.depth + 1, own=score(best))
        above.children.append(nodes[number])
    for node in reversed(list(root.below())):
        node.visits = (node.number is not None) + sum(child.visits for child in node.children)
        values = [node.own, *(child.value for child in node.children)]
        node.value = max((value for value in values if value is not None), default=None)
    return root
