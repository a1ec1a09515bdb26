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
"""Names of all metrics in views of a complete run. A view that needs another one adds it here."""

DisplayedState = Literal["running", "interrupted", "stopped", "finished"]
"""``interrupted``: journalled as running, but no process works on it."""


@dataclass(frozen=True)
class RunRecords:
    """A run with its journal. It is immutable, so groups and summaries are cached."""

    run: Run
    attempts: tuple[Attempt, ...]
    """By task and then number."""
    finished: Mapping[str, str] = field(default_factory=dict)
    """Reason for the end of each finished task."""
    live: bool = False
    """Whether a process works on it now."""
    messages: Mapping[str, tuple[Message, ...]] = field(default_factory=dict)
    """Messages about a task outside its attempts, by task."""
    generators: Mapping[str, tuple[InputGenerator, ...]] = field(default_factory=dict)
    """Input generators by task, including refused ones."""
    lessons: Mapping[str, tuple[Lesson, ...]] = field(default_factory=dict)
    """Lessons by task."""
    tasks: Mapping[str, Task] = field(default_factory=dict)
    """Tasks that the run has started, by name."""
    facts: Mapping[str, TaskFacts] = field(default_factory=dict)
    """Facts from the oracle, by task."""
    compulsory_bytes: Mapping[str, int] = field(default_factory=dict)
    """Compulsory bytes of the full size, by task."""

    results: str = ""
    """Value of ``--results`` for commands; empty for the default folder."""
    texts: bool = True
    """False: without texts, as :meth:`Store.attempts` describes, only with :data:`RUN_METRICS`, and without facts. That
    is enough for views of a complete run, not for those of a task or an attempt."""

    @classmethod
    def load(cls, store: Store, run: Run, *, texts: bool = True) -> RunRecords:
        """Load a run.

        Args:
            texts: load all texts; without them a large run takes a fraction of the memory. See :attr:`texts` and
                :meth:`full`.
        """
        run, live = store.refresh(run)
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
        """The same run with one task in full and no attempts at the others, for that task's pages."""
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
    def state(self) -> DisplayedState:
        """The run's state; ``interrupted`` when its process died."""
        if self.run.state is RunState.RUNNING and not self.live:
            return "interrupted"
        return self.run.state.value

    @cached_property
    def origin(self) -> Origin | None:
        """Whether the devices of its evaluations measure or model time; None where they do neither."""
        kinds: set[str] = {attempt.evaluation.fingerprint.device_kind for attempt in self.attempts}
        if not kinds:
            kinds = {self.run.config.device.partition(":")[0]}
        if "emulated" in kinds:
            return Origin.MODELLED
        return Origin.MEASURED if "cuda" in kinds else None

    @property
    def measured(self) -> bool:
        """Whether times are measured, so that there may be speedups."""
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

    def all_messages(self) -> Iterator[Message]:
        """All messages of the run."""
        for attempt in self.attempts:
            yield from attempt.messages
        for messages in self.messages.values():
            yield from messages

    def task_messages(self, task: str) -> Iterator[Message]:
        """The same of one task."""
        for attempt in self.of_task(task):
            yield from attempt.messages
        yield from self.messages.get(task, ())

    @cached_property
    def summaries(self) -> tuple[TaskSummary, ...]:
        """One summary per task of the run, in the run's order."""
        return tuple(
            summarise(self.run.id, task, self.of_task(task), self.finished.get(task), self.compulsory_bytes.get(task))
            for task in self.run.config.tasks
        )
