"""Build tasks from manifest entries: one per ``[[task]]``, one per combination of a ``[[grid]]``."""

from __future__ import annotations

import itertools
import math
import re
import string
from collections.abc import Iterator, Mapping
from pathlib import Path

from pydantic import ValidationError

from kernelforge.errors import TaskError
from kernelforge.records import Size, Task, TaskPolicy, first_fault
from kernelforge.tasks.constants import Scalar, Template
from kernelforge.tasks.files import (
    LANGUAGES,
    MANIFEST,
    Entry,
    GridEntry,
    Manifest,
    TaskEntry,
    is_within,
    parse_task_file,
    read_c_source,
    read_task_source,
    read_translation,
)

_MOST_TASKS = 10_000
"""Most tasks of one grid."""

_MOST_TEXT = 256 << 20
"""Most characters of source of all tasks of one grid."""

_FORM = re.compile(r"0?[0-9]{0,2}[a-zA-Z]?")
"""Allowed format of a number: ``{M:05d}``."""


def entry_path(folder: Path, entry: Entry) -> Path:
    """Path of an entry's task file.

    Raises:
        TaskError: it lies outside the suite's folder.
    """
    return _inside(folder, entry, entry.file or f"{entry.name}.py")


def tasks_of_entry(folder: Path, manifest: Manifest, entry: TaskEntry) -> Iterator[Task]:
    """The task of a ``[[task]]`` entry.

    Raises:
        TaskError: the entry or its file is malformed; the message names both.
    """
    if entry.full:
        path = entry_path(folder, entry)
        raise TaskError(f"{_where(folder, entry)}: the size full is {path.name} as it is; change its constants there")
    task = _base_task(folder, manifest, entry)
    yield task.model_copy(update={"title": entry.title or task.title})


def tasks_of_grid(folder: Path, manifest: Manifest, entry: GridEntry) -> Iterator[Task]:
    """Tasks of a ``[[grid]]``: one per combination of the values in ``full``; the last name varies fastest.

    Raises:
        TaskError: the entry or its file is malformed, or it makes too many tasks.
    """
    where = _where(folder, entry)
    count = math.prod(len(values) for values in entry.full.values())
    if not 0 < count <= _MOST_TASKS:
        raise TaskError(f"{where}: full makes {count:,} tasks; a grid makes 1 to {_MOST_TASKS:,}")
    first = _base_task(folder, manifest, entry)
    if count * len(first.source) > _MOST_TEXT:
        raise TaskError(f"{where}: full makes {count:,} tasks of {len(first.source):,} characters, which is too much")
    template, parts = Template(first.source), {field: getattr(first, field) for field in Task.model_fields}
    for values in itertools.product(*entry.full.values()):
        constants = dict(zip(entry.full, values, strict=True))
        try:
            name, title = _fill_in(entry.name, constants), _fill_in(entry.title or first.title, constants)
            yield Task(**{**parts, "name": name, "title": title, "source": template.filled(constants)})
        except ValidationError as error:
            raise TaskError(f"{where}: {first_fault(error, show_input=True)}") from error
        except TaskError as error:
            raise TaskError(f"{where}: {error}") from error


def _base_task(folder: Path, manifest: Manifest, entry: Entry) -> Task:
    """Task of an entry, with its file unchanged; the name of a grid is a placeholder."""
    where, path = _where(folder, entry), entry_path(folder, entry)
    parsed = parse_task_file(read_task_source(path), str(path))
    c_source = "" if entry.c_source is None else read_c_source(_inside(folder, entry, entry.c_source))
    if entry.translation is not None and not c_source:
        raise TaskError(f"{where}: translation belongs to a task with c_source, and there is none")
    translation = "" if entry.translation is None else read_translation(_inside(folder, entry, entry.translation))
    sizes = [Size(name="full")]
    template = Template(parsed.source, parsed.tree)
    try:
        sizes.append(Size(name="small", constants=entry.small))
        sizes += [Size(name=f"hidden_{name}", constants=constants) for name, constants in entry.hidden.items()]
        for size in sizes:
            template.filled(size.constants)
        return Task(
            name="grid" if isinstance(entry, GridEntry) else entry.name,
            suite=folder.name,
            title=parsed.title or entry.name,
            level=manifest.level if entry.level is None else entry.level,
            tags=tuple(dict.fromkeys((*manifest.tags, *entry.tags))),
            source=parsed.source,
            c_source=c_source,
            c_language="c" if entry.c_source is None else LANGUAGES[Path(entry.c_source).suffix],
            translation=translation,
            sizes=tuple(sizes),
            policy=TaskPolicy.model_validate({**manifest.policy, **entry.policy}),
            license=manifest.license if entry.license is None else entry.license,
        )
    except ValidationError as error:
        raise TaskError(f"{where}: {first_fault(error)}") from error
    except TaskError as error:
        raise TaskError(f"{where}: {error}") from error


def in_another_language(folder: Path, entry: Entry, task: Task) -> Task:
    """A translation task with the sequential code that an entry names, which computes the same.

    Raises:
        TaskError: the task shows no such code, or the entry's cannot be read.
    """
    if entry.c_source is None or not task.c_source:
        raise TaskError(f"{_where(folder, entry)}: c_source is for a task that has one in the base suite")
    code = read_c_source(_inside(folder, entry, entry.c_source))
    language = LANGUAGES[Path(entry.c_source).suffix]
    return task.model_copy(update={"c_source": code, "c_language": language})


def _fill_in(template: str, constants: Mapping[str, Scalar]) -> str:
    try:
        for _, field, spec, conversion in string.Formatter().parse(template):
            if field is not None and field not in constants:
                raise LookupError(repr(field[:40]))
            if conversion or not _FORM.fullmatch(spec or ""):
                raise ValueError(f"a format may be like {{{field}:05d}}")
        return template.format(**constants)
    except (LookupError, ValueError) as error:
        names = ", ".join(f"{{{name}}}" for name in constants)
        raise TaskError(f"cannot fill in {template[:200]!r} ({error}); names for the braces: {names}") from error


def _where(folder: Path, entry: Entry) -> str:
    kind = "grid" if isinstance(entry, GridEntry) else "task"
    return f"{folder / MANIFEST}, {kind} {entry.name[:120]!r}"


def _inside(folder: Path, entry: Entry, name: str) -> Path:
    path = folder / name
    if not is_within(path, folder):
        raise TaskError(f"{_where(folder, entry)}: the file {path} lies outside the suite's folder")
    return path
