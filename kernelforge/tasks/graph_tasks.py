"""Tasks made of traced graphs: the operators of a graph as a task file of their own, with the weights as inputs.

A graph is traced at every size of its task. A number of it that differs between the sizes becomes a constant of the new
file, by the constants of the original where they explain it.
"""

from __future__ import annotations

import ast
import builtins
import keyword
import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations_with_replacement
from typing import Any, Final, NamedTuple

from kernelforge.errors import TaskError
from kernelforge.records import DType, Graph, Size, Task, TaskPolicy, content_hash
from kernelforge.tasks.constants import Scalar, module_constants
from kernelforge.tasks.files import parse_task_file
from kernelforge.tasks.suites import size_source


class SizedNumber(NamedTuple):
    """A number of a graph that differs between its sizes, in their order."""

    values: tuple[int | float, ...]


@dataclass(frozen=True)
class SizedNode:
    """A node of a graph at all of its sizes. Arguments are those of :class:`~kernelforge.records.Node`, with
    :class:`SizedNumber` for what differs."""

    name: str
    kind: str
    op: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    shape: tuple[int | SizedNumber, ...] | None
    """None where the value is not one tensor, or its shape is not known since an operator was changed."""
    dtype: DType | None

    @property
    def operator(self) -> str:
        """Name without the overload and without the mark of a change in place."""
        name = self.op.removeprefix("aten.").split(".")[0]
        return name if name.startswith("__") else name.rstrip("_")


@dataclass(frozen=True)
class SizedGraph:
    """A graph at several sizes; the last node is the output."""

    sizes: tuple[str, ...]
    nodes: tuple[SizedNode, ...]

    @property
    def digest(self) -> str:
        """Hash of the operators and their arguments, without the names of nodes; weights count as inputs do."""
        places = {node.name: number for number, node in enumerate(self.nodes)}
        return content_hash(
            "graph",
            [
                [
                    node.kind if node.kind in ("op", "output") else "input",
                    node.operator if node.kind == "op" else "",
                    _without_names(list(node.args) if node.kind in ("op", "output") else [], places),
                    _without_names(dict(node.kwargs), places),
                    _without_names(list(node.shape or ()), places) if node.kind in ("input", "weight") else [],
                    str(node.dtype) if node.kind in ("input", "weight") else "",
                ]
                for node in self.nodes
            ],
        )

    @property
    def operators(self) -> tuple[str, ...]:
        """Names of the operators, in their order."""
        return tuple(node.operator for node in self.nodes if node.kind == "op")

    def beginning_with(self, size: str) -> SizedGraph:
        """The same graph with one of its sizes first."""
        order = [self.sizes.index(size), *(at for at, other in enumerate(self.sizes) if other != size)]

        def reordered(argument: Any) -> Any:
            if isinstance(argument, SizedNumber):
                return SizedNumber(tuple(argument.values[at] for at in order))
            if isinstance(argument, Mapping):
                return {name: reordered(item) for name, item in argument.items()}
            return type(argument)(map(reordered, argument)) if isinstance(argument, list | tuple) else argument

        nodes = (
            replace(node, args=reordered(node.args), kwargs=reordered(node.kwargs), shape=reordered(node.shape))
            for node in self.nodes
        )
        return SizedGraph(tuple(self.sizes[at] for at in order), tuple(nodes))

    def unlike_first(self, size: str) -> int:
        """Count of the graph's numbers that are others at a size than at the first one."""
        at = self.sizes.index(size)

        def count(argument: Any) -> int:
            if isinstance(argument, SizedNumber):
                return int(argument.values[at] != argument.values[0])
            if isinstance(argument, Mapping):
                return sum(map(count, argument.values()))
            return sum(map(count, argument)) if isinstance(argument, list | tuple) else 0

        return sum(count([node.args, node.kwargs, node.shape]) for node in self.nodes)

    def users(self, name: str) -> list[SizedNode]:
        """The nodes that take a node's value."""
        return [node for node in self.nodes if name in references((node.args, dict(node.kwargs)))]


def references(argument: Any) -> list[str]:
    """Names of the nodes in arguments."""
    if isinstance(argument, Mapping):
        if "ref" in argument:
            return [argument["ref"]]
        return [name for item in argument.values() for name in references(item)]
    if isinstance(argument, list | tuple) and not isinstance(argument, SizedNumber):
        return [name for item in argument for name in references(item)]
    return []


def _without_names(argument: Any, places: Mapping[str, int]) -> Any:
    if isinstance(argument, SizedNumber):
        return {"sizes": list(argument.values)}
    if isinstance(argument, Mapping):
        if "ref" in argument:
            return {"ref": places[argument["ref"]]}
        return {name: _without_names(item, places) for name, item in argument.items()}
    if isinstance(argument, list | tuple):
        return [_without_names(item, places) for item in argument]
    return argument


def sized_graph(graphs: Sequence[Graph]) -> SizedGraph:
    """One graph of the same reference, traced at several sizes; weights without a use are left out.

    Raises:
        TaskError: it has other operators at another size.
    """
    first = graphs[0]
    if any([(n.name, n.op) for n in graph.nodes] != [(n.name, n.op) for n in first.nodes] for graph in graphs):
        raise TaskError("the graph has other operators at another size")
    used = {name for node in first.nodes for name in references((node.args, node.kwargs))}
    nodes = []
    for group in zip(*(graph.nodes for graph in graphs), strict=True):
        node = group[0]
        if node.kind == "weight" and node.name not in used:
            continue
        specs = [other.spec for other in group if other.spec is not None]
        shape = _merged([list(spec.shape) for spec in specs]) if len(specs) == len(group) else None
        args = tuple(_merged([list(other.args) for other in group]))
        kwargs = _merged([other.kwargs for other in group])
        dtype = None if node.spec is None else node.spec.dtype
        if node.kind in ("input", "weight") and any(not spec.is_contiguous for spec in specs):
            raise TaskError(f"the input {node.name} is not contiguous")
        nodes.append(
            SizedNode(node.name, node.kind, node.op, args, kwargs, None if shape is None else tuple(shape), dtype)
        )
    return SizedGraph(tuple(graph.size for graph in graphs), tuple(nodes))


def _merged(values: Sequence[Any]) -> Any:
    """Arguments at several sizes as one, numbers that differ as :class:`SizedNumber`."""
    first = values[0]
    if all(value == first and type(value) is type(first) for value in values):
        return tuple(first) if isinstance(first, tuple) else first
    if all(isinstance(value, Mapping) and value.keys() == first.keys() for value in values):
        return {name: _merged([value[name] for value in values]) for name in first}
    if all(isinstance(value, list | tuple) and len(value) == len(first) for value in values):
        return [_merged(items) for items in zip(*values, strict=True)]
    if all(isinstance(value, int | float) and type(value) is type(first) for value in values):
        return SizedNumber(tuple(values))
    raise TaskError("the graph has arguments of other kinds at another size")


class GraphTask(NamedTuple):
    """A task made of a graph."""

    task: Task
    """Its ``c_source`` declares a function of the task's name."""
    extents: Mapping[str, str]
    """C expression of each extent of an input, by the input's name and the axis, ``x_0``; of each input that is an
    integer; and of each attribute, by the text of a plan, ``attrs["groups"]``."""
    numbers: Mapping[str, str]
    """C type of each input that is a number, and of each attribute that is not an integer."""


_LEAVES: Final = ("input", "weight")
_C_NUMBERS: Final = {int: "int", float: "float"}


def graph_task(origin: Task, graph: SizedGraph, name: str, may_be_named: Callable[[str], bool]) -> GraphTask:
    """The task whose reference is a graph.

    The first size of the graph is the new task's ``full``, so it may be any of the original's. Inputs are drawn as in
    the original file; weights, which are inputs after those, by their names: positive where they scale or are a
    variance, else normal, with the standard deviation of one over the root of what a row of a matrix takes.

    Args:
        origin: the task that the graph was traced from.
        graph: with the original's sizes, ``small`` among them and not first.
        name: of the new task, an identifier.
        may_be_named: whether an input may have a name.

    Raises:
        TaskError: a number of the graph does not follow from the original's constants, or the graph has an operator
            or an argument that a file cannot spell.
    """
    if origin.policy.mutates:
        raise TaskError("the reference changes an input in place")
    constants = _Constants(origin, graph.sizes)
    parsed = parse_task_file(origin.source, origin.name)
    names = _input_names(graph, parsed.parameters, constants.lower_names, may_be_named)
    constants.inputs = {
        node.args[0]: names[node.name] for node in graph.nodes if node.kind == "input" and node.shape is None
    }
    constants.of_inputs = {extent for node in graph.nodes if node.kind in _LEAVES for extent in node.shape or ()}
    body = [_call(node, graph, names, constants) for node in graph.nodes if node.kind == "op"]
    results = [_text(argument, names, constants) for argument in graph.nodes[-1].args]
    weights = [node for node in graph.nodes if node.kind == "weight"]
    drawn = [_draw(node, constants) for node in weights]
    inputs = [node for node in graph.nodes if node.kind == "input"]
    own_inputs = _input_code(parsed.tree, renamed=bool(weights))
    parameters = (*sorted(inputs, key=lambda node: int(node.op)), *weights)
    arguments = ", ".join(names[node.name] for node in parameters)
    extents, numbers = {}, {}
    for node in (*inputs, *weights):
        for axis, extent in enumerate(node.shape or ()):
            extents[f"{names[node.name]}_{axis}"] = constants.text(extent).lower()
        if node.shape is None:
            value = node.args[0] if node.args else None
            kind = type(value.values[0] if isinstance(value, SizedNumber) else value)
            if kind not in _C_NUMBERS:
                raise TaskError(f"the input {node.name} is neither a tensor nor a number")
            numbers[names[node.name]] = _C_NUMBERS[kind]
            if kind is int:
                extents[names[node.name]] = names[node.name]
    for constant in constants.attributes:
        extents[f'attrs["{constant.lower()}"]'] = constant.lower()
        if any(type(value) is float for value in constants.values[constant]):
            numbers[constant.lower()] = "float"
    lines = ["import torch", "import torch.nn as nn", "", "aten = torch.ops.aten", ""]
    used = constants.used(own_inputs)
    lines += [f"{constant} = {values[0]!r}" for constant, values in used]
    lines += ["", "", "class Model(nn.Module):"]
    if constants.attributes:
        lines += ["    def __init__(self):", "        super().__init__()"]
        lines += [*(f"        self.{constant.lower()} = {constant}" for constant in constants.attributes), ""]
    lines += [f"    def forward(self, {arguments}):"]
    lines += [f"        {line}" for line in (*body, f"return {', '.join(results)}")]
    lines += ["", "", *own_inputs]
    if weights:
        lines += ["", "", "def get_inputs():", f"    return [*{_OWN_INPUTS}(), {', '.join(drawn)}]"]
    lines += ["", "", "def get_init_inputs():", "    return []", ""]
    sizes = [Size(name="full")]
    for position, size in enumerate(graph.sizes[1:], 1):
        differing = {constant: values[position] for constant, values in used if values[position] != values[0]}
        sizes.append(Size(name=size, constants=differing))
    task = Task(
        name=name,
        suite="pairs",
        title=", ".join(graph.operators)[:200],
        level=1,
        source="\n".join(lines),
        sizes=tuple(sizes),
        policy=TaskPolicy.model_validate({**origin.policy.model_dump(), "reduction_length": None, "library": ()}),
        license=origin.license,
    )
    return GraphTask(task, extents, numbers)


_IMPORTED: Final = ("import torch", "import torch.nn as nn", "from __future__ import annotations")
_OWN_INPUTS: Final = "inputs_of_the_original"


class _Constants:
    """Constants of the original file at all sizes, and those that a new file needs besides."""

    def __init__(self, origin: Task, sizes: Sequence[str]) -> None:
        by_size = [module_constants(parse_task_file(size_source(origin, size), origin.name).tree) for size in sizes]
        self.values: dict[str, tuple[Scalar, ...]] = {
            name: tuple(values[name] for values in by_size)
            for name in by_size[0]
            if all(name in values for values in by_size)
        }
        self._integers = {
            name: values
            for name, values in self.values.items()
            if name.isupper() and all(type(value) is int for value in values) and len(set(values)) > 1
        }
        self._needed: set[str] = set()
        self._derived: set[str] = set()
        """Constants that the original has not."""
        self.attributes: dict[str, None] = {}
        """Constants that an operator takes and that are no extent of an input: attributes of the new model."""
        self.of_inputs: set[int | SizedNumber] = set()
        """Extents of the inputs."""
        self.inputs: Mapping[Any, str] = {}
        """Names of the inputs that are numbers, by their values."""

    @property
    def lower_names(self) -> set[str]:
        """Names of the constants in a C function."""
        return {name.lower() for name in self.values}

    def text(self, number: Any) -> str:
        """A number in the new file.

        Raises:
            TaskError: it differs between the sizes, and no constant explains it.
        """
        if isinstance(number, float | SizedNumber) and number in self.inputs:
            return self.inputs[number]
        if not isinstance(number, SizedNumber):
            return _literal(number)
        if all(type(value) is int for value in number.values):
            return self._integer(number.values)
        for name, own in self.values.items():
            if name.isupper() and own == number.values:
                return self._attribute(name)
        for name, values in self._integers.items():
            for power in (-0.5, 0.5, -1.0):
                if all(v > 0 and math.isclose(v**power, real) for v, real in zip(values, number.values, strict=True)):
                    self._needed.add(name)
                    return f"{name} ** {power}"
        raise TaskError(f"no constant of the file explains the number {number.values[0]:.6g}, which differs by size")

    def _attribute(self, name: str) -> str:
        self._needed.add(name)
        self.attributes[name] = None
        return f"self.{name.lower()}"

    def _integer(self, values: tuple[int | float, ...]) -> str:
        for name, own in self._integers.items():
            if own == values:
                self._needed.add(name)
                is_extent = SizedNumber(values) in self.of_inputs or name in self._derived
                return name if is_extent else self._attribute(name)
        for names in combinations_with_replacement(self._integers, 2):
            a, b = (self._integers[name] for name in names)
            if tuple(x * y for x, y in zip(a, b, strict=True)) == values:
                self._needed.update(names)
                return " * ".join(names)
        name = next(name for number in range(1000) if (name := f"EXTENT_{number}") not in self.values)
        self._integers[name] = self.values[name] = values
        self._needed.add(name)
        self._derived.add(name)
        return name

    def used(self, code: Iterable[str]) -> list[tuple[str, tuple[Scalar, ...]]]:
        """The constants that the new file names, with their values at each size."""
        words = {word for line in code for word in re.findall(r"[A-Za-z_]\w*", line)} | self._needed
        return [(name, values) for name, values in self.values.items() if name in words]


def _literal(value: Any) -> str:
    if isinstance(value, float) and not math.isfinite(value):
        return f'float("{value}")'
    if isinstance(value, str):
        return f"torch.{value}" if value in tuple(DType) else repr(value)
    return repr(value)


def _input_names(
    graph: SizedGraph, parameters: Sequence[str], taken: Collection[str], may_be_named: Callable[[str], bool]
) -> dict[str, str]:
    """Names of the nodes in the new file; inputs have those of the original's arguments where nothing forbids it."""
    names: dict[str, str] = {}
    used = {"self", "torch", "nn", "aten", _OWN_INPUTS, "get_inputs", "get_init_inputs", *taken}

    def name(node: str, text: str) -> None:
        text = re.sub(r"\W", "_", text)
        text = text if text[:1].isalpha() else f"v_{text}"
        while text in used or keyword.iskeyword(text) or hasattr(builtins, text) or not may_be_named(text):
            text += "_in"
        used.add(text)
        names[node] = text

    for node in graph.nodes:
        if node.kind == "input":
            position = int(node.op)
            name(node.name, parameters[position] if position < len(parameters) else node.name)
        elif node.kind == "weight":
            name(node.name, node.op.lower())
    for node in graph.nodes:
        if node.kind == "op":
            name(node.name, node.name)
    return names


_SKIPPED: Final = ("device", "layout", "pin_memory", "memory_format")
"""Keyword arguments that say nothing about values."""


def _call(node: SizedNode, graph: SizedGraph, names: Mapping[str, str], constants: _Constants) -> str:
    target = names[node.name]
    args = [_text(argument, names, constants) for argument in node.args]
    if node.op == "getitem":
        return f"{target} = {args[0]}[{args[1]}]"
    if not node.op.startswith("aten."):
        raise TaskError(f"the operator {node.op} is none of ATen's")
    plain = node.op.removeprefix("aten.").split(".")[0]
    if plain != node.operator and len(graph.users(references(node.args[:1])[0])) > 1:
        raise TaskError(f"the operator {node.op} changes a value in place that others read")
    args += [
        f"{name}={_text(argument, names, constants)}" for name, argument in node.kwargs.items() if name not in _SKIPPED
    ]
    return f"{target} = aten.{node.operator}({', '.join(args)})"


def _text(argument: Any, names: Mapping[str, str], constants: _Constants) -> str:
    """An argument of an operator in Python."""
    if isinstance(argument, SizedNumber):
        return constants.text(argument)
    if isinstance(argument, Mapping):
        return names[argument["ref"]]
    if isinstance(argument, list | tuple):
        return f"[{', '.join(_text(item, names, constants) for item in argument)}]"
    return _literal(argument)


def _draw(node: SizedNode, constants: _Constants) -> str:
    """The expression that draws a weight."""
    if node.dtype not in (DType.FLOAT32, DType.FLOAT64) or node.shape is None:
        raise TaskError(f"the weight {node.op} holds no real numbers, and nothing says which values it may have")
    kind = "" if node.dtype is DType.FLOAT32 else ", dtype=torch.float64"
    shape = f"({''.join(f'{constants.text(extent)}, ' for extent in node.shape)}){kind}"
    last = node.op.rpartition(".")[2]
    if "var" in last or (last == "weight" and len(node.shape) < 2):
        return f"torch.rand({shape}) + 0.5"
    if len(node.shape) < 2:
        return f"torch.randn({shape})"
    taken = " * ".join(f"({constants.text(extent)})" for extent in node.shape[1:])
    return f"torch.randn({shape}) / ({taken}) ** 0.5"


def _input_code(tree: ast.Module, *, renamed: bool) -> list[str]:
    """Lines of the original's ``get_inputs`` and of all that it names, without numbers; ``renamed`` to another name."""
    constants = module_constants(tree)
    defined: dict[str, ast.stmt] = {}
    for statement in tree.body:
        if isinstance(statement, ast.FunctionDef | ast.ClassDef):
            defined[statement.name] = statement
        elif isinstance(statement, ast.Assign | ast.AnnAssign):
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            for target in targets:
                if isinstance(target, ast.Name) and target.id not in constants:
                    defined[target.id] = statement
    needed: list[ast.stmt] = []
    ahead = ["get_inputs"]
    while ahead:
        name = ahead.pop()
        if name not in defined or defined[name] in needed:
            continue
        statement = defined[name]
        needed.append(statement)
        ahead += [node.id for node in ast.walk(statement) if isinstance(node, ast.Name)]
    imports = [
        ast.unparse(statement)
        for statement in tree.body
        if isinstance(statement, ast.Import | ast.ImportFrom) and ast.unparse(statement) not in _IMPORTED
    ]
    texts = [ast.unparse(statement) for statement in tree.body if statement in needed]
    words = set(re.findall(r"\w+", "\n".join(texts)))
    imports = [line for line in imports if re.split(r"[\s.]", line)[-1] in words]
    text = "\n\n\n".join(["\n".join(imports), *texts] if imports else texts)
    if renamed:
        text = text.replace("def get_inputs(", f"def {_OWN_INPUTS}(")
    return text.split("\n")
