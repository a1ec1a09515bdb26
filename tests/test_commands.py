"""Commands to paste into a shell."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path

import pytest
import typer.main

from kernelforge.cli.main import app
from kernelforge.commands import command, named_results

HOSTILE = "$(touch gone); 'x' \"y\" `z`\n-n"


def test_a_shell_hands_over_what_was_meant(tmp_path: Path) -> None:
    line = command("show", HOSTILE, options=["--messages"], results="my results")
    done = subprocess.run(
        ["sh", "-c", f"kernelforge() {{ printf '%s\\0' \"$@\"; }}; {line}"],
        cwd=tmp_path, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.split("\0")[:-1] == ["show", HOSTILE, "--messages", "--results", "my results"]
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("word", ["-x/softmax/0", "--help", "--", "-", "plain"])
def test_an_id_that_looks_like_an_option_is_none(word: str) -> None:
    _, verb, *words = shlex.split(command("show", word, options=["--messages"], results="-r"))
    show = typer.main.get_command(app).commands[verb]
    found = show.make_context("show", words).params
    assert (found["reference"], found["messages"], found["results"]) == (word, True, Path("-r"))


def test_the_folder_is_named_as_it_was_written_where_it_has_to_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KERNELFORGE_RESULTS", raising=False)
    assert named_results(Path("results")) == named_results(Path("./results/")) == ""
    assert named_results(Path("../there")) == "../there"
    monkeypatch.setenv("KERNELFORGE_RESULTS", "")
    assert named_results(Path("results")) == ""
