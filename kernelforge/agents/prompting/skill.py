"""The skill for coding agents: a folder of instructions and references in the Agent Skills format.

``SKILL.md`` is shipped as it is. The references are the pages of this installation, cut into small files that an agent
opens when it needs them, so that they say what this version does.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from kernelforge.agents.diagnosis.diagnose import Note, all_notes
from kernelforge.agents.diagnosis.rules import Bottleneck
from kernelforge.agents.prompting.render import shipped_page
from kernelforge.errors import UsageError
from kernelforge.tasks.suites import data_path

NAME = "kernelforge"
"""Name of the skill, which is that of its folder."""

_LINK = re.compile(r"!?\[([^\]]*)\]\((?:[\w./-]+\.(?:md|svg)(?:#[\w-]+)?|#[\w-]+)\)")


def skill_files() -> dict[str, str]:
    """Texts of the skill's files by path within its folder.

    Raises:
        UsageError: the installation lacks a part of it.
    """
    try:
        files = {"SKILL.md": (data_path("skills") / NAME / "SKILL.md").read_text(encoding="utf-8")}
    except OSError as error:
        raise UsageError(f"the skill is not installed ({error}); reinstall kernelforge") from error
    for title, text in _sections(shipped_page("launch-plan.md")):
        files[f"references/launch-plan/{_file_name(title)}.md"] = f"# {title}\n\n{text}\n"
    files["references/diagnosis.md"] = without_links(shipped_page("diagnosis.md"))
    files["references/metrics.md"] = _metrics_page()
    for bottleneck in Bottleneck:
        notes = [note for note in all_notes() if note.bottlenecks[0] is bottleneck]
        if notes:
            parts = [f"# Against {bottleneck}\n", *map(_note_text, notes), *_elsewhere(bottleneck)]
            files[f"references/notes/{bottleneck}.md"] = "\n".join(parts)
    return files


def install_skill(folder: Path) -> list[Path]:
    """Write the skill into a folder of skills; files of an earlier version are replaced.

    Args:
        folder: where an agent looks for skills, such as ``.claude/skills``.

    Returns:
        The files that were written.

    Raises:
        UsageError: it cannot be written, or another skill has its name.
    """
    home = folder / NAME
    files = skill_files()
    try:
        if home.exists() and not _is_ours(home / "SKILL.md"):
            raise UsageError(f"{home} is there and is not this skill; move it away, or name another with --folder")
        written = []
        for name, text in files.items():
            path = home / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            written.append(path)
        for path in (*home.glob("references/launch-plan/*.md"), *home.glob("references/notes/*.md")):
            if path not in written:
                path.unlink()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"the skill cannot be written to {home}: {error}") from error
    return written


def _is_ours(path: Path) -> bool:
    return path.is_file() and f"\nname: {NAME}\n" in path.read_text(encoding="utf-8")


def _sections(page: str) -> list[tuple[str, str]]:
    """Titles and texts of a page's sections; what comes before the first is ``Overview``."""
    before, *parts = without_links(page).split("\n## ")
    overview = before.partition("\n")[2].strip()
    split = [part.partition("\n") for part in parts]
    return [("Overview", overview), *((title, text.strip()) for title, _, text in split)]


def without_links(page: str) -> str:
    """A page whose links to other pages are plain words, since those are not in the skill."""
    return _LINK.sub(r"\1", page)


def _metrics_page() -> str:
    """Page about the metrics of profiles, from the pages of the devices that make them."""
    emulated, gpu = dict(_sections(shipped_page("emulated-device.md"))), dict(_sections(shipped_page("profiling.md")))
    differ = "Names that differ between emulated and measured profiles"
    parts = {"Origins": gpu["Origins"], "On the emulated device": emulated["Metrics"], differ: gpu[differ]}
    return "\n".join(["# Metrics\n", *(f"## {title}\n\n{text}\n" for title, text in parts.items())])


def _file_name(title: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")


def _elsewhere(bottleneck: Bottleneck) -> Iterator[str]:
    """Titles of the notes to which a bottleneck comes second, with the files that have them."""
    titles: dict[Bottleneck, list[str]] = {}
    for note in all_notes():
        if bottleneck in note.bottlenecks[1:2]:
            titles.setdefault(note.bottlenecks[0], []).append(note.title)
    if titles:
        yield "## Elsewhere\n"
        yield from (f"- {first}.md: {'; '.join(names)}." for first, names in titles.items())
        yield ""


def _note_text(note: Note) -> str:
    about = f"Operators: {', '.join(note.families)}. " if note.families else ""
    return f"## {note.title}\n\n{note.text}\n\n{about}Source: {note.source}.\n"
