"""Suites: a folder of task files with a ``suite.toml`` that gives sizes, tags and policies."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from kernelforge.errors import TaskError, UsageError
from kernelforge.records import Size, Task, TaskPolicy, content_hash, first_fault
from kernelforge.tasks.constants import Scalar, substitute
from kernelforge.tasks.data import data_path
from kernelforge.tasks.files import parse_task_file, read_task_source

MANIFEST = "suite.toml"
LOOSE_SUITE = "file"
"""What ``Task.suite`` says of a task file that belongs to no suite."""


@dataclass(frozen=True)
class Suite:
    """A named set of tasks."""

    name: str
    title: str
    tasks: tuple[Task, ...]
    description: str = ""

    @cached_property
    def digest(self) -> str:
        """Names the content: every task with its source, sizes and policy, in order."""
        return content_hash("suite", self.name, [task.digest for task in self.tasks])

    def task(self, name: str) -> Task:
        """One task by name.

        Raises:
            UsageError: the suite has no such task.
        """
        for task in self.tasks:
            if task.name == name:
                return task
        names = ", ".join(task.name for task in self.tasks)
        raise UsageError(f"suite '{self.name}' has no task '{name}'; it has: {names}")

    def __iter__(self) -> Iterator[Task]:
        return iter(self.tasks)

    def __len__(self) -> int:
        return len(self.tasks)


class _Entry(BaseModel):
    """One ``[[task]]`` of a manifest."""

    model_config = ConfigDict(extra="forbid", strict=True)

    name: str
    file: str | None = None
    title: str | None = None
    level: int | None = None
    tags: list[str] = []
    full: dict[str, Scalar] = {}
    small: dict[str, Scalar] = {}
    hidden: dict[str, dict[str, Scalar]] = {}
    policy: dict[str, Any] = {}


class _Manifest(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    title: str
    base: str | None = None
    description: str = ""
    level: int = Field(default=1, ge=0)
    tags: list[str] = []
    policy: dict[str, Any] = {}
    task: list[_Entry] = Field(min_length=1)


def list_suites() -> tuple[str, ...]:
    """Names of the suites that ship with KernelForge."""
    return tuple(sorted(path.parent.name for path in data_path("tasks").glob(f"*/{MANIFEST}")))


def load_suite(name_or_path: str | Path) -> Suite:
    """A suite by its name, or by the path of its folder (or of its ``suite.toml``); a task file is a suite of one.

    Raises:
        UsageError: there is no such suite.
        TaskError: the manifest or one of its task files is malformed; the message names the file.
    """
    if str(name_or_path).endswith(".py"):
        task = _file_task(Path(name_or_path))
        return Suite(name=task.suite, title=task.title, description="", tasks=(task,))
    folder = _suite_folder(name_or_path)
    manifest = _read_manifest(folder / MANIFEST)
    if manifest.base is None:
        tasks = tuple(_suite_task(folder, manifest, entry) for entry in manifest.task)
    else:
        tasks = tuple(_derived_task(folder, manifest, entry) for entry in manifest.task)
    names = [task.name for task in tasks]
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise TaskError(f"{folder / MANIFEST}: task names repeat: {', '.join(repeated)}")
    return Suite(name=folder.name, title=manifest.title, description=manifest.description, tasks=tasks)


def load_task(path_or_name: str | Path) -> Task:
    """A task by ``suite/name``, by name alone within suite ``core``, or by the path of a task file.

    A file that lies in a suite's folder and is listed there keeps the suite's sizes and policy. A loose file
    has its own constants as the sizes ``full`` and ``small``, no hidden size and the default policy.

    Raises:
        UsageError: there is no such suite or task.
        TaskError: the file is missing or malformed.
    """
    text = str(path_or_name)
    path = Path(path_or_name)
    if path.suffix == ".py" or path.is_file():
        return _file_task(path)
    suite, _, name = text.rpartition("/")
    if not name:
        raise UsageError(f"'{text}' names no task; write suite/task, such as core/softmax, or a path to a .py file")
    return load_suite(suite or "core").task(name)


def size_source(task: Task, size: str) -> str:
    """The task's text at one size, constants replaced.

    Raises:
        UsageError: the task has no such size.
    """
    try:
        chosen = task.size(size)
    except KeyError as error:
        names = ", ".join(known.name for known in task.sizes)
        raise UsageError(f"task '{task.name}' has no size '{size}'; it has: {names}") from error
    return substitute(task.source, chosen.constants)


def _suite_folder(name_or_path: str | Path) -> Path:
    path = Path(name_or_path)
    if path.name == MANIFEST:
        path = path.parent
    if (path / MANIFEST).is_file():
        return path.resolve()
    if len(path.parts) == 1:
        shipped = data_path("tasks") / path
        if (shipped / MANIFEST).is_file():
            return shipped
    raise UsageError(
        f"there is no suite '{name_or_path}'; shipped suites: {', '.join(list_suites()) or 'none'}; "
        f"a path must be a folder with a {MANIFEST}, or a task file"
    )


def _read_manifest(path: Path) -> _Manifest:
    try:
        return _Manifest.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise TaskError(f"cannot read {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise TaskError(f"{path} is not TOML: {error}") from error
    except ValidationError as error:
        raise TaskError(f"{path}: {first_fault(error)}") from error


def _suite_task(folder: Path, manifest: _Manifest, entry: _Entry) -> Task:
    where = f"{folder / MANIFEST}, task '{entry.name}'"
    path = folder / (entry.file or f"{entry.name}.py")
    if not path.resolve().is_relative_to(folder.resolve()):
        raise TaskError(f"{where}: the file {path} lies outside the suite's folder")
    parsed = parse_task_file(read_task_source(path), str(path))
    if entry.full:
        raise TaskError(f"{where}: the size full is {path.name} as it is; change its constants there")
    sizes = [Size(name="full")]
    try:
        sizes.append(Size(name="small", constants=entry.small))
        sizes += [Size(name=f"hidden_{name}", constants=constants) for name, constants in entry.hidden.items()]
        for size in sizes:
            substitute(parsed.source, size.constants)
        return Task(
            name=entry.name,
            suite=folder.name,
            title=entry.title or parsed.title or entry.name,
            level=manifest.level if entry.level is None else entry.level,
            tags=tuple(dict.fromkeys((*manifest.tags, *entry.tags))),
            source=parsed.source,
            sizes=tuple(sizes),
            policy=TaskPolicy.model_validate({**manifest.policy, **entry.policy}),
        )
    except ValidationError as error:
        raise TaskError(f"{where}: {first_fault(error)}") from error
    except TaskError as error:
        raise TaskError(f"{where}: {error}") from error


def _derived_task(folder: Path, manifest: _Manifest, entry: _Entry) -> Task:
    """A task of the suite that a manifest is based on, with other constants in its file: another size ``full``."""
    where = f"{folder / MANIFEST}, task '{entry.name}'"
    base = (folder.parent / (manifest.base or "")).resolve()
    if base == folder.resolve() or base.parent != folder.resolve().parent or not (base / MANIFEST).is_file():
        raise TaskError(f"{folder / MANIFEST}: base = '{manifest.base}' names no other suite beside this one")
    if _read_manifest(base / MANIFEST).base is not None:
        raise TaskError(f"{folder / MANIFEST}: base = '{manifest.base}' is itself based on a suite; name that one")
    changed = entry.model_fields_set - {"name", "full"}
    if changed:
        raise TaskError(f"{where}: sets {', '.join(sorted(changed))}, which the base decides; set name and full only")
    try:
        task = load_suite(base).task(entry.name)
        return task.model_copy(update={"suite": folder.name, "source": substitute(task.source, entry.full)})
    except (TaskError, UsageError) as error:
        raise TaskError(f"{where}: {error}") from error


def _file_task(path: Path) -> Task:
    if (path.parent / MANIFEST).is_file():
        suite = load_suite(path.parent)
        listed = {
            (path.parent / (entry.file or f"{entry.name}.py")).resolve(): entry.name
            for entry in _read_manifest(path.parent / MANIFEST).task
        }
        if path.resolve() in listed:
            return suite.task(listed[path.resolve()])
    parsed = parse_task_file(read_task_source(path), str(path))
    name = "".join(letter if letter.isalnum() or letter in "_-." else "_" for letter in path.stem.lower()).lstrip("_-.")
    return Task(
        name=name.encode("ascii", "replace").decode().replace("?", "_") or "task",
        suite=LOOSE_SUITE,
        title=parsed.title or path.stem,
        level=0,
        source=parsed.source,
        sizes=(Size(name="full"), Size(name="small")),
    )
