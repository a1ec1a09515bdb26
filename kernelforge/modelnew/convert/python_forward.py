"""Convert ``forward`` of a candidate's modules to functions of a plan."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from kernelforge.modelnew.convert.constructors import (
    EXTENSION,
    UNKNOWN,
    WEIGHT,
    Container,
    Function,
    Instance,
    Marker,
    applied,
    bind,
    dotted_name,
)
from kernelforge.modelnew.convert.cpp_expressions import INTEGERS, Value, plan_name
from kernelforge.modelnew.convert.cpp_host import typed_argument
from kernelforge.modelnew.convert.cpp_tokens import Problem, Unconvertible
from kernelforge.modelnew.convert.cpp_units import Parameter, Unit
from kernelforge.modelnew.convert.layers import Layer, layer_operator
from kernelforge.modelnew.convert.python_side import PythonFile
from kernelforge.modelnew.convert.torch_operators import Argument, Operator, bound_call, find_operator

Kind = Literal["tensor", "tensors", "number", "sequence", "string", "none", "dtype", "pair", "object", "device"]

_DTYPES = frozenset({"float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool"})
_DTYPE_NAMES = {"float": "float32", "double": "float64", "half": "float16", "long": "int64", "int": "int32"}
_TORCH = ("torch", "F", "torch.nn.functional", "nn.functional", "functional", "torch.linalg")
_ALLOCATIONS = frozenset({"empty", "zeros", "empty_like", "zeros_like"})
_SAME = frozenset({"cuda", "detach", "requires_grad_"})
_IN_PLACE = ("relu_", "add_", "mul_", "sub_", "div_", "clamp_", "sigmoid_", "tanh_", "leaky_relu_", "hardtanh_")
_MARKS: dict[type[ast.AST], tuple[str, str]] = {
    ast.Add: ("+", "add"), ast.Sub: ("-", "sub"), ast.Mult: ("*", "mul"), ast.Div: ("/", "div"),
    ast.FloorDiv: ("//", ""), ast.Mod: ("%", ""), ast.Pow: ("**", "pow"), ast.MatMult: ("", "matmul"),
}  # fmt: skip
_COMPARISONS: dict[type[ast.cmpop], str] = {
    ast.Eq: "==", ast.NotEq: "!=", ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Is: "is",
    ast.IsNot: "is not",
}  # fmt: skip


@dataclass(frozen=True)
class Item:
    """An expression of ``forward`` in the plan."""

    text: str
    kind: Kind
    strided: bool = False
    """Whether torch would have a tensor here that is not contiguous."""
    from_task: bool = False
    """Whether it is an input of the task, which need not be contiguous."""
    memory: frozenset[int] = frozenset()
    """Tensors whose memory it may share."""
    content: Any = None
    """Of an object: what it is; of a sequence: its items, where they are known."""
    path: str = ""
    """Of an object: its dotted name in the model."""


@dataclass
class Shared:
    """State that the functions of one plan share."""

    file: PythonFile
    unit: Unit
    problems: list[Problem]
    hosts_used: list[str] = field(default_factory=list)
    launches: bool = False
    """Whether Python itself launches a kernel, of cupy."""
    operators: dict[str, None] = field(default_factory=dict)
    """Operators of torch that are called."""
    functions: dict[str, str] = field(default_factory=dict)
    """Functions of the plan made of modules and Python functions, by name."""
    results: dict[str, Item] = field(default_factory=dict)
    writing: set[str] = field(default_factory=set)
    """Functions of Python that write to an argument, where the plan makes a new tensor."""
    memories: itertools.count[int] = field(default_factory=lambda: itertools.count(1))


def write_forward(shared: Shared) -> str:
    """``forward`` of the model; statements without a counterpart are problems."""
    model = shared.file.model
    assert model is not None
    forward = model.method("forward")
    assert forward is not None
    writer = _Writer(shared, model, "")
    for argument in forward.args.args[1:]:
        memory = frozenset({next(shared.memories)})
        writer.names[argument.arg] = Item(plan_name(argument.arg), "tensor", from_task=True, memory=memory)
    if forward.args.vararg or forward.args.kwarg or forward.args.kwonlyargs or forward.args.defaults:
        problem = Unconvertible(forward.lineno, ast.unparse(forward.args), "a plan's forward has plain parameters")
        shared.problems.append(problem.problem)
    return writer.function("forward", forward, [argument.arg for argument in forward.args.args[1:]])


class _Writer:
    """Writes one function."""

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

    def function(self, name: str, node: ast.FunctionDef, parameters: Sequence[str]) -> str:
        """The function as text."""
        reads = (n for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load))
        self.loads = [(read.id, read.lineno) for read in reads]
        self.block(node.body, 1)
        body = self.lines or ["    pass"]
        return "\n".join([f"def {name}({', '.join(map(plan_name, parameters))}):", *body])

    def block(self, body: Sequence[ast.stmt], depth: int) -> None:
        before = len(self.lines)
        for statement in body:
            try:
                self.statement(statement, depth)
            except Unconvertible as error:
                self.shared.problems.append(error.problem)
            self.ahead.clear()
        if len(self.lines) == before and depth > 1:
            self.lines.append("    " * depth + "pass")

    def emit(self, text: str, depth: int) -> None:
        pad = "    " * depth
        self.lines += [pad + line for line in dict.fromkeys(self.ahead)]
        self.ahead.clear()
        if text:
            self.lines.append(pad + text)

    # Statements

    def statement(self, node: ast.stmt, depth: int) -> None:
        match node:
            case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(id=name)))) if name == self.context:
                return
            case ast.Assign(targets=[ast.Attribute(value=ast.Name(id=name))]) if name == self.context:
                return
            case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr="append"), args=[value])):
                self.append(name, self.expression(value), node, depth)
            case ast.Expr(value=ast.Constant()) | ast.Pass() | ast.Assert():
                return
            case ast.Return(value=ast.expr() as value):
                self.returns(value, depth)
            case ast.Expr(value=ast.Call() as call):
                name = self.raw_kernel(call)
                if name:
                    self.emit(self.raw_launch(name, call), depth)
                elif dotted_name(call.func) != "torch.cuda.synchronize":
                    self.emit(self.expression(call).text, depth)
            case ast.Assign(targets=[target], value=value):
                self.assign(target, self.expression(value, target), depth)
            case ast.AugAssign(target=ast.Name() as target, op=op, value=value):
                current = self.expression(ast.copy_location(ast.Name(target.id, ast.Load()), target))
                if current.kind == "tensor":
                    self.refuse_shared(current, node, target.id)
                self.assign(target, self.binary(op, current, self.expression(value), node), depth)
            case ast.If():
                self.condition(node, depth)
            case ast.For(target=target, iter=over, body=body, orelse=[]):
                self.loop(target, over, body, depth)
            case ast.With(items=[item], body=body) if "no_grad" in ast.unparse(item.context_expr):
                self.block(body, depth)
            case _:
                raise Unconvertible(
                    node.lineno, ast.unparse(node).split("\n")[0], "this statement has no counterpart in a plan"
                )

    def returns(self, node: ast.expr, depth: int) -> None:
        if isinstance(node, ast.Tuple | ast.List):
            items = [self.expression(part) for part in node.elts]
            self.returned.append(Item("", "sequence", content=tuple(items)))
            self.emit(f"return {', '.join(item.text for item in items)}", depth)
            return
        item = self.expression(node)
        self.returned.append(item)
        self.emit(f"return {item.text}", depth)

    def assign(self, target: ast.expr, item: Item, depth: int) -> None:
        if isinstance(target, ast.Name):
            if item.kind in ("object", "device"):
                self.names[target.id] = item
                return
            name = plan_name(target.id)
            if item.text != name or self.ahead:
                self.emit("" if item.text == name else f"{name} = {item.text}", depth)
            self.names[target.id] = replace(item, text=name)
            return
        parts = target.elts if isinstance(target, ast.Tuple | ast.List) else []
        if not parts or not all(isinstance(part, ast.Name) for part in parts):
            raise Unconvertible(target.lineno, ast.unparse(target), "only names can be assigned to")
        items = item.content if isinstance(item.content, tuple) and len(item.content) == len(parts) else None
        if item.kind == "object" and items is not None:
            for part, part_item in zip(parts, items, strict=True):
                assert isinstance(part, ast.Name)
                self.names[part.id] = part_item
            return
        kind: Kind = "tensor" if item.kind == "pair" else "number"
        spelled = []
        for position, part in enumerate(parts):
            assert isinstance(part, ast.Name)
            spelled.append(plan_name(part.id))
            part_item = items[position] if items else Item("", kind, item.strided, memory=item.memory)
            self.names[part.id] = replace(part_item, text=spelled[-1])
        self.emit(f"{', '.join(spelled)} = {item.text}", depth)

    def append(self, name: str, item: Item, node: ast.stmt, depth: int) -> None:
        current = self.names.get(name)
        if current is None or item.kind != "tensor" or not (current.kind == "tensors" or current.content == ()):
            raise Unconvertible(node.lineno, ast.unparse(node), "a list of other things than tensors")
        self.emit(f"{plan_name(name)} = {current.text} + [{item.text}]", depth)
        memory = current.memory | item.memory
        self.names[name] = Item(plan_name(name), "tensors", current.strided or item.strided, memory=memory)

    def condition(self, node: ast.If, depth: int) -> None:
        copies = all(
            isinstance(inner, ast.Assign) and ast.unparse(inner.value).endswith(".contiguous()") for inner in node.body
        )
        if "is_contiguous" in ast.unparse(node.test) and not node.orelse and copies:
            self.block(node.body, depth)
            return
        test = self.expression(node.test)
        if test.text in ("True", "False"):
            self.block(node.body if test.text == "True" else node.orelse, depth)
            return
        if test.kind != "number":
            raise Unconvertible(node.lineno, ast.unparse(node.test), f"a condition on a {test.kind}")
        if len(node.body) == 1 and isinstance(node.body[0], ast.Raise):
            self.emit(f'assert not ({test.text}), "refused by the candidate"', depth)
            self.block(node.orelse, depth)
            return
        self.emit(f"if {test.text}:", depth)
        before = dict(self.names)
        self.block(node.body, depth + 1)
        first, self.names = self.names, before
        if node.orelse:
            self.emit("else:", depth)
            self.block(node.orelse, depth + 1)
        self.names = {**first, **{name: _merged(item, first.get(name)) for name, item in self.names.items()}}

    def loop(self, target: ast.expr, over: ast.expr, body: Sequence[ast.stmt], depth: int) -> None:
        items = self.items_of(over)
        self.looping += 1
        if items is not None:
            for item in items:
                self.assign(target, item, depth)
                self.block(body, depth)
        else:
            sequence = self.expression(over)
            if sequence.kind != "sequence" or not isinstance(target, ast.Name):
                raise Unconvertible(over.lineno, ast.unparse(over), "a loop over what a plan cannot go through")
            self.names[target.id] = Item(plan_name(target.id), "number")
            self.emit(f"for {plan_name(target.id)} in {sequence.text}:", depth)
            before = dict(self.names)
            self.block(body, depth + 1)
            for name, item in before.items():
                if self.names[name].strided != item.strided or self.names[name].kind != item.kind:
                    raise Unconvertible(over.lineno, ast.unparse(over), f"a loop after which `{name}` is another kind")
        self.looping -= 1

    def items_of(self, node: ast.expr) -> list[Item] | None:
        """Modules that a loop goes through, one by one."""
        if isinstance(node, ast.Call) and dotted_name(node.func) == "enumerate" and len(node.args) == 1:
            inner = self.items_of(node.args[0])
            if inner is None:
                return None
            return [
                Item(f"({i}, ...)", "object", content=(Item(str(i), "number"), item)) for i, item in enumerate(inner)
            ]
        if isinstance(node, ast.Call):
            return None
        content = self.expression(node)
        if isinstance(content.content, Container):
            return [
                self.item_of(value, f"{content.path}.{name}", node) for name, value in content.content.items.items()
            ]
        return None

    # Expressions

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
                return _sequence([self.expression(part) for part in parts])
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
        return replace(_merged(yes, no), text=f"({yes.text} if {test.text} else {no.text})")

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
        if module == "torch" and last in _DTYPES | set(_DTYPE_NAMES):
            return Item(_DTYPE_NAMES.get(last, last), "dtype")
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

    # Calls

    def call(self, node: ast.Call, target: ast.expr | None) -> Item:
        name = dotted_name(node.func)
        owner, _, last = name.rpartition(".")
        if owner in _TORCH and owner.split(".")[0] not in self.names:
            return self.torch_call(node, last, target)
        if name == "hasattr" and len(node.args) == 2 and isinstance(node.args[1], ast.Constant):
            own = self.instance if dotted_name(node.args[0]) == "self" else None
            return Item(str(own is not None and node.args[1].value in own.attributes), "number")
        if not owner and last in ("min", "max", "int", "float", "len", "range", "bool", "abs", "tuple", "list", "sum"):
            return self.plain(node, last)
        if isinstance(node.func, ast.Attribute) and not self.is_module(node.func.value):
            content = self.expression(node.func.value)
            if content.kind in ("tensor", "sequence"):
                return self.method(content, node.func.attr, node, target)
        called = self.expression(node.func)
        return self.called(called, node, target)

    def is_module(self, node: ast.expr) -> bool:
        name = dotted_name(node)
        return name == "self" or (name in self.shared.file.names and name not in self.names)

    def called(self, called: Item, node: ast.Call, target: ast.expr | None) -> Item:
        content = called.content
        if isinstance(content, Marker) and content.what == "function":
            return self.host(content.name, node)
        arguments = [self.expression(argument) for argument in node.args]
        keywords = {keyword.arg or "": self.expression(keyword.value) for keyword in node.keywords}
        return self.module(called, arguments, keywords, node, target)

    def module(
        self, called: Item, arguments: list[Item], keywords: dict[str, Item], node: ast.Call, target: ast.expr | None
    ) -> Item:
        content = called.content
        if isinstance(content, Marker) and content.what == "function":
            return self.host(content.name, node)
        if isinstance(content, Layer) and len(arguments) == 1 and not keywords:
            return self.layer(content, called.path, arguments[0], node, target)
        if isinstance(content, Container) and content.called and len(arguments) == 1 and not keywords:
            return self.container(content, called.path, arguments[0], node, target)
        if isinstance(content, Instance):
            forward = content.method("forward")
            if forward is not None:
                return self.inlined(
                    f"module_{called.path}", forward, content, called.path, arguments, keywords, node, target
                )
        if isinstance(content, Function):
            owner = content.label or (f"{called.path}_{content.node.name}" if called.path else content.node.name)
            path = called.path if content.instance is not None else ""
            return self.inlined(
                f"python_{owner}",
                content.node,
                content.instance,
                path,
                arguments,
                keywords,
                node,
                target,
                content.context,
            )
        if content == UNKNOWN:
            raise Unconvertible(
                node.lineno, ast.unparse(node), "which layers these are follows from the constructor's arguments"
            )
        raise Unconvertible(node.lineno, ast.unparse(node), "not a kernel of the candidate: torch computes this")

    def inlined(
        self, name: str, function: ast.FunctionDef, instance: Instance | None, path: str, arguments: list[Item],
        keywords: dict[str, Item], node: ast.Call, target: ast.expr | None, context: bool = False,
    ) -> Item:  # fmt: skip
        """A call of a function of Python, which becomes one of the plan."""
        is_static = any(dotted_name(d) == "staticmethod" for d in function.decorator_list)
        own: list[Any] = [None] if context or (instance is not None and not is_static) else []
        bound = bind(function.args, [*own, *arguments], keywords)
        if bound is None:
            raise Unconvertible(node.lineno, ast.unparse(node), f"arguments that `{function.name}` does not take")
        for unused in own:
            bound.pop(function.args.args[0].arg, unused)
        items = {key: self.expression(value) if isinstance(value, ast.expr) else value for key, value in bound.items()}
        passed = {key: item for key, item in items.items() if item.kind not in ("object", "device")}
        kinds = "".join(("strided_" if item.strided else "") + item.kind + "_" for item in items.values())
        objects = "_".join(item.path or item.text for item in items.values() if item.kind == "object")
        base = "_".join(part for part in (name, objects) if part).replace(".", "_")
        name = base if set(kinds.split("_")) <= {"tensor", ""} else f"{base}_{kinds.rstrip('_')}"
        if name not in self.shared.functions:
            self.shared.functions[name] = ""  # so that a call of itself is seen
            writer = _Writer(self.shared, instance, path)
            writer.context = function.args.args[0].arg if context else ""
            for key, item in items.items():
                memory = frozenset({next(self.shared.memories)}) if item.kind == "tensor" else frozenset()
                writer.names[key] = item if key not in passed else replace(item, text=plan_name(key), memory=memory)
                writer.names[key] = replace(writer.names[key], content=item.content if key not in passed else None)
            writer.borrowed = frozenset[int]().union(*(item.memory for item in writer.names.values()))
            text = writer.function(name, function, list(passed))
            results = writer.returned or [Item("", "none")]
            merged = results[0]
            for result in results[1:]:
                merged = _merged(merged, result)
            self.finish(name, text, merged, writer)
        elif not self.shared.functions[name]:
            raise Unconvertible(node.lineno, ast.unparse(node), "a function that calls itself")
        return self.call_of(name, list(passed.values()), node, target)

    def finish(self, name: str, text: str, result: Item, writer: _Writer) -> None:
        """Keep a function that was written, after those that it calls."""
        self.shared.functions.pop(name, None)
        self.shared.functions[name] = text
        self.shared.results[name] = result
        if writer.writes:
            self.shared.writing.add(name)

    def call_of(self, name: str, passed: Sequence[Item], node: ast.expr, target: ast.expr | None) -> Item:
        """A call of a function that was written."""
        memory = frozenset({next(self.shared.memories)}).union(*(item.memory for item in passed))
        if name in self.shared.writing:
            for item in passed:
                self.refuse_shared(item, node, dotted_name(target) if target is not None else "")
        text = f"{name}({', '.join(item.text for item in passed)})"
        return replace(self.shared.results[name], text=text, memory=memory, from_task=False, content=None)

    def container(self, content: Container, path: str, item: Item, node: ast.Call, target: ast.expr | None) -> Item:
        """A call of a ``Sequential``, which becomes a function of the plan."""
        name = f"module_{path}{'_strided' * item.strided}".replace(".", "_")
        if name not in self.shared.functions:
            writer = _Writer(self.shared, self.instance, path)
            x = ast.Name("x", ast.Store())
            writer.borrowed = frozenset({next(self.shared.memories)})
            writer.names["x"] = replace(item, text="x", memory=writer.borrowed)
            for key, value in content.items.items():
                layer = self.item_of(value, f"{path}.{key}", node)
                writer.assign(x, writer.module(layer, [writer.names["x"]], {}, node, x), 1)
            text = "\n".join([f"def {name}(x):", *writer.lines, "    return x"])
            self.finish(name, text, writer.names["x"], writer)
        return self.call_of(name, [item], node, target)

    def layer(self, layer: Layer, path: str, item: Item, node: ast.Call, target: ast.expr | None) -> Item:
        name = layer_operator(layer)
        if not name:
            return item
        if layer.in_place:
            self.refuse_shared(item, node, dotted_name(target) if target is not None else "")
        return self.operator(name, [item], {}, node, layer.arguments(path))

    def host(self, name: str, node: ast.Call) -> Item:
        function = self.shared.unit.hosts.get(name)
        if function is None:
            raise Unconvertible(node.lineno, ast.unparse(node), f"the extension has no function `{name}`")
        if node.keywords:
            raise Unconvertible(node.lineno, ast.unparse(node), "a function of an extension called with names")
        items = [self.expression(argument) for argument in node.args]
        body = [token.text for token in function.body]
        for at, (item, parameter) in enumerate(zip(items, function.parameters, strict=False)):
            items[at] = _spread(item, parameter)
            if item.kind in ("object", "device", "tensors"):
                raise Unconvertible(node.lineno, ast.unparse(node), f"what is given as `{parameter.name}`")
            copied = any(body[at : at + 3] == [parameter.name, ".", "contiguous"] for at in range(len(body)))
            if item.strided and not copied:
                raise Unconvertible(
                    node.lineno, ast.unparse(node), f"`{parameter.name}` is not contiguous, and the kernel reads memory"
                )
        self.shared.hosts_used.append(name)
        returns = function.returns
        kind: Kind = "tensor" if "Tensor" in returns else "none" if "void" in returns else "number"
        if {"vector", "tuple"} & set(returns):
            kind = "pair"
        memory = frozenset({next(self.shared.memories)}).union(*(item.memory for item in items))
        return Item(f"host_{name}({', '.join(item.text for item in items)})", kind, memory=memory)

    def torch_call(self, node: ast.Call, name: str, target: ast.expr | None) -> Item:
        if name in _ALLOCATIONS:
            return Item(self.allocation(node, name), "tensor", memory=frozenset({next(self.shared.memories)}))
        arguments = [self.expression(argument) for argument in node.args]
        keywords = {keyword.arg or "": self.expression(keyword.value) for keyword in node.keywords}
        if "input" in keywords and not arguments:
            arguments.append(keywords.pop("input"))
        return self.on_tensor(name, arguments, keywords, node, target)

    def on_tensor(
        self, name: str, arguments: list[Item], keywords: dict[str, Item], node: ast.Call, target: ast.expr | None
    ) -> Item:
        in_place = keywords.pop("inplace", Item("False", "number")).text != "False" or name in _IN_PLACE
        if in_place and arguments:
            self.refuse_shared(arguments[0], node, dotted_name(target) if target is not None else "")
        name = name.removesuffix("_") if name in _IN_PLACE else name
        if not arguments or arguments[0].kind not in ("tensor", "tensors"):
            raise Unconvertible(node.lineno, ast.unparse(node), "not a kernel of the candidate: torch computes this")
        name = {"subtract": "sub", "multiply": "mul", "divide": "div", "true_divide": "div", "swapaxes": "transpose",
                "concat": "cat", "reshape": "reshape"}.get(name, name)  # fmt: skip
        if name in ("reshape", "view"):
            return self.method(arguments[0], name, node, target, arguments[1:])
        if name in ("max", "min"):
            tensors = len(arguments) > 1 and arguments[1].kind == "tensor"
            along = len(arguments) > 1 or "dim" in keywords
            name = {"max": "maximum", "min": "minimum"}[name] if tensors else f"{name}_along" if along else name
        if name in ("add", "sub", "mul", "div") and len(arguments) > 1 and arguments[1].kind == "number":
            name += "_number"
        return self.operator(name, arguments, keywords, node)

    def operator(
        self, name: str, items: list[Item], keywords: dict[str, Item], node: ast.expr | ast.stmt,
        further: Sequence[Argument] = (),
    ) -> Item:  # fmt: skip
        """A call of an operator of torch."""
        excerpt = ast.unparse(node)
        entry = find_operator(name)
        if entry is None:
            raise Unconvertible(node.lineno, excerpt, f"a plan has no counterpart for torch's `{name}`")
        arguments = [_as_argument(item) for item in items]
        text = bound_call(
            entry, [*arguments, *further], {n: _as_argument(item) for n, item in keywords.items()}, node.lineno, excerpt
        )
        self.shared.operators[name] = None
        return self.result(entry, text, [*items, *keywords.values()])

    def result(self, entry: Operator, text: str, items: Sequence[Item]) -> Item:
        strided = entry.strides == "permuted" or (entry.strides == "like" and any(item.strided for item in items))
        memory = frozenset({next(self.shared.memories)})
        if entry.returns == "View" or entry.strides == "permuted":
            memory = memory.union(*(item.memory for item in items))
        return Item(text, "pair" if entry.returns == "Pair" else "tensor", strided, memory=memory)

    def method(
        self, content: Item, name: str, node: ast.Call, target: ast.expr | None, explicit: Sequence[Item] | None = None
    ) -> Item:
        """A method of a tensor, or of its shape."""
        if name in _SAME:
            return content
        if name in ("to", "float", "double", "half", "bfloat16", "type"):
            return self.converted(content, name, node)
        if name == "contiguous":
            if content.from_task:
                self.ahead.append(f'assert {content.text}.is_contiguous(), "an input is not contiguous"')
            return replace(content, strided=False)
        arguments = [self.expression(argument) for argument in node.args] if explicit is None else list(explicit)
        keywords = {} if explicit is not None else {k.arg or "": self.expression(k.value) for k in node.keywords}
        texts = ", ".join(argument.text for argument in arguments)
        if name == "is_contiguous" and content.strided:
            return Item("False", "number")
        if name == "size" and not arguments:
            return Item(f"{content.text}.shape", "sequence")
        if name in ("size", "stride", "numel", "dim", "is_contiguous", "ndimension"):
            kind: Kind = "sequence" if name in ("size", "stride") and not arguments else "number"
            return Item(f"{content.text}.{ {'ndimension': 'dim'}.get(name, name) }({texts})".replace(". ", "."), kind)
        if name in ("view", "reshape") and not keywords:
            return replace(content, text=f"{content.text}.{name}({texts})")
        if content.kind != "tensor":
            raise Unconvertible(node.lineno, ast.unparse(node), f"a plan has no `.{name}` of a {content.kind}")
        return self.on_tensor(name, [content, *arguments], keywords, node, target)

    def converted(self, content: Item, name: str, node: ast.Call) -> Item:
        """``to(...)``, where it changes nothing but perhaps the device."""
        dtype = _DTYPE_NAMES.get(name, name if name in _DTYPES else "")
        for argument in [*node.args, *(keyword.value for keyword in node.keywords)]:
            try:
                item = self.expression(argument)
            except Unconvertible:
                item = Item("", "object")
            if item.kind == "dtype":
                dtype = item.text
            elif item.kind not in ("device", "string", "number"):
                raise Unconvertible(node.lineno, ast.unparse(node), "a conversion that cannot be read")
        if dtype and dtype != f"{content.text}.dtype":
            self.ahead.append(f'assert {content.text}.dtype == {dtype}, "a plan does not convert types"')
        return content

    def plain(self, node: ast.Call, name: str) -> Item:
        items = [self.expression(argument) for argument in node.args]
        if name == "len" and len(items) == 1 and isinstance(items[0].content, Container):
            return Item(str(len(items[0].content.items)), "number")
        if any(item.kind not in ("number", "sequence") for item in items):
            raise Unconvertible(node.lineno, ast.unparse(node), f"`{name}` of a tensor")
        kind: Kind = "sequence" if name in ("range", "tuple", "list") else "number"
        return Item(f"{name}({', '.join(item.text for item in items)})", kind)

    def allocation(self, node: ast.Call, name: str) -> str:
        dtype = next((keyword.value for keyword in node.keywords if keyword.arg == "dtype"), None)
        typed = f", dtype={self.expression(dtype).text}" if dtype is not None else ""
        if name.endswith("_like"):
            return f"{name}({self.expression(node.args[0]).text}{typed})"
        if len(node.args) == 1:
            shape = self.expression(node.args[0])
            text = f"({shape.text},)" if shape.kind == "number" else shape.text
        else:
            text = self.expression(ast.Tuple(elts=node.args, ctx=ast.Load())).text
        return f"{name}({text}{typed or ', dtype=float32'})"

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

    # cupy

    def raw_kernel(self, call: ast.Call) -> str:
        name = dotted_name(call.func)
        return self.shared.file.raw_kernels.get(name, "")

    def raw_launch(self, name: str, call: ast.Call) -> str:
        """``kernel((grid,), (block,), (arguments), shared_mem=n)`` of cupy."""
        kernel = self.shared.unit.kernels.get(name)
        excerpt = ast.unparse(call)
        if kernel is None or len(call.args) != 3 or not isinstance(call.args[2], ast.Tuple):
            raise Unconvertible(
                call.lineno, excerpt, "a launch of cupy has a kernel of the source, grid, block, arguments"
            )
        if len(call.args[2].elts) != len(kernel.parameters):
            raise Unconvertible(call.lineno, excerpt, f"{kernel.name} takes {len(kernel.parameters)} arguments")
        shape = [self.expression(part).text for part in call.args[:2]]
        for keyword in call.keywords:
            if keyword.arg != "shared_mem":
                raise Unconvertible(call.lineno, excerpt, f"the option {keyword.arg} has no counterpart")
            shape.append(self.expression(keyword.value).text)
        arguments = []
        for part, parameter in zip(call.args[2].elts, kernel.parameters, strict=True):
            value = self.raw_argument(part, parameter.is_pointer)
            arguments.append(typed_argument(value, parameter, {}, part.lineno, ast.unparse(part)))
        self.shared.launches = True
        return f"{kernel.name}[{', '.join(shape)}]({', '.join(arguments)})"

    def raw_argument(self, node: ast.expr, pointer: bool) -> Value:
        if isinstance(node, ast.Call):
            name = dotted_name(node.func)
            if name.endswith(".data_ptr") and isinstance(node.func, ast.Attribute):
                return Value(self.expression(node.func.value).text, "pointer")
            if name.rpartition(".")[2] in ("int32", "int64", "uint32"):
                return Value(self.expression(node.args[0]).text, "int")
            if name.rpartition(".")[2] in ("float32", "float64"):
                return Value(self.expression(node.args[0]).text, "float")
        return Value(self.expression(node).text, "pointer" if pointer else "int")


def _sequence(items: Sequence[Item]) -> Item:
    inner = ", ".join(item.text for item in items)
    text = f"({inner},)" if len(items) == 1 else f"({inner})"
    tensors = bool(items) and all(item.kind == "tensor" for item in items)
    memory = frozenset[int]().union(*(item.memory for item in items))
    strided = any(item.strided for item in items)
    return Item(text, "tensors" if tensors else "sequence", strided, memory=memory, content=tuple(items))


def _merged(a: Item, b: Item | None) -> Item:
    """A value that comes from one of two branches."""
    if b is None:
        return a
    kind = a.kind if a.kind != "none" else b.kind
    return replace(
        a, kind=kind, strided=a.strided or b.strided, from_task=a.from_task or b.from_task, memory=a.memory | b.memory
    )


def _spread(item: Item, parameter: Parameter) -> Item:
    """An attribute that a function takes as a tuple: the plan has its items by number."""
    count = sum(word in INTEGERS for word in parameter.type)
    if item.content != UNKNOWN or "tuple" not in parameter.type or count < 2:
        return item
    texts = [f'attrs["{item.path}.{axis}"]' for axis in range(count)]
    return replace(item, text=f"({', '.join(texts)})")


def _as_argument(item: Item) -> Argument:
    if item.kind in ("tensor", "tensors", "number", "sequence", "string", "none"):
        return Argument(item.text, item.kind)
    return Argument(item.text, "other")
