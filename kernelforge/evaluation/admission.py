"""Admission of a suite's tasks, for ``kernelforge tasks check``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

from kernelforge.errors import SandboxError, TaskError
from kernelforge.evaluation.oracle.client import AdmissionResult, Oracle
from kernelforge.evaluation.parallel import map_unique
from kernelforge.records import Task

OracleFactory = Callable[[Task], Oracle]
"""Opens an oracle for a task: ``lambda task: Oracle(zygote, task)``."""


def check_suite(
    suite: Iterable[Task], open_oracle: OracleFactory, *, sizes: Sequence[str] | None = None, jobs: int = 1
) -> Iterator[AdmissionResult]:
    """Check tasks, ``jobs`` at a time, each reported in order as soon as it is known.

    A task that does not run is a failed report. Tasks that differ at their full size alone (a generated suite) share
    what was found of the first of them, whose full size stands for theirs. ``sizes`` as in :meth:`Oracle.admit`: every
    size but ``full`` by default.
    """
    checked = map_unique(tuple(suite), lambda task: task, lambda task: check_task(task, open_oracle, sizes=sizes), jobs)
    for task, _, found in checked:
        yield replace(found, task=task.name)


def check_task(task: Task, open_oracle: OracleFactory, *, sizes: Sequence[str] | None = None) -> AdmissionResult:
    """Admission of one task: its facts and graph can be had, torch passes, trivial answers fail."""
    try:
        with open_oracle(task) as oracle:
            oracle.facts(sizes)
            oracle.trace()
            return oracle.admit(sizes)
    except (TaskError, SandboxError) as error:
        return AdmissionResult(task=task.name, findings=(), error=str(error))
