"""The records of one run, loaded for its views."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal

from kernelforge.records import (
    Attempt,
    InputGenerator,
    Lesson,
    Message,
    Origin,
    Run,
    RunState,
    Task,
    TaskFacts,
)
from kernelforge.report.views.roofline import TENSOR_METRICS
from kernelforge.report.views.summary import REQUESTS, SECTORS, TaskSummary, best_of, summarise
from kernelforge.store import Store
from kernelforge.utils.shell_hints import results_option

RUN_METRICS = (*SECTORS, *REQUESTS, *TENSOR_METRICS)
"""Names of all metrics that views of a whole run ask a profile for. A view that asks for another adds it here."""

ShownState = Literal["running", "interrupted", "stopped", "finished"]
"""``interrupted``: journalled as running, but no process is at work on it."""


@dataclass(frozen=True)
class RunRecords:
    """A run with everything journalled of it. Nothing in it changes, so what is grouped or summed up is kept."""

    run: Run
    attempts: tuple[Attempt, ...]
    """By task and then number."""
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
    tasks: Mapping[str, Task] = field(default_factory=dict)
    """Tasks that the run has come to, by name."""
    facts: Mapping[str, TaskFacts] = field(default_factory=dict)
    """What the oracle found of them."""
    compulsory_bytes: Mapping[str, int] = field(default_factory=dict)
    """By task, bytes that its full size must read and write."""

    results: str = ""
    """Of the folder that it was read from, as commands have to name it; empty where they find it without."""
    texts: bool = True
    """False: as :meth:`Store.attempts` says, of metrics :data:`RUN_METRICS` alone, and there are no facts. Views of the
    whole run need none of what is left out; those of a task and of an attempt do."""

    @classmethod
    def load(cls, store: Store, run: Run, *, texts: bool = True) -> RunRecords:
        """A run as journalled.

        Args:
            texts: in full; without, a large run takes a fraction of the memory. See :attr:`texts` and :meth:`full`.
        """
        run, live = store.as_it_is(run)
        names = run.config.tasks
        return cls(
            run,
            tuple(store.attempts(run.id, texts=texts, metrics=None if texts else RUN_METRICS)),
            store.finished_tasks(run.id),
            live,
            {task: store.task_messages(run.id, task, texts=texts) for task in names},
            {task: store.generators(run.id, task) for task in names},
            {task: store.lessons_of(run.id, task) for task in names},
            {task.name: task for task in store.tasks(run.id)},
            store.all_facts(run.id) if texts else {},
            store.compulsory_bytes(run.id),
            results_option(store.path.parent),
            texts,
        )

    def full(self, store: Store, task: str) -> RunRecords:
        """The same run with one task in full and no attempts at the others: what that task's pages are made from."""
        if self.texts:
            return replace(self, attempts=self.of_task(task))
        facts = store.facts(self.run.id, task)
        return replace(
            self,
            attempts=tuple(store.attempts(self.run.id, task)),
            messages={task: store.task_messages(self.run.id, task)},
            facts={} if facts is None else {task: facts},
            texts=True,
        )

    @property
    def state(self) -> ShownState:
        """The run's state, told apart from that of a run that a kill interrupted."""
        if self.run.state is RunState.RUNNING and not self.live:
            return "interrupted"
        return self.run.state.value

    @cached_property
    def origin(self) -> Origin | None:
        """Whether the run measures or models time, by the devices that evaluated; None where it does neither."""
        kinds: set[str] = {attempt.evaluation.fingerprint.device_kind for attempt in self.attempts}
        if not kinds:
            kinds = {self.run.config.device.partition(":")[0]}
        if "emulated" in kinds:
            return Origin.MODELLED
        return Origin.MEASURED if "cuda" in kinds else None

    @property
    def measured(self) -> bool:
        """Whether there may be speedups."""
        return self.origin is Origin.MEASURED

    @cached_property
    def _by_task(self) -> Mapping[str, tuple[Attempt, ...]]:
        groups: dict[str, list[Attempt]] = defaultdict(list)
        for attempt in self.attempts:
            groups[attempt.task].append(attempt)
        return {task: tuple(attempts) for task, attempts in groups.items()}

    def of_task(self, task: str) -> tuple[Attempt, ...]:
        """All attempts at a task, by number."""
        return self._by_task.get(task, ())

    def bests(self) -> tuple[Attempt | None, ...]:
        """Every task's best attempt, in the run's order; None where nothing was accepted."""
        return tuple(best_of(self.of_task(task)) for task in self.run.config.tasks)

    def said(self) -> Iterator[Message]:
        """All that agents were asked and answered."""
        for attempt in self.attempts:
            yield from attempt.messages
        for messages in self.messages.values():
            yield from messages

    def said_of(self, task: str) -> Iterator[Message]:
        """The same of one task."""
        for attempt in self.of_task(task):
            yield from attempt.messages
        yield from self.messages.get(task, ())

    def summaries(self) -> tuple[TaskSummary, ...]:
        """One summary per task of the run, in the run's order."""
        return self._summaries

    @cached_property
    def _summaries(self) -> tuple[TaskSummary, ...]:
        return tuple(
            summarise(self.run.id, task, self.of_task(task), self.finished.get(task), self.compulsory_bytes.get(task))
            for task in self.run.config.tasks
        )
