"""Read the Python of a candidate: its CUDA source, its extensions, classes and functions."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from typing import Any

from kernelforge.modelnew.convert.constructors import (
    BUILDER,
    EXTENSION,
    Function,
    Instance,
    Marker,
    applied,
    construct,
    dotted_name,
)
from kernelforge.modelnew.convert.cpp_tokens import Unconvertible


@dataclass
class PythonFile:
    """The parts of a candidate's file that a conversion needs."""

    strings: dict[str, ast.Constant] = field(default_factory=dict)
    """Text bound to names."""
    sources: list[ast.Constant] = field(default_factory=list)
    """CUDA and C++ text given to ``load_inline`` or ``RawKernel``, in order."""
    raw_kernels: dict[str, str] = field(default_factory=dict)
    """Dotted name → kernel of a cupy ``RawKernel``."""
    names: dict[str, Any] = field(default_factory=dict)
    """Names of the module → class, extension or function of one; others are unknown."""
    model: Instance | None = None
    """``ModelNew`` as its constructor leaves it."""


def read_python(tree: ast.Module) -> PythonFile:
    """Find sources, extensions and classes, and follow the constructors.

    Raises:
        Unconvertible: there is no ``ModelNew`` with a ``forward``, or a source is no plain text.
    """
    file = PythonFile()
    _Sources(file).visit(tree)
    file.names = names_of_module(tree)
    model = next((node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "ModelNew"), None)
    if model is None:
        raise Unconvertible(1, "class ModelNew", "there is no such class at module level")
    file.model = construct(model, file.names)
    if file.model.method("forward") is None:
        raise Unconvertible(model.lineno, "class ModelNew", "it has no forward")
    return file


def names_of_module(tree: ast.Module) -> dict[str, Any]:
    """Names of a module → class, function, extension or function of one; others are unknown."""
    names: dict[str, Any] = {}
    for node in tree.body:
        _define(node, names)
    return names


def _define(node: ast.stmt, names: dict[str, Any]) -> None:
    """Enter the name that a statement of the module binds."""
    if isinstance(node, ast.ClassDef):
        names[node.name] = node
    elif isinstance(node, ast.FunctionDef):
        names[node.name] = BUILDER if _builds(node) else Function(node, {})
    elif isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
        name, value = node.targets[0].id, node.value
        called = dotted_name(value.func) if isinstance(value, ast.Call) else ""
        if called.rpartition(".")[2] == "load_inline" or names.get(called) == BUILDER:
            names[name] = EXTENSION
        elif isinstance(value, ast.Attribute) and names.get(dotted_name(value.value)) == EXTENSION:
            names[name] = Marker("function", value.attr)
        elif isinstance(value, ast.Attribute) and value.attr == "apply":
            definition = names.get(dotted_name(value.value))
            if isinstance(definition, ast.ClassDef):
                names[name] = applied(definition)


def _builds(function: ast.FunctionDef) -> bool:
    """Whether a function returns an extension."""
    calls = (node for node in ast.walk(function) if isinstance(node, ast.Call))
    return any(dotted_name(call.func).rpartition(".")[2] == "load_inline" for call in calls)


class _Sources(ast.NodeVisitor):
    """Collects CUDA text in the order of the file."""

    def __init__(self, file: PythonFile) -> None:
        self.file = file

    def visit_Assign(self, node: ast.Assign) -> None:
        value, name = node.value, dotted_name(node.targets[0])
        if isinstance(value, ast.Constant) and isinstance(value.value, str):
            self.file.strings[name] = value
        if isinstance(value, ast.Call) and dotted_name(value.func).rpartition(".")[2] == "RawKernel":
            arguments = _arguments(value, "code", "name")
            if isinstance(arguments[1], ast.Constant):
                self.file.raw_kernels[name] = str(arguments[1].value)
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        called = dotted_name(node.func).rpartition(".")[2]
        values: list[ast.expr | None] = []
        if called == "load_inline":
            values = _arguments(node, "name", "cpp_sources", "cuda_sources")[1:]
        elif called == "RawKernel":
            values = _arguments(node, "code")
        elif called == "RawModule":
            raise Unconvertible(node.lineno, ast.unparse(node), "cupy modules are not read; use a RawKernel")
        for value in values:
            parts = value.elts if isinstance(value, ast.List | ast.Tuple) else [value] if value is not None else []
            self.file.sources += [_text(part, self.file) for part in parts]
        self.generic_visit(node)


def _arguments(call: ast.Call, *names: str) -> list[ast.expr | None]:
    """Arguments of a call by the names of its first parameters."""
    keywords = {keyword.arg: keyword.value for keyword in call.keywords}
    positional = dict(zip(names, call.args, strict=False))
    return [positional.get(name, keywords.get(name)) for name in names]


def _text(node: ast.expr, file: PythonFile) -> ast.Constant:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node
    text = file.strings.get(dotted_name(node))
    if text is None:
        raise Unconvertible(node.lineno, ast.unparse(node), "source that is no plain text constant")
    return text
