"""Sizes that were chosen for an external task, and the task with them."""

from __future__ import annotations

from collections.abc import Mapping

from kernelforge.records import Size, Task
from kernelforge.records.base import Record
from kernelforge.tasks.constants import Template
from kernelforge.tasks.loaders.base import ExternalTask


class SizeChoice(Record):
    """Result of the search for one external task: its sizes, or why it has none."""

    sizes: tuple[Size, ...] = ()
    """``full``, ``small`` and the hidden ones; empty where the task is refused."""
    notes: tuple[str, ...] = ()
    """What people should know of them."""
    refused: str = ""
    """Why the task cannot be used; empty where it can."""
    admitted: bool = False
    """Whether the oracle admitted it at every size but ``full``: torch passes, trivial answers fail."""
    unchecked: str = ""
    """Why the oracle was not asked, where it was not."""
    task_precision: bool = False
    """Whether the reference casts, so that it can only be judged at its own precision."""

    def applied_to(self, task: ExternalTask) -> ExternalTask:
        """The task with the policy that it can be judged by."""
        return task.with_policy(oracle="task-precision") if self.task_precision else task


def as_task(task: ExternalTask, sizes: tuple[Size, ...], suite: str = "import") -> Task:
    """An external task with sizes as a task of ours."""
    return Task(
        name=task.name,
        suite=suite,
        title=task.title,
        level=task.level,
        tags=task.tags,
        source=task.source,
        sizes=sizes,
        policy=task.policy,
        c_source=task.c_source,
    )


def sizes_of(constants: Mapping[str, Mapping[str, int | float | bool]]) -> tuple[Size, ...]:
    """``full``, and a size for each name with its constants."""
    return (Size(name="full"), *(Size(name=name, constants=dict(values)) for name, values in constants.items()))


def checked_choice(task: ExternalTask, choice: SizeChoice) -> SizeChoice:
    """The choice itself, if its sizes are some of this task.

    Raises:
        TaskError: the task has no such constant.
        ValidationError: two sizes have one name, or ``small`` is missing.
    """
    if not choice.refused:
        template = Template(task.source)
        for size in as_task(task, choice.sizes).sizes:
            template.filled(size.constants)
    return choice
