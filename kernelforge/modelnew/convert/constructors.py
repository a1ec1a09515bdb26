"""Read constructors of modules: the layers and attributes that a candidate's classes have, without running them.

What a constructor computes from numbers in the text is computed here; the arguments of ``ModelNew`` itself, which the
task gives, and all that follows from them is :data:`UNKNOWN`, and a plan looks it up among the reference's attributes.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from kernelforge.modelnew.convert.cpp_tokens import Unconvertible
from kernelforge.modelnew.convert.layers import LAYERS, Layer


@dataclass(frozen=True)
class Marker:
    """A value that is no number."""

    what: str
    name: str = field(default="", compare=False)
    """Of a function of an extension, its name; of an argument of ``ModelNew``, that of the parameter."""


UNKNOWN: Final = Marker("unknown")
WEIGHT: Final = Marker("weight")
EXTENSION: Final = Marker("extension")
BUILDER: Final = Marker("builder")
"""A function that returns an extension."""

MAX_STEPS = 20_000
"""Statements and expressions of all constructors together."""
MAX_ITEMS = 4096


@dataclass
class Container:
    """``nn.Sequential`` or ``nn.ModuleList``: layers by their names."""

    items: dict[str, Any]
    called: bool
    """Whether it can be called: a ``Sequential``."""


@dataclass
class Instance:
    """A module of one of the candidate's classes."""

    definition: ast.ClassDef
    attributes: dict[str, Any] = field(default_factory=dict)

    def method(self, name: str) -> ast.FunctionDef | None:
        return next((n for n in self.definition.body if isinstance(n, ast.FunctionDef) and n.name == name), None)


@dataclass(frozen=True)
class Function:
    """A function or method, with the names around it."""

    node: ast.FunctionDef
    outer: Mapping[str, Any]
    instance: Instance | None = None
    context: bool = False
    """Whether its first parameter is the context of an ``autograd.Function``."""
    label: str = ""
    """Its name in a plan, where it is not that of the function."""


class _Returned(Exception):
    def __init__(self, value: Any) -> None:
        super().__init__()
        self.value = value


def construct(model: ast.ClassDef, file_names: Mapping[str, Any]) -> Instance:
    """``ModelNew`` as its constructor leaves it.

    Args:
        model: The class.
        file_names: What names of the module stand for: classes, functions, extensions; others are unknown.

    Raises:
        Unconvertible: the constructors go on for too long.
    """
    reader = _Reader(file_names)
    instance = Instance(model)
    init = instance.method("__init__")
    if init is not None:
        parameters = [argument.arg for argument in (*init.args.args[1:], *init.args.kwonlyargs)]
        reader.run(init.body, {**file_names, **{n: Marker("unknown", n) for n in parameters}, "self": instance})
    return instance


_BINARY: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod,
}  # fmt: skip
_COMPARED: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt,
    ast.GtE: operator.ge, ast.Is: operator.is_, ast.IsNot: operator.is_not,
}  # fmt: skip
_PLAIN: dict[str, Callable[..., Any]] = {
    "int": int, "float": float, "bool": bool, "len": len, "min": min, "max": max, "sum": sum, "list": list,
    "tuple": tuple,
}  # fmt: skip


def is_number(value: Any) -> bool:
    """Whether a value is a plain number, string, None, or a sequence of these."""
    if isinstance(value, list | tuple):
        return all(map(is_number, value))
    return value is None or isinstance(value, int | float | bool | str)


class _Reader:
    def __init__(self, file_names: Mapping[str, Any]) -> None:
        self.file_names = file_names
        self.steps = 0

    def spend(self, node: ast.AST) -> None:
        self.steps += 1
        if self.steps > MAX_STEPS:
            raise Unconvertible(getattr(node, "lineno", 1), "__init__", "the constructors are too long to follow")

    def run(self, body: Sequence[ast.stmt], names: dict[str, Any]) -> None:
        for node in body:
            self.spend(node)
            self.statement(node, names)

    def statement(self, node: ast.stmt, names: dict[str, Any]) -> None:
        match node:
            case ast.Assign(targets=targets, value=value):
                result = self.value(value, names)
                for target in targets:
                    self.assign(target, result, names)
            case ast.AnnAssign(target=target, value=ast.expr() as value):
                self.assign(target, self.value(value, names), names)
            case ast.AugAssign(target=target, op=op, value=value):
                result = self.combined(op, self.value(target, names), self.value(value, names))
                self.assign(target, result, names)
            case ast.Expr(value=value):
                self.value(value, names)
            case ast.If(test=test, body=body, orelse=orelse):
                decided = self.value(test, names)
                if is_number(decided):
                    self.run(body if decided else orelse, names)
                else:
                    self.forget(node, names)
            case ast.For(target=target, iter=over, body=body):
                items = self.value(over, names)
                if not isinstance(items, list | tuple):
                    self.forget(node, names)
                    return
                for item in items:
                    self.assign(target, item, names)
                    self.run(body, names)
            case ast.With(body=body):
                self.run(body, names)
            case ast.FunctionDef(name=name):
                names[name] = Function(node, names)
            case ast.Return(value=returned):
                raise _Returned(None if returned is None else self.value(returned, names))
            case ast.Pass() | ast.Raise() | ast.Assert() | ast.Import() | ast.ImportFrom():
                pass
            case _:
                self.forget(node, names)

    def forget(self, node: ast.AST, names: dict[str, Any]) -> None:
        """Make unknown what a statement assigns: whether it runs, or how often, is not to be seen."""
        for inner in ast.walk(node):
            if isinstance(inner, ast.Name | ast.Attribute) and isinstance(inner.ctx, ast.Store):
                self.assign(inner, UNKNOWN, names)
            elif isinstance(inner, ast.Call) and isinstance(inner.func, ast.Attribute):
                holder = inner.func.value
                if inner.func.attr in ("append", "extend", "insert"):
                    self.assign(holder, UNKNOWN, names)
                elif inner.func.attr in ("register_buffer", "register_parameter", "add_module"):
                    self.registered(inner, names)

    def assign(self, target: ast.expr, value: Any, names: dict[str, Any]) -> None:
        match target:
            case ast.Name(id=name):
                names[name] = value
            case ast.Attribute(value=owner, attr=name):
                holder = self.value(owner, names)
                if isinstance(holder, Instance):
                    holder.attributes[name] = value
            case ast.Tuple(elts=parts) | ast.List(elts=parts):
                same = isinstance(value, list | tuple) and len(value) == len(parts)
                for position, part in enumerate(parts):
                    self.assign(part, value[position] if same else UNKNOWN, names)

    def value(self, node: ast.expr, names: dict[str, Any]) -> Any:
        self.spend(node)
        match node:
            case ast.Constant(value=value):
                return value if isinstance(value, int | float | bool | str) or value is None else UNKNOWN
            case ast.Name(id=name):
                return names.get(name, UNKNOWN)
            case ast.Attribute(value=owner, attr=name):
                return self.attribute(self.value(owner, names), name)
            case ast.List(elts=parts) | ast.Tuple(elts=parts):
                return self.items(parts, names)
            case ast.BinOp(left=left, op=op, right=right):
                return self.combined(op, self.value(left, names), self.value(right, names))
            case ast.UnaryOp(op=op, operand=operand):
                value = self.value(operand, names)
                if not is_number(value) or isinstance(op, ast.Invert):
                    return UNKNOWN
                return not value if isinstance(op, ast.Not) else self.guarded(operator.neg, value)
            case ast.BoolOp(op=op, values=values):
                return self.boolean(isinstance(op, ast.Or), values, names)
            case ast.Compare(left=left, ops=[op], comparators=[right]):
                a, b = self.value(left, names), self.value(right, names)
                comparable = is_number(a) and is_number(b) and type(op) in _COMPARED
                return self.guarded(_COMPARED[type(op)], a, b) if comparable else UNKNOWN
            case ast.IfExp(test=test, body=body, orelse=orelse):
                decided = self.value(test, names)
                return self.value(body if decided else orelse, names) if is_number(decided) else UNKNOWN
            case ast.Subscript(value=owner, slice=at) if not isinstance(at, ast.Slice):
                holder, key = self.value(owner, names), self.value(at, names)
                if isinstance(holder, Container):
                    holder = list(holder.items.values())
                return holder[key] if isinstance(holder, list | tuple) and _within(holder, key) else UNKNOWN
            case ast.ListComp(elt=part, generators=[by]) | ast.GeneratorExp(elt=part, generators=[by]):
                return self.comprehension(part, by, names)
            case ast.Call():
                return self.call(node, names)
        return UNKNOWN

    def boolean(self, either: bool, values: Sequence[ast.expr], names: dict[str, Any]) -> Any:
        result: Any = UNKNOWN
        unsure = False
        for part in values:
            result = self.value(part, names)
            if not is_number(result):
                unsure = True
            elif bool(result) == either:
                return result
        return UNKNOWN if unsure else result

    def comprehension(self, element: ast.expr, generator: ast.comprehension, names: dict[str, Any]) -> Any:
        items = self.value(generator.iter, names)
        if not isinstance(items, list | tuple) or generator.ifs:
            return UNKNOWN
        results = []
        for item in items:
            inner = dict(names)
            self.assign(generator.target, item, inner)
            results.append(self.value(element, inner))
        return results

    def items(self, parts: Sequence[ast.expr], names: dict[str, Any]) -> Any:
        items: list[Any] = []
        for part in parts:
            if isinstance(part, ast.Starred):
                more = self.value(part.value, names)
                if not isinstance(more, list | tuple):
                    return UNKNOWN
                items += more
            else:
                items.append(self.value(part, names))
        return items

    def combined(self, op: ast.operator, a: Any, b: Any) -> Any:
        sequences = isinstance(a, list) and isinstance(b, list) and isinstance(op, ast.Add)
        if not sequences and not (is_number(a) and is_number(b) and type(op) in _BINARY):
            return UNKNOWN
        if isinstance(op, ast.Mult) and any(isinstance(side, str | list | tuple) for side in (a, b)):
            return UNKNOWN
        return self.guarded(_BINARY[type(op)], a, b)

    def guarded(self, function: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return function(*arguments)
        except (ArithmeticError, TypeError, ValueError):
            return UNKNOWN

    def attribute(self, owner: Any, name: str) -> Any:
        if isinstance(owner, Instance):
            if name in owner.attributes:
                return owner.attributes[name]
            method = owner.method(name)
            return Function(method, {}, owner) if method is not None else _class_constant(owner.definition, name)
        if isinstance(owner, ast.ClassDef):
            if name == "apply":
                return applied(owner)
            return _class_constant(owner, name)
        if owner == EXTENSION:
            return Marker("function", name)
        return UNKNOWN

    def call(self, node: ast.Call, names: dict[str, Any]) -> Any:
        dotted = dotted_name(node.func)
        last = dotted.rpartition(".")[2] or (node.func.attr if isinstance(node.func, ast.Attribute) else "")
        if last in ("register_buffer", "register_parameter", "add_module"):
            return self.registered(node, names)
        if last in ("append", "extend") and isinstance(node.func, ast.Attribute):
            return self.appended(node, last, names)
        if last in ("eval", "train") and isinstance(node.func, ast.Attribute):
            raise Unconvertible(node.lineno, ast.unparse(node), "a mode other than the one that modules begin in")
        if last in ("cuda", "to", "float", "requires_grad_") and isinstance(node.func, ast.Attribute):
            return self.value(node.func.value, names)
        arguments = self.items(node.args, names)
        keywords = {k.arg: self.value(k.value, names) for k in node.keywords if k.arg is not None}
        complete = isinstance(arguments, list) and len(keywords) == len(node.keywords)
        if last in ("load_inline", "load"):
            return EXTENSION
        if dotted in _PLAIN and complete and not keywords and all(map(is_number, arguments)):
            return self.guarded(_PLAIN[dotted], *arguments)
        if dotted in ("len", "list") and complete and isinstance(arguments[0], list):
            return len(arguments[0]) if dotted == "len" else arguments[0]
        if dotted in ("range", "enumerate", "zip", "reversed") and complete:
            return self.sequence(dotted, arguments)
        if last in ("Sequential", "ModuleList", "ModuleDict"):
            return _container(last, arguments)
        if last in LAYERS and (dotted.startswith(("nn.", "torch.nn.")) or (dotted == last and last not in names)):
            return Layer(last, arguments if complete else None, keywords, node.lineno)
        if last == "Parameter" or dotted.startswith(("torch.", "nn.Parameter")):
            return WEIGHT
        called = self.value(node.func, names)
        if called == BUILDER:
            return EXTENSION
        if isinstance(called, ast.ClassDef) and complete:
            return self.instance(called, arguments, keywords)
        if isinstance(called, Function) and complete:
            return self.function(called, arguments, keywords)
        return UNKNOWN

    def instance(self, definition: ast.ClassDef, arguments: list[Any], keywords: dict[str, Any]) -> Any:
        instance = Instance(definition)
        init = instance.method("__init__")
        if init is not None:
            self.function(Function(init, self.file_names, instance), arguments, keywords)
        return instance

    def function(self, called: Function, arguments: list[Any], keywords: dict[str, Any]) -> Any:
        outer = called.outer or self.file_names
        passed = [called.instance, *arguments] if called.instance is not None else arguments
        bound = bind(called.node.args, passed, keywords)
        if bound is None:
            return UNKNOWN
        names = {**outer}
        for name, value in bound.items():
            names[name] = self.value(value, dict(outer)) if isinstance(value, ast.expr) else value
        try:
            self.run(called.node.body, names)
        except _Returned as returned:
            return returned.value
        return None

    def sequence(self, name: str, arguments: list[Any]) -> Any:
        if name == "range":
            if not all(type(value) is int for value in arguments) or not 1 <= len(arguments) <= 3:
                return UNKNOWN
            numbers = self.guarded(range, *arguments)
            return list(numbers) if isinstance(numbers, range) and len(numbers) <= MAX_ITEMS else UNKNOWN
        if not all(isinstance(value, list | tuple) for value in arguments):
            return UNKNOWN
        function: Callable[..., Iterator[Any]] = {"enumerate": enumerate, "zip": zip, "reversed": reversed}[name]
        return [list(item) if isinstance(item, tuple) else item for item in function(*arguments)]

    def appended(self, node: ast.Call, name: str, names: dict[str, Any]) -> None:
        assert isinstance(node.func, ast.Attribute)
        holder, items = self.value(node.func.value, names), self.items(node.args, names)
        new = items if name == "append" or not isinstance(items, list) else items[0]
        if not isinstance(new, list | tuple):
            self.assign(node.func.value, UNKNOWN, names)
        elif isinstance(holder, list):
            holder += new
        elif isinstance(holder, Container):
            holder.items.update({str(len(holder.items) + i): item for i, item in enumerate(new)})

    def registered(self, node: ast.Call, names: dict[str, Any]) -> None:
        assert isinstance(node.func, ast.Attribute)
        holder, items = self.value(node.func.value, names), self.items(node.args, names)
        if isinstance(holder, Instance) and isinstance(items, list) and items and isinstance(items[0], str):
            module = node.func.attr == "add_module" and len(items) > 1
            holder.attributes[items[0]] = items[1] if module else WEIGHT


def applied(definition: ast.ClassDef) -> Any:
    """The ``forward`` of an ``autograd.Function``, which its ``apply`` calls."""
    forward = Instance(definition).method("forward")
    return UNKNOWN if forward is None else Function(forward, {}, context=True, label=definition.name)


def bind(parameters: ast.arguments, passed: Sequence[Any], keywords: Mapping[str, Any]) -> dict[str, Any] | None:
    """Values of a function's parameters, or expressions of its defaults; None where they do not fit."""
    names = [argument.arg for argument in (*parameters.posonlyargs, *parameters.args)]
    if parameters.vararg or parameters.kwarg or len(passed) > len(names):
        return None
    bound: dict[str, Any] = dict(zip(names[len(names) - len(parameters.defaults) :], parameters.defaults, strict=True))
    bound |= {a.arg: d for a, d in zip(parameters.kwonlyargs, parameters.kw_defaults, strict=True) if d is not None}
    bound |= dict(zip(names, passed, strict=False))
    names += [argument.arg for argument in parameters.kwonlyargs]
    if set(keywords) - set(names):
        return None
    bound |= keywords
    return bound if set(bound) == set(names) else None


def _container(name: str, arguments: Any) -> Any:
    if not isinstance(arguments, list) or name == "ModuleDict":
        return UNKNOWN
    if name == "ModuleList":
        if arguments and not isinstance(arguments[0], list | tuple):
            return UNKNOWN
        arguments = arguments[0] if arguments else []
    return Container({str(position): item for position, item in enumerate(arguments)}, name == "Sequential")


def _class_constant(definition: ast.ClassDef, name: str) -> Any:
    for node in definition.body:
        match node:
            case ast.Assign(targets=[ast.Name(id=assigned)], value=ast.Constant(value=value)) if assigned == name:
                return value
    return UNKNOWN


def _within(items: Sequence[Any], key: Any) -> bool:
    return type(key) is int and -len(items) <= key < len(items)


def dotted_name(node: ast.expr) -> str:
    """``a.b.c`` of an expression that is a name with attributes; empty for any other."""
    names: list[str] = []
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = node.value
    return ".".join(reversed([*names, node.id])) if isinstance(node, ast.Name) else ""
