"""Tests of ``kernelforge skill install``."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.test_cli_startup import COMMANDS, options_of


@pytest.mark.parametrize(
    ("arguments", "folder"),
    [
        ([], "project/.claude/skills"),
        (["--agent", "codex"], "project/.agents/skills"),
        (["--agent", "codex", "--user"], "home/.agents/skills"),
        (["--folder", "elsewhere"], "project/elsewhere"),
    ],
)
def test_it_writes_where_the_agent_looks(cli, tmp_path: Path, monkeypatch, arguments: list[str], folder: str) -> None:
    for name in ("project", "home"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "project")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    result = cli("skill", "install", *arguments)
    assert result.code == 0, result.err
    assert (tmp_path / folder / "kernelforge" / "SKILL.md").is_file()
    assert "files" in result.out


def test_commands_of_the_skill_exist_with_their_options() -> None:
    text = (Path(__file__).parents[2] / "skills" / "kernelforge" / "SKILL.md").read_text()
    lines = [line.split("`")[0] for line in text.split("`kernelforge ")[1:]]
    assert len(lines) > 8
    for line in lines:
        words = line.split()
        name = next((" ".join(words[:size]) for size in (2, 1) if " ".join(words[:size]) in COMMANDS), None)
        assert name, line
        assert {word for word in words if word.startswith("--")} <= options_of(COMMANDS[name]), line
