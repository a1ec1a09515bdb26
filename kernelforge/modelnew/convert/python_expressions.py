"""Convert Python expressions of ``forward`` to expressions of a plan."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from kernelforge.modelnew.convert.constructors import (
    EXTENSION,
    UNKNOWN,
    WEIGHT,
    Container,
    Function,
    Instance,
    Marker,
    applied,
    dotted_name,
)
from kernelforge.modelnew.convert.cpp_tokens import Unconvertible
from kernelforge.modelnew.convert.layers import Layer
from kernelforge.modelnew.convert.python_items import Item, Shared, as_argument, merged_items, sequence_of
from kernelforge.modelnew.convert.torch_operators import Argument, Operator, bound_call, find_operator

DTYPES = frozenset({"float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool"})
DTYPE_NAMES = {"float": "float32", "double": "float64", "half": "float16", "long": "int64", "int": "int32"}
_MARKS: dict[type[ast.AST], tuple[str, str]] = {
    ast.Add: ("+", "add"), ast.Sub: ("-", "sub"), ast.Mult: ("*", "mul"), ast.Div: ("/", "div"),
    ast.FloorDiv: ("//", ""), ast.Mod: ("%", ""), ast.Pow: ("**", "pow"), ast.MatMult: ("", "matmul"),
}  # fmt: skip
_COMPARISONS: dict[type[ast.cmpop], str] = {
    ast.Eq: "==", ast.NotEq: "!=", ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Is: "is",
    ast.IsNot: "is not",
}  # fmt: skip


class ExpressionWriter:
    """Writes expressions; calls are :class:`CallWriter`'s."""

    def __init__(self, shared: Shared, instance: Instance | None, path: str) -> None:
        self.shared = shared
        self.instance = instance
        self.path = path
        self.names: dict[str, Item] = {}
        self.ahead: list[str] = []
        self.lines: list[str] = []
        self.returned: list[Item] = []
        self.loads: list[tuple[str, int]] = []
        self.looping = 0
        self.borrowed: frozenset[int] = frozenset()
        """Memory of arguments that the caller may read again."""
        self.writes = False
        self.context = ""
        """The first parameter of an ``autograd.Function``."""

    def call(self, node: ast.Call, target: ast.expr | None) -> Item:
        """A call; ``target`` is what its result is assigned to."""
        raise NotImplementedError

    def expression(self, node: ast.expr, target: ast.expr | None = None) -> Item:
        match node:
            case ast.Name(id=name) if name in self.names:
                return self.names[name]
            case ast.Name(id=name) if name in self.shared.file.names:
                return Item(name, "object", content=self.shared.file.names[name])
            case ast.Constant(value=str()):
                return Item(repr(node.value), "string")
            case ast.Constant(value=None):
                return Item("None", "none")
            case ast.Constant(value=bool() | int() | float()):
                return Item(repr(node.value), "number")
            case ast.Attribute():
                return self.attribute(node)
            case ast.Call():
                return self.call(node, target)
            case ast.BinOp(left=lhs, op=op, right=rhs):
                return self.binary(op, self.expression(lhs), self.expression(rhs), node)
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                item = self.expression(operand)
                if item.kind == "tensor":
                    return self.operator("neg", [item], {}, node)
                return Item(f"-{item.text}", "number")
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                text = self.expression(operand).text
                return Item({"True": "False", "False": "True"}.get(text, f"(not {text})"), "number")
            case ast.BoolOp(op=op, values=values):
                return self.boolean(isinstance(op, ast.Or), values, node)
            case ast.Compare(left=lhs, ops=[op], comparators=[rhs]) if type(op) in _COMPARISONS:
                return self.compared(op, self.expression(lhs), self.expression(rhs), node)
            case ast.IfExp(test=test, body=body, orelse=orelse):
                return self.choice(self.expression(test), body, orelse)
            case ast.Subscript(value=value, slice=at):
                return self.subscript(self.expression(value), at, node)
            case ast.Tuple(elts=parts) | ast.List(elts=parts):
                return sequence_of([self.expression(part) for part in parts])
        raise Unconvertible(node.lineno, ast.unparse(node), "this expression has no counterpart in a plan")

    def boolean(self, either: bool, values: Sequence[ast.expr], node: ast.expr) -> Item:
        texts = []
        for part in values:
            item = self.expression(part)
            if item.text == str(either):
                return item
            if item.text != str(not either):
                if item.kind != "number":
                    raise Unconvertible(node.lineno, ast.unparse(node), f"a condition on a {item.kind}")
                texts.append(item.text)
        joined = f" {'or' if either else 'and'} ".join(texts)
        return Item(f"({joined})" if joined else str(not either), "number")

    def compared(self, op: ast.cmpop, lhs: Item, rhs: Item, node: ast.expr) -> Item:
        if lhs.kind == rhs.kind == "device":
            return Item(str(isinstance(op, ast.Eq)), "number")
        optional = isinstance(op, ast.Is | ast.IsNot) and rhs.kind == "none"
        if optional and (lhs.kind == "none" or isinstance(lhs.content, Instance | Layer | Container)):
            return Item(str((lhs.kind == "none") == isinstance(op, ast.Is)), "number")
        if not optional and "tensor" in (lhs.kind, rhs.kind):
            raise Unconvertible(node.lineno, ast.unparse(node), "a comparison of tensors")
        mark = _COMPARISONS[type(op)]
        if lhs.text.isdigit() and rhs.text.isdigit() and mark in ("==", "!=", "<", "<=", ">", ">="):
            order = (int(lhs.text) > int(rhs.text)) - (int(lhs.text) < int(rhs.text))
            holds = {"==": order == 0, "!=": order != 0, "<": order < 0, "<=": order <= 0, ">": order > 0}
            return Item(str(holds.get(mark, order >= 0)), "number")
        return Item(f"({lhs.text} {mark} {rhs.text})", "number")

    def choice(self, test: Item, body: ast.expr, orelse: ast.expr) -> Item:
        if test.text in ("True", "False"):
            return self.expression(body if test.text == "True" else orelse)
        yes, no = self.expression(body), self.expression(orelse)
        return replace(merged_items(yes, no), text=f"({yes.text} if {test.text} else {no.text})")

    def binary(self, op: ast.operator, lhs: Item, rhs: Item, node: ast.expr | ast.stmt) -> Item:
        mark, name = _MARKS.get(type(op), ("", ""))
        if lhs.kind == rhs.kind == "sequence" and mark == "+":
            return Item(f"({lhs.text} + {rhs.text})", "sequence")
        if lhs.kind == rhs.kind == "number" and mark in ("+", "-", "*") and f"{lhs.text}{rhs.text}".isdigit():
            a, b = int(lhs.text), int(rhs.text)
            return Item(str({"+": a + b, "-": a - b, "*": a * b}[mark]), "number")
        if lhs.kind == rhs.kind == "number" and mark:
            return Item(f"({lhs.text} {mark} {rhs.text})", "number")
        if not name or not {lhs.kind, rhs.kind} <= {"tensor", "number"}:
            raise Unconvertible(
                node.lineno, ast.unparse(node), f"`{mark or ast.unparse(node)}` on a {lhs.kind} and a {rhs.kind}"
            )
        if lhs.kind == "number" and name in ("add", "mul"):
            lhs, rhs = rhs, lhs
        if lhs.kind == "number" and name == "sub":
            return self.operator("rsub", [rhs, lhs], {}, node)
        if lhs.kind == "number" and name == "div":
            reciprocal = self.operator("reciprocal", [rhs], {}, node)
            return reciprocal if lhs.text in ("1", "1.0") else self.operator("mul_number", [reciprocal, lhs], {}, node)
        by_number = rhs.kind == "number" and name != "pow"
        return self.operator(f"{name}_number" if by_number else name, [lhs, rhs], {}, node)

    def subscript(self, item: Item, at: ast.expr, node: ast.expr) -> Item:
        if item.content == UNKNOWN and isinstance(at, ast.Constant) and type(at.value) is int:
            path = f"{item.path}.{at.value}"
            return Item(f'attrs["{path}"]', "number", content=UNKNOWN, path=path)
        if isinstance(item.content, Container | tuple):
            index = self.expression(at).text if not isinstance(at, ast.Slice) else ""
            if index.lstrip("-").isdigit():
                content = item.content
                values = list(content.items.items()) if isinstance(content, Container) else list(enumerate(content))
                if -len(values) <= int(index) < len(values):
                    name, value = values[int(index)]
                    entry = isinstance(content, Container)
                    return self.item_of(value, f"{item.path}.{name}", node) if entry else value
        if item.kind == "sequence":
            if isinstance(at, ast.Slice):
                ends = [self.expression(end).text if end is not None else "" for end in (at.lower, at.upper)]
                return Item(f"{item.text}[{ends[0]}:{ends[1]}]", "sequence")
            return Item(f"{item.text}[{self.expression(at).text}]", "number")
        if item.kind in ("pair", "tensors"):
            return replace(item, text=f"{item.text}[{self.expression(at).text}]", kind="tensor", content=None)
        if item.kind == "tensor":
            return self.part(item, at, node)
        raise Unconvertible(node.lineno, ast.unparse(node), f"a part of a {item.kind}")

    def part(self, item: Item, at: ast.expr, node: ast.expr) -> Item:
        """``x[i]``, ``x[:, i]``, ``x[:, a:b]`` of a tensor."""
        parts = at.elts if isinstance(at, ast.Tuple) else [at]
        item = self.named(item)
        axis = 0
        for part in parts:
            if isinstance(part, ast.Slice):
                if part.step is not None:
                    raise Unconvertible(node.lineno, ast.unparse(node), "a slice with a step")
                if part.lower is not None or part.upper is not None:
                    lower = self.expression(part.lower).text if part.lower else "0"
                    upper = self.expression(part.upper).text if part.upper else f"{item.text}.shape[{axis}]"
                    if lower.startswith("-") or upper.startswith("-"):
                        raise Unconvertible(node.lineno, ast.unparse(node), "a slice that counts from the end")
                    numbers = [Item(str(axis), "number"), Item(lower, "number"), Item(f"{upper} - {lower}", "number")]
                    item = self.operator("narrow", [item, *numbers], {}, node)
                axis += 1
            elif isinstance(part, ast.Constant) and part.value is None:
                item = self.operator("unsqueeze", [item, Item(str(axis), "number")], {}, node)
                axis += 1
            else:
                index = self.expression(part)
                if index.kind != "number":
                    raise Unconvertible(node.lineno, ast.unparse(node), f"a {index.kind} as an index")
                if axis == 0 and not index.text.startswith("-") and not item.strided:
                    item = replace(item, text=f"{item.text}[{index.text}]")
                else:
                    item = self.operator("select", [item, Item(str(axis), "number"), index], {}, node)
        return item

    def named(self, item: Item) -> Item:
        """The same value under a name, where its text would be evaluated again."""
        if item.text.replace("_", "a").isalnum() or item.text.startswith('w["'):
            return item
        name = f"torch_part_{next(self.shared.memories)}"
        self.ahead.append(f"{name} = {item.text}")
        return replace(item, text=name)

    def item_of(self, value: Any, path: str, node: ast.expr) -> Item:
        """A value as a constructor leaves it."""
        if value == WEIGHT:
            return Item(f'w["{path}"]', "tensor", memory=frozenset({-1}))
        if isinstance(value, Instance | Layer | Container | Function | ast.ClassDef) or (
            isinstance(value, Marker) and value != UNKNOWN
        ):
            return Item(path, "object", content=value, path=path)
        if value is None:
            return Item("None", "none")
        if isinstance(value, str):
            return Item(repr(value), "string")
        if isinstance(value, float) and value in (float("inf"), float("-inf")):
            return Item("inf" if value > 0 else "-inf", "number")
        if isinstance(value, int | float):
            return Item(repr(value), "number")
        if isinstance(value, list | tuple):
            items = tuple(self.item_of(item, f"{path}.{i}", node) for i, item in enumerate(value))
            text = ", ".join(item.text for item in items)
            return Item(f"({text},)" if len(items) == 1 else f"({text})", "sequence", content=items, path=path)
        return Item(f'attrs["{path}"]', "number", content=UNKNOWN, path=path)

    def attribute(self, node: ast.Attribute) -> Item:
        name = dotted_name(node)
        module, _, last = name.rpartition(".")
        if module == "torch" and last in DTYPES | set(DTYPE_NAMES):
            return Item(DTYPE_NAMES.get(last, last), "dtype")
        if name == "self" or module == "self":
            return self.own(last, node)
        owner = self.expression(node.value)
        if isinstance(owner.content, Layer):
            return self.of_layer(owner.content, owner.path, last, node)
        if isinstance(owner.content, Instance):
            return self.item_of(owner.content.attributes.get(last, UNKNOWN), f"{owner.path}.{last}", node)
        if isinstance(owner.content, ast.ClassDef) and last == "apply":
            return Item(last, "object", content=applied(owner.content))
        if owner.content == EXTENSION:
            return Item(last, "object", content=Marker("function", last))
        if owner.kind == "pair" and last in ("values", "indices"):
            return replace(owner, text=f"{owner.text}[{int(last == 'indices')}]", kind="tensor")
        if owner.kind == "tensor":
            match last:
                case "data":
                    return owner
                case "shape":
                    return Item(f"{owner.text}.shape", "sequence")
                case "dtype":
                    return Item(f"{owner.text}.dtype", "dtype")
                case "ndim":
                    return Item(f"{owner.text}.ndim", "number")
                case "device":
                    return Item("", "device")
                case "is_cuda":
                    return Item("True", "number")
                case "T" | "mT":
                    return self.transposed(owner, node)
        raise Unconvertible(node.lineno, ast.unparse(node), "this attribute has no counterpart in a plan")

    def transposed(self, owner: Item, node: ast.expr) -> Item:
        return self.operator("transpose", [owner, Item("-2", "number"), Item("-1", "number")], {}, node)

    def own(self, name: str, node: ast.expr) -> Item:
        """``self.name``."""
        if self.instance is None:
            raise Unconvertible(node.lineno, ast.unparse(node), "`self` outside a module")
        path = f"{self.path}.{name}" if self.path else name
        if name == "training":
            return Item("True", "number")
        if name in self.instance.attributes:
            return self.item_of(self.instance.attributes[name], path, node)
        method = self.instance.method(name)
        if method is not None:
            return Item(name, "object", content=Function(method, {}, self.instance), path=self.path)
        return Item(f'attrs["{path}"]', "number", content=UNKNOWN, path=path)

    def of_layer(self, layer: Layer, path: str, name: str, node: ast.expr) -> Item:
        settings = layer.settings()
        if name in ("weight", "running_mean", "running_var"):
            return Item(f'w["{path}.{name}"]', "tensor", memory=frozenset({-1}))
        if name == "bias":
            there = settings.get("bias", settings.get("affine", True))
            if there is False:
                return Item("None", "none")
            text = f'w["{path}.bias"]'
            return Item(text if there is True else f'(w["{path}.bias"] if "{path}.bias" in w else None)', "tensor",
                        memory=frozenset({-1}))  # fmt: skip
        if name in settings:
            value, count = settings[name], layer.name[-2:-1]
            if name in ("stride", "padding", "dilation", "output_padding", "kernel_size") and count.isdigit():
                sized = layer.sized(name, path)
                return Item(sized.text, "sequence")
            return self.item_of(value, f"{path}.{name}", node)
        raise Unconvertible(node.lineno, ast.unparse(node), "this attribute has no counterpart in a plan")

    def operator(
        self, name: str, items: list[Item], keywords: dict[str, Item], node: ast.expr | ast.stmt,
        further: Sequence[Argument] = (),
    ) -> Item:  # fmt: skip
        """A call of an operator of torch."""
        excerpt = ast.unparse(node)
        entry = find_operator(name)
        if entry is None:
            raise Unconvertible(node.lineno, excerpt, f"a plan has no counterpart for torch's `{name}`")
        arguments = [as_argument(item) for item in items]
        text = bound_call(
            entry, [*arguments, *further], {n: as_argument(item) for n, item in keywords.items()}, node.lineno, excerpt
        )
        self.shared.operators[name] = None
        return self.result(entry, text, [*items, *keywords.values()])

    def result(self, entry: Operator, text: str, items: Sequence[Item]) -> Item:
        strided = entry.strides == "permuted" or (entry.strides == "like" and any(item.strided for item in items))
        memory = frozenset({next(self.shared.memories)})
        if entry.returns == "View" or entry.strides == "permuted":
            memory = memory.union(*(item.memory for item in items))
        return Item(text, "pair" if entry.returns == "Pair" else "tensor", strided, memory=memory)

    def refuse_shared(self, item: Item, node: ast.expr | ast.stmt, target: str) -> None:
        """Refuse an operator that writes to its argument where another name for that memory is read later."""
        after = {name for name, line in self.loads if line > node.lineno or self.looping}
        for name, other in self.names.items():
            if name != target and name in after and other.kind == "tensor" and other.memory & item.memory:
                raise Unconvertible(
                    node.lineno, ast.unparse(node), f"it writes to a tensor that is read later as `{name}`"
                )
        if item.memory & self.borrowed:
            self.writes = True
