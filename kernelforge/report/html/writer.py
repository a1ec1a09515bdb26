"""Write a site to a folder or to one file, replacing the old one atomically."""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import signal
import stat
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

from kernelforge.errors import UsageError
from kernelforge.report.html import paths
from kernelforge.report.html.paths import INDEX, LEADERBOARD, OneFileLinks
from kernelforge.report.html.rendering import CHART_SCRIPTS, CODE_SCRIPTS, EARLY_SCRIPT, SCRIPTS, STYLE, policy
from kernelforge.report.html.site import Site
from kernelforge.sandbox import syscalls
from kernelforge.utils.atomic_files import atomic_write, locked, rename_exchange, temporary_name
from kernelforge.version import __version__

_ENDING = re.compile(r"<(?=/?(?:script|style)|!--)", re.IGNORECASE)


def document(site: Site) -> Iterator[str]:
    """The site as one document, in parts of one page each."""
    assets = site.assets()
    names = (EARLY_SCRIPT, *CHART_SCRIPTS, *CODE_SCRIPTS, *SCRIPTS)
    scripts = tuple(_script(assets[name].read_text(encoding="utf-8")) for name in names if name in assets)
    style = _style(assets[STYLE].read_text(encoding="utf-8"))
    opening, closing = site.shell(
        links=OneFileLinks(paths.INDEX, site.twin),
        policy=policy(scripts=scripts, styles=(style,)),
        style=style,
        scripts=scripts,
    )
    yield opening
    for path in site.pages():
        if path != site.twin:
            yield site.section(path)
    yield closing


def _script(text: str) -> str:
    """JavaScript for the inside of a script element: nothing in it ends or nests one. In strings and regular
    expressions, the only places where such text can occur, the escape means the same character."""
    return _ENDING.sub(r"\\x3c", text)


def _style(text: str) -> str:
    """CSS for the inside of a style element."""
    return _ENDING.sub(r"\\3c ", text)


MARK = "kernelforge-report.json"
"""A folder with this file is a report, which a new one may replace."""

_TOP = (MARK, INDEX, LEADERBOARD)
_KINDS: Mapping[str, tuple[str, ...]] = {
    "runs": (".html",),
    "compare": (".html",),
    "data": (".json", ".csv"),
    "assets": (".js", ".css", ".LICENSE", ".md"),
}
"""Suffixes of files by folder of a report."""

_SHARED_FROM = 200
"""Number of pages from which writing uses several processes."""
_PART = 100
"""Pages per unit of work; those of a task stay together."""


def write_folder(site: Site, folder: Path, *, processes: int = 1) -> int:
    """Write every page, file of data and asset to a folder; return the size in bytes.

    The pages are written to a hidden sibling, which then replaces the folder: a reader never sees a partial report, and
    a kill leaves the old one unchanged.

    Raises:
        UsageError: the folder contains a file that is not part of a report.
    """
    folder = Path(os.path.abspath(folder))  # "." has no name for a sibling
    _may_replace(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(folder, folder=True, removable=_is_report) as part:
        size = _write_pages(site, part, processes)
        assets = part / "assets"
        assets.mkdir()
        for name, source in site.assets().items():
            size += len(data := source.read_bytes())
            (assets / name).write_bytes(data)
        mark = json.dumps({"kernelforge": __version__, "runs": list(site.runs), "pages": len(site.pages())}, indent=1)
        (part / MARK).write_text(mark + "\n", encoding="utf-8")
        _may_replace(folder)  # writing took a while
        _replace_folder(part, folder)
    return size + len(mark) + 1


def write_file(site: Site, file: Path) -> int:
    """Write the site as one HTML file; return its size in bytes.

    Raises:
        UsageError: the path is a folder, or a file that is not a report.
    """
    if file.is_dir():
        raise UsageError(f"{file} is a folder; name a file for --one-file, such as {file}.html")
    if file.exists() and not (file.is_file() and _begins_as_report(file)):
        raise UsageError(f"{file} is not a report of KernelForge: name another file, or move it away")
    file.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(file) as part:
        size = 0
        with part.open("wb") as out:
            for text in document(site):
                size += out.write(text.encode())
        part.replace(file)
    return size


def _may_replace(folder: Path) -> None:
    if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        raise UsageError(f"{folder} is not a folder: name another one with --output")
    if folder.is_dir() and not (folder / MARK).is_file() and any(folder.iterdir()):
        raise UsageError(f"{folder} holds something that is no report: name another folder with --output")
    # The mark says whose folder it was. Files added since would be deleted with it.
    if folder.is_dir() and (strange := next(_strangers(folder), None)) is not None:
        raise UsageError(f"{strange} is no part of a report: move it out of {folder}, or name another folder")


def _strangers(folder: Path) -> Iterator[Path]:
    """Files in a folder that :func:`write_folder` never writes."""
    for parent, folders, files in os.walk(folder):
        parts = Path(parent).relative_to(folder).parts
        for name in (*folders, *files):
            path = Path(parent, name)
            if path.is_symlink() or not _is_report_file(parts, name, is_folder=name in folders):
                yield path


def _is_report_file(parts: tuple[str, ...], name: str, *, is_folder: bool) -> bool:
    """Whether a report contains such a name in the folder of these parts."""
    if not parts:
        return name in (_KINDS if is_folder else _TOP)
    return parts[0] == "runs" if is_folder else name.endswith(_KINDS[parts[0]])


def _begins_as_report(file: Path) -> bool:
    with file.open("rb") as data:
        return b'<meta name="generator" content="KernelForge' in data.read(4096)


def _is_report(part: Path) -> bool:
    """Whether a folder contains only files of a report."""
    return not part.is_dir() or next(_strangers(part), None) is None


def _replace_folder(new: Path, folder: Path) -> None:
    """Exchange the folders: afterwards the old one has the new one's name."""
    if not folder.exists():
        new.rename(folder)
        return
    new.chmod(stat.S_IMODE(folder.stat().st_mode))
    if not rename_exchange(new, folder):
        _replace_in_two_steps(new, folder)


def _replace_in_two_steps(new: Path, folder: Path) -> None:
    """Replace by two renames, because a folder with files cannot be renamed over."""
    old, lock = temporary_name(folder), locked(folder)
    try:
        folder.rename(old)
        try:
            new.rename(folder)
        except OSError:
            old.rename(folder)
            raise
        old.rename(new)
    finally:
        os.close(lock)


def _write_pages(site: Site, folder: Path, processes: int) -> int:
    files = [*site.pages(), *site.data()]
    for parent in sorted({os.path.dirname(path) for path in files}):
        (folder / parent).mkdir(parents=True, exist_ok=True)
    parts = _parts(files)
    if processes < 2 or len(files) < _SHARED_FROM:
        return sum(_write_part(site, folder, part) for part in parts)
    site.prepare()  # what all pages share is computed once, before the processes part
    context = multiprocessing.get_context("fork")
    try:
        with ProcessPoolExecutor(processes, mp_context=context, initializer=_keep, initargs=(site, folder)) as pool:
            return sum(pool.map(_write_kept, parts))
    except BrokenProcessPool:
        # A fork of a process with threads of other people's libraries may not live: Ray's kill it.
        return sum(_write_part(site, folder, part) for part in parts)


def _parts(files: Sequence[str]) -> list[list[str]]:
    """Units of work of about equal size; the pages of a folder stay together."""
    parts: list[list[str]] = [[]]
    last = ""
    for path in files:
        parent = os.path.dirname(path)
        if len(parts[-1]) >= _PART and parent != last:
            parts.append([])
        parts[-1].append(path)
        last = parent
    return parts


def _write_part(site: Site, folder: Path, paths: Sequence[str]) -> int:
    size = 0
    for path in paths:
        text = site.render(path)
        if text is None:
            raise AssertionError(f"the site lists {path} and has no such page")
        size += len(data := text.encode())
        (folder / path).write_bytes(data)
    return size


_kept: list[tuple[Site, Path]] = []
"""Site and target folder of a writing process, inherited by fork because a site cannot be pickled."""


def _keep(site: Site, folder: Path) -> None:
    syscalls.prctl(
        "prctl(PDEATHSIG)", syscalls.PR_SET_PDEATHSIG, signal.SIGKILL
    )  # else it waits for more to do for ever
    if (parent := multiprocessing.parent_process()) is not None and parent.pid != os.getppid():
        os._exit(1)  # it was killed before
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's: it calls off what is not begun
    _kept[:] = [(site, folder)]


def _write_kept(paths: Sequence[str]) -> int:
    site, folder = _kept[0]
    return _write_part(site, folder, paths)
