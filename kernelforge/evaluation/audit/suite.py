"""Audit of many tasks, for ``kernelforge tasks audit``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from kernelforge.errors import SandboxError, TaskError
from kernelforge.evaluation.admission import OracleFactory
from kernelforge.evaluation.audit.results import TaskAudit
from kernelforge.evaluation.parallel import map_unique
from kernelforge.records import Task

MOST_MUTANTS: Final = 60
"""Mutants of one task that are run, unless more are asked for."""


@dataclass(frozen=True)
class Job:
    """One task to audit, with the names of its mutants that are argued to be equivalent."""

    task: Task
    argued: tuple[str, ...] = ()


def audit_tasks(
    jobs: Sequence[Job], open_oracle: OracleFactory, *, most: int = MOST_MUTANTS, at_once: int = 1
) -> Iterator[TaskAudit]:
    """Audit tasks, each reported in order as soon as it is known; what is judged on the same things is audited once.

    A task that cannot be audited is a report with its error.
    """
    audits = map_unique(jobs, lambda job: job.task, lambda job: audit_task(job, open_oracle, most=most), at_once)
    for job, first, audit in audits:
        if first is job:
            yield audit
        else:
            where = first.task.name if first.task.suite == job.task.suite else f"{first.task.suite}/{first.task.name}"
            yield audit.model_copy(update={"task": job.task.name, "same_as": where})


def audit_task(job: Job, open_oracle: OracleFactory, *, most: int = MOST_MUTANTS) -> TaskAudit:
    """The audit of one task, in a confined child of its own."""
    try:
        with open_oracle(job.task) as oracle:
            return oracle.audit(most, job.argued)
    except (TaskError, SandboxError) as error:
        return TaskAudit(task=job.task.name, error=str(error))
