"""Views of a run for its pages, each computed once, on first use."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property

from kernelforge.records import Attempt, Origin
from kernelforge.report.html import paths
from kernelforge.report.html.paths import Links
from kernelforge.report.phrases import where_words
from kernelforge.report.views.attempt import AttemptView, attempt_view
from kernelforge.report.views.run import RunView, run_view
from kernelforge.report.views.run_records import RunRecords
from kernelforge.report.views.summary import best_of
from kernelforge.report.views.task import TaskView, task_view

Full = Callable[[RunRecords, str], RunRecords]
"""From a run's records without texts to those of one of its tasks in full."""


class RunPages:
    """Views of one run.

    Args:
        full: where ``records`` have no texts, reads those of a task when one of its pages is asked for.
    """

    def __init__(self, records: RunRecords, full: Full | None = None) -> None:
        self.records = records
        self.id = records.run.id
        self.tasks = records.run.config.tasks
        self._full = full
        self._kept: tuple[str, RunRecords] | None = None  # one task's records: its pages are asked for together

    @cached_property
    def view(self) -> RunView:
        return run_view(self.records)

    @cached_property
    def by_id(self) -> Mapping[str, Attempt]:
        return {attempt.id: attempt for attempt in self.records.attempts}

    def prepare(self) -> None:
        """Compute what many pages share."""
        for shared in ("view", "by_id", "made_by"):
            getattr(self, shared)

    def forget(self) -> None:
        """Let go of the task that was read in full."""
        self._kept = None

    @property
    def origin(self) -> Origin | None:
        """Whether its times are modelled or measured; None where it has none."""
        return self.records.origin

    @cached_property
    def made_by(self) -> tuple[str, ...]:
        """What made the numbers: device, evaluator, toolchain, jail; more than one where the run moved."""
        prints = (attempt.evaluation.fingerprint for attempt in self.records.attempts)
        return tuple(dict.fromkeys(f"{where_words(one)}, evaluator {one.evaluator}" for one in prints))

    def in_full(self, task: str) -> RunRecords:
        """Records of a task with all their texts."""
        if self.records.texts or self._full is None:
            return self.records
        if self._kept is None or self._kept[0] != task:
            self._kept = task, self._full(self.records, task)
        return self._kept[1]

    def task(self, name: str) -> TaskView:
        return task_view(self.in_full(name), name)

    def attempt(self, task: str, number: int) -> AttemptView:
        records = self.in_full(task)
        by_id = {one.id: one for one in records.of_task(task)}
        attempt = next(one for one in by_id.values() if one.number == number)
        return attempt_view(
            attempt,
            by_id.get(attempt.parent or ""),
            best=best_of(records.of_task(attempt.task)),
            task=records.tasks.get(attempt.task),
            facts=records.facts.get(attempt.task),
            messages=True,
            results=records.results,
        )

    def attempt_link(self, attempt: str | None, links: Links) -> str | None:
        """Address of an attempt of this run by its id; None where it has no such attempt."""
        found = self.by_id.get(attempt or "")
        return None if found is None else links.to(paths.attempt_page(self.id, found.task, found.number))
