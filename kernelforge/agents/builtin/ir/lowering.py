"""Lowering of traced ATen operators to the intermediate representation: the walk over a graph, and the registry."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from math import isclose
from typing import Any, TypeVar

from kernelforge.agents.builtin.codegen.pointwise import CHOICES, IDENTITY, POINTWISE, expression
from kernelforge.agents.builtin.ir.iteration_space import compute_type
from kernelforge.agents.builtin.ir.nodes import (
    ONE,
    Dim,
    Extent,
    Iota,
    LoopResult,
    OfRound,
    Pointwise,
    Program,
    Ratio,
    Reduce,
    Reshape,
    Scalar,
    Size,
    StoredTensor,
    Value,
    View,
    literal,
    operator,
    product,
    round_name,
    small,
    unshaped,
)
from kernelforge.errors import UnsupportedError
from kernelforge.records import DType, Graph, Node

Handler = Callable[..., Any]
_Handler = TypeVar("_Handler", bound=Handler)
HANDLERS: dict[str, Handler] = {}
"""Structured operators by name; :mod:`kernelforge.agents.builtin.ir.operators` fills it."""
_ANOTHER = "use another Coder for this task, such as --coder exchange:FOLDER"
RESERVED = frozenset({"out", "w", "attrs", "i", "j", "k", "row", "int", "float", "double", "bool", "char", "short"})
"""Names that values have with an underscore after them."""
SMALL = 8
"""Integers up to this are taken for what they say; above it they may be an extent."""
LONG = 2**16
"""Elements that one thread may take in."""
Attributes = Mapping[str, "int | float | bool | str"]


def paired(full: Any, small: Any) -> Any:
    """An argument of the graph at the full size, whose numbers know what they are at the small one."""
    if isinstance(full, dict) and isinstance(small, dict):
        return {name: paired(value, small.get(name, value)) for name, value in full.items()}
    if isinstance(full, list | tuple) and isinstance(small, list | tuple) and len(full) == len(small):
        return type(full)(paired(*pair) for pair in zip(full, small, strict=True))
    if type(full) is float and type(small) is float:
        return Ratio.of(full, small)
    return Size.of(full, small) if type(full) is int and type(small) is int else full


def lowers(*names: str) -> Callable[[_Handler], _Handler]:
    """Register the lowering of an operator: called with the lowering and the operator's own arguments."""

    def register(handler: _Handler) -> _Handler:
        HANDLERS.update(dict.fromkeys(names, handler))
        return handler

    return register


def identifier(name: str) -> str:
    """A name that Python, C++ and the plan all accept."""
    text = re.sub(r"\W", "_", name)
    text = f"v_{text}" if not text or text[0].isdigit() else text
    return f"{text}_" if text in RESERVED else text


class Lowering:
    """Walks a graph once. Handlers build values with the methods below."""

    def __init__(self, attributes: Attributes) -> None:
        self._numbers = {value: f'attrs["{name}"]' for name, value in attributes.items() if isinstance(value, float)}
        """What the plan calls a number of the graph."""
        self._integers: dict[int, list[str]] = {}
        """How the plan can call an integer of the graph: by the model's own attributes first, then by its layers'."""
        for name, value in sorted(attributes.items(), key=lambda item: "." in item[0]):
            if isinstance(value, int) and not isinstance(value, bool):
                self._integers.setdefault(value, []).append(f'attrs["{name}"]')
        self._extents: dict[int, Dim] = {}
        self._of_inputs: dict[int, Dim] = {}
        self._taken: dict[int, Dim] = {}
        """What linear layers take: extents of their weights."""
        self._values: dict[str, Any] = {}
        self._shapes: list[tuple[Dim, ...]] = []
        """Of the values so far, for reshapes that go back to one of them."""
        self._returned: set[Value] = set()
        self.joined: dict[tuple[int, tuple[Value, ...]], Value] = {}
        """Tensors joined so far, by axis and parts."""
        self.origin = ""
        self.dtype = DType.FLOAT32
        """Element type of the node being lowered."""
        self.states: tuple[StoredTensor, ...] = ()
        """Of the loop whose body is being lowered."""
        self.rounds = ONE
        """Of that loop."""
        self.round = ""
        """What the plan calls the number of its round."""
        self._names: set[str] = set()
        """Of inputs, weights and what loops name in the plan."""

    def run(self, graph: Graph, small: Graph | None = None) -> Program:
        """Lower the graph.

        Args:
            graph: the reference at the full size.
            small: the same at the small size; ignored where that has other operators, whose integers have no pairs.
        """
        at_small = graph.nodes
        if small is not None and [(n.op, n.name) for n in graph.nodes] == [(n.op, n.name) for n in small.nodes]:
            at_small = small.nodes
        leaves: list[StoredTensor | Scalar] = []
        parameters: list[str] = []
        ends: list[Value] = []
        for node, other in zip(graph.nodes, at_small, strict=True):
            args = [self.resolve(arg) for arg in paired(node.args, other.args)]
            if node.kind == "output":
                outputs, shapes = zip(*map(self._result, args), strict=True)
                return Program(tuple(parameters), tuple(leaves), outputs, shapes, tuple(ends))
            if node.kind == "op":
                kwargs = {name: self.resolve(arg) for name, arg in paired(node.kwargs, other.kwargs).items()}
                self._values[node.name] = value = self._operator(node, args, kwargs)
                results = [item for item in (value if isinstance(value, list) else [value]) if isinstance(item, Value)]
                self._shapes += [item.shape for item in results]
                ends += results
                continue
            leaf = self._leaf(node, other)
            leaves.append(leaf)
            self._names.add(leaf.text if isinstance(leaf, Scalar) else leaf.name)
            self._shapes.append(leaf.shape)
            for dim in leaf.shape:
                self._extents.setdefault(dim.value, dim)
                if node.kind == "input":
                    self._of_inputs.setdefault(dim.value, dim)
            if node.kind != "input" and len(leaf.shape) == 2:
                self._taken.setdefault(leaf.shape[1].value, leaf.shape[1])
            if node.kind == "input":
                parameters.append(leaf.text)
            self._values[node.name] = self._as_strided(leaf, node)
        raise UnsupportedError("the reference's graph has no output")

    def _leaf(self, node: Node, small: Node) -> StoredTensor | Scalar:
        name = identifier(node.name if node.kind == "input" else node.op)
        if node.spec is None:
            # The graph has the number itself wherever it is used.
            self._numbers |= {float(value): name for value in node.args if isinstance(value, float)}
            for value in paired(node.args, small.args):
                if isinstance(value, int) and not isinstance(value, bool):
                    self._integers.setdefault(value, []).insert(0, name)
            return Scalar((), DType.FLOAT32, name)
        extents = paired(node.spec.shape, (small.spec or node.spec).shape)
        shape = tuple(Dim(f"{name}_{axis}", extent) for axis, extent in enumerate(extents))
        return StoredTensor(shape, node.spec.dtype, name if node.kind == "input" else f'w["{node.op}"]', name)

    def _as_strided(self, leaf: StoredTensor | Scalar, node: Node) -> Value:
        """A leaf as the reference sees it: inputs keep their strides, and a kernel sees memory order."""
        if isinstance(leaf, Scalar) or node.spec is None or node.spec.is_contiguous:
            return leaf
        strides = node.spec.stride
        order = sorted(range(len(strides)), key=lambda axis: -strides[axis])
        dims, steps = tuple(leaf.shape[axis] for axis in order), [strides[axis] for axis in order]
        if steps == [int(product(dims[axis_number + 1 :]).value) for axis_number in range(len(dims))]:
            leaf.shape, leaf.is_contiguous = dims, False
            return self.permute(leaf, [order.index(axis) for axis in range(len(dims))])
        raise UnsupportedError(
            f"the built-in Coder reads inputs without gaps only; {leaf.text} has strides {node.spec.stride}"
        )

    def resolve(self, argument: Any) -> Any:
        """An argument of the graph: values for references, plain data for the rest."""
        if isinstance(argument, dict) and "ref" in argument:
            return self._values[argument["ref"]]
        if isinstance(argument, dict) and "round" in argument:
            return OfRound(*argument["round"])
        if isinstance(argument, list | tuple):
            return [self.resolve(item) for item in argument]
        return argument

    def _operator(self, node: Node, args: list[Any], kwargs: dict[str, Any]) -> Any:
        op = operator(node)
        op = op if op.startswith("__") else op.rstrip("_")
        self.origin = identifier(node.name)
        self.dtype = node.spec.dtype if node.spec is not None else DType.FLOAT32
        if op in IDENTITY:
            return args[0]
        try:
            if op == "getitem":
                return args[0][args[1]]
            if op in POINTWISE:
                return self.pointwise_operator(op, args, kwargs)
            if op in HANDLERS:
                return HANDLERS[op](self, *args, **kwargs)
        except (TypeError, KeyError, IndexError, ValueError, AttributeError) as error:
            raise UnsupportedError(
                f"the built-in Coder does not know this form of '{node.op}': {error}; {_ANOTHER}"
            ) from error
        raise UnsupportedError(f"the built-in Coder does not know the operator '{node.op}'; {_ANOTHER}")

    def pointwise_operator(self, op: str, args: Sequence[Any], kwargs: dict[str, Any]) -> Value:
        """An elementwise operator of the table, on values and Python numbers."""
        args = [self._attribute(arg) for arg in args]
        if self.dtype.is_floating and op not in CHOICES:
            args = [self.cast(arg, self.dtype) if isinstance(arg, Value) else arg for arg in args]
        values = [arg for arg in args if isinstance(arg, Value)]
        places = iter(range(len(values)))
        operands = [f"{{{next(places)}}}" if isinstance(arg, Value) else arg for arg in args]
        text = expression(op, operands, kwargs)
        text = text.replace("<float>", f"<{compute_type(self.dtype)}>")
        if self.dtype is DType.FLOAT64:
            text = re.sub(r"(\d)f\b", r"\1", text).replace("(float)", "(double)")
        return self.pointwise(text, *values, dtype=self.dtype)

    def _attribute(self, argument: Any) -> Any:
        """A number of the graph that is an attribute of the reference, as a value read at each size."""
        if isinstance(argument, OfRound):
            return Extent((), DType.INT32, self.of_round(argument), origin=self.origin)
        real = DType.FLOAT64 if self.dtype is DType.FLOAT64 else DType.FLOAT32
        if isinstance(argument, Scalar) and argument.dtype is not real:
            return Scalar((), real, argument.text, origin=self.origin)
        if isinstance(argument, float) and argument in self._numbers:
            return Scalar((), real, self._numbers[argument], origin=self.origin)
        if isinstance(argument, Ratio):
            return Scalar((), real, self._root(argument), origin=self.origin)
        if isinstance(argument, int) and argument > SMALL and not self.extent(argument).is_literal:
            return Extent((), DType.INT32, self.extent(argument), origin=self.origin)
        return argument

    def _root(self, ratio: Ratio) -> str:
        """A real number that differs between the sizes, as the root of an extent or of its reciprocal: a scale.

        Raises:
            UnsupportedError: it is neither.
        """
        shapes = (dim for shape in reversed(self._shapes) for dim in shape)
        for dim in (*shapes, *self._extents.values(), *map(self.number, self._integers)):
            if dim.is_literal or min(dim.value, small(dim.value)) < 1:
                continue
            for text, power in ((f"1 / sqrt({dim.text})", -0.5), (f"sqrt({dim.text})", 0.5), (f"1 / {dim.atom}", -1.0)):
                if isclose(int(dim.value) ** power, ratio) and isclose(small(dim.value) ** power, ratio.small):
                    return text
        raise UnsupportedError(
            f"the built-in Coder does not see how {float(ratio):.6g} at the full size, {ratio.small:.6g} at the small "
            "one, follows from the inputs"
        )

    def extent(self, size: int, *near: Dim) -> Dim:
        """An integer of the graph as an extent that holds at every size, as far as its values show it.

        One of ``near``; an attribute of the reference; where ``near`` are of no input, the extent of one that agrees at
        both sizes; a part of one of ``near``; the extent of an input or a weight;
        a sum, difference, product or quotient of those; one that was computed; else the number itself.

        Raises:
            UnsupportedError: it differs between the sizes shown, and nothing explains it.
        """
        for dim in near:
            if dim.value == size:
                return dim
        if size in self._integers and not (number := self.number(size)).is_literal:
            return number
        of_inputs = self._of_inputs.values()
        if isinstance(size, Size) and size in self._of_inputs and not any(dim in of_inputs for dim in near):
            return self._of_inputs[size]
        for dim in near:
            share = dim.value // size if size > SMALL and dim.value % size == 0 else 0
            if 0 < share <= SMALL and not isinstance(share, Size):
                return quotient(dim, literal(share))
        if size > SMALL and size in self._extents:
            return self._extents[size]
        return self._composed(size, near) if isinstance(size, Size) else literal(size)

    def number(self, value: int, setting: str = "") -> Dim:
        """An integer of the graph that is no extent: an attribute of the reference, or itself.

        Args:
            setting: which attribute of a layer it may be, such as ``conv.stride``; another layer's would be chance.
        """
        names = self._integers.get(value, []) if value > 1 else []
        its_own = [text for text in names if setting and text.startswith(f'attrs["{setting}')]
        for text in (*its_own, *names):
            if text in its_own or "." not in text or isinstance(value, Size):
                return Dim(text, value)
        return literal(value)

    def _composed(self, size: Size, near: Sequence[Dim]) -> Dim:
        """A size as the sum, difference, product or quotient of two extents, or of one and a small number."""
        attributes = (self.number(value) for value in self._integers)
        extents = [dim for dim in (*near, *attributes, *self._extents.values()) if not dim.is_literal]
        numbers = [literal(number) for number in range(1, SMALL + 1)]
        for a in extents:
            for b in (*numbers, *extents):
                if a.value * b.value == size:
                    return product((a, b))
                if b.value * size == a.value:
                    return quotient(a, b)
                for sign, value in (("+", a.value + b.value), ("-", a.value - b.value)):
                    if value == size:
                        return Dim(f"{a.text} {sign} {b.atom}", value)
        return self.computed(size)

    def computed(self, size: int) -> Dim:
        """An integer of the graph as the extent that the latest value has, else itself; extents of inputs and weights
        are not looked at.

        Raises:
            UnsupportedError: it differs between the sizes shown, and no value has it.
        """
        own = set(self._extents.values())
        dims = (dim for shape in reversed(self._shapes) for dim in shape if not dim.is_literal)
        return next((dim for dim in dims if dim.value == size and dim not in own), None) or literal(size)

    def begin_loop(self, rounds: Dim, starts: Sequence[Value]) -> tuple[StoredTensor, ...]:
        """Begin the body of a loop that takes over tensors like ``starts`` from round to round. Returns those."""
        self.round, self.rounds = self._new_name(round_name), rounds
        names = [self._new_name(lambda number: f"state{number}") for _ in starts]
        self.states = tuple(
            StoredTensor(start.shape, start.dtype, name, name, origin=name)
            for name, start in zip(names, starts, strict=True)
        )
        return self.states

    def _new_name(self, name: Callable[[int], str]) -> str:
        new = next(text for number in count(1) if (text := name(number)) not in self._names)
        self._names.add(new)
        return new

    def of_round(self, index: OfRound, extent: Dim | None = None) -> Dim:
        """An integer of a loop's body as text of the plan; with ``extent`` a negative one counts from its end."""
        first: Dim | None = None
        if extent is not None and (index.first < 0 or isinstance(index.first, Size)):
            before_end = extent.value - index.first if index.first >= 0 else -index.first
            if not isinstance(before_end, Size):
                first = Dim(f"{extent.text} - {before_end}", extent.value - before_end)
        if first is None:
            first = self.extent(index.first, *(() if extent is None else (extent,)))
        step = literal(index.step) if not isinstance(index.step, Size) else self.extent(index.step)
        if step.text in ("1", "-1"):
            start = "" if first.text == "0" else first.text
            text = f"{start} - {self.round}" if step.text == "-1" else f"{start} + {self.round}".removeprefix(" + ")
            return Dim(text, first.value)
        scaled = f"{self.round} * {step.atom}"
        return Dim(scaled if first.text == "0" else f"{first.text} + {scaled}", first.value)

    def cast(self, value: Value, dtype: DType) -> Value:
        """A value in another element type; integers become real numbers before anything is computed with them."""
        if value.dtype is dtype or (value.dtype.is_floating and dtype.is_floating):
            return value
        return self.pointwise(f"({compute_type(dtype)}){{0}}", value, dtype=dtype)

    def constant(self, text: str, shape: tuple[Dim, ...]) -> Value:
        """A tensor of one number."""
        value = Pointwise((), self.dtype, f"({compute_type(self.dtype)}){text}", (), origin=self.origin)
        return self.expand(value, shape) if shape else value

    def iota(self, shape: tuple[Dim, ...], axis: int) -> Iota:
        """The coordinate along ``axis``."""
        return Iota(shape, DType.INT32, axis, origin=self.origin)

    def wrapped(self, index: Value, extent: Dim) -> Value:
        """Indices that may be negative, as places."""
        size = Extent((), DType.INT32, extent, origin=self.origin)
        return self.pointwise("{0} < 0 ? {0} + {1} : {0}", index, size, dtype=index.dtype)

    def view(self, base: Value, shape: tuple[Dim, ...], index: Sequence[str], extents: tuple[Dim, ...] = ()) -> View:
        return View(shape, base.dtype, base, tuple(index), extents, origin=self.origin)

    def pointwise(self, template: str, *args: Value, dtype: DType | None = None) -> Pointwise:
        """``template`` over operands that broadcast."""
        kind = dtype or (self.dtype if self.dtype.is_floating else args[0].dtype)
        return Pointwise(broadcast(*(arg.shape for arg in args)), kind, template, args, origin=self.origin)

    def reduce(self, op: str, arg: Value, axes: Sequence[int], dtype: DType | None = None) -> Value:
        """Reduce over ``axes``; they stay as extents of 1. Runs of adjacent axes become one loop each.

        Where that is long, rows are reduced first: one loop over all would be one thread's, and lose small terms.
        """
        remaining = sorted({axis % len(arg.shape) for axis in axes}) if arg.shape else []
        size = product(tuple(arg.shape[axis] for axis in remaining)).value
        by_rows = size > LONG and not op.startswith("arg")
        while remaining:
            last = remaining.pop()
            first = last
            while remaining and remaining[-1] == first - 1 and not (by_rows and last == len(arg.shape) - 1):
                first = remaining.pop()
            ones = (ONE,) * (last - first + 1)
            shape = (*arg.shape[:first], *ones, *arg.shape[last + 1 :])
            arg = Reduce(shape, dtype or arg.dtype, op, arg, first, last, origin=self.origin)
        return arg

    def count(self, value: Value, axes: Sequence[int]) -> Extent:
        """Number of elements along ``axes``, as a value."""
        return Extent((), DType.INT32, product(tuple(value.shape[axis] for axis in axes)), origin=self.origin)

    def drop(self, value: Value, axes: Sequence[int]) -> Value:
        """Remove axes of extent 1."""
        gone = {axis % len(value.shape) for axis in axes} if value.shape else set()
        kept = [axis for axis in range(len(value.shape)) if axis not in gone]
        places = iter(range(len(kept)))
        index = tuple("0" if axis in gone else f"{{{next(places)}}}" for axis in range(len(value.shape)))
        return View(tuple(value.shape[axis] for axis in kept), value.dtype, value, index, origin=self.origin)

    def insert(self, value: Value, axis: int) -> Value:
        """Insert an axis of extent 1."""
        rank = len(value.shape)
        axis %= rank + 1
        index = tuple(f"{{{k if k < axis else k + 1}}}" for k in range(rank))
        return View((*value.shape[:axis], ONE, *value.shape[axis:]), value.dtype, value, index, origin=self.origin)

    def permute(self, value: Value, order: Sequence[int]) -> Value:
        rank = len(value.shape)
        order = [axis % rank for axis in order]
        index = tuple(f"{{{order.index(axis)}}}" for axis in range(rank))
        return View(tuple(value.shape[axis] for axis in order), value.dtype, value, index, origin=self.origin)

    def expand(self, value: Value, shape: tuple[Dim, ...]) -> Value:
        """Broadcast to ``shape``."""
        lead = len(shape) - len(value.shape)
        index = tuple(
            "0" if dim.value == 1 and shape[lead + axis].value != 1 else f"{{{lead + axis}}}"
            for axis, dim in enumerate(value.shape)
        )
        return View(shape, value.dtype, value, index, origin=self.origin)

    def reshape(self, value: Value, shape: tuple[Dim, ...]) -> Value:
        if shape == value.shape:
            return value
        return Reshape(shape, value.dtype, value, origin=self.origin)

    def shape_like(self, sizes: Sequence[int], value: Value) -> tuple[Dim, ...]:
        """Extents for the integers of a reshape: the value's own where they agree, else products and quotients."""
        for shape in reversed(self._shapes):
            if [dim.value for dim in shape] == list(sizes) and len(set(shape)) > 1:
                return shape
        total = product(value.shape)
        extents: list[Dim | None] = []
        for axis, size in enumerate(sizes):
            extent = None if size == -1 else self._find_extent(size, axis, len(sizes), value.shape)
            if extent is not None and extents.count(extent) >= max(1, value.shape.count(extent)):
                # An axis is one axis of the result: this one is another that is as long at the sizes shown.
                extent = self._beside(sizes[: axis + 1]) or extent
            if extent is not None and -1 in sizes and extent not in value.shape:
                # What the next layer takes is an extent of its weights: of another image it may be no product of axes.
                extent = self._taken.get(size, extent)
            extents.append(extent)
        if None in extents:
            # One extent may be what is left of the elements; the others must follow from something.
            rest_axis = sizes.index(-1) if -1 in sizes else extents.index(None)
            for axis, size in enumerate(sizes):
                if extents[axis] is None and axis != rest_axis:
                    extents[axis] = self.extent(size)
            extents[rest_axis] = quotient(total, product(tuple(dim for dim in extents if dim is not None)))
        dims = tuple(dim for dim in extents if dim is not None)
        # A literal extent may be a size of the task that hides in the graph: let the others explain it.
        literals = [axis for axis, dim in enumerate(dims) if dim.is_literal and dim.value > 1]
        if len(literals) == 1 and product(dims).value == total.value:
            axis = literals[0]
            rest = product((*dims[:axis], *dims[axis + 1 :]))
            if not rest.is_literal and not total.is_literal and set(_names(rest)) == set(_names(total)):
                return dims
            return (*dims[:axis], quotient(total, rest), *dims[axis + 1 :])
        return dims

    def _beside(self, sizes: Sequence[int]) -> Dim | None:
        """The last of some extents, from the latest value whose shape begins with them and has different ones."""
        shapes = (shape[: len(sizes)] for shape in reversed(self._shapes))
        alike = (shape for shape in shapes if [dim.value for dim in shape] == list(sizes))
        return next((shape[-1] for shape in alike if len(set(shape)) == len(shape)), None)

    def _find_extent(self, size: int, axis: int, rank: int, shape: tuple[Dim, ...]) -> Dim | None:
        """An extent of a reshape from the shape before it; None where it must follow from the other extents."""
        if axis < len(shape) and shape[axis].value == size:
            return shape[axis]
        from_end = axis - rank
        if -from_end <= len(shape) and shape[from_end].value == size:
            return shape[from_end]
        for first in range(len(shape)):
            for last in range(first + 1, len(shape) + 1):
                dim = product(shape[first:last])
                if dim.value == size and size != 1:
                    return dim
        return None if isinstance(size, Size) and size not in self._integers else self.number(size)

    def _result(self, value: Any) -> tuple[Value, tuple[Dim, ...]]:
        """An output, as the value to store and the shape to store it under."""
        if not isinstance(value, Value):
            raise UnsupportedError("the built-in Coder writes outputs that are tensors")
        base = unshaped(value)
        last = isinstance(base, LoopResult) and not base.of_all_rounds
        if isinstance(base, StoredTensor | Scalar) or base in self._returned or last:
            # A result is never an input, nor the memory of another result.
            base = Pointwise(value.shape, value.dtype, "{0}", (value,), origin="copy")
        self._returned.add(base)
        return base, value.shape


def broadcast(*shapes: tuple[Dim, ...]) -> tuple[Dim, ...]:
    """The common shape; an extent of 1 gives way."""
    rank = max((len(shape) for shape in shapes), default=0)
    dims: list[Dim] = []
    for axis in range(-rank, 0):
        options = [shape[axis] for shape in shapes if len(shape) >= -axis]
        wide = [dim for dim in options if dim.value != 1] or options
        dims.append(wide[0])
    return tuple(dims)


def _names(dim: Dim) -> list[str]:
    return re.findall(r"[A-Za-z_]\w*", dim.text)


def _factors(text: str) -> list[str]:
    """The factors of a product, brackets whole."""
    factors = [""]
    for part in text.split(" * "):
        inside = factors[-1].count("(") > factors[-1].count(")")
        factors[-1:] = [f"{factors[-1]} * {part}"] if inside else [*factors[-1:], part]
    return factors[1:]


def quotient(total: Dim, by: Dim) -> Dim:
    """``total // by``, with factors that both spell the same cancelled."""
    above, below = _factors(total.text), _factors(by.text)
    for factor in list(below):
        if factor in above and "(" not in factor:
            above.remove(factor)
            below.remove(factor)
    below = [factor for factor in below if factor != "1"]
    value = total.value // by.value
    numerator = " * ".join(above) or "1"
    if not below:
        return Dim(numerator, value)
    if all(part.isdigit() for part in (*above, *below)):
        return literal(value)
    return Dim(f"{numerator} // ({' * '.join(below)})" if len(below) > 1 else f"{numerator} // {below[0]}", value)
