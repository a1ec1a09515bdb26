"""Options shared by ``tasks check`` and ``tasks audit``: task selection and parallelism."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from kernelforge.records import Task
    from kernelforge.sandbox import Zygote

SuiteArgument = Annotated[
    str, typer.Argument(metavar="[SUITE]", help="Name of a shipped suite, or the path of a suite's folder.")
]
OnlyOption = Annotated[
    list[str] | None, typer.Option("--task", metavar="NAME", help="Only this task of the suite; repeat for more.")
]
AllOption = Annotated[bool, typer.Option("--all", help="Every suite that ships with KernelForge.")]
TimeoutOption = Annotated[
    float,
    typer.Option("--timeout", metavar="SECONDS", min=1, help="Longest wait for one answer of a task's reference."),
]
JobsOption = Annotated[int, typer.Option("--jobs", metavar="N", min=1, help="Tasks worked on at a time.")]


@dataclass(frozen=True)
class Chosen:
    """Tasks to work on."""

    tasks: tuple[tuple[str, Task], ...]
    """Each with the name or path by which its suite was named."""
    broken: tuple[str, ...] = ()
    """Suites and tasks that could not be read, and why: the rest is worked on all the same."""

    @property
    def suites(self) -> list[str]:
        return list(dict.fromkeys(suite for suite, _ in self.tasks))


def chosen_tasks(suite: str, only: list[str] | None, every: bool) -> Chosen:
    """Tasks of every shipped suite, of one, or some of one.

    Raises:
        UsageError: there is no such suite or task, or ``--all`` was given with ``--task``.
        TaskError: the suite that was named is malformed.
    """
    from kernelforge.errors import TaskError, UsageError
    from kernelforge.tasks import list_suites, load_suite

    if every and only:
        raise UsageError("--all takes every task of every suite; leave out --task, or name the suite instead")
    broken: list[str] = []
    if not every:
        loaded = load_suite(suite, broken=None if only else broken)
        chosen = [loaded.task(name) for name in only] if only else loaded
        return Chosen(tuple((suite, task) for task in chosen), tuple(broken))
    tasks: list[tuple[str, Task]] = []
    for name in list_suites():
        try:
            tasks += [(name, task) for task in load_suite(name, broken=broken)]
        except TaskError as error:
            broken.append(str(error))
    return Chosen(tuple(tasks), tuple(broken))


def print_broken(chosen: Chosen) -> None:
    """A line on stderr for each suite or task that could not be read."""
    from kernelforge.report.formatting import one_line

    for text in chosen.broken:
        typer.echo(f"error: {one_line(text)}", err=True)


def oracle_zygote(allow_unconfined: bool) -> Zygote:
    """What forks the confined children that run references."""
    from kernelforge.sandbox import Zygote

    return Zygote("oracle", allow_unconfined=allow_unconfined)
