"""View operators: reshapes, permutations, slices, repeats, padding, concatenation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kernelforge.agents.builtin.codegen.pointwise import number
from kernelforge.agents.builtin.ir.lowering import Lowering, broadcast, lowers, quotient
from kernelforge.agents.builtin.ir.nodes import ONE, Concat, Dim, OfRound, Padded, StoredTensor, Value, literal, product
from kernelforge.errors import UnsupportedError

LAST = 2**62
"""A bound of a slice from here on means the end."""


@lowers("view", "reshape", "_unsafe_view")
def _view(lo: Lowering, x: Value, sizes: Sequence[int]) -> Value:
    return lo.reshape(x, lo.shape_like(sizes, x))


@lowers("flatten")
def _flatten(lo: Lowering, x: Value, first: int = 0, last: int = -1) -> Value:
    first, last = first % len(x.shape), last % len(x.shape)
    return lo.reshape(x, (*x.shape[:first], product(x.shape[first : last + 1]), *x.shape[last + 1 :]))


@lowers("unflatten")
def _unflatten(lo: Lowering, x: Value, axis: int, sizes: Sequence[int]) -> Value:
    axis %= len(x.shape)
    extents = [None if size == -1 else lo.extent(size) for size in sizes]
    rest = quotient(x.shape[axis], product(tuple(dim for dim in extents if dim is not None)))
    dims = tuple(rest if dim is None else dim for dim in extents)
    return lo.reshape(x, (*x.shape[:axis], *dims, *x.shape[axis + 1 :]))


@lowers("transpose", "swapaxes", "swapdims")
def transpose(lo: Lowering, x: Value, a: int, b: int) -> Value:
    order = list(range(len(x.shape)))
    order[a], order[b] = order[b], order[a]
    return lo.permute(x, order)


@lowers("t", "numpy_T", "mT", "matrix_H", "adjoint")
def transposed(lo: Lowering, x: Value) -> Value:
    return x if len(x.shape) < 2 else transpose(lo, x, -2, -1)


@lowers("permute")
def _permute(lo: Lowering, x: Value, order: Sequence[int]) -> Value:
    return lo.permute(x, order)


@lowers("movedim", "moveaxis")
def _movedim(lo: Lowering, x: Value, source: int | Sequence[int], target: int | Sequence[int]) -> Value:
    rank = len(x.shape)
    taken = [axis % rank for axis in ([source] if isinstance(source, int) else source)]
    placed = [axis % rank for axis in ([target] if isinstance(target, int) else target)]
    rest = iter(axis for axis in range(rank) if axis not in taken)
    at = dict(zip(placed, taken, strict=True))
    return lo.permute(x, [at[axis] if axis in at else next(rest) for axis in range(rank)])


@lowers("unsqueeze")
def _unsqueeze(lo: Lowering, x: Value, axis: int) -> Value:
    return lo.insert(x, axis)


@lowers("squeeze")
def _squeeze(lo: Lowering, x: Value, axes: int | Sequence[int] | None = None) -> Value:
    candidates = range(len(x.shape)) if axes is None else [axes] if isinstance(axes, int) else axes
    return lo.drop(x, [axis for axis in candidates if x.shape[axis].value == 1])


@lowers("expand")
def _expand(lo: Lowering, x: Value, sizes: Sequence[int], *, implicit: bool = False) -> Value:
    lead = len(sizes) - len(x.shape)
    shape = tuple(
        x.shape[axis - lead] if axis >= lead and size in (-1, x.shape[axis - lead].value) else lo.extent(size)
        for axis, size in enumerate(sizes)
    )
    return lo.expand(x, shape)


@lowers("expand_as")
def _expand_as(lo: Lowering, x: Value, other: Value) -> Value:
    return lo.expand(x, other.shape)


@lowers("broadcast_tensors")
def _broadcast_tensors(lo: Lowering, values: Sequence[Value]) -> list[Value]:
    shape = broadcast(*(value.shape for value in values))
    return [lo.expand(value, shape) for value in values]


@lowers("select")
def select(lo: Lowering, x: Value, axis: int, index: int | OfRound) -> Value:
    axis %= len(x.shape)
    templates = [f"{{{k if k < axis else k - 1}}}" for k in range(len(x.shape))]
    shape = (*x.shape[:axis], *x.shape[axis + 1 :])
    if isinstance(index, OfRound):
        at = lo.of_round(index, x.shape[axis])
        if axis == 0 and isinstance(x, StoredTensor) and x.is_contiguous:
            # The plan passes the element itself: a profile of some rounds sees where the others read.
            return StoredTensor(shape, x.dtype, f"{x.text}[{at.text}]", f"{x.name}_element", origin=lo.origin)
        templates[axis] = "{e0}"
        return lo.view(x, shape, templates, (at,))
    templates[axis] = str(index) if index >= 0 else f"({{e0}} - {-index})"
    return lo.view(x, shape, templates, () if index >= 0 else (x.shape[axis],))


@lowers("unbind")
def _unbind(lo: Lowering, x: Value, axis: int = 0) -> list[Value]:
    return [select(lo, x, axis, index) for index in range(x.shape[axis].value)]


# --- slices and joins ----------------------------------------------------------------------------------------------


def less(a: Dim, b: Dim) -> Dim:
    """``a - b``."""
    return a if b.text == "0" else Dim(f"{a.text} - {b.atom}", a.value - b.value)


def more(a: Dim, b: Dim) -> Dim:
    """``a + b``."""
    if a.is_literal and b.is_literal:
        return literal(a.value + b.value)
    return b if a.text == "0" else a if b.text == "0" else Dim(f"{a.text} + {b.text}", a.value + b.value)


def along(lo: Lowering, x: Value, axis: int, extent: Dim, template: str, *extents: Dim) -> Value:
    """``x`` with another extent along ``axis``, where coordinate ``{k}`` reads ``template`` (which says ``{k}``)."""
    axis %= len(x.shape)
    templates = [f"{{{k}}}" for k in range(len(x.shape))]
    templates[axis] = template.replace("{k}", f"{{{axis}}}")
    return lo.view(x, (*x.shape[:axis], extent, *x.shape[axis + 1 :]), templates, extents)


def narrow(lo: Lowering, x: Value, axis: int, start: Dim, extent: Dim) -> Value:
    return along(lo, x, axis, extent, "({k} + {e0})" if start.text != "0" else "{k}", start)


def _bound(lo: Lowering, bound: int | OfRound, extent: Dim) -> Dim:
    if isinstance(bound, OfRound):
        return lo.of_round(bound, extent)
    if bound >= extent.value:
        return extent
    return less(extent, literal(-bound)) if bound < 0 else lo.extent(bound, extent)


@lowers("slice")
def _slice(
    lo: Lowering,
    x: Value,
    axis: int = 0,
    start: int | OfRound | None = None,
    end: int | OfRound | None = None,
    step: int = 1,
) -> Value:
    axis_extent = x.shape[axis]
    first = _bound(lo, start or 0, axis_extent)
    if isinstance(start, OfRound) and isinstance(end, OfRound):
        extent = lo.extent(end.first - start.first)  # as long in every round
    else:
        extent = less(_bound(lo, LAST if end is None else end, axis_extent), first)
    if step == 1:
        return narrow(lo, x, axis, first, extent)
    extent = Dim(f"({extent.text} + {step - 1}) // {step}", -(-extent.value // step))
    return along(lo, x, axis, extent, f"({{k}} * {step} + {{e0}})", first)


@lowers("narrow")
def _narrow(lo: Lowering, x: Value, axis: int, start: int | OfRound, length: int) -> Value:
    return narrow(lo, x, axis, _bound(lo, start, x.shape[axis]), lo.extent(length, x.shape[axis]))


def _parts(lo: Lowering, x: Value, axis: int, extents: Sequence[Dim]) -> list[Value]:
    parts, start = [], literal(0)
    for extent in extents:
        parts.append(narrow(lo, x, axis, start, extent))
        start = more(start, extent)
    return parts


@lowers("chunk")
def chunk(lo: Lowering, x: Value, count: int, axis: int = 0) -> list[Value]:
    extent = x.shape[axis]
    if extent.value % count:
        raise UnsupportedError("the built-in Coder knows chunks of equal length only")
    return _parts(lo, x, axis, [quotient(extent, literal(count))] * count)


@lowers("split", "split_with_sizes")
def _split(lo: Lowering, x: Value, sizes: int | Sequence[int], axis: int = 0) -> list[Value]:
    axis_extent = x.shape[axis]
    if isinstance(sizes, int):
        return chunk(lo, x, axis_extent.value // sizes if axis_extent.value % sizes == 0 else 0, axis)
    if len(set(sizes)) == 1:
        return chunk(lo, x, len(sizes), axis)
    extents = [lo.extent(size, axis_extent) for size in sizes]
    rest = literal(0)
    for extent in extents[:-1]:
        rest = more(rest, extent)
    return _parts(lo, x, axis, [*extents[:-1], less(axis_extent, rest)])


@lowers("cat", "concat", "concatenate")
def concat(lo: Lowering, values: Sequence[Value], axis: int = 0) -> Value:
    axis %= len(values[0].shape)
    extent = literal(0)
    for value in values:
        extent = more(extent, value.shape[axis])
    shape = (*values[0].shape[:axis], extent, *values[0].shape[axis + 1 :])
    parts = tuple(values)
    for count in range(len(parts) - 1, 1, -1):
        # What a dense network joins grows by a part with each layer: it is stored, and no kernel reads all parts.
        if (first := lo.joined.get((axis, parts[:count]))) is not None:
            parts = (lo.pointwise("{0}", first), *parts[count:])
            break
    joined = Concat(shape, lo.dtype, parts, axis, origin=lo.origin)
    lo.joined[axis, tuple(values)] = joined
    return joined


@lowers("stack")
def stack(lo: Lowering, values: Sequence[Value], axis: int = 0) -> Value:
    axis %= len(values[0].shape) + 1
    return concat(lo, [lo.insert(value, axis) for value in values], axis)


# --- repeats and reversals -----------------------------------------------------------------------------------------


@lowers("flip")
def flip(lo: Lowering, x: Value, axes: Sequence[int]) -> Value:
    for axis in axes:
        x = along(lo, x, axis, x.shape[axis], "({e0} - 1 - {k})", x.shape[axis])
    return x


@lowers("roll")
def _roll(lo: Lowering, x: Value, shifts: int | Sequence[int], axes: int | Sequence[int] = ()) -> Value:
    if axes == []:
        raise UnsupportedError("the built-in Coder rolls along named axes only")
    axes = [axes] if isinstance(axes, int) else axes
    for shift, axis in zip([shifts] if isinstance(shifts, int) else shifts, axes, strict=True):
        dim = x.shape[axis]
        x = along(lo, x, axis, dim, f"((({{k}} - {shift}) % {{e0}} + {{e0}}) % {{e0}})", dim)
    return x


@lowers("repeat", "tile")
def _repeat(lo: Lowering, x: Value, counts: Sequence[int]) -> Value:
    for _ in range(len(counts) - len(x.shape)):
        x = lo.insert(x, 0)
    for axis, count in enumerate(counts, len(x.shape) - len(counts)):
        if count != 1:
            dim = x.shape[axis]
            x = along(lo, x, axis, product((lo.extent(count), dim)), "({k} % {e0})", dim)
    return x


@lowers("repeat_interleave")
def repeat_interleave(lo: Lowering, x: Value, count: int, axis: int | None = None, **_: Any) -> Value:
    if not isinstance(count, int):
        raise UnsupportedError("the built-in Coder repeats by a number only")
    if axis is None:
        x, axis = lo.reshape(x, (product(x.shape),)), 0
    times = lo.extent(count)
    return along(lo, x, axis, product((x.shape[axis], times)), "({k} / {e0})", times)


@lowers("unfold")
def _unfold(lo: Lowering, x: Value, axis: int, size: int, step: int) -> Value:
    axis %= len(x.shape)
    dim = x.shape[axis]
    extent = Dim(f"({dim.text} - {size}) // {step} + 1", (dim.value - size) // step + 1)
    templates = [f"{{{k}}}" for k in range(len(x.shape))]
    templates[axis] = f"({{{axis}}} * {step} + {{{len(x.shape)}}})"
    return lo.view(x, (*x.shape[:axis], extent, *x.shape[axis + 1 :], literal(size)), templates)


@lowers("pixel_shuffle")
def _pixel_shuffle(lo: Lowering, x: Value, factor: int) -> Value:
    n, c, h, w = x.shape
    up = lo.number(factor)
    channels = quotient(c, product((up, up)))
    x = lo.permute(lo.reshape(x, (n, channels, up, up, h, w)), (0, 1, 4, 2, 5, 3))
    return lo.reshape(x, (n, channels, product((h, up)), product((w, up))))


# --- padding, diagonals --------------------------------------------------------------------------------------------


@lowers("constant_pad_nd", "pad")
def _pad(lo: Lowering, x: Value, widths: Sequence[int], *more_arguments: Any, **named: Any) -> Value:
    arguments = [*more_arguments, *named.values()]
    mode = next((item for item in arguments if isinstance(item, str)), "constant")
    outside = next((item for item in arguments if isinstance(item, int | float)), 0)
    pairs = [(widths[k], widths[k + 1]) for k in range(0, len(widths), 2)]
    if mode != "constant":
        for position, (before, after) in enumerate(pairs):
            x = _bent(lo, x, -1 - position, before, after, mode)
        return x
    rank = len(x.shape)
    shape, templates = list(x.shape), [f"{{{k}}}" for k in range(rank)]
    extents: list[Dim] = []
    for position, (before, after) in enumerate(pairs):
        axis = rank - 1 - position
        first, last = lo.extent(before), lo.extent(after)
        shape[axis] = more(more(x.shape[axis], first), last)
        templates[axis] = f"({{{axis}}} - {{e{len(extents)}}})"
        extents.append(first)
    return Padded(
        tuple(shape), x.dtype, x, tuple(templates), tuple(extents), number(outside), origin=lo.origin
    )  # fmt: skip


def _bent(lo: Lowering, x: Value, axis: int, before: int, after: int, mode: str) -> Value:
    """Padding whose elements come from ``x`` itself."""
    dim = x.shape[axis]
    at = f"({{k}} - {before})"
    templates = {
        "replicate": f"min(max({at}, 0), {{e0}} - 1)",
        "circular": f"(({at} + {{e0}}) % {{e0}})",
        "reflect": f"({{e0}} - 1 - abs({{e0}} - 1 - abs({at})))",
    }
    return along(lo, x, axis, more(dim, literal(before + after)), templates[mode], dim)


@lowers("diagonal")
def _diagonal(lo: Lowering, x: Value, offset: int = 0, first: int = 0, second: int = 1) -> Value:
    if len(x.shape) != 2 or offset != 0:
        raise UnsupportedError("the built-in Coder knows the main diagonal of a matrix only")
    rows, columns = x.shape
    short = rows if rows.value <= columns.value else columns
    return lo.view(x, (short,), ("{0}", "{0}"))


@lowers("diag_embed")
def _diag_embed(lo: Lowering, x: Value, offset: int = 0, first: int = -2, second: int = -1) -> Value:
    if offset != 0 or (first, second) != (-2, -1):
        raise UnsupportedError("the built-in Coder knows the main diagonal only")
    wide = lo.view(x, (*x.shape, x.shape[-1]), tuple(f"{{{k}}}" for k in range(len(x.shape))))
    row, column = (lo.iota(wide.shape, axis) for axis in (-2, -1))
    return lo.pointwise("{1} == {2} ? {0} : 0", wide, row, column, dtype=x.dtype)


@lowers("diag")
def _diag(lo: Lowering, x: Value, offset: int = 0) -> Value:
    return _diag_embed(lo, x, offset) if len(x.shape) == 1 else _diagonal(lo, x, offset)


def _triangle(sign: str) -> Any:
    def handler(lo: Lowering, x: Value, diagonal: int = 0) -> Value:
        row, column = (lo.iota(x.shape, axis) for axis in (-2, -1))
        return lo.pointwise(f"{{2}} {sign} {{1}} + {diagonal} ? {{0}} : 0", x, row, column, dtype=x.dtype)

    return handler


lowers("tril")(_triangle("<="))
lowers("triu")(_triangle(">="))


@lowers("upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d")
def _nearest(lo: Lowering, x: Value, size: Sequence[int] | None, scales: Any = None, *_: Any) -> Value:
    factors = [] if not isinstance(scales, list) else [int(scale) for scale in scales if float(scale).is_integer()]
    if len(factors) != len(x.shape) - 2:
        raise UnsupportedError("the built-in Coder scales images up by whole factors only")
    for position, factor in enumerate(factors):
        axis = 2 + position
        x = along(lo, x, axis, product((x.shape[axis], literal(factor))), f"({{k}} / {factor})")
    return x


def channelwise(lo: Lowering, value: Value, rank: int) -> Value:
    """A vector over channels as ``(1, channels, 1...)``."""
    return lo.view(value, (ONE, *value.shape, *(ONE,) * (rank - 2)), ("{1}",))
