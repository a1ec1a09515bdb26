"""Commands that pages show: they work as they are, wherever the results lie, and give no path away."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.report.golden.golden_runs import golden, golden_store
from tests.report.html.html_dom import parse

FOLDER = "my results & co"
RUN = golden("modelled").run.id

Main = Callable[..., tuple[int, str]]


@pytest.fixture
def main(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Main:
    """The command line in a folder that holds the results: exit code, and what was said."""
    from kernelforge.cli.main import main as entry

    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("KERNELFORGE_RESULTS", raising=False)

    def run(*words: str) -> tuple[int, str]:
        monkeypatch.setattr("sys.argv", ["kernelforge", *words])
        with pytest.raises(SystemExit) as remaining:
            entry()
        out, err = capsys.readouterr()
        return int(remaining.value.code or 0), out + err

    return run


def commands(report: Path) -> Iterator[str]:
    """Commands of the Run page, and of the page of the modelled run's first attempt that became the best."""
    pages = [report / "index.html", report / "runs" / RUN / "softmax" / "05.html"]
    for element in (
        element for page in pages for element in parse(page.read_text()).all() if element.name in ("pre", "code")
    ):
        yield from (line for line in element.text.splitlines() if line.startswith("kernelforge "))


@pytest.mark.slow
def test_a_shown_command_works_as_given(main: Main, tmp_path: Path) -> None:
    golden_store(tmp_path / FOLDER, "modelled")
    code, messages = main("report", "--results", FOLDER, "--output", "web")
    assert code == 0, messages
    text = list(commands(tmp_path / "web"))
    assert [line.split()[1] for line in text] == ["show", "show", "show", "eval"]
    for line in text[:3]:
        name, *words = shlex.split(line.partition(" > ")[0])
        assert name == "kernelforge"
        assert words[-2:] == ["--results", FOLDER]
        code, messages = main(*words)
        assert code == 0, messages
        assert RUN in messages
    assert str(tmp_path) not in "".join(page.read_text() for page in (tmp_path / "web").rglob("*.html"))


@pytest.mark.slow
def test_the_terminal_tells_the_same_commands(main: Main, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    golden_store(tmp_path / FOLDER, "modelled")
    attempt = f"kernelforge show {RUN}/softmax/05 --messages --results '{FOLDER}'"
    monkeypatch.setenv("COLUMNS", "200")
    assert attempt in main("show", f"{RUN}/softmax/5", "--results", FOLDER)[1]
    monkeypatch.setenv("KERNELFORGE_RESULTS", FOLDER)  # the next shell may not have it
    assert attempt in main("show", f"{RUN}/softmax/5")[1]


@pytest.mark.slow
def test_the_usual_folder_needs_no_name(main: Main, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    golden_store(tmp_path / "results", "modelled")
    monkeypatch.setenv("COLUMNS", "200")
    for words in ((), ("--results", "./results/")):
        assert "--messages\n" in main("show", f"{RUN}/softmax/5", *words)[1].replace(" ", "\n")


@pytest.mark.slow
def test_where_a_variable_names_another_folder_the_usual_one_is_named(
    main: Main, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    golden_store(tmp_path / "results", "modelled")
    monkeypatch.setenv("KERNELFORGE_RESULTS", "elsewhere")
    monkeypatch.setenv("COLUMNS", "200")
    assert "--messages --results results" in main("show", f"{RUN}/softmax/5", "--results", "results")[1]
