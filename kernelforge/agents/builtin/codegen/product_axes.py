"""Axes of a matrix product, and of convolutions as products: where rows, columns and terms are in the operands.

A convolution is one product for each image and each group of channels: output channels by places, with input channels
and taps as terms. A transposed one with a stride is one product for each *phase*, the results whose places have the
same remainders by the strides: they take the same taps, and their inputs are as far apart as they are.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from fractions import Fraction

from kernelforge.agents.builtin.codegen.kernel import in_order, plan_int, put
from kernelforge.agents.builtin.codegen.loops import LoopEmitter, channels_of, output_dim
from kernelforge.agents.builtin.ir.iteration_space import ZERO, Coordinate, LoopGroup
from kernelforge.agents.builtin.ir.nodes import (
    ONE,
    Contraction,
    Convolution,
    Dim,
    Pointwise,
    Program,
    Value,
    View,
    literal,
    product,
)
from kernelforge.errors import UnsupportedError

FEWEST_CHANNELS = 8
"""Output channels of a group from which tiles, whose rows they are, pay."""
_TERMS_FOR_A_SECTOR = 512
"""Terms of float32 products that take less time than to store a sector: 1,100 by an H100's modelled limits."""
MOST_TAPS = 1024
"""Taps of a transposed convolution that a block lists: 16 bytes each."""
_MOST_BATCHES = 65_535
"""Blocks along a grid's third axis."""

Operand = tuple[Value, tuple[Coordinate, ...], str]
"""What is read, where, and the condition under which that is inside; empty where it always is."""


class ProductAxes(ABC):
    """A matrix product: a LoopGroup for its batch, rows, columns and terms, and where these are in the operands."""

    def __init__(self, em: LoopEmitter, b: LoopGroup, m: LoopGroup, n: LoopGroup, k: LoopGroup) -> None:
        self.em = em
        self.b, self.m, self.n, self.k = b, m, n, k
        self.phases: tuple[Dim, ...] = ()
        """Of a transposed convolution, by axis: each is a product with the same extents."""

    @staticmethod
    def of(em: LoopEmitter, anchor: Contraction | Convolution, *, vector: bool = False) -> ProductAxes:
        """The axes of a product or convolution.

        Args:
            em: writes the kernel.
            anchor: the product.
            vector: whether a thread has adjacent columns, where these are adjacent in the result.

        Raises:
            UnsupportedError: what is better not written as products.
        """
        if reason := _reason_against(anchor):
            raise UnsupportedError(reason)
        if isinstance(anchor, Contraction):
            return _MatrixAxes(em, anchor, vector)
        kind = _PhaseAxes if anchor.transposed else _PointwiseAxes if _is_pointwise(anchor) else _ConvolutionAxes
        return kind(em, anchor, vector)

    @property
    def terms(self) -> str:
        """C++ text of the number of terms."""
        return self.em.signature.extent(self.k.extent)

    @property
    def columns(self) -> str:
        """C++ text of the number of a block along the columns."""
        return f"blockIdx.x / {self.em.signature.extent(product(self.phases))}" if self.phases else "blockIdx.x"

    def blocks(self, columns: int) -> str:
        """The plan's text of the number of blocks along a grid's first axis, where a block has so many columns."""
        number = f"ceil_div({plan_int(self.n.extent)}, {columns})"
        return f"{number} * {plan_int(product(self.phases))}" if self.phases else number

    def head(self) -> list[str]:
        """Statements of a block before it reads its operands."""
        return []

    @abstractmethod
    def row_operand(self) -> Operand:
        """Element (m, k) of the left operand; may add statements."""

    @abstractmethod
    def column_operand(self) -> Operand:
        """Element (k, n) of the right operand; may add statements."""

    def result(self) -> tuple[tuple[Coordinate, ...], str]:
        """Coordinates of result (m, n), and the condition under which it is one; may add statements."""
        return (*self.b.coords(), *self.m.coords(), *self.n.coords()), ""


class _MatrixAxes(ProductAxes):
    def __init__(self, em: LoopEmitter, anchor: Contraction, vector: bool) -> None:
        split = len(anchor.shape) - 2
        super().__init__(
            em,
            LoopGroup("batch", anchor.shape[:split]),
            LoopGroup("m", anchor.shape[split : split + 1]),
            LoopGroup("n", anchor.shape[split + 1 :], vector=vector),
            LoopGroup("kk", anchor.a.shape[-1:]),
        )
        self.product = anchor

    @property
    def _batch(self) -> tuple[Coordinate, ...]:
        return self.b.coords()[self.product.parts is not None :]

    def row_operand(self) -> Operand:
        return self.product.a, (*self._batch, *self.m.coords(), *self.k.coords()), ""

    def column_operand(self) -> Operand:
        return self.product.b, (*self._batch, *self.k.coords(), *self.n.coords()), ""


class _ConvolutionAxes(ProductAxes):
    def __init__(self, em: LoopEmitter, anchor: Convolution, vector: bool) -> None:
        self.convolution = anchor
        self.depth, self.height = channels_of(anchor)
        batch = anchor.shape[:1]
        if anchor.groups > 1:
            of_x = anchor.x.shape[1]
            batch = (*batch, Dim(f"{of_x.atom} // {self.depth.atom}", anchor.groups))
        m = self.height if anchor.groups > 1 else anchor.shape[1]
        super().__init__(em, LoopGroup("batch", batch), LoopGroup("m", (m,)), *self._inner(vector))

    def _inner(self, vector: bool) -> tuple[LoopGroup, LoopGroup]:
        """Columns and terms."""
        anchor = self.convolution
        return LoopGroup("n", anchor.shape[2:], vector=vector), LoopGroup("kk", anchor.weight.shape[1:])

    def _of_group(self, coord: Coordinate, channels: Dim) -> Coordinate:
        """A channel of the block's group among all."""
        if self.convolution.groups == 1:
            return coord
        group, within = self.em.text(self.b.coords()[1]), self.em.text(coord)
        return Coordinate(f"({group} * {self.em.signature.extent(channels)} + {within})")

    def row_operand(self) -> Operand:
        row = self._of_group(self.m.coords()[0], self.height)
        return self.convolution.weight, (row, *self.k.coords()), ""

    def column_operand(self) -> Operand:
        channel, *steps = self.k.coords()
        places = self.em.window_positions(self.convolution, self.n.coords(), [self.em.text(step) for step in steps])
        lead = (self.b.coords()[0], self._of_group(channel, self.depth))
        condition = self.em.inside(self.convolution, places)
        return self.convolution.x, (*lead, *(Coordinate(text) for text in places)), condition

    def result(self) -> tuple[tuple[Coordinate, ...], str]:
        row = self._of_group(self.m.coords()[0], self.height)
        return (self.b.coords()[0], row, *self.n.coords()), ""


class _PointwiseAxes(_ConvolutionAxes):
    """A convolution with one tap: its columns are as adjacent in the input as in the result."""

    def _inner(self, vector: bool) -> tuple[LoopGroup, LoopGroup]:
        return LoopGroup("n", self.convolution.shape[2:], vector=vector), LoopGroup("kk", (self.depth,))

    def row_operand(self) -> Operand:
        value, (row, channel), condition = super().row_operand()
        return value, (row, channel, *(ZERO for _ in self.n.dims)), condition

    def column_operand(self) -> Operand:
        channel = self._of_group(self.k.coords()[0], self.depth)
        return self.convolution.x, (self.b.coords()[0], channel, *self.n.coords()), ""


def _is_pointwise(anchor: Convolution) -> bool:
    ones = (*anchor.weight.shape[2:], *anchor.stride)
    return all(dim.text == "1" for dim in ones) and all(dim.text == "0" for dim in anchor.padding)


class _PhaseAxes(_ConvolutionAxes):
    """A transposed convolution whose weights have the taps outermost (:func:`arrange_weights`).

    Terms are taps of the phase, then input channels: each block lists the taps of its phase in shared memory, with how
    far the input under each is from the result's place within the phase. Where a wide stride would leave few terms, and
    each result of a row in a sector of its own, rows are not split: terms are all taps, each inside for some columns.
    """

    def __init__(self, em: LoopEmitter, anchor: Convolution, vector: bool) -> None:
        if not _is_arranged(anchor):
            raise UnsupportedError("the weights' taps are innermost")
        self.phase = LoopGroup("phase", (*anchor.stride[:-1], ONE) if _has_whole_rows(anchor) else anchor.stride)
        super().__init__(em, anchor, vector)
        self.phases = self.phase.dims

    @property
    def terms(self) -> str:
        return "terms"

    def _inner(self, vector: bool) -> tuple[LoopGroup, LoopGroup]:
        anchor = self.convolution
        places = tuple(map(_rounded_up, anchor.shape[2:], self.phase.dims))
        return LoopGroup("n", places), LoopGroup("kk", (product(anchor.weight.shape[2:]), self.depth))

    def head(self) -> list[str]:
        em, anchor = self.em, self.convolution
        window = anchor.weight.shape[2:]
        axes = range(len(window))
        strides, pads, spread, taps = (
            [em.signature.extent(dim) for dim in dims]
            for dims in (self.phases, anchor.padding, anchor.dilation, window)
        )
        with em.scope() as lines:
            em.add(f"const int phase = blockIdx.x % {em.signature.extent(product(self.phases))};")
            starts = [f"({em.text(at)} + {pads[axis]})" for axis, at in enumerate(self.phase.coords())]
            for axis in axes:
                em.add(f"constexpr int apart_{axis} = taps_apart({strides[axis]}, {spread[axis]});  // of one phase")
                em.add(
                    f"const int tap_{axis} = first_tap({starts[axis]}, {strides[axis]}, {spread[axis]}, apart_{axis});"
                )
                em.add(
                    f"const int taps_{axis} = tap_{axis} < {taps[axis]} "
                    f"? ({taps[axis]} - tap_{axis} + apart_{axis} - 1) / apart_{axis} : 0;"
                )
            em.add(f"const int listed = {' * '.join(f'taps_{axis}' for axis in axes)};")
            em.add(f"const int terms = listed * {em.signature.extent(self.depth)};")
            em.add(f"__shared__ int4 tap_list[{' * '.join(taps)}];  // each with its distances in the input")
            with em.scope() as body:
                rest = "e"
                for axis in reversed(axes):
                    step = f"{rest} % taps_{axis}" if axis else rest
                    em.add(f"const int t{axis} = tap_{axis} + {step} * apart_{axis};")
                    rest = f"{rest} / taps_{axis}"
                flat = em.offset(window, tuple(Coordinate(f"t{axis}") for axis in axes))
                far = [f"({starts[axis]} - t{axis} * {spread[axis]}) / {strides[axis]}" for axis in axes]
                em.add(f"tap_list[e] = make_int4({', '.join([flat, *far, '0', '0'][:4])});")
            em.count("e", "listed", body, "threadIdx.x", "blockDim.x")
            em.add("__syncthreads();")
        return lines

    def _tap(self) -> str:
        """Name of the entry in the list of taps that a term has; the last one behind the end."""
        name = self.em.fresh("at")
        self.em.add(f"const int4 {name} = tap_list[min({self.em.text(self.k.coords()[0])}, listed - 1)];")
        return name

    def row_operand(self) -> Operand:
        tap = self._tap()
        source = self._of_group(self.k.coords()[1], self.depth)
        # The taps are adjacent axes: the last of them may count all, but one of extent 1 counts none.
        window = self.convolution.weight.shape[2:]
        last = max((axis for axis, taps in enumerate(window) if taps.value != 1), default=0)
        taps = (Coordinate(f"{tap}.x") if axis == last else ZERO for axis in range(len(window)))
        return self.convolution.weight, (source, *self.m.coords(), *taps), ""

    def column_operand(self) -> Operand:
        em, tap = self.em, self._tap()
        places, conditions = [], []
        for axis, (at, extent) in enumerate(zip(self.n.coords(), self.convolution.x.shape[2:], strict=True)):
            name = em.fresh("dhw"[axis - len(self.n.dims)])
            far = f"{em.text(at)} + {tap}.{'yzw'[axis]}"
            stride = self.convolution.stride[axis]
            if stride != self.phases[axis]:
                far, by = em.fresh("far"), em.signature.extent(stride)
                em.add(f"const int {far} = {em.text(at)} + {tap}.{'yzw'[axis]};")
                conditions.append(f"{far} % {by} == 0")
                far = f"{far} / {by}"
            em.add(f"const int {name} = {far};")
            places.append(Coordinate(name))
            conditions.append(f"{name} >= 0 && {name} < {em.signature.extent(extent)}")
        lead = (self.b.coords()[0], self._of_group(self.k.coords()[1], self.depth))
        return self.convolution.x, (*lead, *places), " && ".join(conditions)

    def result(self) -> tuple[tuple[Coordinate, ...], str]:
        (image, row, *spots), _ = super().result()
        em, places, conditions = self.em, [], []
        for axis, spot in enumerate(spots):
            stride = self.phases[axis]
            if stride.text == "1":
                places.append(spot)
                continue
            name = em.fresh("o")
            at = em.text(self.phase.coords()[axis])
            em.add(f"const int {name} = {em.text(spot)} * {em.signature.extent(stride)} + {at};")
            places.append(Coordinate(name))
            conditions.append(f"{name} < {em.signature.extent(self.convolution.shape[2 + axis])}")
        return (image, row, *places), " && ".join(conditions)


def _has_whole_rows(anchor: Convolution) -> bool:
    """Whether the products that a row's other phases add take less time than the sectors that its phases would."""
    stride, taps = anchor.stride[-1].value, anchor.weight.shape[-1].value
    terms = Fraction(channels_of(anchor)[0].value)
    for step, window in zip(anchor.stride[:-1], anchor.weight.shape[2:-1], strict=True):
        terms *= max(Fraction(1), Fraction(window.value, step.value))
    return stride >= 4 and terms * taps * (1 - Fraction(1, stride)) < _TERMS_FOR_A_SECTOR * (min(stride, 8) - 1) / 8


def _rounded_up(extent: Dim, stride: Dim) -> Dim:
    if stride.text == "1":
        return extent
    return Dim(f"ceil_div({extent.text}, {stride.text})", -(-extent.value // stride.value))


def _is_arranged(anchor: Convolution) -> bool:
    return isinstance(anchor.weight, View) and isinstance(anchor.weight.base, Pointwise)


def arrange_weights(program: Program) -> None:
    """Give transposed convolutions that are written as products copies of their weights, in the order of the terms.

    With a stride the taps come outermost. Without one it becomes the plain convolution with the taps in reverse order.
    """
    replaced: dict[Value, Value] = {}
    for value in in_order(program):
        if isinstance(value, Convolution) and value.transposed:
            plain = _reversed(value)
            if _reason_against(plain or value):
                continue
            if plain is not None:
                replaced[value] = plain
            else:
                value.replace({value.weight: _taps_outermost(value)})
    put(program, replaced)


def _reason_against(anchor: Contraction | Convolution) -> str:
    """Reason to write a product or convolution otherwise than as products; empty where there is none."""
    matrices = product(anchor.shape[:-2]).value
    if isinstance(anchor, Convolution):
        matrices = anchor.shape[0].value * anchor.groups
        if anchor.groups > 1 and int(channels_of(anchor)[1].value) < FEWEST_CHANNELS:
            return "tiles would have few rows for each group of channels"
        if anchor.transposed and product(anchor.weight.shape[2:]).value > MOST_TAPS:
            return "a block would list too many taps"
    return "a grid has no place for so many products" if matrices > _MOST_BATCHES else ""


def _copied(weight: View, origin: str) -> Value:
    return Pointwise(weight.shape, weight.dtype, "{0}", (weight,), origin=f"{origin}_weight")


def _taps_outermost(anchor: Convolution) -> Value:
    """The weights by way of a copy: (*window, channels, outputs of a group)."""
    weight, rank = anchor.weight, len(anchor.stride)
    index = (f"{{{rank}}}", f"{{{rank + 1}}}", *(f"{{{axis}}}" for axis in range(rank)))
    shape = (*weight.shape[2:], *weight.shape[:2])
    copy = _copied(View(shape, weight.dtype, weight, index, origin=anchor.origin), anchor.origin)
    back = (*(f"{{{axis + 2}}}" for axis in range(rank)), "{0}", "{1}")
    return View(weight.shape, weight.dtype, copy, back, origin=anchor.origin)


def _reversed(anchor: Convolution) -> Convolution | None:
    """A transposed convolution without stride as the plain one that it is; None where there is a stride."""
    weight, window = anchor.weight, anchor.weight.shape[2:]
    pads = []
    for axis, (stride, pad, apart, taps) in enumerate(
        zip(anchor.stride, anchor.padding, anchor.dilation, window, strict=True)
    ):
        reach = Dim(f"{apart.atom} * ({taps.text} - 1) - {pad.atom}", apart.value * (taps.value - 1) - pad.value)
        reach = literal(reach.value) if all(dim.is_literal for dim in (pad, apart, taps)) else reach
        within = output_dim(anchor.x.shape[2 + axis], taps, ONE, reach, apart).value == anchor.shape[2 + axis].value
        # Without padding no place is tested: an output padding would read behind the end.
        if stride.text != "1" or (reach.text == "0" and not within):
            return None
        pads.append(reach)
    depth, height = channels_of(anchor)
    rows = ("{1}", "{0}") if anchor.groups == 1 else ("({0} / {e1} * {e0} + {1})", "({0} % {e1})")
    taps_back = (f"({{e{axis + 2}}} - 1 - {{{axis + 2}}})" for axis in range(len(window)))
    shape = (anchor.shape[1], depth, *window)
    view = View(shape, weight.dtype, weight, (*rows, *taps_back), (depth, height, *window), origin=anchor.origin)
    return Convolution(
        anchor.shape, anchor.dtype, anchor.x, _copied(view, anchor.origin), anchor.stride, tuple(pads), anchor.dilation,
        anchor.groups, origin=anchor.origin,
    )  # fmt: skip
