"""Interface of the loaders of other benchmarks' tasks.

A loader reads files as text or data; nothing that came from them is imported, executed or unpickled here. What it makes
of each problem is the text of a task file in KernelBench's format (docs/tasks.md), which later runs in the oracle.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from kernelforge.records import TaskPolicy


@dataclass(frozen=True)
class ExternalTask:
    """One problem of another benchmark as a task of ours, at the size its authors gave it."""

    name: str
    """As in :class:`kernelforge.records.Task`: lower case, digits, ``_ - . /``."""
    title: str
    source: str
    """A whole task file. Extents stand in module constants, literals lifted where the original has them inline, so that
    sizes can set them."""
    origin: str
    """Where it came from, for people: a path within the source, or a row's number."""
    level: int = 1
    tags: tuple[str, ...] = ()
    policy: TaskPolicy = field(default_factory=TaskPolicy)
    fixed: frozenset[str] = frozenset()
    """Module constants that no size may change: they are part of what the problem says, not extents."""
    sizes: Mapping[str, Mapping[str, int | float | bool]] = field(default_factory=dict)
    """Further sizes that the benchmark itself names (``hidden_...``); shrinking adds ``small`` and what is missing."""


@dataclass(frozen=True)
class NotLoaded:
    """One problem that could not be made a task, and why: one line that says what it has and we do not."""

    origin: str
    reason: str
    level: int | None = None
    """The problem's level, where its benchmark has levels."""


@dataclass(frozen=True)
class Loaded:
    """What a loader found: every problem is in one of the two."""

    tasks: tuple[ExternalTask, ...]
    not_loaded: tuple[NotLoaded, ...]


class Loader(Protocol):
    """One format of one benchmark."""

    name: str
    """What ``kernelforge tasks import --format`` calls it."""
    summary: str
    """One line for the command's help: whose format, and what SOURCE is (a folder, a file)."""

    def recognises(self, source: Path) -> bool:
        """Whether SOURCE looks like this format, by the names of its files and columns; never raises."""
        ...

    def load(self, source: Path) -> Loaded:
        """Read a checkout, folder or file.

        Raises:
            UsageError: there is no such path, or it is not in this format at all; the message says what was looked for.
        """
        ...
