"""Events of a run for observers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

from kernelforge.records import Attempt


class Totals(NamedTuple):
    """Use of a run over all its sessions."""

    evaluations: int
    """Those that were promised to a proposal included."""
    tokens: int
    dollars: float
    uncounted: int
    """Calls whose tokens are unknown."""
    unpriced: int
    """Calls whose price is unknown."""


@dataclass(frozen=True)
class Event:
    """Something happened. Fields that do not apply are None."""

    kind: Literal["run_started", "task_started", "stage", "attempt", "task_finished", "run_finished", "warning"]
    task: str | None = None
    round: int | None = None
    stage: str | None = None
    """``describe``, ``tester``, ``judge``, ``coder``, ``evaluate``, ``tune`` or ``reflect``."""
    device: str | None = None
    """With ``stage``: the device that the task has, once it has one."""
    attempt: Attempt | None = None
    message: str = ""
    failed: bool = False
    """With a warning: the task is left unfinished, because something that it needs failed."""
    unfinished: bool = False
    """With ``task_finished``: work on the task ended early, and a later sitting goes on with it."""
    spent: Totals | None = None
    """What the run has spent so far."""
    past: tuple[Attempt, ...] = ()
    """With ``run_started``: attempts of earlier sittings, by task and then number."""
    finished: tuple[str, ...] = ()
    """With ``run_started``: tasks that were finished in earlier sittings."""


class Observer(Protocol):
    """Watches a run. Called from worker threads, one event at a time."""

    def on_event(self, event: Event) -> None: ...
