"""The leaderboard as files: tables and a site from a folder of entries."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from kernelforge.errors import UsageError
from kernelforge.leaderboard import entry as entries
from kernelforge.leaderboard import verification
from kernelforge.leaderboard.entry import EntryError, EntryFile, entry_schema, parse_entry, parsed, read_object
from kernelforge.leaderboard.make_entry import entry_result
from kernelforge.leaderboard.verification import Verification, contradiction, verified
from kernelforge.report.exports import entries_csv, leaderboard_csv, leaderboard_markdown
from kernelforge.report.html import paths
from kernelforge.report.html.contexts import boards_context
from kernelforge.report.html.site import Page, Site
from kernelforge.report.views.board import Leaderboard, boards_of
from kernelforge.utils.atomic_files import atomic_write


class BoardSite(Site):
    """The boards of submitted entries, without pages of their runs: an entry contains only the best kernels."""

    def __init__(self, view: Leaderboard) -> None:
        self._view = view
        super().__init__(())

    @cached_property
    def leaderboard(self) -> Leaderboard:
        """The boards of the entries."""
        return self._view

    def _all_pages(self) -> Iterator[Page]:
        board = next(page for page in super()._all_pages() if page.path == paths.LEADERBOARD)
        for path in (paths.INDEX, paths.LEADERBOARD):  # a host shows the first, links name the second
            yield Page(path, board.title, board.template, self._context, data=board.data)

    def _context(self, links: paths.Links) -> dict[str, object]:
        return dict(boards_context(self._view, {}, links))


SCHEMA_FILE = "entry.schema.json"
BOARD_FILES = ("leaderboard.json", "leaderboard.csv", "tasks.csv", "LEADERBOARD.md", SCHEMA_FILE)


class Submitted(NamedTuple):
    """Contents of submitted files."""

    entries: tuple[EntryFile, ...]
    """Each once, by digest, in the order of their digests."""
    records: tuple[Verification, ...]


def read_submitted(paths: Sequence[Path]) -> Submitted:
    """Entries and verification records in files, and in the ``*.json`` of folders (without subfolders).

    Raises:
        EntryError: a file contains neither, or an invalid one; the message names file and field.
        UsageError: no file contains an entry.
    """
    by_digest: dict[str, EntryFile] = {}
    records: list[tuple[Path, Verification]] = []
    for path in _files(paths):
        data = read_object(path)
        form = data.get("format")
        if form == entries.FORMAT:
            entry = parse_entry(data, str(path))
            by_digest[entry.digest] = entry
        elif form == verification.FORMAT:
            records.append((path, parsed(Verification, data, str(path))))
        else:
            formats = f"'{entries.FORMAT}' or '{verification.FORMAT}'"
            raise EntryError(f"{path}: format: {str(form)[:80]!r} is neither {formats}")
    if not by_digest:
        raise UsageError(f"no entry in {', '.join(map(str, paths))}; 'kernelforge leaderboard entry' writes one")
    for path, record in records:
        problem = contradiction(record, by_digest[record.entry]) if record.entry in by_digest else None
        if problem is not None:
            raise EntryError(f"{path}: {problem}")
    return Submitted(tuple(by_digest[digest] for digest in sorted(by_digest)), tuple(record for _, record in records))


def _files(paths: Sequence[Path]) -> Iterable[Path]:
    for path in paths:
        if path.is_dir():
            yield from sorted(file for file in path.glob("*.json") if file.name not in BOARD_FILES)
        else:
            yield path


def build(submitted: Submitted) -> Leaderboard:
    """Boards of submitted entries."""
    return boards_of(entry_result(entry, verified(entry, submitted.records)) for entry in submitted.entries)


def board_texts(view: Leaderboard) -> dict[str, str]:
    """Text of each of :data:`BOARD_FILES`."""
    texts = (
        view.model_dump_json(indent=1) + "\n",
        entries_csv(view),
        leaderboard_csv(view),
        leaderboard_markdown(view),
        entry_schema(),
    )
    return dict(zip(BOARD_FILES, texts, strict=True))


def write_texts(texts: Mapping[str, str], folder: Path) -> None:
    """Write all files or none: each is complete before the first replaces its target."""
    folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        parts = {folder / name: stack.enter_context(atomic_write(folder / name)) for name in texts}
        for part, text in zip(parts.values(), texts.values(), strict=True):
            part.write_text(text, encoding="utf-8")
        for path, part in parts.items():
            part.replace(path)


def stale(texts: Mapping[str, str], folder: Path) -> tuple[str, ...]:
    """Names of files that are missing from the folder or differ."""
    return tuple(name for name, text in texts.items() if _text(folder / name) != text)


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None
