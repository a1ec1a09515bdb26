"""Nodes of the intermediate representation: a reference's operators, decomposed into loops.

A program is a set of values, each a function from coordinates to an element. Pointwise values and views are only
formulas; reductions, scans, contractions, convolutions and windows need a loop. Extents are symbolic: text of the
launch-plan language, together with their value at the full size.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from kernelforge.errors import UnsupportedError
from kernelforge.records import DType, Node


class Size(int):
    """An integer of the full size that is another one at the small size: both must agree where it is recognised.

    Arithmetic applies to both, and a result that is the same at both sizes is a plain integer. Order is the full
    size's.
    """

    small: int

    @staticmethod
    def of(full: int, small: int) -> int:
        """The integer that is ``full`` at the full size and ``small`` at the small one."""
        if full == small:
            return full
        size = Size(full)
        size.small = small
        return size

    def __eq__(self, other: object) -> bool:
        return isinstance(other, int) and int(self) == int(other) and self.small == small(other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = int.__hash__

    def __neg__(self) -> int:
        return Size.of(-int(self), -self.small)

    def __add__(self, other: int) -> int:
        return Size.of(int(self) + int(other), self.small + small(other))

    def __sub__(self, other: int) -> int:
        return Size.of(int(self) - int(other), self.small - small(other))

    def __rsub__(self, other: int) -> int:
        return Size.of(int(other) - int(self), small(other) - self.small)

    def __mul__(self, other: int) -> int:
        return Size.of(int(self) * int(other), self.small * small(other))

    def __floordiv__(self, other: int) -> int:
        return Size.of(int(self) // int(other), self.small // small(other))

    def __rfloordiv__(self, other: int) -> int:
        return Size.of(int(other) // int(self), small(other) // self.small)

    def __mod__(self, other: int) -> int:
        return Size.of(int(self) % int(other), self.small % small(other))

    def __rmod__(self, other: int) -> int:
        return Size.of(int(other) % int(self), small(other) % self.small)

    __radd__, __rmul__ = __add__, __mul__


class Ratio(float):
    """A real number of the graph at the full size, which has another value at the small one."""

    small: float

    @classmethod
    def of(cls, full: float, small: float) -> float:
        """A number with both values, or a plain one where they are the same."""
        if full == small:
            return full
        ratio = cls(full)
        ratio.small = small
        return ratio


class OfRound(NamedTuple):
    """An integer of a loop's body in round ``r``: ``first + r * step``."""

    first: int
    step: int


def operator(node: Node) -> str:
    """Name of a graph node's operator without its overload."""
    return node.op.removeprefix("aten.").split(".")[0]


def small(value: int) -> int:
    """An integer's value at the small size."""
    return value.small if isinstance(value, Size) else int(value)


class Dim(NamedTuple):
    """An extent: an expression over the plan's names, and its value at the full size (a :class:`Size`)."""

    text: str
    value: int

    @property
    def is_literal(self) -> bool:
        return self.text.lstrip("-").isdigit()

    @property
    def atom(self) -> str:
        """The text, safe as an operand of ``*``, ``//`` and ``%``."""
        return self.text if self.text.isidentifier() or self.is_literal else f"({self.text})"


_ROUND = re.compile(r"\bround\d+\b")


def round_name(number: int) -> str:
    """Name of the number of a loop's round, from 0, in the plan."""
    return f"round{number}"


def is_of_round(text: str) -> bool:
    """Whether a plan's text has the number of a loop's round in it, so that it changes from round to round."""
    return _ROUND.search(text) is not None


def literal(value: int) -> Dim:
    """A number that is the same at every size.

    Raises:
        UnsupportedError: it is not.
    """
    if isinstance(value, Size):
        raise UnsupportedError(
            f"the built-in Coder does not see how {value} at the full size, {value.small} at the small one, follows "
            "from the inputs"
        )
    return Dim(str(value), value)


ONE = literal(1)


def product(dims: tuple[Dim, ...]) -> Dim:
    """The product of extents, with literals folded."""
    folded, value = 1, 1
    names: list[str] = []
    for dim in dims:
        value *= dim.value
        if dim.is_literal:
            folded *= dim.value
        else:
            names.append(dim.atom if "*" in dim.text or not dim.text.isidentifier() else dim.text)
    if folded != 1 or not names:
        names.append(str(folded))
    return Dim(" * ".join(names), value)


@dataclass(eq=False)
class Value:
    """One tensor: its shape, element type, and the graph node that it belongs to."""

    shape: tuple[Dim, ...]
    dtype: DType
    origin: str = field(default="", kw_only=True)

    @cached_property
    def operands(self) -> tuple[Value, ...]:
        """The values among its fields, in their order."""
        operands: list[Value] = []
        for name in self.__dataclass_fields__:
            value = getattr(self, name)
            operands += [part for part in (value if isinstance(value, tuple) else (value,)) if isinstance(part, Value)]
        return tuple(operands)

    def replace(self, others: Mapping[Value, Value]) -> None:
        """Take other values in place of some operands."""
        if not others.keys() & set(self.operands):
            return
        for name in self.__dataclass_fields__:
            value = getattr(self, name)
            if isinstance(value, Value):
                setattr(self, name, others.get(value, value))
            elif value and isinstance(value, tuple) and all(isinstance(part, Value) for part in value):
                setattr(self, name, tuple(others.get(part, part) for part in value))
        del self.operands


@dataclass(eq=False)
class StoredTensor(Value):
    """An input or a weight. ``text`` is how the plan calls it, ``name`` how a kernel does."""

    text: str
    name: str
    is_contiguous: bool = True
    """Whether the plan may view it in another shape: an input may have its elements in another order."""

    @property
    def layer(self) -> str:
        """Dotted name of the layer that a weight belongs to; empty for the model's own, and for inputs."""
        return self.text.removeprefix('w["').rpartition(".")[0] if self.text.startswith('w["') else ""


@dataclass(eq=False)
class Scalar(Value):
    """A number that ``forward`` takes; ``text`` is its name in the plan. Shape ``()``."""

    text: str


@dataclass(eq=False)
class Pointwise(Value):
    """``template`` with ``{0} {1}...`` replaced by the operands' elements; shapes broadcast."""

    template: str
    args: tuple[Value, ...]


@dataclass(eq=False)
class Iota(Value):
    """The coordinate along ``axis`` as an integer."""

    axis: int


@dataclass(eq=False)
class Extent(Value):
    """An extent as a number. Shape ``()``."""

    dim: Dim


@dataclass(eq=False)
class View(Value):
    """Coordinates of ``base`` as templates over this value's: ``"{1}"``, ``"0"``, ``"({e0} - 1 - {0})"``."""

    base: Value
    index: tuple[str, ...]
    extents: tuple[Dim, ...] = ()
    """What ``{e0} {e1}...`` in the templates stand for."""

    @property
    def keeps_order(self) -> bool:
        """Whether it only inserts and drops axes of extent 1."""
        if not all(template == "0" or template[1:-1].isdigit() for template in self.index):
            return False
        places = {int(template[1:-1]): axis for axis, template in enumerate(self.index) if template != "0"}
        taken = list(places)
        dropped = [axis for axis, template in enumerate(self.index) if template == "0"]
        added = [axis for axis in range(len(self.shape)) if axis not in taken]
        return (
            taken == sorted(taken)
            and len(taken) + self.index.count("0") == len(self.index)
            and all(self.base.shape[axis].value == self.shape[at].value for at, axis in places.items())
            and all(self.base.shape[axis].value == 1 for axis in dropped)
            and all(self.shape[axis].value == 1 for axis in added)
        )


@dataclass(eq=False)
class Reshape(Value):
    """The same elements in row-major order, under another shape."""

    base: Value


@dataclass(eq=False)
class Padded(Value):
    """A view whose coordinates may lie outside of ``base``, where it is the number ``outside``."""

    base: Value
    index: tuple[str, ...]
    extents: tuple[Dim, ...]
    outside: str


@dataclass(eq=False)
class Concat(Value):
    """``parts`` one after the other along ``axis``."""

    parts: tuple[Value, ...]
    axis: int


@dataclass(eq=False)
class Gather(Value):
    """``base`` with the coordinate along ``axis`` taken from ``index`` (which has this value's shape)."""

    base: Value
    index: Value
    axis: int


@dataclass(eq=False)
class Reduce(Value):
    """``op`` (``sum prod max min argmax argmin spread``) over axes ``first..last`` of ``arg``, which stay as extents of
    1. ``spread`` is the sum of squared distances from the mean.

    With ``parts`` the elements are dealt out to as many results, along a leading axis.
    """

    op: str
    arg: Value
    first: int
    last: int
    parts: Dim | None = None


@dataclass(eq=False)
class Scan(Value):
    """Inclusive prefix ``sum``, ``prod``, ``max``, ``min`` or ``logaddexp`` along ``axis``."""

    op: str
    arg: Value
    axis: int


@dataclass(eq=False)
class Contraction(Value):
    """``a[*batch, m, k]`` times ``b[*batch, k, n]``; the batch shapes are equal.

    With ``parts`` the terms are dealt out to as many sums, along a leading axis of the result.
    """

    a: Value
    b: Value
    parts: Dim | None = None


@dataclass(eq=False)
class Convolution(Value):
    """Cross-correlation of ``x[n, c, *extents]`` with ``weight[m, c / groups, *window]``.

    ``transposed``: every input element adds the window to the output instead; ``weight[c, m / groups, *window]``.
    """

    x: Value
    weight: Value
    stride: tuple[Dim, ...]
    padding: tuple[Dim, ...]
    dilation: tuple[Dim, ...]
    groups: int
    transposed: bool = False


@dataclass(eq=False)
class Window(Value):
    """``max`` or ``avg`` over windows of the last axes of ``x``, as many as ``kernel`` has extents."""

    op: str
    x: Value
    kernel: tuple[Dim, ...]
    stride: tuple[Dim, ...]
    padding: tuple[Dim, ...]
    dilation: tuple[Dim, ...]
    count_padding: bool = True


@dataclass(eq=False)
class Recurrence(Value):
    """The states of a recurrent layer in one direction: ``[steps, batch, units]``, or an LSTM's last cells.

    ``terms[steps, batch, gates * units]`` are the products with the inputs; to each is added the state before, times
    ``weight[gates * units, units]``. Gates are in torch's order.
    """

    cell: str
    """``lstm``, ``gru``, ``rnn_tanh`` or ``rnn_relu``."""
    terms: Value
    weight: Value
    starts: tuple[Value, ...]
    """The first hidden state, and an LSTM's first cells: ``[batch, units]``."""
    bias: Value | None = None
    backwards: bool = False
    """Whether the last step comes first."""

    @property
    def gates(self) -> int:
        return {"lstm": 4, "gru": 3}.get(self.cell, 1)

    @property
    def of_steps(self) -> bool:
        """Whether it is the hidden state after each step, not the cells after the last."""
        return len(self.shape) == 3


@dataclass(eq=False)
class Attention(Value):
    """The softmax of ``scores`` over the last axis, times ``v``; the scores are made of ``dot``, ``q`` times ``k``."""

    q: Value
    k: Value
    v: Value
    scores: Value
    dot: Contraction

    @cached_property
    def operands(self) -> tuple[Value, ...]:
        """The matrices, and the tensors that scores are made of besides; scores themselves are in no memory."""
        tensors: dict[Value, None] = dict.fromkeys((self.q, self.k, self.v))
        rest = [self.scores]
        while rest:
            value = rest.pop()
            if isinstance(value, StoredTensor):
                tensors[value] = None
            elif value is not self.dot:
                rest += value.operands
        return tuple(tensors)


@dataclass(eq=False)
class Loop(Value):
    """Rounds of the same operators, as a loop of the plan. It has no elements: its results are :class:`LoopResult`.

    What a round computes are ordinary values, which differ from others by being made of a state or of the round's
    number; values that are not are computed once, before the loop.
    """

    rounds: Dim
    number: str
    """Name of the round's number in the plan, from 0."""
    states: tuple[StoredTensor, ...]
    """Tensors that a round takes over from the one before."""
    starts: tuple[Value, ...]
    """States of the first round."""
    ends: tuple[Value, ...]
    """States of the next round."""
    lasts: tuple[Value, ...]
    """Values of a round that are used after the loop, those of the last round."""
    collected: tuple[Value, ...]
    """Values that are kept from every round."""

    def varying(self) -> set[Value]:
        """The values that differ from round to round, states among them."""
        varies: dict[Value, bool] = dict.fromkeys(self.states, True)

        def visit(value: Value) -> bool:
            if value not in varies:
                operands = {operand for operand in value.operands if visit(operand)}
                varies[value] = bool(operands) or self._reads_number(value)
            return varies[value]

        for value in (*self.ends, *self.lasts, *self.collected):
            visit(value)
        return {value for value, differs in varies.items() if differs}

    def _reads_number(self, value: Value) -> bool:
        texts: Iterable[str] = ()
        if isinstance(value, View | Padded):
            texts = (dim.text for dim in value.extents)
        elif isinstance(value, Extent):
            texts = (value.dim.text,)
        elif isinstance(value, StoredTensor):
            texts = (value.text,)
        return any(re.search(rf"\b{self.number}\b", text) for text in texts)


@dataclass(eq=False)
class LoopResult(Value):
    """A value of a loop's last round, or of all rounds along a leading axis."""

    loop: Loop
    position: int
    """Its position in the loop's ``lasts``, or in ``collected``."""
    of_all_rounds: bool


ANCHORS = (Reduce, Scan, Contraction, Convolution, Window, Attention, Recurrence)
"""Values that need a loop of their own."""


@dataclass
class Program:
    """A reference, lowered: the stored leaves in the order of the plan, and the results."""

    parameters: tuple[str, ...]
    """Names of ``forward``'s parameters, in order."""
    leaves: tuple[StoredTensor | Scalar, ...]
    outputs: tuple[Value, ...]
    shapes: tuple[tuple[Dim, ...], ...]
    """Of the outputs, where they differ from the values' own by a reshape."""
    ends: tuple[Value, ...]
    """The value that stands for each graph node: what is stored when nothing is fused."""


def computes(value: Value) -> bool:
    """Whether a value takes work: constants and views are written out where they are read."""
    return isinstance(value, ANCHORS) or (isinstance(value, Pointwise) and bool(value.args))


def unshaped(value: Value) -> Value:
    """The value under reshapes and inserted or dropped axes: the same elements in the same order."""
    while isinstance(value, Reshape) or (isinstance(value, View) and value.keeps_order):
        value = value.base
    return value


def strip_views(value: Value) -> Value:
    """The value under any stack of views."""
    while isinstance(value, (View, Reshape)):
        value = value.base
    return value
