"""The evaluation queue: fair between runs by weight, by priority within a run, then by age.

Start-time fair queueing (Goyal, Vin, Cheng: "Start-time Fair Queueing", SIGCOMM 1996): every run has a tag, the
virtual time at which its next task starts; the run with the lowest tag goes next, and its tag then grows by the cost
of the task over the run's weight. A run that was idle starts at the current virtual time, so it neither saves up turns
nor waits for those it did not use. Two busy runs never differ by more than one task each, divided by their weights.

A task that several runs wait for is in the line of each, goes when the first of them has its turn, and its cost is
shared equally. A run that joins a running task pays nothing.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

Item = TypeVar("Item")

_SLACK = 64
"""Stale entries a line may hold beyond its waiting ones, and idle lines that are always kept."""


class Charge(NamedTuple):
    """Runs that were charged for a task, and how much each."""

    runs: tuple[str, ...]
    share: float


class Dispatch(NamedTuple, Generic[Item]):
    """A task whose turn it is."""

    item: Item
    charge: Charge


@dataclass(slots=True)
class _Entry(Generic[Item]):
    item: Item
    cost: float
    positions: dict[str, tuple[int, int]] = field(default_factory=dict)
    """By run: negated priority and age of its first job."""


@dataclass(slots=True)
class _Line:
    run: str
    tag: float
    heap: list[tuple[int, int, int]] = field(default_factory=list)
    """Negated priority, age, identity of the entry. Removed entries are dropped when they reach the head."""
    waiting: int = 0


class FairQueue(Generic[Item]):
    """A queue shared by runs. Items are hashable and unique."""

    def __init__(self) -> None:
        self._entries: dict[int, _Entry[Item]] = {}
        self._ids: dict[Item, int] = {}
        self._lines: dict[str, _Line] = {}
        self._weights: dict[str, float] = {}
        self._forget_at = _SLACK
        self._now = 0.0
        self._next_id = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, item: Item) -> bool:
        return item in self._ids

    def set_weight(self, run: str, weight: float) -> None:
        """Set a run's share, from the next task on; the default is 1."""
        if not weight > 0:
            raise ValueError(f"a weight is positive, not {weight}")
        self._weights[run] = weight

    def push(self, item: Item, positions: Mapping[str, tuple[int, int]], *, cost: float = 1.0) -> None:
        """Put an item into the lines of some runs.

        Args:
            positions: priority and age by run; the lower age goes first among equal priorities.
            cost: what a run pays for it, in any unit.
        """
        if item in self._ids:
            raise ValueError(f"{item!r} is queued already")
        self._next_id += 1
        self._ids[item] = self._next_id
        self._entries[self._next_id] = _Entry(item, cost)
        self.move(item, positions)

    def move(self, item: Item, positions: Mapping[str, tuple[int, int]]) -> None:
        """Replace the runs that wait for a queued item, with priority and age. Without any it is removed."""
        if not positions:
            self.discard(item)
            return
        identity = self._ids[item]
        entry = self._entries[identity]
        for run in entry.positions.keys() - positions.keys():
            self._leave(run)
        for run, (priority, age) in positions.items():
            position = (-priority, age)
            line = self._join(run) if run not in entry.positions else self._lines[run]
            if entry.positions.get(run) != position:
                heapq.heappush(line.heap, (*position, identity))
        entry.positions = {run: (-priority, age) for run, (priority, age) in positions.items()}
        for run in positions:
            self._compact(self._lines[run])

    def discard(self, item: Item) -> None:
        """Remove an item if it is queued."""
        identity = self._ids.pop(item, None)
        if identity is not None:
            for run in self._entries.pop(identity).positions:
                self._leave(run)

    def pop(self) -> Dispatch[Item] | None:
        """Remove and return the item whose turn it is, and charge its runs; None if the queue is empty."""
        line = min((line for line in self._lines.values() if line.waiting), key=lambda line: line.tag, default=None)
        if line is None:
            return None
        identity = self._head(line)
        entry = self._entries[identity]
        self._now = max(self._now, line.tag)
        charge = Charge(tuple(entry.positions), entry.cost / len(entry.positions))
        self._charge(charge.runs, charge.share)
        self.discard(entry.item)
        if not self._entries:  # end of a busy period: all runs start level
            self._now = max(line.tag for line in self._lines.values())
        return Dispatch(entry.item, charge)

    def settle(self, charge: Charge, cost: float) -> Charge:
        """Replace an estimated charge by the cost that was measured. Returns the new charge."""
        settled = Charge(charge.runs, cost / len(charge.runs))
        self._charge(charge.runs, settled.share - charge.share)
        return settled

    def _charge(self, runs: tuple[str, ...], share: float) -> None:
        for run in runs:
            line = self._lines.get(run)
            if line is not None:
                line.tag += share / self._weights.get(run, 1.0)

    def _head(self, line: _Line) -> int:
        while not self._is_in(line, line.heap[0]):
            heapq.heappop(line.heap)
        return line.heap[0][2]

    def _join(self, run: str) -> _Line:
        line = self._lines.get(run)
        if line is None:
            if len(self._lines) >= self._forget_at:
                self._forget_idle()
            line = self._lines[run] = _Line(run, self._now)
        if not line.waiting:
            line.tag = max(line.tag, self._now)
        line.waiting += 1
        return line

    def _leave(self, run: str) -> None:
        line = self._lines[run]
        line.waiting -= 1
        self._compact(line)

    def _compact(self, line: _Line) -> None:
        """Drop removed entries once they are most of a line: they may never reach its head."""
        if len(line.heap) > 2 * line.waiting + _SLACK:
            line.heap = [entry for entry in line.heap if self._is_in(line, entry)]
            heapq.heapify(line.heap)

    def _is_in(self, line: _Line, position: tuple[int, int, int]) -> bool:
        entry = self._entries.get(position[2])
        return entry is not None and entry.positions.get(line.run) == position[:2]

    def _forget_idle(self) -> None:
        """Drop lines that would start at the current virtual time anyway: a caller may name any number of runs."""
        idle = [run for run, line in self._lines.items() if not line.waiting and line.tag <= self._now]
        for run in idle:
            del self._lines[run]
        self._forget_at = max(2 * len(self._lines), _SLACK)
