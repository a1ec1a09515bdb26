"""Operators that read by indices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kernelforge.agents.builtin.ir.lowering import Lowering, broadcast, lowers
from kernelforge.agents.builtin.ir.nodes import Gather, Value, product
from kernelforge.errors import UnsupportedError
from kernelforge.records import DType


def take(lo: Lowering, x: Value, axis: int, index: Value) -> Value:
    """``x`` with ``axis`` replaced by the axes of ``index``; negative indices count from the end."""
    axis %= len(x.shape)
    flat = index if len(index.shape) == 1 else lo.reshape(index, (product(index.shape),))
    rank = len(x.shape)
    shape = tuple(flat.shape[0] if k == axis else x.shape[k] for k in range(rank))
    placed = lo.view(lo.wrapped(flat, x.shape[axis]), shape, (f"{{{axis}}}",))
    result = Gather(shape, x.dtype, x, placed, axis, origin=lo.origin)
    if len(index.shape) == 1:
        return result
    return lo.reshape(result, (*x.shape[:axis], *index.shape, *x.shape[axis + 1 :]))


@lowers("embedding")
def _embedding(lo: Lowering, weight: Value, index: Value, *_: Any) -> Value:
    flat = index if len(index.shape) == 1 else lo.reshape(index, (product(index.shape),))
    rows = Gather((flat.shape[0], weight.shape[1]), weight.dtype, weight, lo.insert(flat, 1), 0, origin=lo.origin)
    return rows if len(index.shape) == 1 else lo.reshape(rows, (*index.shape, weight.shape[1]))


@lowers("index_select")
def _index_select(lo: Lowering, x: Value, axis: int, index: Value) -> Value:
    return take(lo, x, axis, index)


@lowers("gather")
def gather(lo: Lowering, x: Value, axis: int, index: Value, **_: Any) -> Value:
    return Gather(index.shape, x.dtype, x, index, axis % len(x.shape), origin=lo.origin)


@lowers("take_along_dim")
def _take_along_dim(lo: Lowering, x: Value, index: Value, axis: int | None = None) -> Value:
    if axis is None:
        raise UnsupportedError("the built-in Coder takes along a named axis only")
    axis %= len(x.shape)
    lead = broadcast((*x.shape[:axis], index.shape[axis], *x.shape[axis + 1 :]), index.shape)
    wide = lo.expand(x, (*lead[:axis], x.shape[axis], *lead[axis + 1 :]))
    return gather(lo, wide, axis, lo.expand(index, lead))


@lowers("index")
def _index(lo: Lowering, x: Value, indices: Sequence[Value | None]) -> Value:
    """``x[i]`` and ``x[:, i]`` for an index of any rank, and ``x[i, j...]`` for several of one shape that lead."""
    axes = [axis for axis, index in enumerate(indices) if index is not None]
    tensors = [index for index in indices if index is not None]
    if any(index.dtype is DType.BOOL for index in tensors):
        raise UnsupportedError("the built-in Coder does not know indexing by a mask")
    if len(tensors) == 1:
        return take(lo, x, axes[0], tensors[0])
    if axes != list(range(len(axes))):
        raise UnsupportedError("the built-in Coder knows several indices only where they are the first axes")
    shape = broadcast(*(index.shape for index in tensors))
    lead, count = product(shape), len(tensors)
    flat = [lo.reshape(lo.expand(index, shape), (lead,)) for index in tensors]
    for axis, index in enumerate(flat):
        x = take(lo, x, axis, index)
    rest = x.shape[count:]
    templates = ["{0}"] * count + [f"{{{1 + k}}}" for k in range(len(rest))]
    return lo.reshape(lo.view(x, (lead, *rest), templates), (*shape, *rest))


@lowers("one_hot")
def _one_hot(lo: Lowering, index: Value, classes: int = -1) -> Value:
    if classes < 0:
        raise UnsupportedError("the built-in Coder knows one_hot with a number of classes only")
    wide = lo.insert(index, len(index.shape))
    counter = lo.iota((*index.shape, lo.extent(classes)), -1)
    return lo.pointwise("{0} == {1} ? 1 : 0", wide, counter, dtype=DType.INT64)
