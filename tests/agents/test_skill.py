"""Tests of the skill for coding agents: its format, what it names, and where it is written."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from kernelforge.agents.diagnosis.diagnose import all_notes
from kernelforge.agents.prompting.skill import NAME, install_skill, skill_files
from kernelforge.candidate import parse_reply
from kernelforge.errors import UsageError


@pytest.fixture(scope="module")
def files() -> dict[str, str]:
    return skill_files()


def test_its_head_is_that_of_the_format(files: dict[str, str]) -> None:
    """Fields and limits of agentskills.io/specification."""
    _, head, body = files["SKILL.md"].split("---\n", 2)
    fields = yaml.safe_load(head)
    assert set(fields) <= {"name", "description", "license", "compatibility", "metadata", "allowed-tools"}
    assert fields["name"] == NAME
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", fields["name"])
    assert 0 < len(fields["description"]) <= 1024
    assert len(fields["compatibility"]) <= 500
    assert len(body.splitlines()) < 500


def test_its_example_is_a_candidate(files: dict[str, str]) -> None:
    assert parse_reply(files["SKILL.md"].partition("## The loop")[0]).plan.startswith("# tune: BLOCK")


def test_what_it_links_to_is_there(files: dict[str, str]) -> None:
    for text in files.values():
        for link in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"```.*?```|`[^`]*`", "", text, flags=re.DOTALL)):
            if "://" not in link:
                assert link in files or any(name.startswith(link) for name in files), link


def test_references_are_small_and_hold_every_note_and_section(files: dict[str, str]) -> None:
    references = {name: text for name, text in files.items() if name != "SKILL.md"}
    assert max(map(len, references.values())) < 8_000
    notes = "".join(text for name, text in files.items() if name.startswith("references/notes/"))
    assert all(note.text in notes for note in all_notes())
    for note in all_notes():
        for bottleneck in note.bottlenecks[:2]:
            assert note.title in files[f"references/notes/{bottleneck}.md"]
    launches = files["references/launch-plan/launches.md"]
    assert "gemm[(ceil_div(n, 16), ceil_div(n, 16)), (16, 16)](x, y, out" in launches


def test_an_earlier_version_is_replaced_and_another_skill_is_not(tmp_path: Path) -> None:
    written = install_skill(tmp_path / "skills")
    outdated = tmp_path / "skills" / NAME / "references" / "notes" / "outdated.md"
    outdated.write_text("outdated")
    (tmp_path / "skills" / NAME / "SKILL.md").write_text(f"---\nname: {NAME}\n---\nearlier")
    assert install_skill(tmp_path / "skills") == written
    assert not outdated.exists()
    assert "earlier" not in written[0].read_text()
    (tmp_path / "skills" / NAME / "SKILL.md").write_text("---\nname: other\n---\n")
    with pytest.raises(UsageError, match="is not this skill"):
        install_skill(tmp_path / "skills")


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "skills").write_text("a file")
    with pytest.raises(UsageError, match="the skill cannot be written to"):
        install_skill(tmp_path / "skills")
