"""Sizes of published tasks that ship with the package, by the SHA-256 of a task's text; no other text is in the file.

``kernelbench_sizes.json`` holds the values of each task's extents in the order of :func:`~.extents.movable_extents`,
one line for each task. ``.ci/kernelbench_sizes.py`` writes it from a checkout of KernelBench. An entry that does not
fit its task is ignored, so that the sizes are searched for.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Annotated

from pydantic import Field, ValidationError

from kernelforge.errors import TaskError
from kernelforge.evaluation.size_search.choice import SizeChoice, checked_choice, sizes_of
from kernelforge.evaluation.size_search.extents import movable_extents
from kernelforge.records.base import Record
from kernelforge.tasks.loaders.base import ExternalTask

FILE = "kernelbench_sizes.json"

_NAME = re.compile(r"[A-Za-z_]\w*")
_AUTHORS = ((re.compile(r" of task '[^']*'"), ""), (re.compile(r"\bmodule '[^']*' \("), "a module ("))
_POSITION = re.compile(r"\{(\d+)\}")

Value = Annotated[int, Field(ge=1, lt=2**31)]


class Entry(Record):
    """Sizes of one task as they are stored; ``{3}`` in a text stands for the first name of the fourth extent."""

    sizes: Mapping[str, tuple[Value, ...]] = Field(default_factory=dict)
    """Values of all extents at each size but ``full``."""
    notes: tuple[str, ...] = ()
    refused: str = ""
    admitted: bool = False
    unchecked: str = ""
    task_precision: bool = False


def text_digest(task: ExternalTask) -> str:
    """The key of a task: 128 bits of the SHA-256 of its text, as the loader gives it."""
    return hashlib.sha256(task.source.encode()).hexdigest()[:32]


def shipped_choice(task: ExternalTask, entries: Mapping[str, Entry] | None = None) -> SizeChoice | None:
    """The choice that ships for a task; None if there is none, or if it does not fit the task."""
    if task.fixed or task.sizes:
        return None
    entry = (shipped_entries() if entries is None else entries).get(text_digest(task))
    if entry is None:
        return None
    try:
        return checked_choice(task, _choice(task, entry))
    except (TaskError, ValidationError, ValueError):
        return None


def _choice(task: ExternalTask, entry: Entry) -> SizeChoice:
    """
    Raises:
        ValueError: the entry has another number of extents than the task.
    """
    extents = movable_extents(task.source, task.fixed)
    constants = {
        size: {name: value for extent, value in zip(extents, values, strict=True) for name in extent.names}
        for size, values in entry.sizes.items()
    }
    names = [extent.names[0] for extent in extents]
    return SizeChoice(
        sizes=() if entry.refused else sizes_of(constants),
        notes=tuple(_named(note, names) for note in entry.notes),
        refused=_named(entry.refused, names),
        admitted=entry.admitted,
        unchecked=entry.unchecked,
        task_precision=entry.task_precision,
    )


def entry_of(task: ExternalTask, choice: SizeChoice) -> Entry:
    """A choice in the form that ships: numbers by position, without names from the task's file."""
    extents = movable_extents(task.source, task.fixed)
    names = [extent.names[0] for extent in extents]
    return Entry(
        sizes={
            size.name: tuple(int(size.constants[name]) for name in names)
            for size in choice.sizes
            if size.name != "full"
        },
        notes=tuple(_unnamed(note, names) for note in choice.notes),
        refused=_unnamed(choice.refused, names),
        admitted=choice.admitted,
        unchecked=choice.unchecked,
        task_precision=choice.task_precision,
    )


def _unnamed(text: str, names: Sequence[str]) -> str:
    for pattern, instead in _AUTHORS:
        text = pattern.sub(instead, text)
    return _NAME.sub(lambda match: f"{{{names.index(match[0])}}}" if match[0] in names else match[0], text)


def _named(text: str, names: Sequence[str]) -> str:
    return _POSITION.sub(lambda match: names[int(match[1])] if int(match[1]) < len(names) else match[0], text)


@cache
def shipped_entries() -> Mapping[str, Entry]:
    """Every entry that ships, by :func:`text_digest`."""
    return read_entries(files(__package__).joinpath(FILE).read_text(encoding="utf-8"))


def read_entries(text: str) -> dict[str, Entry]:
    """Entries of a file's text; texts that several tasks have are stored once."""
    stored = json.loads(text)
    texts: list[str] = stored["texts"]
    entries = {}
    for digest, values in stored["tasks"].items():
        notes = tuple(texts[number] for number in values.pop("notes", ()))
        of_one = {key: texts[values.pop(key)] for key in ("refused", "unchecked") if key in values}
        flags = {key: bool(values.pop(key)) for key in ("admitted", "task_precision") if key in values}
        sizes = {size: tuple(numbers) for size, numbers in values.items()}
        entries[digest] = Entry(sizes=sizes, notes=notes, **of_one, **flags)
    return entries


def written_entries(entries: Mapping[str, Entry]) -> str:
    """The file's text, one line for each task, in the order of the digests."""
    texts = sorted(
        {text for entry in entries.values() for text in (*entry.notes, entry.refused, entry.unchecked) if text}
    )
    lines = []
    for digest, entry in sorted(entries.items()):
        values: dict[str, object] = {size: list(numbers) for size, numbers in entry.sizes.items()}
        if entry.notes:
            values["notes"] = [texts.index(note) for note in entry.notes]
        for key, text in (("refused", entry.refused), ("unchecked", entry.unchecked)):
            if text:
                values[key] = texts.index(text)
        for key, flag in (("admitted", entry.admitted), ("task_precision", entry.task_precision)):
            if flag:
                values[key] = 1
        lines.append(f'"{digest}":{json.dumps(values, separators=(",", ":"))}')
    first = ",\n".join(json.dumps(text) for text in texts)
    return '{"texts":[\n' + first + '\n],"tasks":{\n' + ",\n".join(lines) + "\n}}\n"
