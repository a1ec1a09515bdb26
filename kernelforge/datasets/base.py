"""Result of an import: candidates with their references, and unreadable ones with the reason."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kernelforge.errors import TaskError
from kernelforge.records import Candidate, Size, Task
from kernelforge.tasks.constants import Scalar, substitute
from kernelforge.tasks.files import parse_task_file


@dataclass(frozen=True)
class ImportedCandidate:
    """One published candidate."""

    name: str
    """``level1_problem9``; with a suffix for a variant: ``level1_problem9_cuda_graph``."""
    level: int
    problem: str
    """The problem's id in its level."""
    reference: str | None
    """Text of the task file; None if the data set lacks it (KernelBench's run folders)."""
    source: str
    """Text of the file with ``ModelNew``."""
    published_score: float | None
    """Published speedup, by the publisher's own protocol; not comparable with speedups measured here."""
    published_correct: bool | None
    origin: str
    """``FILE:LINE``, or the file."""

    @property
    def candidate(self) -> Candidate:
        """The candidate, of kind ``modelnew``.

        Raises:
            pydantic.ValidationError: it is larger than a candidate may be.
        """
        return Candidate(source=self.source, plan="", lane="modelnew")


@dataclass(frozen=True)
class UnreadableCandidate:
    """An item that is no usable candidate."""

    origin: str
    name: str
    reason: str


@dataclass(frozen=True)
class Import:
    """Content of a file or folder."""

    candidates: tuple[ImportedCandidate, ...]
    unread: tuple[UnreadableCandidate, ...]


def as_task(item: ImportedCandidate, small: Mapping[str, Scalar] | None = None) -> Task:
    """The reference as a task: ``full`` is the unchanged file, ``small`` has the given constants.

    Without constants, ``small`` is the unchanged file too; then evaluate the task at ``full`` only.

    Raises:
        TaskError: there is no reference, it is no task file, or it has no such constant.
    """
    if item.reference is None:
        raise TaskError(f"{item.name} comes without its reference; give the folder of KernelBench's task files")
    parse_task_file(item.reference, item.name)
    constants = dict(small or {})
    substitute(item.reference, constants)
    sizes = (Size(name="full"), Size(name="small", constants=constants))
    title = f"KernelBench level {item.level}, problem {item.problem}"
    return Task(name=item.name, suite="imported", title=title, level=item.level, source=item.reference, sizes=sizes)
