"""Give a converted plan the names that a task's reference has for its weights and attributes."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from kernelforge.modelnew.convert.constructors import UNKNOWN, WEIGHT, Container, Instance, Marker, construct
from kernelforge.modelnew.convert.cpp_tokens import Unconvertible
from kernelforge.modelnew.convert.layers import Layer
from kernelforge.modelnew.convert.python_side import names_of_module

_NAMED = re.compile(r'\b(w|attrs)\["([\w.]+)"\]|"([\w.]+)" in (w|attrs)\b')


def argument_paths(model: Instance) -> dict[str, int]:
    """Attributes of a model, by dotted name, that are arguments of its constructor: positions of these."""
    init = model.method("__init__")
    names = [argument.arg for argument in init.args.args[1:]] if init is not None else []
    return {path: names.index(name) for path, name in _arguments(model, "") if name in names}


def _arguments(value: Any, path: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, Marker):
        if value.what == "unknown" and value.name:
            yield path, value.name
        return
    parts: Mapping[str, Any] = {}
    if isinstance(value, Instance):
        parts = value.attributes
    elif isinstance(value, Container):
        parts = value.items
    elif isinstance(value, Layer):
        try:
            parts = value.settings()
        except Unconvertible:
            return
    for name, part in parts.items():
        yield from _arguments(part, f"{path}.{name}" if path else name)


def parameter_names(model: Instance) -> list[str]:
    """Names of a model's parameters in the order that torch has them; empty where they cannot be followed.

    A tensor attribute or buffer counts as a parameter here: with one, the number is another than the reference's.
    """
    names: list[str] = []

    def add(value: Any, path: str) -> bool:
        ahead = f"{path}." if path else ""
        if isinstance(value, Layer):
            parameters = value.parameters()
            names.extend(f"{ahead}{name}" for name in parameters or ())
            return parameters is not None
        if not isinstance(value, Instance | Container):
            return not (isinstance(value, Marker) and value == UNKNOWN and not value.name)
        parts = value.items if isinstance(value, Container) else value.attributes
        names.extend(f"{ahead}{name}" for name, part in parts.items() if part == WEIGHT)
        return all(add(part, f"{ahead}{name}") for name, part in parts.items() if part != WEIGHT)

    try:
        return names if add(model, "") else []
    except Unconvertible:
        return []


def with_names_of_reference(
    plan: str, arguments: Mapping[str, int], source: str, weights: Sequence[str], attributes: Sequence[str],
    own: Sequence[str] = (), parameters: Sequence[str] = (),
) -> str:  # fmt: skip
    """The plan with the reference's names, where those of ``ModelNew`` are others.

    Parameters are matched by order if there are as many of them and their names end alike one by one. An attribute that
    holds an argument of ``ModelNew`` becomes one that holds the same argument of ``Model``. Any other
    name becomes the only one of the reference that ends alike; where there is none, it stays, and the plan is refused.

    Args:
        plan: Of a converted candidate.
        arguments: The attributes of ``ModelNew`` that are arguments of its constructor, with their positions.
        source: Text of the task's file.
        weights: Names of the reference's weights.
        attributes: Names of its attributes.
        own: Names of the parameters of ``ModelNew``, in order.
        parameters: Names of the reference's, in order.
    """
    pairs = list(zip(own, parameters, strict=False)) if len(own) == len(parameters) else []
    ordered = dict(pairs) if all(_last(a) == _last(b) for a, b in pairs) else {}
    names = {"w": list(weights), "attrs": list(attributes)}
    paths = _reference_paths(source)

    def renamed(match: re.Match[str]) -> str:
        mapping, name = match[1] or match[4], match[2] or match[3]
        new = name
        if name not in names[mapping]:
            same = ordered.get(name, "")
            if mapping == "attrs":
                same = _same_argument(name, arguments, paths, attributes)
            new = same or _ends_alike(name, names[mapping]) or name
        return f'{mapping}["{new}"]' if match[1] else f'"{new}" in {mapping}'

    return _NAMED.sub(renamed, plan)


def _reference_paths(source: str) -> dict[int, list[str]]:
    """Attributes of the reference by the position of the argument that they hold."""
    paths: dict[int, list[str]] = {}
    try:
        tree = ast.parse(source)
        model = next(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "Model")
        for path, position in argument_paths(construct(model, names_of_module(tree))).items():
            paths.setdefault(position, []).append(path)
    except (StopIteration, SyntaxError, Unconvertible, RecursionError):
        return {}
    return paths


def _same_argument(
    name: str, arguments: Mapping[str, int], paths: Mapping[int, Sequence[str]], attributes: Sequence[str]
) -> str:
    stem, _, axis = name.rpartition(".")
    if axis.isdigit():
        candidates = [f"{path}.{axis}" for path in paths.get(arguments.get(stem, -1), ())]
    else:
        own = paths.get(arguments.get(name, -1), ())
        # A convolution keeps a number as one for each dimension.
        candidates = [*own, *(f"{path}.0" for path in own)]
    return next((candidate for candidate in candidates if candidate in attributes), "")


def _last(name: str) -> str:
    return name.rpartition(".")[2]


def _ends_alike(name: str, names: Sequence[str]) -> str:
    last = _last(name)
    alike = [] if last.isdigit() else [own for own in names if _last(own) == last]
    return alike[0] if len(alike) == 1 else ""
