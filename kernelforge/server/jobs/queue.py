"""The evaluation queue: fair between runs by weight, by priority within a run, then by age.

Start-time fair queueing (Goyal, Vin, Cheng: "Start-time Fair Queueing", SIGCOMM 1996): every run has a tag, the
virtual time at which its next work starts; the run with the lowest tag goes next, and its tag then grows by the cost
of the work over the run's weight. A run that comes back from idleness starts at the virtual time of now, so it can
neither save up turns nor be made to wait for those it did not use. Two runs that both have work are never apart by
more than one work each, divided by their weights.

A work that several runs wait for stands in the line of each, goes when the first of them has its turn, and its cost
is shared by them in equal parts. A run that joins when it is under way pays nothing.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

Item = TypeVar("Item")

_SLACK = 64
"""Entries that a line may hold beside twice those that wait, and lines that are kept in any case."""


class Charge(NamedTuple):
    """Who was charged for a work, and how much each."""

    runs: tuple[str, ...]
    share: float


class Dispatch(NamedTuple, Generic[Item]):
    """A work whose turn it is."""

    item: Item
    bill: Charge


@dataclass(slots=True)
class _Entry(Generic[Item]):
    item: Item
    cost: float
    places: dict[str, tuple[int, int]] = field(default_factory=dict)
    """By run: negated priority and age of its first job."""


@dataclass(slots=True)
class _Line:
    run: str
    tag: float
    heap: list[tuple[int, int, int]] = field(default_factory=list)
    """Negated priority, age, identity of the entry. Entries that have gone are dropped when they come up."""
    waiting: int = 0


class FairQueue(Generic[Item]):
    """A queue between runs. Items are hashable, and in it once."""

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
        """Give a run its share, from the next work on; 1 is what a run has that was given none."""
        if not weight > 0:
            raise ValueError(f"a weight is positive, not {weight}")
        self._weights[run] = weight

    def push(self, item: Item, places: Mapping[str, tuple[int, int]], *, cost: float = 1.0) -> None:
        """Put an item into the lines of some runs.

        Args:
            places: priority and age by run; the lower age goes first among equal priorities.
            cost: what a run pays for it, in any unit.
        """
        if item in self._ids:
            raise ValueError(f"{item!r} is queued already")
        self._next_id += 1
        self._ids[item] = self._next_id
        self._entries[self._next_id] = _Entry(item, cost)
        self.place(item, places)

    def place(self, item: Item, places: Mapping[str, tuple[int, int]]) -> None:
        """Say anew which runs wait for a queued item, and how urgently. Without any it is removed."""
        if not places:
            self.discard(item)
            return
        identity = self._ids[item]
        entry = self._entries[identity]
        for run in entry.places.keys() - places.keys():
            self._leave(run)
        for run, (priority, age) in places.items():
            place = (-priority, age)
            line = self._join(run) if run not in entry.places else self._lines[run]
            if entry.places.get(run) != place:
                heapq.heappush(line.heap, (*place, identity))
        entry.places = {run: (-priority, age) for run, (priority, age) in places.items()}
        for run in places:
            self._compact(self._lines[run])

    def discard(self, item: Item) -> None:
        """Take an item out, if it is in."""
        identity = self._ids.pop(item, None)
        if identity is not None:
            for run in self._entries.pop(identity).places:
                self._leave(run)

    def pop(self) -> Dispatch[Item] | None:
        """The item whose turn it is; those who wait for it are charged. None: there is none."""
        line = min((line for line in self._lines.values() if line.waiting), key=lambda line: line.tag, default=None)
        if line is None:
            return None
        identity = self._head(line)
        entry = self._entries[identity]
        self._now = max(self._now, line.tag)
        bill = Charge(tuple(entry.places), entry.cost / len(entry.places))
        self._charge(bill.runs, bill.share)
        self.discard(entry.item)
        if not self._entries:  # the end of a busy period: all start level again
            self._now = max(one.tag for one in self._lines.values())
        return Dispatch(entry.item, bill)

    def settle(self, bill: Charge, cost: float) -> Charge:
        """Correct what was charged for an item, now that its cost is known, or known better. Returns the new bill."""
        paid = Charge(bill.runs, cost / len(bill.runs))
        self._charge(bill.runs, paid.share - bill.share)
        return paid

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
        """Drop entries that have gone, once they are most of a line: they may never come up."""
        if len(line.heap) > 2 * line.waiting + _SLACK:
            line.heap = [entry for entry in line.heap if self._is_in(line, entry)]
            heapq.heapify(line.heap)

    def _is_in(self, line: _Line, place: tuple[int, int, int]) -> bool:
        entry = self._entries.get(place[2])
        return entry is not None and entry.places.get(line.run) == place[:2]

    def _forget_idle(self) -> None:
        """Drop lines that would start at the virtual time of now anyway: a caller may name any number of runs."""
        idle = [run for run, line in self._lines.items() if not line.waiting and line.tag <= self._now]
        for run in idle:
            del self._lines[run]
        self._forget_at = max(2 * len(self._lines), _SLACK)
