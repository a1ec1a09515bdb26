"""Facts about tasks that outlive an oracle process, so that a restarted oracle need not recompute them."""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass, field

from kernelforge.records import Task, TaskFacts

KNOWN_TASKS = 4096
"""Tasks whose facts are kept: some ten kilobytes each."""


@dataclass
class OracleFacts:
    """Holds for every later oracle of the same task on the same device, which then need not find it out again."""

    facts: TaskFacts | None = None
    """At every size."""
    scales: dict[str, dict[str, float]] = field(default_factory=dict)
    """By size: input families that torch itself passes, each with the factor at which it does; the task's own first."""
    has_slices: bool | None = None
    """Whether the reference has an axis whose slices can be worked out by themselves; None where nobody asked."""
    admitted: bool = False
    """Whether it was proved at the small size that wrong answers earn nothing."""


class KnownTasks:
    """What was found out about tasks, by digest; what was unused for longest goes first. Several threads may use it."""

    def __init__(self, most: int = KNOWN_TASKS) -> None:
        self._most = most
        self._known: OrderedDict[str, OracleFacts] = OrderedDict()
        self._lock = threading.Lock()

    def of(self, task: Task) -> OracleFacts:
        """What is known of a task, to be added to."""
        with self._lock:
            known = self._known.setdefault(task.digest, OracleFacts())
            self._known.move_to_end(task.digest)
            while len(self._known) > self._most:
                self._known.popitem(last=False)
        return known
