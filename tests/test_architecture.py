"""The table of packages in docs/architecture.md is complete; imports follow its order, without circles."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "kernelforge"


def floors() -> dict[str, int]:
    """Room → row of the table of rooms, counted from the top."""
    text = (ROOT / "docs" / "architecture.md").read_text()
    table = text.partition("| room | what is in it |")[2].partition("\n\n")[0]
    rows = [row for row in table.splitlines() if row.startswith("| `")]
    return {room: floor for floor, row in enumerate(rows) for room in re.findall(r"`(\w+)`", row.split("|")[1])}


def imports() -> Iterator[tuple[str, str, Path]]:
    """(room, imported room, file) of every import inside the package, those inside functions too."""
    for path in PACKAGE.rglob("*.py"):
        inside = path.relative_to(PACKAGE).parts
        if len(inside) == 1:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            modules: list[str] = []
            if isinstance(node, ast.ImportFrom) and node.module:
                modules = [node.module]
                if node.module == "kernelforge":
                    modules = [f"kernelforge.{alias.name}" for alias in node.names]
            elif isinstance(node, ast.Import):
                modules = [alias.name for alias in node.names]
            for module in modules:
                parts = module.split(".")
                if parts[0] == "kernelforge" and len(parts) > 1:
                    yield inside[0], parts[1], path


def test_every_room_is_on_the_map() -> None:
    rooms = {path.name for path in PACKAGE.iterdir() if (path / "__init__.py").exists()}
    assert rooms - floors().keys() == set()


def test_an_import_never_points_back_up() -> None:
    floor = floors()
    seen = [(room, target, path) for room, target, path in imports() if room in floor and target in floor]
    assert len(seen) > 100
    upward = {
        f"{path.relative_to(ROOT)}: {room} -> {target}" for room, target, path in seen if floor[target] < floor[room]
    }
    assert upward == set()


def test_modules_do_not_import_each_other_in_a_circle() -> None:
    """Imports at the top of a module; those inside functions and for type checkers alone are left out."""
    paths = {}
    for path in PACKAGE.rglob("*.py"):
        parts = path.relative_to(ROOT).with_suffix("").parts
        paths[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    graph: dict[str, set[str]] = {}
    for module, path in paths.items():
        graph[module] = set()
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ImportFrom) and node.module:
                names = {f"{node.module}.{alias.name}" for alias in node.names}
                graph[module] |= {name if name in paths else node.module for name in names} - {module}
            elif isinstance(node, ast.Import):
                graph[module] |= {alias.name for alias in node.names}
    TopologicalSorter(graph).prepare()  # raises CycleError
    assert sum(map(len, graph.values())) > 2000
