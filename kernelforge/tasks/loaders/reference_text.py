"""Edit the text of another benchmark's reference to fit a task file. The text is never executed."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Mapping
from typing import NamedTuple

from kernelforge.errors import TaskError
from kernelforge.tasks.constants import byte_span, line_starts, parse_python, plain_text, spliced

_KNOWN_IMPORTS = frozenset({
    "__future__", "abc", "bisect", "collections", "copy", "dataclasses", "einops", "enum", "functools", "itertools",
    "logging", "math", "numbers", "numpy", "operator", "random", "typing", "torch", "types", "warnings",
})  # fmt: skip
"""Packages that the oracle's process has."""


class Reference(NamedTuple):
    """Text of a reference without assertions; names that a task file needs are renamed."""

    text: str
    future: tuple[str, ...]
    """``from __future__`` lines, which must come first in a file."""
    names: frozenset[str]
    """Names that it binds at module level, before renaming."""
    renamed: Mapping[str, str]
    """New names, by the old ones."""


Edit = tuple[int, int, str]
"""First byte of a span, the one behind its last, and the text that takes its place."""


def class_renaming(text: str, tree: ast.Module, model: ast.ClassDef, name: str) -> list[Edit]:
    """Edits that give a class at module level another name, wherever it is used."""
    raw = text.encode()
    starts = line_starts(raw)
    uses = (node for node in ast.walk(tree) if isinstance(node, ast.Name) and node.id == model.name)
    head = raw.index(b"class", byte_span(model, starts)[0]) + len(b"class")
    at = raw.index(model.name.encode(), head)
    return [(at, at + len(model.name.encode()), name), *((*byte_span(node, starts), name) for node in uses)]


def read_reference(text: str, taken: Collection[str]) -> Reference:
    """Read a reference, and remove assertions as ``python -O`` does: a traced reference has no tensor values to check.

    Raises:
        TaskError: a syntax error, or an import of a missing package.
    """
    text = plain_text(text)
    tree = parse_python(text, "its reference")
    foreign = sorted(foreign_imports(tree))
    if foreign:
        raise TaskError(f"its reference imports {', '.join(foreign)}, which the oracle's process does not have")
    names = frozenset(_bound(tree))
    renamed = {name: _free(name, {*taken, *names}) for name in sorted(names & set(taken))}
    edits: list[tuple[int, int, str]] = []
    future: list[str] = []
    raw = text.encode()
    starts = line_starts(raw)
    removed: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Assert):
            edits.append((*byte_span(node, starts), "pass"))
            removed.update(id(part) for part in ast.walk(node))
        elif isinstance(node, ast.ImportFrom) and node.module == "__future__":
            future.append(ast.unparse(node))
            edits.append((*byte_span(node, starts), "pass"))
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id in renamed:
            if id(node) not in removed:
                edits.append((*byte_span(node, starts), renamed[node.id]))
        elif isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name in renamed:
            head = re.compile(rb"(?:def|class)[ \t]+(?=" + re.escape(node.name.encode()) + rb"\b)").match(
                raw, byte_span(node, starts)[0]
            )
            if head is None:
                raise TaskError(f"its reference, line {node.lineno}: '{node.name}' is written in an unsupported form")
            edits.append((head.end(), head.end() + len(node.name.encode()), renamed[node.name]))
    return Reference(spliced(raw, sorted(edits)), tuple(future), names, renamed)


def foreign_imports(tree: ast.Module) -> set[str]:
    """Top-level packages that a text imports anywhere and that the oracle's process does not have."""
    modules: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            modules.add("a relative module" if node.level else (node.module or "").split(".")[0])
    return modules - _KNOWN_IMPORTS


def _bound(tree: ast.Module) -> set[str]:
    """Names that a module's statements bind, without imports."""
    names: set[str] = set()
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in targets:
                names |= {part.id for part in ast.walk(target) if isinstance(part, ast.Name)}
    return names


def _free(name: str, taken: Collection[str]) -> str:
    while name in taken:
        name = f"reference_{name}"
    return name
