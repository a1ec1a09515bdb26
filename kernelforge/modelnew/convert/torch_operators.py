"""Operators of torch in a candidate's host code: helper functions of a plan that call them through ``library``."""

from __future__ import annotations

import ast
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal, NamedTuple

from kernelforge.modelnew.convert.cpp_tokens import Unconvertible
from kernelforge.modelnew.convert.torch_operator_plans import PLANS

ArgumentKind = Literal["tensor", "tensors", "number", "sequence", "string", "none", "other"]
PREFIX = "torch_"


class Argument(NamedTuple):
    """An argument of an operator: its text in the plan and what it is."""

    text: str
    kind: ArgumentKind


NONE = Argument("None", "none")


@dataclass(frozen=True)
class Operator:
    """A helper function of a plan that stands for an operator of torch."""

    name: str
    parameters: Mapping[str, str]
    """Name → kind of argument, as annotated in :data:`PLANS`."""
    defaults: Mapping[str, str]
    """Text of the default by parameter."""
    text: str
    """The function, without annotations."""
    needs: frozenset[str]
    """Other functions of :data:`PLANS` that it calls."""
    library: frozenset[str]
    """Operators that it names in ``library`` calls."""
    strides: str
    """``contiguous``, ``like`` its tensors, or ``permuted``: the layout that torch gives the result."""
    returns: str
    """``Tensor``, ``Pair``, or ``View``: a tensor in the memory of the argument."""


@cache
def operators() -> Mapping[str, Operator]:
    """Every function of :data:`PLANS` by its name, the auxiliary ones among them."""
    nodes = [node for node in ast.parse(PLANS).body if isinstance(node, ast.FunctionDef)]
    names = {node.name for node in nodes}
    return {node.name: _operator(node, names) for node in nodes}


def _operator(node: ast.FunctionDef, names: Collection[str]) -> Operator:
    arguments = node.args.args
    annotated = {a.arg: ast.unparse(a.annotation) if a.annotation else "" for a in arguments}
    defaulted = arguments[len(arguments) - len(node.args.defaults) :]
    defaults = {a.arg: ast.unparse(value) for a, value in zip(defaulted, node.args.defaults, strict=True)}
    returns, _, strides = (ast.unparse(node.returns).strip("'") if node.returns else "").partition(" ")
    called = [n for n in ast.walk(node) if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)]
    library = {
        n.args[0].value for n in called
        if n.func.id == "library" and isinstance(n.args[0], ast.Constant)  # type: ignore[attr-defined]
    }  # fmt: skip
    for argument in arguments:
        argument.annotation = None
    node.returns = None
    return Operator(
        node.name.removeprefix(PREFIX), annotated, defaults, ast.unparse(node),
        frozenset(n.func.id for n in called if n.func.id in names),  # type: ignore[attr-defined]
        frozenset(str(name) for name in library), strides or "contiguous", returns or "Tensor",
    )  # fmt: skip


def find_operator(name: str) -> Operator | None:
    """The operator of torch of that name, if a plan can call it."""
    operator = operators().get(PREFIX + name)
    return operator if operator is not None and all(operator.parameters.values()) else None


def helper_functions(called: Collection[str]) -> list[str]:
    """Text of the helper functions of these operators and of all that they need, each after those it calls."""
    ordered: dict[str, str] = {}

    def add(name: str) -> None:
        if name not in ordered:
            for other in sorted(operators()[name].needs):
                add(other)
            ordered[name] = operators()[name].text

    for name in called:
        add(PREFIX + name)
    return list(ordered.values())


def library_names(called: Collection[str]) -> list[str]:
    """Operators that the task has to allow for these helper functions."""
    names: set[str] = set()
    waiting = [PREFIX + name for name in called]
    for name in waiting:
        names |= operators()[name].library
        waiting += [other for other in operators()[name].needs if other not in waiting]
    return sorted(names)


def bound_call(
    operator: Operator, arguments: Sequence[Argument], keywords: Mapping[str, Argument], line: int, excerpt: str
) -> str:
    """A call of the operator's helper function.

    Raises:
        Unconvertible: an argument has no counterpart.
    """
    parameters = list(operator.parameters)
    if parameters and operator.parameters[parameters[-1]] == "Shape" and len(arguments) > len(parameters):
        # view(2, 3): the extents one by one.
        first = len(parameters) - 1
        extents = ", ".join(argument.text for argument in arguments[first:])
        arguments = [*arguments[:first], Argument(f"({extents})", "sequence")]
    if len(arguments) > len(parameters):
        raise Unconvertible(line, excerpt, f"torch's {operator.name} with {len(arguments)} arguments")
    bound = dict(zip(parameters, arguments, strict=False))
    for name, value in keywords.items():
        name = _SYNONYMS.get(name, name)
        if name not in operator.parameters or name in bound:
            raise Unconvertible(line, excerpt, f"torch's {operator.name} with the argument `{name}`")
        bound[name] = value
    texts = []
    positional = True
    for name, kind in operator.parameters.items():
        if name not in bound:
            if name not in operator.defaults:
                raise Unconvertible(line, excerpt, f"torch's {operator.name} without `{name}`")
            positional = False
            continue
        text = _fitted(bound[name], kind, f"`{name}` of torch's {operator.name}", line, excerpt)
        texts.append(text if positional else f"{name}={text}")
    return f"{PREFIX}{operator.name}({', '.join(texts)})"


_SYNONYMS = {"axis": "dim", "x": "input", "keepdims": "keepdim", "min": "lowest", "max": "highest"}


def _fitted(argument: Argument, kind: str, what: str, line: int, excerpt: str) -> str:
    """The argument as the helper function takes it."""
    allowed = _ALLOWED.get(kind, ("number", "sequence", "none"))
    if argument.kind not in allowed:
        raise Unconvertible(line, excerpt, f"{what} is {_A[argument.kind]}")
    if argument.kind == "number" and kind in ("Dims", "Shape"):
        return f"({argument.text},)"
    if argument.kind == "number" and kind.startswith("Ints"):
        return f"({', '.join([argument.text] * int(kind[-1]))}{',' if kind[-1] == '1' else ''})"
    return argument.text


_ALLOWED: Mapping[str, tuple[ArgumentKind, ...]] = {
    "Tensor": ("tensor",), "Tensors": ("tensors",), "Maybe": ("tensor", "none"), "Number": ("number", "none"),
    "String": ("string",), "Int": ("number",), "Bool": ("number",),
}  # fmt: skip
_A = {
    "tensor": "a tensor", "tensors": "several tensors", "number": "a number", "sequence": "a sequence",
    "string": "a string", "none": "missing", "other": "nothing that a plan can pass",
}  # fmt: skip
