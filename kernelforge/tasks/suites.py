"""Suites: folders of task files with a manifest, shipped with KernelForge or made by users."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from kernelforge.errors import TaskError, UsageError
from kernelforge.records import Size, Task, TaskPolicy, content_hash, first_fault
from kernelforge.tasks.building import entry_path, in_another_language, tasks_of_entry, tasks_of_grid
from kernelforge.tasks.constants import Scalar, substitute
from kernelforge.tasks.files import (
    MANIFEST,
    Manifest,
    is_within,
    parse_task_file,
    read_manifest,
    read_task_source,
)
from kernelforge.tasks.selection import no_such_task, selected_names


def data_path(name: str) -> Path:
    """Folder of shipped data: ``tasks``, ``prompts``, ``sandbox``, ``skills`` or ``docs``.

    A wheel carries the folders as ``kernelforge/_data/<name>``; in a checkout they lie next to the package.

    Raises:
        UsageError: the installation lacks the folder.
    """
    package = Path(__file__).resolve().parents[1]
    for folder in (package / "_data" / name, package.parent / name):
        if folder.is_dir():
            return folder
    raise UsageError(
        f"this installation of kernelforge has no '{name}' folder (looked next to and inside {package}); "
        "reinstall it, or run from a complete checkout"
    )


LOOSE_SUITE = "file"
"""``Task.suite`` of a task file that belongs to no suite."""

_MOST_TASKS, _MOST_TEXT = 20_000, 256 << 20
"""Most tasks of a suite, and most characters of their sources."""


@dataclass(frozen=True)
class Suite:
    """A named set of tasks."""

    name: str
    title: str
    tasks: tuple[Task, ...]
    description: str = ""

    @cached_property
    def digest(self) -> str:
        """Hash of every task with its source, sizes and policy, in order."""
        return content_hash("suite", self.name, [task.digest for task in self.tasks])

    def task(self, name: str) -> Task:
        """One task by name.

        Raises:
            UsageError: the suite has no such task.
        """
        for task in self.tasks:
            if task.name == name:
                return task
        raise no_such_task(name, [task.name for task in self.tasks], f"suite '{self.name}'")

    def select(self, patterns: Sequence[str]) -> tuple[Task, ...]:
        """Tasks by name or pattern; :func:`kernelforge.tasks.selection.selected_names` says which patterns there are.

        Raises:
            UsageError: a pattern selects none.
        """
        by_name = {task.name: task for task in self.tasks}
        return tuple(by_name[name] for name in selected_names(patterns, list(by_name), f"suite '{self.name}'"))

    def __iter__(self) -> Iterator[Task]:
        return iter(self.tasks)

    def __len__(self) -> int:
        return len(self.tasks)


def list_suites() -> tuple[str, ...]:
    """Names of the suites that ship with KernelForge."""
    return tuple(sorted(path.parent.name for path in data_path("tasks").glob(f"*/{MANIFEST}")))


def load_suite(name_or_path: str | Path, *, broken: list[str] | None = None) -> Suite:
    """Load a suite by its name, or by the path of its folder (or of its ``suite.toml``); a task file is a suite of one.

    Args:
        name_or_path: name or path of the suite.
        broken: receives a line about each malformed task, which is then left out; None raises the error instead.

    Returns:
        The suite with its tasks, in the order of its manifest.

    Raises:
        UsageError: there is no such suite.
        TaskError: the manifest or one of its task files is malformed; the message names the file.

    Example:
        >>> import kernelforge
        >>> suite = kernelforge.load_suite("core")
        >>> "softmax" in [task.name for task in suite.tasks]
        True
    """
    if str(name_or_path).endswith(".py"):
        task = _file_task(Path(name_or_path))
        return Suite(name=task.suite, title=task.title, description="", tasks=(task,))
    folder = _suite_folder(name_or_path)
    manifest = read_manifest(folder / MANIFEST)
    parts = _own_tasks(folder, manifest) if manifest.base is None else [partial(_derived_tasks, folder, manifest)]
    tasks = _within_limits(folder, (task for part in parts for task in _readable(part, broken)))
    repeated = sorted(name for name, count in Counter(task.name for task in tasks).items() if count > 1)
    if repeated:
        raise TaskError(f"{folder / MANIFEST}: task names repeat: {', '.join(repeated)}")
    return Suite(name=folder.name, title=manifest.title, description=manifest.description, tasks=tasks)


def load_task(path_or_name: str | Path) -> Task:
    """Load a task by ``suite/name``, by name alone within suite ``core``, or by the path of a task file.

    A file that is listed in the suite of its folder keeps the sizes and the policy of that suite. Any other file has
    its own constants as the sizes ``full`` and ``small``, no hidden size and the default policy.

    Args:
        path_or_name: name or path of the task.

    Returns:
        The task: its source, its sizes and its precision policy. The file was read, not imported or run.

    Raises:
        UsageError: there is no such suite or task.
        TaskError: the file is missing or malformed.

    Example:
        >>> import kernelforge
        >>> task = kernelforge.load_task("core/softmax")
        >>> task.name, task.size("full").name
        ('softmax', 'full')
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
        selected = task.size(size)
    except KeyError as error:
        names = ", ".join(other.name for other in task.sizes)
        raise UsageError(f"task '{task.name}' has no size '{size}'; it has: {names}") from error
    return substitute(task.source, selected.constants)


def suite_folders(name_or_path: str | Path) -> list[Path]:
    """A suite's folder, then the folder of its base suite; empty for a task file.

    Raises:
        UsageError: there is no such suite.
        TaskError: its manifest is malformed.
    """
    if str(name_or_path).endswith(".py"):
        return []
    folder = _suite_folder(name_or_path)
    base = read_manifest(folder / MANIFEST).base
    base_folder = _sibling(folder, base) if base else None
    return [folder, *([base_folder] if base_folder else [])]


def _sibling(folder: Path, name: str) -> Path | None:
    """A folder next to ``folder``; None if the name leads elsewhere."""
    path = folder.parent / name
    if not is_within(path, folder.parent):
        return None
    target = path.resolve()
    return target if target.parent == folder.parent.resolve() else None


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


def _within_limits(folder: Path, tasks: Iterable[Task]) -> tuple[Task, ...]:
    """Load the tasks, within limits: a short manifest can name a long file many times.

    Raises:
        TaskError: there are too many, or they are too long.
    """
    loaded: list[Task] = []
    text = 0
    for task in tasks:
        loaded.append(task)
        text += len(task.source)
        if len(loaded) > _MOST_TASKS or text > _MOST_TEXT:
            raise TaskError(
                f"{folder / MANIFEST}: more than {_MOST_TASKS:,} tasks or {_MOST_TEXT:,} characters; split the suite"
            )
    return tuple(loaded)


def _readable(part: Callable[[], Iterable[Task]], broken: list[str] | None) -> list[Task]:
    """Tasks of one part of a manifest; none if it is malformed and ``broken`` collects errors."""
    try:
        return list(part())
    except TaskError as error:
        if broken is None:
            raise
        broken.append(str(error))
        return []


def _own_tasks(folder: Path, manifest: Manifest) -> Iterator[Callable[[], Iterable[Task]]]:
    for entry in manifest.task:
        yield partial(tasks_of_entry, folder, manifest, entry)
    for grid in manifest.grid:
        yield partial(tasks_of_grid, folder, manifest, grid)


def _derived_tasks(folder: Path, manifest: Manifest) -> Iterator[Task]:
    """Tasks of the base suite: the named ones, with another size ``full``, or all of them."""
    here = folder / MANIFEST
    base = _sibling(folder, manifest.base or "")
    if base is None or base == folder.resolve() or not os.path.isfile(base / MANIFEST):
        raise TaskError(f"{here}: base = '{manifest.base}' names no other suite next to this one")
    if read_manifest(base / MANIFEST).base is not None:
        raise TaskError(f"{here}: base = '{manifest.base}' is itself based on a suite; name that one")
    suite = load_suite(base)
    if not manifest.task:
        yield from (_derived_task(str(here), folder.name, manifest, task) for task in suite)
    for entry in manifest.task:
        where = f"{here}, task '{entry.name}'"
        changed = entry.model_fields_set - {"name", "full", "c_source"}
        if changed:
            raise TaskError(
                f"{where}: sets {', '.join(sorted(changed))}, which the base decides; set name, full and c_source only"
            )
        try:
            task = suite.task(entry.name)
            if entry.c_source is not None:
                task = in_another_language(folder, entry, task)
            yield _derived_task(where, folder.name, manifest, task, entry.full)
        except (TaskError, UsageError) as error:
            raise TaskError(f"{where}: {error}") from error


def _derived_task(
    where: str, suite: str, manifest: Manifest, task: Task, full: Mapping[str, Scalar] | None = None
) -> Task:
    update: dict[str, Any] = {"suite": suite, "source": substitute(task.source, full or {})}
    update["tags"] = tuple(dict.fromkeys((*task.tags, *manifest.tags)))
    if manifest.license:
        update["license"] = manifest.license
    try:
        if manifest.policy:
            own = task.policy.model_dump(exclude_defaults=True)
            update["policy"] = TaskPolicy.model_validate({**own, **manifest.policy})
        return task.model_copy(update=update)
    except ValidationError as error:
        raise TaskError(f"{where}: {first_fault(error)}") from error


def _file_task(path: Path) -> Task:
    if (path.parent / MANIFEST).is_file():
        suite, manifest = load_suite(path.parent), read_manifest(path.parent / MANIFEST)
        listed = {entry_path(path.parent, entry).resolve(): entry.name for entry in manifest.task}
        if path.resolve() in listed:
            return suite.task(listed[path.resolve()])
        if path.resolve() in {entry_path(path.parent, grid).resolve() for grid in manifest.grid}:
            example = f"{suite.name}/{suite.tasks[-1].name}"
            raise UsageError(f"{path} makes many tasks of the suite {suite.name}; name one of them, such as {example}")
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


class Catalogue:
    """Suites by name, loaded once, so that names in requests never reach the file system.

    Args:
        suites: names or paths; empty for every shipped suite.
        tasks: names or patterns of the only tasks to offer, of the first suite.

    Raises:
        UsageError: there is no such suite or task, or two suites have one name.
        TaskError: a suite is malformed.
    """

    def __init__(self, suites: Sequence[str] = (), tasks: Sequence[str] = ()) -> None:
        references = suites or (["core"] if tasks else list_suites())
        loaded = [load_suite(name) for name in references]
        if tasks and len(loaded) > 1:
            raise UsageError("--task chooses among the tasks of one suite; give --suite once")
        self._suites: dict[str, Suite] = {}
        for suite in loaded:
            if suite.name in self._suites:
                raise UsageError(f"two suites are called {suite.name!r}; offer one of them")
            self._suites[suite.name] = suite
        self._references = {suite.name: str(name) for suite, name in zip(loaded, references, strict=True)}
        self._offered = {
            suite.name: {task.name: task for task in (suite.select(tasks) if tasks else suite.tasks)}
            for suite in loaded
        }

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the suites."""
        return tuple(self._suites)

    @property
    def default(self) -> str:
        """The suite for task names without a suite."""
        return "core" if "core" in self._suites else self.names[0]

    def reference(self, suite: str) -> str:
        """Name or path of the suite, as given at the start."""
        return self._references[suite]

    def suite(self, name: str) -> Suite:
        """
        Raises:
            UsageError: it is not offered.
        """
        if name not in self._suites:
            raise UsageError(f"there is no suite {name[:80]!r} here; suites: {', '.join(self._suites)}")
        return self._suites[name]

    def tasks(self, suite: str) -> tuple[Task, ...]:
        """Offered tasks of a suite.

        Raises:
            UsageError: the suite is not offered.
        """
        return tuple(self._offered[self.suite(suite).name].values())

    def selected(self, suite: str, patterns: Sequence[str]) -> tuple[Task, ...]:
        """Offered tasks of a suite by name or pattern; :func:`~kernelforge.tasks.selection.selected_names` says which
        patterns there are.

        Raises:
            UsageError: the suite is not offered, or a pattern selects none.
        """
        offered = {task.name: task for task in self.tasks(suite)}
        if not patterns:
            return tuple(offered.values())
        return tuple(offered[name] for name in selected_names(patterns, list(offered), f"suite '{suite}'"))

    def task(self, reference: str) -> tuple[Suite, Task]:
        """A task by ``suite/name``, or by its name alone: of the default suite, or of the only other one that has it.

        Raises:
            UsageError: it is not offered, or several suites have it.
        """
        for name, suite in self._suites.items():
            if reference.startswith(f"{name}/") and reference.removeprefix(f"{name}/") in self._offered[name]:
                return suite, self._offered[name][reference.removeprefix(f"{name}/")]
        having = [name for name, offered in self._offered.items() if reference in offered]
        if self.default in having or len(having) == 1:
            suite = self._suites[self.default if self.default in having else having[0]]
            return suite, self._offered[suite.name][reference]
        if having:
            raise UsageError(
                f"several suites have a task {reference!r}: {', '.join(f'{n}/{reference}' for n in having)}"
            )
        close = get_close_matches(reference[:200], [name for names in self._offered.values() for name in names], 3)
        advice = f"; did you mean {' or '.join(dict.fromkeys(close))}?" if close else ""
        raise UsageError(f"there is no task {reference[:80]!r} here; list_tasks names the offered ones{advice}")
