"""Parent side: whether every task of a suite can be judged. What ``kernelforge tasks check`` runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from kernelforge.errors import SandboxError, TaskError
from kernelforge.evaluate.oracle import Admission, Oracle
from kernelforge.records import Task

OracleFactory = Callable[[Task], Oracle]
"""Opens an oracle for a task: ``lambda task: Oracle(zygote, task)``."""


def check_suite(
    suite: Iterable[Task], open_oracle: OracleFactory, *, sizes: Sequence[str] | None = None
) -> Iterator[Admission]:
    """Check tasks one by one, each reported as soon as it is known. A task that does not run is a failed report.

    ``sizes`` as in :meth:`Oracle.admit`: every size but ``full`` by default.
    """
    for task in suite:
        yield check_task(task, open_oracle, sizes=sizes)


def check_task(task: Task, open_oracle: OracleFactory, *, sizes: Sequence[str] | None = None) -> Admission:
    """Admission of one task: its facts and graph can be had, torch passes, trivial answers fail."""
    try:
        with open_oracle(task) as oracle:
            oracle.facts(sizes)
            oracle.trace()
            return oracle.admit(sizes)
    except (TaskError, SandboxError) as error:
        return Admission(task=task.name, findings=(), error=str(error))
