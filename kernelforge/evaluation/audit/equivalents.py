"""Equivalent mutants, each with its argument, from a suite's ``audit.toml``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from kernelforge.errors import TaskError
from kernelforge.evaluation.audit.results import TaskAudit
from kernelforge.records import first_fault
from kernelforge.tasks import suite_folders
from kernelforge.tasks.files import read_toml

ARGUMENTS: Final = "audit.toml"
"""Next to ``suite.toml``."""


class Equivalent(BaseModel):
    """One ``[[equivalent]]``: a mutant that is as right as the reference."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    task: str
    mutant: str
    argument: str = Field(min_length=20)
    """Why nothing could or should tell it from the reference."""


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    equivalent: list[Equivalent] = []


def read_equivalents(path: Path) -> list[Equivalent]:
    """The arguments of one file.

    Raises:
        TaskError: it cannot be read, is malformed, or argues one mutant twice.
    """
    try:
        arguments = _File.model_validate(read_toml(path)).equivalent
    except ValidationError as error:
        raise TaskError(f"{path}: {first_fault(error)}") from error
    seen: set[tuple[str, str]] = set()
    for argument in arguments:
        if (argument.task, argument.mutant) in seen:
            raise TaskError(f"{path}: task '{argument.task}': the mutant {argument.mutant} is argued twice")
        seen.add((argument.task, argument.mutant))
    return arguments


@dataclass(frozen=True)
class Arguments:
    """Arguments about the mutants of one suite's tasks."""

    own: tuple[Equivalent, ...] = ()
    inherited: tuple[Equivalent, ...] = ()
    """Those of the suite that it is based on, which need not all apply to it."""

    def of(self, task: str) -> list[str]:
        """Names of the mutants of a task that are argued to be equivalent."""
        return list(
            dict.fromkeys(argument.mutant for argument in (*self.own, *self.inherited) if argument.task == task)
        )


def suite_arguments(suite: str | Path) -> Arguments:
    """The arguments about a suite's tasks, by its name or folder.

    Raises:
        UsageError: there is no such suite.
        TaskError: a file is malformed.
    """
    inherited = [
        tuple(read_equivalents(path)) if (path := folder / ARGUMENTS).is_file() else ()
        for folder in suite_folders(suite)
    ]
    return Arguments(*inherited)


def stale_arguments(audit: TaskAudit, arguments: Arguments) -> list[str]:
    """Problems with a task's own arguments: the mutant does not exist, or was killed."""
    outcomes = {mutant.mutant: mutant.outcome for mutant in audit.mutants}
    problems = []
    for argument in arguments.own:
        if argument.task != audit.task or audit.error:
            continue
        if argument.mutant not in outcomes:
            problems.append(f"{argument.mutant} is argued to be equivalent, but there is no such mutant any more")
        elif outcomes[argument.mutant] != "survived":
            problems.append(f"{argument.mutant} is argued to be equivalent, but it is {outcomes[argument.mutant]}")
    return problems
