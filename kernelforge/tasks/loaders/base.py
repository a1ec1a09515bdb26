"""Interface of the loaders of other benchmarks' tasks.

A loader reads files as text or data, and never imports, executes or unpickles them. It converts each problem to the
text of a task file in KernelBench's format (docs/tasks.md), which later runs in the oracle.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from kernelforge.errors import TaskError
from kernelforge.records import TaskPolicy
from kernelforge.tasks.constants import MOST_SOURCE_BYTES
from kernelforge.tasks.files import read_plain_file
from kernelforge.tasks.loaders.rows import Taken


@dataclass(frozen=True)
class ExternalTask:
    """One problem of another benchmark as a task, at the size of its authors."""

    name: str
    """As in :class:`kernelforge.records.Task`: lower case, digits, ``_ - . /``."""
    title: str
    source: str
    """A complete task file. Extents are module constants, also where the original has literals, so that sizes can set
    them."""
    origin: str
    """Its origin, for people: a path within the source, or a row's number."""
    level: int = 1
    tags: tuple[str, ...] = ()
    policy: TaskPolicy = field(default_factory=TaskPolicy)
    fixed: frozenset[str] = frozenset()
    """Module constants that no size may change: part of the problem, not extents."""
    sizes: Mapping[str, Mapping[str, int | float | bool]] = field(default_factory=dict)
    """Further sizes of the benchmark itself (``hidden_...``); the size search adds ``small`` and others."""
    c_source: str = ""
    """A C file with the function of this name that a translation task shows; ``source`` is its reference."""
    license: str = ""
    """Licence of the text, as :class:`kernelforge.records.Task` has it."""

    def with_policy(self, **values: object) -> ExternalTask:
        """The task with other values of its policy."""
        return replace(self, policy=self.policy.model_copy(update=values))


@dataclass(frozen=True)
class NotLoaded:
    """One problem that cannot become a task, with the reason in one line."""

    origin: str
    reason: str
    level: int | None = None
    """The problem's level, if its benchmark has levels."""


@dataclass(frozen=True)
class Loaded:
    """Result of a loader; every problem is in one of the two tuples."""

    tasks: tuple[ExternalTask, ...]
    not_loaded: tuple[NotLoaded, ...]


Problem = tuple[str, int | None, Callable[[Taken], ExternalTask]]
"""Origin and level of a problem, and what makes its task; that gets the names in use, and adds its own."""


def load_each(problems: Iterable[Problem]) -> Loaded:
    """Make the task of each problem; one that raises a :class:`TaskError` is not loaded."""
    tasks: list[ExternalTask] = []
    not_loaded: list[NotLoaded] = []
    taken: Taken = {}
    for origin, level, make in problems:
        try:
            tasks.append(make(taken))
        except TaskError as error:
            # Some errors name the origin, which the record has in its own field.
            not_loaded.append(NotLoaded(origin, str(error).removeprefix(origin).lstrip(",: "), level))
    return Loaded(tuple(tasks), tuple(not_loaded))


_LICENCES = (
    ("MIT", ("permission is hereby granted, free of charge", "without restriction")),
    ("Apache-2.0", ("apache license", "version 2.0")),
    ("BSD-3-Clause", ("redistribution and use in source and binary forms", "neither the name")),
    ("BSD-2-Clause", ("redistribution and use in source and binary forms",)),
    ("GPL-3.0-only", ("gnu general public license", "version 3")),
    ("GPL-2.0-only", ("gnu general public license", "version 2")),
)
"""SPDX identifiers by what each licence's text says, the narrower first."""
_LICENCE_FILES = ("LICENSE", "LICENSE.txt", "LICENSE.md", "COPYING")


def licence_of(source: Path) -> str:
    """SPDX identifier of the licence in a folder's LICENSE file; empty where there is none, or it is not recognised."""
    for name in _LICENCE_FILES:
        try:
            text = read_plain_file(source / name, MOST_SOURCE_BYTES, within=source).decode(errors="replace")
        except (OSError, TaskError):
            continue
        words = " ".join(text.lower().split())
        return next((spdx for spdx, parts in _LICENCES if all(part in words for part in parts)), "")
    return ""


class Loader(Protocol):
    """One format of one benchmark."""

    name: str
    """Its name for ``kernelforge tasks import --format``."""
    summary: str
    """One line for the command's help: the benchmark, and the kind of SOURCE."""

    def recognises(self, source: Path) -> bool:
        """Whether SOURCE looks like this format, by the names of its files and columns; never raises."""
        ...

    def load(self, source: Path) -> Loaded:
        """Read a checkout, folder or file.

        Raises:
            UsageError: there is no such path, or it is not in this format; the message says what was expected.
        """
        ...
