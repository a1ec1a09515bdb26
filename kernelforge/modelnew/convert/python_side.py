"""Convert the Python of a candidate: its CUDA source, its extensions, and ``forward``."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field

from kernelforge.modelnew.convert.cpp_expressions import Value, plan_name
from kernelforge.modelnew.convert.cpp_host import typed_argument
from kernelforge.modelnew.convert.cpp_tokens import Problem, Unconvertible
from kernelforge.modelnew.convert.cpp_units import Unit

_ALLOCATIONS = frozenset({"empty", "zeros", "empty_like", "zeros_like"})
_METHODS = frozenset({"size", "stride", "numel", "dim", "view", "reshape", "flatten", "is_contiguous"})
_SAME = frozenset({"contiguous", "cuda", "detach"})
_DTYPES = frozenset({"float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool"})


@dataclass
class PythonFile:
    """The parts of a candidate's file that a conversion needs."""

    strings: dict[str, ast.Constant] = field(default_factory=dict)
    """Text bound to names."""
    sources: list[ast.Constant] = field(default_factory=list)
    """CUDA and C++ text given to ``load_inline`` or ``RawKernel``, in order."""
    extensions: set[str] = field(default_factory=set)
    """Dotted names that hold an extension."""
    functions: dict[str, str] = field(default_factory=dict)
    """``self.NAME`` → function of an extension that was assigned to it."""
    raw_kernels: dict[str, str] = field(default_factory=dict)
    """Dotted name → kernel of a cupy ``RawKernel``."""
    attributes: dict[str, str] = field(default_factory=dict)
    """``self.NAME`` → what it is in a plan; modules of torch are left out."""
    modules: set[str] = field(default_factory=set)
    forward: ast.FunctionDef | None = None


def read_python(tree: ast.Module) -> PythonFile:
    """Find sources, extensions and ``forward``.

    Raises:
        Unconvertible: there is no ``ModelNew`` with a ``forward``, or a source is no plain text.
    """
    file = PythonFile()
    for node in tree.body:
        _assignment(node, file)
    model = next((node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "ModelNew"), None)
    if model is None:
        raise Unconvertible(1, "class ModelNew", "there is no such class at module level")
    for node in model.body:
        if isinstance(node, ast.FunctionDef) and node.name == "__init__":
            for statement in ast.walk(node):
                _assignment(statement, file)
                _registered(statement, file)
        if isinstance(node, ast.FunctionDef) and node.name == "forward":
            file.forward = node
    if file.forward is None:
        raise Unconvertible(model.lineno, "class ModelNew", "it has no forward")
    return file


def _assignment(node: ast.AST, file: PythonFile) -> None:
    if not isinstance(node, ast.Assign) or len(node.targets) != 1:
        return
    name, value = _dotted(node.targets[0]), node.value
    if isinstance(value, ast.Constant) and isinstance(value.value, str):
        file.strings[name] = value
    elif isinstance(value, ast.Call):
        called = _dotted(value.func).rpartition(".")[2]
        if called in ("load_inline", "RawKernel", "RawModule"):
            _extension(name, called, value, file)
        elif name.startswith("self."):
            file.modules.discard(name)
            _attribute(name, called, value, file)
    elif name.startswith("self."):
        owner, _, function = _dotted(value).rpartition(".")
        if _dotted(value) in file.extensions:
            file.extensions.add(name)
        elif owner in file.extensions:
            file.functions[name] = function
        elif isinstance(value, ast.Constant) and isinstance(value.value, int | float | bool):
            file.attributes[name] = repr(value.value)
        else:
            file.attributes[name] = f'attrs["{name.removeprefix("self.")}"]'


def _attribute(name: str, called: str, value: ast.Call, file: PythonFile) -> None:
    if called == "Parameter":
        file.attributes[name] = f'w["{name.removeprefix("self.")}"]'
    elif called in ("int", "float", "bool"):
        file.attributes[name] = f'attrs["{name.removeprefix("self.")}"]'
    else:
        file.modules.add(name)


def _registered(node: ast.AST, file: PythonFile) -> None:
    if isinstance(node, ast.Call) and _dotted(node.func) in ("self.register_buffer", "self.register_parameter"):
        first = node.args[0] if node.args else None
        if isinstance(first, ast.Constant) and isinstance(first.value, str):
            file.attributes[f"self.{first.value}"] = f'w["{first.value}"]'


def _extension(name: str, called: str, call: ast.Call, file: PythonFile) -> None:
    keywords = {keyword.arg: keyword.value for keyword in call.keywords}
    if called == "load_inline":
        file.extensions.add(name)
        values: list[ast.expr | None] = [keywords.get("cpp_sources"), keywords.get("cuda_sources")]
        if call.args[1:]:
            values[: len(call.args) - 1] = call.args[1:3]
    elif called == "RawKernel":
        arguments = [*call.args, *(keywords[key] for key in ("code", "name") if key in keywords)]
        values = list(arguments[:1])
        if len(arguments) > 1 and isinstance(arguments[1], ast.Constant):
            file.raw_kernels[name] = str(arguments[1].value)
    else:
        raise Unconvertible(call.lineno, ast.unparse(call)[:80], "cupy modules are not read; use a RawKernel")
    for value in values:
        parts = value.elts if isinstance(value, ast.List | ast.Tuple) else [value] if value is not None else []
        for part in parts:
            file.sources.append(_text(part, file))


def _text(node: ast.expr, file: PythonFile) -> ast.Constant:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node
    text = file.strings.get(_dotted(node))
    if text is None:
        raise Unconvertible(node.lineno, ast.unparse(node), "source that is no plain text constant")
    return text


class ForwardWriter:
    """``ModelNew.forward`` as statements of a plan."""

    def __init__(self, file: PythonFile, unit: Unit, problems: list[Problem]) -> None:
        self._found = file
        self._unit = unit
        self._problems = problems
        self.hosts_used: list[str] = []
        self._known: set[str] = set()
        self._ahead: list[str] = []

    def write(self) -> str:
        """The whole function; statements without a counterpart are problems."""
        forward = self._found.forward
        assert forward is not None
        if forward.args.vararg or forward.args.kwarg or forward.args.kwonlyargs or forward.args.defaults:
            problem = Unconvertible(forward.lineno, ast.unparse(forward.args), "a plan's forward has plain parameters")
            self._problems.append(problem.problem)
        names = [argument.arg for argument in forward.args.args[1:]]
        self._known.update(names)
        lines = [f"def forward({', '.join(plan_name(name) for name in names)}):"]
        for statement in forward.body:
            try:
                text = self._statement(statement)
            except Unconvertible as error:
                self._problems.append(error.problem)
                continue
            lines += [f"    {line}" for line in (*dict.fromkeys(self._ahead), *text)]
            self._ahead.clear()
        return "\n".join(lines if len(lines) > 1 else [*lines, "    pass"])

    def _statement(self, node: ast.stmt) -> list[str]:
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            return []
        if isinstance(node, ast.Return) and node.value is not None:
            parts = node.value.elts if isinstance(node.value, ast.Tuple | ast.List) else [node.value]
            return [f"return {', '.join(self._expression(part) for part in parts)}"]
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            name = _dotted(node.value.func)
            if name in self._found.raw_kernels:
                return [self._raw_launch(name, node.value)]
            return [self._expression(node.value)]
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            return self._assign(node.targets[0], node.value)
        if isinstance(node, ast.If) and "is_contiguous" in ast.unparse(node.test) and not node.orelse:
            return [line for inner in node.body for line in self._statement(inner)]
        if isinstance(node, ast.Assert) or (isinstance(node, ast.If) and _is_elsewhere(node.test) and not node.orelse):
            return []
        raise Unconvertible(
            node.lineno, ast.unparse(node).split("\n")[0], "this statement has no counterpart in a plan"
        )

    def _assign(self, target: ast.expr, value: ast.expr) -> list[str]:
        text = self._expression(value)
        names = target.elts if isinstance(target, ast.Tuple) else [target]
        if not all(isinstance(name, ast.Name) for name in names):
            raise Unconvertible(target.lineno, ast.unparse(target), "only names can be assigned to")
        spelled = [plan_name(name.id) for name in names if isinstance(name, ast.Name)]
        self._known.update(name.id for name in names if isinstance(name, ast.Name))
        return [] if spelled == [text] else [f"{', '.join(spelled)} = {text}"]

    def _expression(self, node: ast.expr) -> str:
        match node:
            case ast.Name(id=name) if name in self._known:
                return plan_name(name)
            case ast.Constant(value=bool() | int() | float()):
                return repr(node.value)
            case ast.Attribute():
                return self._attribute(node)
            case ast.Call():
                return self._call(node)
            case ast.BinOp(left=left, op=ast.Add() | ast.Sub() | ast.Mult() | ast.Div() | ast.FloorDiv() | ast.Mod()):
                marks = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.FloorDiv: "//", ast.Mod: "%"}
                self._refuse_tensors(node)
                return f"({self._expression(left)} {marks[type(node.op)]} {self._expression(node.right)})"
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return f"-{self._expression(operand)}"
            case ast.Subscript(value=value, slice=at) if not isinstance(at, ast.Slice):
                return f"{self._expression(value)}[{self._expression(at)}]"
            case ast.Tuple(elts=parts) | ast.List(elts=parts):
                inner = ", ".join(self._expression(part) for part in parts)
                return f"({inner},)" if len(parts) == 1 else f"({inner})"
        raise Unconvertible(node.lineno, ast.unparse(node), "this expression has no counterpart in a plan")

    def _refuse_tensors(self, node: ast.BinOp) -> None:
        for side in (node.left, node.right):
            name = _dotted(side)
            if name in self._arguments() or self._found.attributes.get(name, "").startswith("w["):
                raise Unconvertible(node.lineno, ast.unparse(node), "arithmetic on tensors is torch's, not a kernel's")

    def _arguments(self) -> set[str]:
        assert self._found.forward is not None
        return {argument.arg for argument in self._found.forward.args.args}

    def _attribute(self, node: ast.Attribute) -> str:
        name = _dotted(node)
        if name in self._found.attributes:
            return self._found.attributes[name]
        module, _, last = name.rpartition(".")
        if module in self._found.modules:
            kind = "w" if last in ("weight", "bias", "running_mean", "running_var") else "attrs"
            return f'{kind}["{module.removeprefix("self.")}.{last}"]'
        if last == "data" and module:
            return self._expression(node.value)
        if module == "torch" and last in _DTYPES:
            return last
        if last in ("shape", "dtype", "ndim") and not name.startswith("self."):
            return f"{self._expression(node.value)}.{last}"
        raise Unconvertible(node.lineno, ast.unparse(node), "this attribute has no counterpart in a plan")

    def _call(self, node: ast.Call) -> str:
        name = _dotted(node.func)
        owner, _, last = name.rpartition(".")
        if isinstance(node.func, ast.Attribute):
            last = node.func.attr  # also of the result of another call
        if name in self._found.functions or owner in self._found.extensions:
            last = self._found.functions.get(name, last)
            if last not in self._unit.hosts:
                raise Unconvertible(node.lineno, ast.unparse(node), f"the extension has no function `{last}`")
            self.hosts_used.append(last)
            return f"host_{last}({', '.join(self._expression(argument) for argument in node.args)})"
        if owner == "torch" and last in _ALLOCATIONS:
            return self._allocation(node, last)
        if isinstance(node.func, ast.Attribute) and last in _SAME and not name.startswith("self." + last):
            text = self._expression(node.func.value)
            if last == "contiguous":
                self._ahead.append(f'assert {text}.is_contiguous(), "an input is not contiguous"')
            return text
        if isinstance(node.func, ast.Attribute) and last in _METHODS:
            arguments = ", ".join(self._expression(argument) for argument in node.args)
            return f"{self._expression(node.func.value)}.{last}({arguments})"
        if last in ("min", "max", "int", "float", "len") and not owner:
            return f"{last}({', '.join(self._expression(argument) for argument in node.args)})"
        raise Unconvertible(node.lineno, ast.unparse(node), "not a kernel of the candidate: torch computes this")

    def _allocation(self, node: ast.Call, name: str) -> str:
        dtype = next((keyword.value for keyword in node.keywords if keyword.arg == "dtype"), None)
        typed = f", dtype={self._expression(dtype)}" if dtype is not None else ""
        if name.endswith("_like"):
            return f"{name}({self._expression(node.args[0])}{typed})"
        shape = node.args[0] if len(node.args) == 1 else ast.Tuple(elts=node.args, ctx=ast.Load())
        text = self._expression(shape)
        if len(node.args) == 1 and isinstance(shape, ast.Constant):
            text = f"({text},)"
        return f"{name}({text}{typed or ', dtype=float32'})"

    def _raw_launch(self, name: str, call: ast.Call) -> str:
        """``kernel((grid,), (block,), (arguments), shared_mem=n)`` of cupy."""
        kernel = self._unit.kernels.get(self._found.raw_kernels[name])
        excerpt = ast.unparse(call)
        if kernel is None or len(call.args) != 3 or not isinstance(call.args[2], ast.Tuple):
            raise Unconvertible(
                call.lineno, excerpt, "a launch of cupy has a kernel of the source, grid, block, arguments"
            )
        if len(call.args[2].elts) != len(kernel.parameters):
            raise Unconvertible(call.lineno, excerpt, f"{kernel.name} takes {len(kernel.parameters)} arguments")
        shape = [self._expression(part) for part in call.args[:2]]
        for keyword in call.keywords:
            if keyword.arg != "shared_mem":
                raise Unconvertible(call.lineno, excerpt, f"the option {keyword.arg} has no counterpart")
            shape.append(self._expression(keyword.value))
        arguments = []
        for part, parameter in zip(call.args[2].elts, kernel.parameters, strict=True):
            value = self._raw_argument(part, parameter.is_pointer)
            arguments.append(typed_argument(value, parameter, {}, part.lineno, ast.unparse(part)))
        return f"{kernel.name}[{', '.join(shape)}]({', '.join(arguments)})"

    def _raw_argument(self, node: ast.expr, pointer: bool) -> Value:
        if isinstance(node, ast.Call):
            name = _dotted(node.func)
            if name.endswith(".data_ptr") and isinstance(node.func, ast.Attribute):
                return Value(self._expression(node.func.value), "pointer")
            if name.rpartition(".")[2] in ("int32", "int64", "uint32"):
                return Value(self._expression(node.args[0]), "int")
            if name.rpartition(".")[2] in ("float32", "float64"):
                return Value(self._expression(node.args[0]), "float")
        return Value(self._expression(node), "pointer" if pointer else "int")


def _is_elsewhere(test: ast.expr) -> bool:
    """Whether a condition only asks for tensors that are not on the GPU: a plan has none."""
    if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.Or):
        return all(map(_is_elsewhere, test.values))
    asks = isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not) and isinstance(test.operand, ast.Attribute)
    return asks and ast.unparse(test).endswith(".is_cuda")


def _dotted(node: ast.expr) -> str:
    names: list[str] = []
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = node.value
    return ".".join(reversed([*names, node.id])) if isinstance(node, ast.Name) else ""
