"""Checks of many tasks: admission and mutation audit, in parallel and once per distinct task content."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Final, TypeVar

from kernelforge.errors import SandboxError, TaskError
from kernelforge.evaluation.audit.results import MOST_MUTANTS, TaskAudit
from kernelforge.evaluation.oracle.client import AdmissionResult, Oracle
from kernelforge.evaluation.size_search.search import Bounds
from kernelforge.records import Task, content_hash
from kernelforge.tasks import size_source
from kernelforge.tasks.constants import parse_python

Item = TypeVar("Item")
Result = TypeVar("Result")


def parallel_map(work: Callable[[Item], Result], items: Iterable[Item], jobs: int) -> Iterator[Result]:
    """The results of ``work``, in the order of ``items``, each as soon as it and those before it are there.

    Args:
        jobs: How many are worked on at a time, in threads: the work itself is done by children.
    """
    if jobs <= 1:
        yield from map(work, items)
        return
    with ThreadPoolExecutor(jobs) as pool:
        try:
            yield from pool.map(work, items)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def map_unique(
    items: Sequence[Item], task_of: Callable[[Item], Task], work: Callable[[Item], Result], jobs: int
) -> Iterator[tuple[Item, Item, Result]]:
    """Yield ``(item, representative, result)``; ``work`` runs once per distinct task content.

    In the order of ``items``, each as soon as it is known; ``jobs`` as in :func:`parallel_map`.
    """
    contents = [judged_content(task_of(item)) for item in items]
    firsts: dict[str, Item] = {}
    for content, item in zip(contents, items, strict=True):
        firsts.setdefault(content, item)
    results = parallel_map(work, firsts.values(), jobs)
    done: dict[str, Result] = {}
    for content, item in zip(contents, items, strict=True):
        if content not in done:
            done[content] = next(results)
        yield item, firsts[content], done[content]


def judged_content(task: Task) -> str:
    """Names what a task is checked on: its program and policy at every size but ``full``, comments and titles aside.

    Tasks of a generated suite that differ at their full size alone have one name.
    """
    sizes = [(size.name, size_source(task, size.name)) for size in task.sizes if size.name != "full"]
    return content_hash([(name, _program(source)) for name, source in sizes], task.policy.content())


def _program(source: str) -> str:
    """The text's syntax without the module's docstring."""
    tree = parse_python(source, "the task file")
    if tree.body and isinstance(tree.body[0], ast.Expr) and isinstance(tree.body[0].value, ast.Constant):
        tree.body = tree.body[1:]
    return ast.dump(tree)


OracleFactory = Callable[[Task], Oracle]
"""Opens an oracle for a task: ``lambda task: Oracle(zygote, task)``."""


def check_suite(
    suite: Iterable[Task],
    open_oracle: OracleFactory,
    *,
    sizes: Sequence[str] | None = None,
    jobs: int = 1,
    then_s: float | None = None,
) -> Iterator[AdmissionResult]:
    """Check tasks, ``jobs`` at a time, each reported in order as soon as it is known.

    A task that does not run is a failed report. Tasks that differ at their full size alone (a generated suite) share
    the result of the first of them, whose full size stands for theirs. ``sizes`` as in :meth:`Oracle.admit`: every
    size but ``full`` by default; ``then_s`` as in :func:`check_task`.
    """

    def check(task: Task) -> AdmissionResult:
        return check_task(task, open_oracle, sizes=sizes, then_s=then_s)

    checked = map_unique(tuple(suite), lambda task: task, check, jobs)
    for task, _, result in checked:
        yield replace(result, task=task.name)


FIRST_ANSWERS_S: Final = 60.0
"""Longest wait for a task to be loaded, and for its reference to end once at the small size."""

ANSWER_CPU_S: Final = Bounds().judge_s
"""Most CPU time of an answer, about one size: as long as the import of tasks waits for one."""

LATER_ANSWERS_S: Final = 3600.0
"""Longest wait for such an answer: on a sixth of a processor. On two cores with a load of 13 the shapes of an LSTM's
36,881 operators (KernelBench 3/36) took 175 s, and one size of VGG16 (3/11) more than 600."""


def check_task(
    task: Task, open_oracle: OracleFactory, *, sizes: Sequence[str] | None = None, then_s: float | None = None
) -> AdmissionResult:
    """Admission of one task: its facts and graph can be had, torch passes, trivial answers fail.

    Args:
        then_s: longest wait for an answer once the reference has ended at one size; by default that of the oracle.
    """
    names = [size.name for size in task.sizes] if sizes is None else list(sizes)
    names.sort(key=lambda name: name != "small")
    try:
        with open_oracle(task) as oracle:
            for name in names:
                oracle.facts((name,))
                oracle.reply_s = then_s or oracle.reply_s
            oracle.trace()
            judged = [name for name in names if name != "full" or sizes is not None]
            findings = tuple(finding for name in judged for finding in oracle.admit((name,)).findings)
            return AdmissionResult(task=task.name, findings=findings)
    except (TaskError, SandboxError) as error:
        return AdmissionResult(task=task.name, findings=(), error=str(error))


@dataclass(frozen=True)
class AuditJob:
    """One task to audit, with the names of its mutants that are argued to be equivalent."""

    task: Task
    argued: tuple[str, ...] = ()


def audit_tasks(
    jobs: Sequence[AuditJob], open_oracle: OracleFactory, *, most: int = MOST_MUTANTS, at_once: int = 1
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


def audit_task(job: AuditJob, open_oracle: OracleFactory, *, most: int = MOST_MUTANTS) -> TaskAudit:
    """The audit of one task, in a confined child of its own."""
    try:
        with open_oracle(job.task) as oracle:
            return oracle.audit(most, job.argued)
    except (TaskError, SandboxError) as error:
        return TaskAudit(task=job.task.name, error=str(error))
