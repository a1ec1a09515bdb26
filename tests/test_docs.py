"""Pages name only what exists: files, benchmarks, and no path of anybody's machine."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

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


def test_every_page_of_docs_is_in_its_index() -> None:
    index = ROOT / "docs" / "README.md"
    linked = {(index.parent / link.partition("#")[0]).resolve() for link in LINK.findall(index.read_text())}
    missing = [name_of(page) for page in index.parent.rglob("*.md") if page != index and page.resolve() not in linked]
    assert not missing


def test_readme_leads_to_the_docs_and_the_licence() -> None:
    links = set(LINK.findall((ROOT / "README.md").read_text()))
    assert {"docs/README.md", "CONTRIBUTING.md", "CHANGELOG.md", "LICENSE"} <= links


def test_no_file_names_a_path_of_somebodys_machine() -> None:
    homes = re.compile("/" + r"(?:work|opt/kf|home/\w+|Users/\w+)/[\w.]")
    found = []
    for path in [*ROOT.glob("*"), *(p for folder in TEXT_FOLDERS for p in (ROOT / folder).rglob("*"))]:
        if not path.is_file() or path.suffix not in TEXT_SUFFIXES or "__pycache__" in path.parts:
            continue
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if homes.search(line):
                found.append(f"{name_of(path)}:{number}: {line.strip()}")
    assert not found


def test_ci_runs_the_test_command_that_readme_gives() -> None:
    readme = (ROOT / "README.md").read_text()
    assert readme.count("<!-- tests -->\n```") == 1
    assert ".ci/check.py" in readme
    assert "<!-- tests -->" in (ROOT / ".ci" / "run").read_text()
