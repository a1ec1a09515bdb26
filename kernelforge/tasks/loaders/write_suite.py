"""Write an imported suite to a folder: ``suite.toml``, one file per task, and ``import.json`` with the origins.

The folder is written atomically; a folder with other content is never changed.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernelforge.errors import TaskError, UsageError
from kernelforge.records import Size, TaskPolicy
from kernelforge.tasks.files import MANIFEST, read_plain_file
from kernelforge.tasks.loaders.base import ExternalTask, NotLoaded

_MOST_RECORD_BYTES = 64 << 20
_LONGEST_COMMENT = 1000
_NO_COMMENT = re.compile("[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]+")

RECORD = "import.json"
"""File next to the manifest: origins of the tasks, problems that were not loaded, and hashes of the written files."""


@dataclass(frozen=True)
class Origin:
    """Source of an import."""

    format: str
    source: Path

    @property
    def command(self) -> str:
        """The command that writes such a suite."""
        return "kernelforge capture" if self.format == "capture" else f"kernelforge tasks import --format {self.format}"

    def as_json(self) -> dict[str, str]:
        return {"format": self.format, "source": _writable(str(self.source.resolve()))}


@dataclass(frozen=True)
class SizedTask:
    """A task with its sizes."""

    task: ExternalTask
    sizes: tuple[Size, ...]
    notes: tuple[str, ...] = ()


def refuse_other_folder(folder: Path, origin: Origin) -> None:
    """Check that ``folder`` may be written: absent, empty, or an unchanged import from the same origin.

    Raises:
        UsageError: it has other content; the message says which, and what to do.
    """
    advice = "choose another --output, or move the folder away"
    if not folder.is_dir():
        if os.path.lexists(folder):
            raise UsageError(f"{folder} is no folder; {advice}")
        return
    present = {
        path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_symlink() or not path.is_dir()
    }
    if not present:
        return
    try:
        record = json.loads(read_plain_file(folder / RECORD, _MOST_RECORD_BYTES))
        earlier, files = {"format": record["format"], "source": record["source"]}, dict(record["files"])
    except (OSError, TaskError, ValueError, LookupError, TypeError, RecursionError):
        raise UsageError(
            f"{folder} is not empty, and no suite that was written here (it has no {RECORD}); {advice}"
        ) from None
    if earlier != origin.as_json():
        raise UsageError(f"{folder} was imported from {earlier['source']} ({earlier['format']}); {advice}")
    added = sorted(present - files.keys() - {RECORD})
    changed = sorted(
        name
        for name, digest in files.items()
        if name in present and ((folder / name).is_symlink() or _digest(folder / name) != digest)
    )
    for names, what in ((added, "was added"), (changed, "was changed")):
        if names:
            raise UsageError(f"{folder} is no longer as it was imported: {names[0]} {what}; {advice}")


def write_suite(
    folder: Path,
    origin: Origin,
    title: str,
    tasks: Sequence[SizedTask],
    not_loaded: Sequence[NotLoaded],
    others: Mapping[str, str] | None = None,
) -> None:
    """Write the folder; an existing one is replaced atomically. ``others`` are further files, by name.

    Raises:
        UsageError: see :func:`refuse_other_folder`; or the folder cannot be written.
    """
    refuse_other_folder(folder, origin)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _new_sibling(folder) as made:
            files = {MANIFEST: _manifest(title, origin, tasks)}
            files |= {f"{sized.task.name}.py": sized.task.source for sized in tasks} | dict(others or {})
            files |= {f"{sized.task.name}.c": sized.task.c_source for sized in tasks if sized.task.c_source}
            for name, text in files.items():
                (made / name).write_text(text, encoding="utf-8", newline="")
            record = origin.as_json() | {
                "files": {name: _digest(made / name) for name in files},
                "tasks": [
                    {"name": sized.task.name, "origin": sized.task.origin, "notes": list(sized.notes)}
                    for sized in tasks
                ],
                "not_loaded": [{"origin": item.origin, "reason": item.reason} for item in not_loaded],
            }
            text = _writable(json.dumps(record, indent=2, ensure_ascii=False))
            (made / RECORD).write_text(f"{text}\n", encoding="utf-8")
            _put_in_place(made, folder)
    except OSError as error:
        raise UsageError(f"cannot write {folder}: {error.strerror}") from error


@contextlib.contextmanager
def _new_sibling(folder: Path) -> Iterator[Path]:
    """A new folder next to another, removed at the end unless it was moved."""
    made = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}-"))
    made.chmod(0o755)
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)


def _put_in_place(made: Path, folder: Path) -> None:
    if not folder.exists():
        made.rename(folder)
        return
    with _new_sibling(folder) as old:
        # A rename replaces an empty folder only; move a full one away first.
        folder.rename(old / folder.name)
        made.rename(folder)


def _manifest(title: str, origin: Origin, tasks: Sequence[SizedTask]) -> str:
    import tomlkit

    document = tomlkit.document()
    document.add(tomlkit.comment(f"Made by: {origin.command}"))
    document.add("title", tomlkit.item(_writable(title)))
    entries = tomlkit.aot()
    for sized in tasks:
        task = sized.task
        entry = tomlkit.table()
        for note in sized.notes:
            entry.add(tomlkit.comment(_comment(note)))
        entry.add("name", task.name)
        entry.add("title", _writable(task.title))
        entry.add("level", task.level)
        entry.add("tags", [_writable(tag) for tag in task.tags])
        if task.c_source:
            entry.add("c_source", f"{task.name}.c")
        sizes = {size.name: size.constants for size in sized.sizes if size.name != "full"}
        entry.add("small", _inline(sizes["small"]))
        hidden = {name.removeprefix("hidden_"): _inline(values) for name, values in sizes.items() if name != "small"}
        for name, values in hidden.items():
            entry.append(tomlkit.key(["hidden", name]), values)
        if task.license:
            entry.add("license", _writable(task.license))
        policy = _policy(task.policy)
        for name, value in policy.items():
            entry.append(tomlkit.key(["policy", name]), tomlkit.item(value))
        entries.append(entry)
    document.add("task", entries)
    return tomlkit.dumps(document)


def _writable(text: str) -> str:
    """Text with lone surrogates replaced, such as those of undecodable file names."""
    return text.encode(errors="replace").decode()


def _comment(text: str) -> str:
    """One line for a TOML comment, without control characters: notes of the oracle's children are untrusted."""
    return _NO_COMMENT.sub(" ", _writable(text))[:_LONGEST_COMMENT]


def _inline(values: Mapping[str, Any]) -> Any:
    import tomlkit

    table = tomlkit.inline_table()
    table.update(values)
    return table


def _policy(policy: TaskPolicy) -> dict[str, Any]:
    """Values that differ from the default."""
    values = policy.model_dump(mode="json", exclude_defaults=True)
    return {name: value for name, value in values.items() if value is not None}


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
