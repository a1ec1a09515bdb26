"""The records of one run that its views are made from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from kernelforge.records import Attempt, InputGenerator, Lesson, Message, Run, RunState
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
    messages: Mapping[str, tuple[Message, ...]] = field(default_factory=dict)
    """By task, what agents said of it outside attempts."""
    generators: Mapping[str, tuple[InputGenerator, ...]] = field(default_factory=dict)
    """By task, the further tests that were agreed on, refused ones included."""
    lessons: Mapping[str, tuple[Lesson, ...]] = field(default_factory=dict)
    """By task, what it taught."""

    @classmethod
    def load(cls, store: Store, run: Run) -> RunRecords:
        tasks = run.config.tasks
        return cls(
            run,
            tuple(store.attempts(run.id)),
            store.finished_tasks(run.id),
            store.is_live(run.id),
            {task: store.task_messages(run.id, task) for task in tasks},
            {task: store.generators(run.id, task) for task in tasks},
            {task: store.lessons_of(run.id, task) for task in tasks},
        )

    @property
    def state(self) -> ShownState:
        """The run's state, told apart from that of a run that a kill interrupted."""
        if self.run.state is RunState.RUNNING and not self.live:
            return "interrupted"
        return self.run.state.value

    def of_task(self, task: str) -> tuple[Attempt, ...]:
        return tuple(attempt for attempt in self.attempts if attempt.task == task)

    def said(self) -> Iterator[Message]:
        """All that agents were asked and answered."""
        for attempt in self.attempts:
            yield from attempt.messages
        for messages in self.messages.values():
            yield from messages

    def summaries(self) -> tuple[TaskSummary, ...]:
        """One summary per task of the run, in the run's order."""
        return tuple(
            summarise(self.run.id, task, self.of_task(task), self.finished.get(task)) for task in self.run.config.tasks
        )
