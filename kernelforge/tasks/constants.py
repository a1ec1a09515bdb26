"""Python text read with ``ast``: parsing within limits, and the module constants that sizes replace."""

from __future__ import annotations

import ast
import math
import re
import threading
import unicodedata
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from kernelforge.errors import TaskError

MOST_SOURCE_BYTES = 1 << 20
"""Longest task file."""

_DEEPEST = 150
"""Deepest nesting: recursive walkers, such as ``ast.unparse``, then stay below Python's own limit."""

_MOST_BITS = 1024
"""Most bits of an integer: longer ones cannot be converted to decimals, and make arithmetic slow."""

_MOST_MARKS = 256
_FOREIGN_RUN = re.compile(r"[^\x00-\x7f]{256,}")
"""Python normalises names, in time quadratic in consecutive combining marks."""

_LONE_RETURN = re.compile(r"\r(?!\n)")

_quietly = threading.Lock()
"""Warning filters belong to the process, so threads take turns."""


def parse_python(source: str, name: str) -> ast.Module:
    """Parse a Python text; it is never run.

    Args:
        source: the text; lines end with newlines.
        name: its name in errors.

    Raises:
        TaskError: it is not Python, too long, or too deeply nested; the message is one line.
    """
    if len(source) > MOST_SOURCE_BYTES:
        raise TaskError(f"{name} has {len(source):,} characters; a task file has at most {MOST_SOURCE_BYTES:,}")
    if any(_marks(run) >= _MOST_MARKS for run in _FOREIGN_RUN.findall(source)):
        raise TaskError(f"{name} is not Python text: it has a name of combining marks")
    if _LONE_RETURN.search(source):
        raise TaskError(f"{name} has carriage returns within it; lines end with newlines")
    try:
        with _quietly, warnings.catch_warnings():
            # They concern the author of the text.
            warnings.simplefilter("ignore")
            tree = ast.parse(source)
    except SyntaxError as error:
        raise TaskError(f"{name}, line {error.lineno}: {error.msg}") from error
    except ValueError as error:
        raise TaskError(f"{name} is not Python text: {error}") from error
    except (RecursionError, MemoryError) as error:
        raise TaskError(f"{name} is not Python text: it is nested too deeply") from error
    _check_limits(tree, name)
    return tree


def called_name(function: ast.expr) -> str:
    """Last part of a called name: ``randint`` of ``torch.randint(...)``; empty for an unnamed function."""
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def plain_text(text: str) -> str:
    """Normalise text from a data set: lines end with newlines, and a byte order mark is removed."""
    return text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")


def _marks(run: str) -> int:
    return sum(1 for letter in run if unicodedata.combining(letter))


def _check_limits(tree: ast.Module, name: str) -> None:
    """Refuse trees that are too deep for recursive walkers, and huge integers."""
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
                raise TaskError(f"{where}: nested more than {_DEEPEST} deep")
        level = [child for node in level for child in ast.iter_child_nodes(node)]


Scalar = int | float | bool

_MAX_MAGNITUDE = 2**63
"""Largest folded value, so that no task text causes the computation of a huge power."""

_LONGEST_EXPRESSION = 1000


class Binding(NamedTuple):
    """One module-level ``NAME = expression``. ``shared`` marks a chained assignment (``A = B = 4``)."""

    name: str
    value: ast.expr
    shared: tuple[str, ...]


def module_constants(tree: ast.Module) -> dict[str, Scalar]:
    """Numbers bound to names at module level, in file order; arithmetic over earlier ones is folded."""
    values: dict[str, Scalar] = {}
    for binding in _bindings(tree):
        try:
            value = _fold(binding.value, values)
        except RecursionError:
            value = None
        if value is None:
            values.pop(binding.name, None)
        else:
            values[binding.name] = value
    return values


def substitute(source: str, constants: Mapping[str, Scalar]) -> str:
    """The task's text with values of module constants replaced; derived constants follow.

    Raises:
        TaskError: a name is not a module constant of the file, is bound twice, or shares its value with another.
    """
    return Template(source).filled(constants) if constants else source


class Template:
    """A task's text with the positions of its module constants: parsed once, filled many times."""

    def __init__(self, source: str, tree: ast.Module | None = None) -> None:
        tree = tree or parse_python(source, "the task file")
        self._text = source.encode()
        self._starts = line_starts(self._text)
        self._numbers = module_constants(tree)
        self._bindings: dict[str, list[Binding]] = {}
        for binding in _bindings(tree):
            self._bindings.setdefault(binding.name, []).append(binding)

    def filled(self, constants: Mapping[str, Scalar]) -> str:
        """The text with the values of ``constants``; raises as :func:`substitute`."""
        for name, value in constants.items():
            if not math.isfinite(value):
                raise TaskError(f"module constant {name!r} cannot be set to {value}")
        edits = {self._span(name, constants): repr(value) for name, value in constants.items()}
        return spliced(self._text, sorted((*span, new) for span, new in edits.items()))

    def _span(self, name: str, constants: Mapping[str, Scalar]) -> tuple[int, int]:
        """Byte range of the value of one constant that ``constants`` may set."""
        numbers, bindings = self._numbers, self._bindings.get(name, [])
        if not bindings or name not in numbers:
            raise TaskError(
                f"there is no module constant {name!r} to set; the file has: {', '.join(numbers) or 'none'}"
            )
        if len(bindings) > 1:
            raise TaskError(f"module constant {name!r} is assigned more than once, so a size cannot set it")
        shared = bindings[0].shared
        if shared and any(constants.get(other, numbers[name]) != constants[name] for other in shared):
            names = ", ".join((name, *shared))
            raise TaskError(f"module constants {names} share one assignment: a size must set them all to one value")
        return byte_span(bindings[0].value, self._starts)


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
            f"cannot compute {expression[:200]!r}: use numbers, + - * / // % ** and the constants "
            f"{', '.join(constants) or '(none)'}"
        )
    return value


def _bindings(tree: ast.Module) -> list[Binding]:
    bindings: list[Binding] = []
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
                bindings.append(Binding(target.id, value, tuple(name for name in names if name != target.id)))
            elif isinstance(target, ast.Tuple | ast.List) and isinstance(value, ast.Tuple | ast.List):
                pairs = zip(target.elts, value.elts, strict=False)
                bindings += [Binding(target.id, part, ()) for target, part in pairs if isinstance(target, ast.Name)]
    return bindings


def _fold(node: ast.expr, values: Mapping[str, Scalar]) -> Scalar | None:
    """Value of constant arithmetic; None for any other expression."""
    match node:
        case ast.Constant(value=bool() | int() | float() as value):
            fits = math.isfinite(value) if isinstance(value, float) else abs(value) <= _MAX_MAGNITUDE
            return value if fits else None
        case ast.Name(id=name):
            return values.get(name)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            inner = _fold(operand, values)
            return None if inner is None else -inner
        case ast.Call(func=ast.Name(id="int" | "float" as kind), args=[argument], keywords=[]):
            inner = _fold(argument, values)
            if inner is None or not math.isfinite(inner) or (kind == "int" and abs(inner) > _MAX_MAGNITUDE):
                return None
            return int(inner) if kind == "int" else float(inner)
        case ast.BinOp(left=left, op=op, right=right):
            a, b = _fold(left, values), _fold(right, values)
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


def line_starts(text: bytes) -> list[int]:
    """Byte offset of each line: ``ast`` counts columns in UTF-8 bytes, and splits lines at newlines only."""
    return [0, *(match.end() for match in re.finditer(b"\n", text))]


def byte_span(node: ast.expr | ast.stmt, starts: Sequence[int]) -> tuple[int, int]:
    """First byte of a node and the one behind its last, by the :func:`line_starts` of its text."""
    end = starts[(node.end_lineno or node.lineno) - 1] + (node.end_col_offset or node.col_offset)
    return starts[node.lineno - 1] + node.col_offset, end


def spliced(text: bytes, edits: Iterable[tuple[int, int, str]]) -> str:
    """Replace spans of bytes in UTF-8 text; the spans are in order and do not overlap."""
    pieces, done = [], 0
    for start, end, new in edits:
        pieces += [text[done:start], new.encode()]
        done = end
    return b"".join([*pieces, text[done:]]).decode()
