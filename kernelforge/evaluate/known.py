"""What an oracle found out about its task, kept beyond its process."""

from __future__ import annotations

from dataclasses import dataclass, field

from kernelforge.records import TaskFacts


@dataclass
class Known:
    """Holds for every later oracle of the same task on the same device, which then need not find it out again."""

    facts: TaskFacts | None = None
    """At every size."""
    scales: dict[str, dict[str, float]] = field(default_factory=dict)
    """By size: input families that torch itself passes, each with the factor at which it does; the task's own first."""
    admitted: bool = False
    """Whether it was proved at the small size that wrong answers earn nothing."""
