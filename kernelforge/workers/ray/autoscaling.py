"""Number of slots for a Ray cluster that can grow, and choice of the nodes that keep theirs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from kernelforge.errors import UsageError

JOBS_PER_SLOT = 4
"""Jobs that wait or run for each slot that is wanted: few enough to be done before another node has started."""
IDLE_S = 300.0
"""How long fewer slots must do before the rest is given up: longer than most pauses between steps of a trainer."""


@dataclass
class Autoscaling:
    """The number of wanted slots, which follows the jobs: up at once, and down after :data:`IDLE_S`."""

    least: int
    most: int
    _target: int = 0
    _fewer_since: float | None = None
    """Since when fewer slots would do."""
    _most_since: int = 0
    """The most slots that would have been enough since then."""

    @classmethod
    def of(cls, text: str) -> Autoscaling:
        """``MIN:MAX``, the slots of a cluster that idles and of one that is busy.

        Raises:
            UsageError: these are no such numbers.
        """
        least, colon, most = text.partition(":")
        if not colon or not (least.isdecimal() and most.isdecimal()) or not 1 <= int(least) <= int(most):
            raise UsageError(f"--autoscale {text!r}: give the fewest and the most slots as MIN:MAX, as in 8:64")
        return cls(int(least), int(most))

    def target(self, jobs: int, now: float) -> int:
        """Slots that are wanted.

        Args:
            jobs: that wait or run.
            now: seconds of a clock.
        """
        needed = min(max(math.ceil(jobs / JOBS_PER_SLOT), self.least), self.most)
        if needed >= self._target:
            self._target, self._fewer_since = needed, None
        elif self._fewer_since is None:
            self._fewer_since, self._most_since = now, needed
        else:
            self._most_since = max(self._most_since, needed)
            if now - self._fewer_since >= IDLE_S:
                self._target, self._fewer_since = self._most_since, None
        return self._target


def kept_nodes(slots: Mapping[str, int], busy: Mapping[str, int], target: int) -> set[str]:
    """Nodes that together have the wanted slots: those with the most busy ones first, then those that joined first.

    Args:
        slots: slots of each node, in the order in which they joined.
        busy: busy slots of each node.
    """
    kept: set[str] = set()
    count = 0
    for node in sorted(slots, key=lambda node: -busy.get(node, 0)):
        if count >= target:
            break
        kept.add(node)
        count += slots[node]
    return kept
