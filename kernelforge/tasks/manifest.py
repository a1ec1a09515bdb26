"""Schema of ``suite.toml``; docs/tasks.md describes its keys."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from kernelforge.errors import TaskError
from kernelforge.records import first_fault
from kernelforge.tasks.constants import Scalar
from kernelforge.tasks.files import read_toml

MANIFEST = "suite.toml"

Plain = Annotated[str, Field(pattern=r"^[^\x00-\x1f\x7f-\x9f]+$", max_length=1000)]
"""A name or a path: errors quote it, on one line."""


class Entry(BaseModel):
    """Common keys of ``[[task]]`` and ``[[grid]]``."""

    model_config = ConfigDict(extra="forbid", strict=True)

    name: Plain
    file: Plain | None = None
    c_source: Plain | None = None
    title: str | None = None
    level: int | None = None
    tags: list[str] = []
    small: dict[str, Scalar] = {}
    hidden: dict[str, dict[str, Scalar]] = {}
    policy: dict[str, Any] = {}


class TaskEntry(Entry):
    """One ``[[task]]``."""

    full: dict[str, Scalar] = {}
    """Constants of the size ``full``, for a suite that has a ``base``."""


class GridEntry(Entry):
    """One ``[[grid]]``: a task for each combination of values. ``name`` and ``title`` are ``str.format`` templates."""

    file: Plain
    full: dict[str, list[Scalar]] = Field(min_length=1)


class Manifest(BaseModel):
    """A complete ``suite.toml``."""

    model_config = ConfigDict(extra="forbid", strict=True)

    title: str
    base: Plain | None = None
    description: str = ""
    level: int = Field(default=1, ge=0)
    tags: list[str] = []
    policy: dict[str, Any] = {}
    task: list[TaskEntry] = []
    grid: list[GridEntry] = []

    @model_validator(mode="after")
    def _makes_tasks(self) -> Manifest:
        if self.base is None and not (self.task or self.grid):
            raise ValueError("there is no [[task]], no [[grid]] and no base, so the suite would be empty")
        if self.base is not None and self.grid:
            raise ValueError("a suite with a base takes its tasks from there; it has no [[grid]] of its own")
        if self.base is not None and "level" in self.model_fields_set:
            raise ValueError("a suite with a base takes its tasks' levels from there; it sets no level")
        return self


def read_manifest(path: Path) -> Manifest:
    """Read a ``suite.toml``.

    Raises:
        TaskError: it cannot be read, is not TOML, or has invalid keys.
    """
    try:
        return Manifest.model_validate(read_toml(path))
    except ValidationError as error:
        raise TaskError(f"{path}: {first_fault(error)}") from error
