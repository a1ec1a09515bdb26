"""A run as its pages show it: every view of it, each computed once, when a page first asks."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

from kernelforge.records import Attempt
from kernelforge.report.attempt_view import AttemptView, attempt_view
from kernelforge.report.run_view import RunView, run_view
from kernelforge.report.source import RunRecords
from kernelforge.report.task_view import TaskView, task_view


class ShownRun:
    """Views of one run."""

    def __init__(self, records: RunRecords) -> None:
        self.records = records
        self.id = records.run.id
        self.tasks = records.run.config.tasks
        self._tasks: dict[str, TaskView] = {}

    @cached_property
    def view(self) -> RunView:
        return run_view(self.records)

    @cached_property
    def by_id(self) -> Mapping[str, Attempt]:
        return {attempt.id: attempt for attempt in self.records.attempts}

    @cached_property
    def by_task(self) -> Mapping[str, tuple[Attempt, ...]]:
        """Attempts of every task of the run, in order."""
        grouped: dict[str, list[Attempt]] = {task: [] for task in self.tasks}
        for attempt in self.records.attempts:
            grouped[attempt.task].append(attempt)
        return {task: tuple(attempts) for task, attempts in grouped.items()}

    def task(self, name: str) -> TaskView:
        if name not in self._tasks:
            self._tasks[name] = task_view(self.records, name)
        return self._tasks[name]

    def attempt(self, attempt: Attempt) -> AttemptView:
        return attempt_view(attempt, self.by_id.get(attempt.parent or ""), messages=True)
