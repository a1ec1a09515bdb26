"""Turn inline extents of a task file into module constants, by edits of its text.

``torch.randn(16, 64)`` in ``get_inputs`` and ``shape = (512, 512)`` at module level both hide their extents from sizes,
which set module constants. Nothing is executed: places come from ``ast``, and the rest of the text stays as it is.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator

from kernelforge.errors import TaskError
from kernelforge.tasks.constants import called_name, line_starts, parse_python, spliced
from kernelforge.tasks.files import parse_task_file

SMALLEST_EXTENT = 8
"""Smaller numbers are mostly kernel sizes, strides, axes or channels of an image, so they are not extents."""

_LARGEST_EXTENT = 2**40
_MOST_LIFTED = 256
_LONGEST_HINT = 40

_GENERATORS = ("get_inputs", "get_init_inputs")

_FACTORY_DEVICE = "device"


def lift(source: str, name: str) -> str:
    """The text with its inline extents as module constants, and without ``device="cuda"``.

    Lifted are integers from 8: elements of tuples and lists at module level, of ``[1024] * 16`` the element alone, and
    all numbers but indices in ``get_inputs`` and ``get_init_inputs``. Each gets its own constant, named after its
    variable or keyword; running the reference later shows which must be equal.

    Raises:
        TaskError: the text is not a task file; the message names ``name``.
    """
    parse_task_file(source, name)
    tree = parse_python(source, name)
    edits = [_replacing(node, "None") for node in _devices(tree)]
    names = _Names(tree)
    constants: list[tuple[str, int]] = []
    literals = [*_module_literals(tree), *_generator_literals(tree)]
    if len(literals) > _MOST_LIFTED:
        raise TaskError(f"{name} has {len(literals):,} numbers inline that may be extents; at most {_MOST_LIFTED}")
    for node, hint in literals:
        constant = names.new(hint[:_LONGEST_HINT])
        constants.append((constant, node.value))  # type: ignore[arg-type]
        # A space, since a keyword may follow directly: ``16if``.
        edits.append(_replacing(node, f"{constant} " if _touches(source, node) else constant))
    text = edited(source, edits)
    if not constants:
        return text
    lines, at = text.split("\n"), _first_line(tree, name)
    head = [f"{constant} = {value}" for constant, value in constants]
    return "\n".join([*lines[:at], *([""] if at else []), *head, "", *lines[at:]])


class _Names:
    """Generator of constant names that the file does not use."""

    def __init__(self, tree: ast.Module) -> None:
        self._taken = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
        self._taken |= {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
        self._taken |= {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.ClassDef)}
        self._taken |= {
            (alias.asname or alias.name).split(".")[0]
            for node in ast.walk(tree)
            if isinstance(node, ast.Import | ast.ImportFrom)
            for alias in node.names
        }

    def new(self, hint: str) -> str:
        base = re.sub(r"[^A-Z0-9]+", "_", hint.upper()).strip("_") or "EXTENT"
        if base[0].isdigit():
            base = f"EXTENT_{base}"
        name, number = base, 0
        while name in self._taken:
            number += 1
            name = f"{base}_{number}"
        self._taken.add(name)
        return name


def _module_literals(tree: ast.Module) -> Iterator[tuple[ast.Constant, str]]:
    """Elements of tuples, lists and dicts that are bound to a name at module level."""
    for node in tree.body:
        target = node.targets[0] if isinstance(node, ast.Assign) and len(node.targets) == 1 else None
        if isinstance(node, ast.AnnAssign):
            target = node.target
        value = getattr(node, "value", None)
        if isinstance(value, ast.BinOp):
            value = _repeated(value)
        if isinstance(target, ast.Name) and isinstance(value, ast.Tuple | ast.List | ast.Dict):
            yield from _literals_in(value, target.id)


def _generator_literals(tree: ast.Module) -> Iterator[tuple[ast.Constant, str]]:
    for function in tree.body:
        if isinstance(function, ast.FunctionDef) and function.name in _GENERATORS:
            fallback = "input" if function.name == "get_inputs" else "init"
            for statement in function.body:
                yield from _literals_in(statement, _bound_name(statement) or fallback)


def _bound_name(statement: ast.stmt) -> str | None:
    if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
        return statement.targets[0].id
    return None


def _literals_in(node: ast.AST, hint: str) -> Iterator[tuple[ast.Constant, str]]:
    """Integers that may be extents, each with a hint for the name of its constant."""
    if isinstance(node, ast.Constant):
        if type(node.value) is int and SMALLEST_EXTENT <= node.value <= _LARGEST_EXTENT:
            yield node, hint
        return
    if isinstance(node, ast.Subscript | ast.JoinedStr | ast.pattern) or _is_seeding(node):
        return
    if isinstance(node, ast.BinOp) and (repeated := _repeated(node)) is not None:
        yield from _literals_in(repeated, hint)
    elif isinstance(node, ast.keyword):
        yield from _literals_in(node.value, node.arg or hint)
    elif isinstance(node, ast.Dict):
        for key, value in zip(node.keys, node.values, strict=True):
            named = key.value if isinstance(key, ast.Constant) and isinstance(key.value, str) else hint
            yield from _literals_in(value, named)
    else:
        for child in ast.iter_child_nodes(node):
            yield from _literals_in(child, hint)


def _repeated(node: ast.BinOp) -> ast.Tuple | ast.List | None:
    """The list of ``[1024] * 16``, whose times are a number of layers; None where there is none."""
    sides = (node.left, node.right) if isinstance(node.op, ast.Mult) else ()
    return next((side for side in sides if isinstance(side, ast.Tuple | ast.List)), None)


def _is_seeding(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and called_name(node.func) in ("manual_seed", "seed")


def _devices(tree: ast.Module) -> Iterator[ast.expr]:
    """Literals of ``device="cuda"``, to become None: the oracle chooses the device, and may have no GPU."""
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.keyword)
            and node.arg == _FACTORY_DEVICE
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
            and node.value.value.startswith("cuda")
        ):
            yield node.value


def edited(source: str, edits: Iterable[tuple[int, int, int, str]]) -> str:
    """Replace spans of the text, each a line from 1, first and last column in UTF-8 bytes, and new text."""
    text = source.encode()
    starts = line_starts(text)
    places = sorted((starts[line - 1] + first, starts[line - 1] + last, new) for line, first, last, new in edits)
    return spliced(text, places)


def _touches(source: str, node: ast.expr) -> bool:
    """Whether a letter directly follows a literal."""
    line = source.split("\n", node.lineno)[node.lineno - 1].encode()
    return line[node.end_col_offset : (node.end_col_offset or 0) + 1].isalpha()


def _replacing(node: ast.expr, new: str) -> tuple[int, int, int, str]:
    """Edit that replaces a literal on one line."""
    assert node.end_col_offset is not None
    return node.lineno, node.col_offset, node.end_col_offset, new


def _first_line(tree: ast.Module, name: str) -> int:
    """Number of lines before the first statement other than the docstring and ``from __future__``."""
    line = 0
    for position, node in enumerate(tree.body):
        is_docstring = position == 0 and isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if not is_docstring and not (isinstance(node, ast.ImportFrom) and node.module == "__future__"):
            if node.lineno <= line:
                raise TaskError(f"{name}, line {line}: a statement follows the docstring or __future__ import")
            break
        line = node.end_lineno or line
    return line
