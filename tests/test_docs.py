"""Pages name only what exists: files, benchmarks, and no path of anybody's machine."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from kernelforge.tasks import load_suite

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted(
    path
    for path in (*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "results").rglob("README.md"))
    if path.is_file()
)
TEXT_FOLDERS = ("kernelforge", "tasks", "prompts", "sandbox", "tests", "docs", "benchmarks", ".ci")
TEXT_SUFFIXES = {"", ".cuh", ".h", ".j2", ".json", ".md", ".py", ".sql", ".toml", ".txt", ".yml"}
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
FENCED = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"^```.*?^```|`[^`\n]+`", re.MULTILINE | re.DOTALL)


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def text_files() -> Iterator[Path]:
    """The project's own files that hold text."""
    for path in [*ROOT.glob("*"), *(path for folder in TEXT_FOLDERS for path in (ROOT / folder).rglob("*"))]:
        if path.name == ".git":  # a file in a work tree of git's, with the path of the repository
            continue
        if path.is_file() and path.suffix in TEXT_SUFFIXES and "__pycache__" not in path.parts:
            yield path


def commands_in(page: Path) -> Iterator[list[str]]:
    """Words of every ``kernelforge`` command in the page's code, its own name left out; in containers and jobs too."""
    start = r"(?:^|&& |\S/bin/|^(?:docker|podman) (?:run|exec) .*\s|^sbatch sandbox/slurm\.sh )"
    for code in CODE.findall(page.read_text()):
        for line in code.strip("`").replace("\\\n", " ").splitlines():
            command = re.search(start + r"(?:kernelforge(?::gpu)? |(?<=slurm\.sh ))(?!=)(.+)", line.removeprefix("$ "))
            if command and not line.startswith(("import", "from")):
                yield shlex.split(command[1], comments=True)


def verbs(command: Any, *path: str) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command of the command line with its words, groups left out."""
    if not hasattr(command, "commands"):
        yield path, command
        return
    for name, inner in command.commands.items():
        yield from verbs(inner, *path, name)


@pytest.fixture(scope="module")
def command_line() -> Any:
    from kernelforge.cli.main import app

    return typer.main.get_command(app)


def anchors(page: Path) -> set[str]:
    """Anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ +(.+?) *$", FENCED.sub("", page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_relative_links_lead_somewhere(page: Path) -> None:
    for link in LINK.findall(CODE.sub("", page.read_text())):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.is_relative_to(ROOT), link
        assert target.exists(), link
        if anchor:
            assert anchor in anchors(target), link


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_benchmarks_that_are_named_exist(page: Path) -> None:
    for name in re.findall(r"benchmarks/\w+\.py", page.read_text()):
        assert (ROOT / name).is_file(), name


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_commands_that_are_named_exist(page: Path, command_line: Any) -> None:
    commands = dict(verbs(command_line))
    for words in commands_in(page):
        if words[0] == "--help":
            continue
        verb = next((verb for verb in commands if words[: len(verb)] == list(verb)), None)
        assert verb, f"no such command: kernelforge {shlex.join(words)}"
        options = {name for option in commands[verb].params for name in (*option.opts, *option.secondary_opts)} | {
            "--help"
        }
        for word in words[len(verb) :]:
            if word.startswith("--"):
                assert word.partition("=")[0] in options, f"no such option: kernelforge {shlex.join(words)}"


def test_the_threat_model_names_modules_and_tests_that_exist() -> None:
    """In its second table of boundaries, each with at least one of either."""
    page = (ROOT / "docs" / "threat-model.md").read_text()
    table = page.partition("| boundary | module | tests |")[2].partition("\n## ")[0]
    rows = [line.strip("| ").split(" | ") for line in table.splitlines() if line.startswith("| ")]
    assert len(rows) > 10
    for boundary, modules, tests in rows:
        named = [ROOT / name for name in re.findall(r"`((?:tests|benchmarks)/[\w/.]+)`", tests)]
        named += [ROOT / ("" if name.startswith("sandbox/jail.toml") else "kernelforge") / name
                  for name in re.findall(r"`([\w/.]+)`", modules)]  # fmt: skip
        assert len(named) >= 2, boundary
        assert [path for path in named if not path.exists()] == [], boundary


@pytest.mark.slow
def test_the_tasks_of_papers_exist() -> None:
    named = re.findall(r"`([\w-]+)/(\w+)`", (ROOT / "docs" / "papers.md").read_text())
    assert len(named) > 30
    tasks = {(suite, task.name) for suite in {suite for suite, _ in named} for task in load_suite(suite).tasks}
    assert [f"{suite}/{task}" for suite, task in named if (suite, task) not in tasks] == []


def test_every_page_of_docs_is_in_its_index() -> None:
    """Or in that of its own folder, which is in the index."""
    docs = ROOT / "docs"
    linked = {
        (index.parent / link.partition("#")[0]).resolve()
        for index in docs.rglob("README.md")
        for link in LINK.findall(index.read_text())
    }
    missing = [name_of(page) for page in docs.rglob("*.md") if page.resolve() not in linked | {docs / "README.md"}]
    assert not missing


def test_readme_leads_to_the_docs_and_the_licence() -> None:
    links = set(LINK.findall((ROOT / "README.md").read_text()))
    assert {"docs/README.md", "CONTRIBUTING.md", "CHANGELOG.md", "LICENSE"} <= links


@pytest.mark.slow
def test_no_file_names_a_path_of_somebodys_machine() -> None:
    homes = re.compile("/" + r"(?:work|opt/kf|home/\w+|Users/\w+)/[\w.]")
    offending = []
    for path in text_files():
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if homes.search(line):
                offending.append(f"{name_of(path)}:{number}: {line.strip()}")
    assert not offending


@pytest.mark.slow
def test_no_text_installs_the_package_of_another_project() -> None:
    """``kernelforge`` on PyPI is not this project, so neither it nor extras of it may be asked for anywhere."""
    wrong = re.compile(r"pip install\b[^&;|`]*(?<![\w./-])kernelforge(?![\w./-])|(?<![\w./-])kernelforge\[\w")
    offending = []
    for path in text_files():
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if wrong.search(line):
                offending.append(f"{name_of(path)}:{number}: {line.strip()}")
    assert not offending


def test_ci_runs_the_test_command_that_readme_gives() -> None:
    readme = (ROOT / "README.md").read_text()
    assert readme.count("<!-- tests -->\n```") == 1
    assert ".ci/check.py" in readme
    assert "<!-- tests -->" in (ROOT / ".ci" / "run").read_text()
