"""What a run tells whoever watches it, and how it is asked to stop."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Literal, Protocol

from kernelforge.records import Attempt


@dataclass(frozen=True)
class Event:
    """Something happened. Fields that do not apply are None."""

    kind: Literal["run_started", "task_started", "stage", "attempt", "task_finished", "run_finished", "warning"]
    task: str | None = None
    round: int | None = None
    stage: str | None = None
    """``describe``, ``tester``, ``judge``, ``coder``, ``evaluate``, ``tune`` or ``reflect``."""
    attempt: Attempt | None = None
    message: str = ""
    failed: bool = False
    """With a warning: the task is left unfinished, because something that it needs failed."""


class Observer(Protocol):
    """Watches a run. Called from worker threads, one event at a time."""

    def on_event(self, event: Event) -> None: ...


class StopSignal:
    """Asks a run to end: ``drain`` after the attempts in flight, ``abort`` at once."""

    def __init__(self) -> None:
        self._drain = threading.Event()
        self._abort = threading.Event()

    def drain(self) -> None:
        self._drain.set()

    def abort(self) -> None:
        self._drain.set()
        self._abort.set()

    @property
    def draining(self) -> bool:
        return self._drain.is_set()

    @property
    def aborting(self) -> bool:
        return self._abort.is_set()
