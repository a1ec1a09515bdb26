"""Module constants of a task file that a size may change, read from the text alone."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from kernelforge.errors import TaskError
from kernelforge.tasks import evaluate_expression
from kernelforge.tasks.constants import called_name, parse_python

SMALLEST = 8
"""Smaller numbers stay: kernel sizes, strides, axes, layers, channels of an image."""

_MOST_EXTENTS = 256

_MEANING = frozenset({
    "kernel", "stride", "strides", "padding", "pad", "dilation", "eps", "epsilon", "axis", "seed", "margin",
    "alpha", "beta", "gamma", "dropout", "temperature", "upscale", "downscale",
})  # fmt: skip
"""Words in a name that say that the constant is part of what is computed."""


@dataclass(frozen=True)
class Extent:
    """Module constants that have to have one value: mostly one name, several where one assignment binds them."""

    names: tuple[str, ...]
    full: int
    """The value in the file."""
    is_index_bound: bool = False
    """Whether indices are drawn below it: then it is some axis' extent, and stays equal to what it equals."""
    is_count: bool = False
    """Whether it counts weights, such as the layers of a network: then it is no axis' extent, and keeps its value."""


def movable_extents(source: str, fixed: AbstractSet[str] = frozenset()) -> tuple[Extent, ...]:
    """Constants that are plain whole numbers from 8 on, bound once and used, in file order.

    What is computed from others follows by itself, so it is none of these. ``fixed`` are left alone.

    Raises:
        TaskError: there are more of them than a search could look at.
    """
    tree = parse_python(source, "the task file")
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    bound = Counter(_names_bound(tree))
    index_bounds = _index_bounds(tree)
    extents: list[Extent] = []
    for names, value in _plain_bindings(tree):
        if not names or value < SMALLEST or not used & set(names):
            continue
        if any(bound[name] > 1 or name in fixed or _is_meaning(name) for name in names):
            continue
        if len(extents) == _MOST_EXTENTS:
            raise TaskError(f"the file has more than {_MOST_EXTENTS} constants that may be extents")
        extents.append(Extent(names, value, is_index_bound=bool(index_bounds & set(names))))
    return tuple(extents)


def _names_bound(node: ast.AST) -> Iterator[str]:
    """Names bound at module level, once for each time; what functions and classes bind is their own."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Name) and not isinstance(child.ctx, ast.Load):
            yield child.id
        elif not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda | ast.ListComp):
            yield from _names_bound(child)


def _plain_bindings(tree: ast.Module) -> list[tuple[tuple[str, ...], int]]:
    """Names bound at module level to a whole number that names no other constant (``2048 * 2``), one assignment's
    together."""
    bindings: list[tuple[tuple[str, ...], int]] = []
    bound: list[tuple[tuple[ast.expr, ...], ast.expr]]
    for node in tree.body:
        if isinstance(node, ast.AnnAssign) and node.value is not None:
            bound = [((node.target,), node.value)]
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Tuple) and len(node.targets) == 1:
            target = node.targets[0]
            parts = zip(target.elts, node.value.elts, strict=False) if isinstance(target, ast.Tuple) else ()
            bound = [((name,), value) for name, value in parts]
        elif isinstance(node, ast.Assign):
            bound = [(tuple(node.targets), node.value)]
        else:
            continue
        for targets, value in bound:
            number = _whole_number(value)
            if number is not None:
                bindings.append((tuple(target.id for target in targets if isinstance(target, ast.Name)), number))
    return bindings


def _whole_number(node: ast.expr) -> int | None:
    """The value of arithmetic over literals alone; None where it is anything else."""
    if any(isinstance(part, ast.Name) for part in ast.walk(node)):
        return None
    try:
        value = evaluate_expression(ast.unparse(node), {})
    except TaskError:
        return None
    return value if type(value) is int else None


def _index_bounds(tree: ast.Module) -> set[str]:
    """Names in the arguments of ``randint``."""
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    return {
        part.id
        for call in calls
        if called_name(call.func) == "randint"
        for argument in (*call.args[:2], *(keyword.value for keyword in call.keywords))
        for part in ast.walk(argument)
        if isinstance(part, ast.Name)
    }


def _is_meaning(name: str) -> bool:
    words = re.split(r"[_\d]+", name.lower())
    return bool(_MEANING & set(words))
