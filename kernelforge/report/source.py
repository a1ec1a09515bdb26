"""The records of one run that its views are made from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from kernelforge.records import Attempt, Run, RunState
from kernelforge.report.summary import TaskSummary, summarise
from kernelforge.store import Store

ShownState = Literal["running", "interrupted", "stopped", "finished"]
"""``interrupted``: journalled as running, but no process is at work on it."""


@dataclass(frozen=True)
class RunRecords:
    """A run with everything journalled of it."""

    run: Run
    attempts: tuple[Attempt, ...]
    finished: Mapping[str, str] = field(default_factory=dict)
    """Why each finished task is finished."""
    live: bool = False
    """Whether a process is at work on it now."""

    @classmethod
    def load(cls, store: Store, run: Run) -> RunRecords:
        return cls(run, tuple(store.attempts(run.id)), store.finished_tasks(run.id), store.is_live(run.id))

    @property
    def state(self) -> ShownState:
        """The run's state, told apart from that of a run that a kill interrupted."""
        if self.run.state is RunState.RUNNING and not self.live:
            return "interrupted"
        return self.run.state.value

    def of_task(self, task: str) -> tuple[Attempt, ...]:
        return tuple(attempt for attempt in self.attempts if attempt.task == task)

    def summaries(self) -> tuple[TaskSummary, ...]:
        """One summary per task of the run, in the run's order."""
        return tuple(
            summarise(self.run.id, task, self.of_task(task), self.finished.get(task)) for task in self.run.config.tasks
        )
