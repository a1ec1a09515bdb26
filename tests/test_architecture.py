"""docs/architecture.md is complete and true; imports follow its order, without circles."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "kernelforge"
MAP = (ROOT / "docs" / "architecture.md").read_text()
MOST_WORDS = 30


def rows(heading: str) -> list[list[str]]:
    """Cells of the table below a heading of the page, its head left out."""
    section = MAP.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in section.splitlines() if line[:2] == "| "][
        1:
    ]


def floors() -> dict[str, int]:
    """Package → row of the table of packages, counted from the top."""
    return {room: floor for floor, row in enumerate(rows("Packages")) for room in re.findall(r"`(\w+)`", row[0])}


def modules() -> dict[str, Path]:
    """Module → file."""
    paths = {}
    for path in PACKAGE.rglob("*.py"):
        parts = path.relative_to(ROOT).with_suffix("").parts
        paths[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return paths


def imports(paths: dict[str, Path]) -> Iterator[tuple[str, str]]:
    """(module, imported module) of every import inside the package: in functions and for type checkers too."""
    for module, path in paths.items():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module:
                targets = [f"{node.module}.{alias.name}" for alias in node.names]
                targets = [target if target in paths else node.module for target in targets]
            elif isinstance(node, ast.Import):
                targets = [alias.name for alias in node.names]
            else:
                continue
            yield from ((module, target) for target in targets if target in paths and target != module)


def test_every_package_is_on_the_map() -> None:
    packages = {path.name for path in PACKAGE.iterdir() if (path / "__init__.py").exists()}
    assert packages - floors().keys() == set()


@pytest.mark.slow
def test_an_import_never_points_back_up() -> None:
    floor = floors()
    edges = [(module.split("."), target.split(".")) for module, target in imports(modules())]
    placed = [(a, b) for a, b in edges if len(a) > 1 and len(b) > 1 and a[1] in floor and b[1] in floor]
    assert len(placed) > 2000
    assert {f"{'.'.join(a)} -> {'.'.join(b)}" for a, b in placed if floor[b[1]] < floor[a[1]]} == set()


@pytest.mark.slow
def test_modules_do_not_import_each_other_in_a_circle() -> None:
    graph: dict[str, set[str]] = {}
    for module, target in imports(modules()):
        graph.setdefault(module, set()).add(target)
    TopologicalSorter(graph).prepare()  # raises CycleError
    assert sum(map(len, graph.values())) > 2000


def test_modules_that_the_map_names_exist() -> None:
    named = [name for row in rows("Modules") for name in re.findall(r"`([\w/]+(?:\.py|/))`", row[0])]
    assert len(named) > 35
    assert [name for name in named if not (PACKAGE / name).exists()] == []


def test_the_glossary_has_few_words_and_each_is_used() -> None:
    entries = [row[0] for row in rows("Glossary")]
    assert 20 < len(entries) <= MOST_WORDS
    pages = "".join(
        path.read_text() for path in (ROOT / "docs").rglob("*.md") if path.name != "architecture.md"
    ).lower()
    words = [word.lower() for entry in entries for word in entry.split(", ")]
    assert [word for word in words if not re.search(rf"\b{word}s?\b", pages)] == []
