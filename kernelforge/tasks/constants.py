"""Python text read with ``ast``: parsing within limits, and the module constants that sizes replace."""

from __future__ import annotations

import ast
import math
import re
import threading
import unicodedata
import warnings
from collections.abc import Mapping
from typing import NamedTuple

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


Scalar = int | float | bool

_MAX_MAGNITUDE = 2**63
"""Folding stops here, so that no task text makes us compute a huge power."""

_LONGEST_EXPRESSION = 1000


class Binding(NamedTuple):
    """One module-level ``NAME = expression``. ``shared`` marks a chained assignment (``A = B = 4``)."""

    name: str
    value: ast.expr
    shared: tuple[str, ...]


def module_constants(tree: ast.Module) -> dict[str, Scalar]:
    """Numbers bound to names at module level, with arithmetic over earlier ones folded, in file order."""
    known: dict[str, Scalar] = {}
    for binding in _bindings(tree):
        try:
            value = _fold(binding.value, known)
        except RecursionError:
            value = None
        if value is None:
            known.pop(binding.name, None)
        else:
            known[binding.name] = value
    return known


def substitute(source: str, constants: Mapping[str, Scalar]) -> str:
    """The task's text with the values of module constants replaced; constants derived from them follow by themselves.

    Raises:
        TaskError: a name is not a module constant of the file, is bound twice, or shares its value with another.
    """
    return Template(source).filled(constants) if constants else source


class Template:
    """A task's text and where its module constants stand in it: parsed once, here or before, and filled many times."""

    def __init__(self, source: str, tree: ast.Module | None = None) -> None:
        tree = tree or parse_python(source, "the task file")
        self._text = source.encode()
        self._starts = _line_starts(source)
        self._numbers = module_constants(tree)
        self._bindings: dict[str, list[Binding]] = {}
        for binding in _bindings(tree):
            self._bindings.setdefault(binding.name, []).append(binding)

    def filled(self, constants: Mapping[str, Scalar]) -> str:
        """The text with the values of ``constants``; raises as :func:`substitute`."""
        for name, value in constants.items():
            if not math.isfinite(value):
                raise TaskError(f"module constant {name!r} cannot be set to {value}")
        edits = {self._place(name, constants): repr(value).encode() for name, value in constants.items()}
        text = self._text
        for (start, end), new in sorted(edits.items(), reverse=True):
            text = text[:start] + new + text[end:]
        return text.decode()

    def _place(self, name: str, constants: Mapping[str, Scalar]) -> tuple[int, int]:
        """First and last byte of the value of one constant, which ``constants`` may set."""
        numbers, found = self._numbers, self._bindings.get(name, [])
        if not found or name not in numbers:
            raise TaskError(
                f"there is no module constant {name!r} to set; the file has: {', '.join(numbers) or 'none'}"
            )
        if len(found) > 1:
            raise TaskError(f"module constant {name!r} is assigned more than once, so a size cannot set it")
        shared = found[0].shared
        if shared and any(constants.get(other, numbers[name]) != constants[name] for other in shared):
            names = ", ".join((name, *shared))
            raise TaskError(f"module constants {names} share one assignment: a size must set them all to one value")
        node = found[0].value
        start = self._starts[node.lineno - 1] + node.col_offset
        end = self._starts[(node.end_lineno or node.lineno) - 1] + (node.end_col_offset or node.col_offset)
        return start, end


def evaluate_expression(expression: str, constants: Mapping[str, Scalar]) -> Scalar:
    """Value of an arithmetic expression over module constants, such as ``IN_CHANNELS * KERNEL ** 2``.

    Raises:
        TaskError: it is not arithmetic over the constants given.
    """
    try:
        if len(expression) > _LONGEST_EXPRESSION:
            raise ValueError("too long")
        value = _fold(ast.parse(expression, mode="eval").body, constants)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise TaskError(f"not an arithmetic expression: {expression[:200]!r}") from error
    if value is None:
        raise TaskError(
            f"cannot work out {expression[:200]!r}: use numbers, + - * / // % ** and the constants "
            f"{', '.join(constants) or '(none)'}"
        )
    return value


def _bindings(tree: ast.Module) -> list[Binding]:
    found: list[Binding] = []
    for node in tree.body:
        if isinstance(node, ast.AnnAssign) and node.value is not None:
            targets: list[ast.expr] = [node.target]
            value = node.value
        elif isinstance(node, ast.Assign):
            targets, value = node.targets, node.value
        else:
            continue
        names = [target.id for target in targets if isinstance(target, ast.Name)]
        for target in targets:
            if isinstance(target, ast.Name):
                found.append(Binding(target.id, value, tuple(name for name in names if name != target.id)))
            elif isinstance(target, ast.Tuple | ast.List) and isinstance(value, ast.Tuple | ast.List):
                pairs = zip(target.elts, value.elts, strict=False)
                found += [Binding(one.id, part, ()) for one, part in pairs if isinstance(one, ast.Name)]
    return found


def _fold(node: ast.expr, known: Mapping[str, Scalar]) -> Scalar | None:
    """Value of constant arithmetic, or None where it is anything else."""
    match node:
        case ast.Constant(value=bool() | int() | float() as value):
            fits = math.isfinite(value) if isinstance(value, float) else abs(value) <= _MAX_MAGNITUDE
            return value if fits else None
        case ast.Name(id=name):
            return known.get(name)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            inner = _fold(operand, known)
            return None if inner is None else -inner
        case ast.Call(func=ast.Name(id="int" | "float" as kind), args=[argument], keywords=[]):
            inner = _fold(argument, known)
            if inner is None or not math.isfinite(inner) or (kind == "int" and abs(inner) > _MAX_MAGNITUDE):
                return None
            return int(inner) if kind == "int" else float(inner)
        case ast.BinOp(left=left, op=op, right=right):
            a, b = _fold(left, known), _fold(right, known)
            if a is None or b is None:
                return None
            return _arithmetic(op, a, b)
    return None


def _arithmetic(op: ast.operator, a: Scalar, b: Scalar) -> Scalar | None:
    try:
        match op:
            case ast.Add():
                value: Scalar = a + b
            case ast.Sub():
                value = a - b
            case ast.Mult():
                value = a * b
            case ast.Div():
                value = a / b
            case ast.FloorDiv():
                value = a // b
            case ast.Mod():
                value = a % b
            case ast.Pow() if abs(a) <= 2**20 and 0 <= b <= 64 and (a >= 0 or b == int(b)):
                value = a**b
            case _:
                return None
    except (ZeroDivisionError, OverflowError):
        return None
    return value if abs(value) <= _MAX_MAGNITUDE else None


def _line_starts(source: str) -> list[int]:
    """Byte offset of each line: ``ast`` counts columns in UTF-8 bytes, and splits lines at newlines only."""
    starts = [0]
    text = source.encode()
    position = text.find(b"\n")
    while position >= 0:
        starts.append(position + 1)
        position = text.find(b"\n", position + 1)
    return starts
