"""The text of somebody's Python file as a tree, within bounds that whatever walks over it can rely on."""

from __future__ import annotations

import ast
import re
import threading
import unicodedata
import warnings

from kernelforge.errors import TaskError

MOST_SOURCE_BYTES = 1 << 20
"""Of a task file."""

_DEEPEST = 150
"""Nested nodes: walkers that call themselves, ``ast.unparse`` among them, stay below Python's own limit."""

_MOST_BITS = 1024
"""Of a whole number: longer ones cannot be written in decimals, and cost much to compute with."""

_MOST_MARKS = 256
_FOREIGN_RUN = re.compile(r"[^\x00-\x7f]{256,}")
"""Python normalises names, in time quadratic in the combining marks that follow each other."""

_LONE_RETURN = re.compile(r"\r(?!\n)")

_quietly = threading.Lock()
"""Filters of warnings are the process's."""


def parse_python(source: str, name: str) -> ast.Module:
    """The tree of a Python text, never run.

    Args:
        source: The text; lines end with newlines.
        name: What errors call it.

    Raises:
        TaskError: it is no Python, or too long or too deeply nested to be looked at; the message is one line.
    """
    if len(source) > MOST_SOURCE_BYTES:
        raise TaskError(f"{name} has {len(source):,} characters; a task file has at most {MOST_SOURCE_BYTES:,}")
    if any(_marks(run) >= _MOST_MARKS for run in _FOREIGN_RUN.findall(source)):
        raise TaskError(f"{name} is not Python text: it has a name of combining marks")
    if _LONE_RETURN.search(source):
        raise TaskError(f"{name} has carriage returns within it; lines end with newlines")
    try:
        with _quietly, warnings.catch_warnings():
            # Of others' text, which is theirs to heed.
            warnings.simplefilter("ignore")
            tree = ast.parse(source)
    except SyntaxError as error:
        raise TaskError(f"{name}, line {error.lineno}: {error.msg}") from error
    except ValueError as error:
        raise TaskError(f"{name} is not Python text: {error}") from error
    except (RecursionError, MemoryError) as error:
        raise TaskError(f"{name} is not Python text: it is nested too deeply") from error
    _bounded(tree, name)
    return tree


def called_name(function: ast.expr) -> str:
    """Last part of what is called: ``randint`` of ``torch.randint(...)``; empty where it has no name."""
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def plain_text(text: str) -> str:
    """Text from a data set as text of a file: newlines alone end lines, and no mark of the byte order comes first."""
    return text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")


def _marks(run: str) -> int:
    return sum(1 for letter in run if unicodedata.combining(letter))


def _bounded(tree: ast.Module, name: str) -> None:
    """Refuse what is too deep for walkers, level by level."""
    level: list[ast.AST] = [tree]
    depth = 0
    while level:
        depth += 1
        for node in level:
            value = node.value if isinstance(node, ast.Constant) else None
            if type(value) is int and value.bit_length() > _MOST_BITS:
                raise TaskError(f"{name} has a whole number of more than {_MOST_BITS:,} bits")
            if depth > _DEEPEST:
                line = getattr(node, "lineno", None)
                where = f"{name}, line {line}" if line else name
                raise TaskError(f"{where}: nested more than {_DEEPEST} deep, which is not looked at")
        level = [child for node in level for child in ast.iter_child_nodes(node)]
