"""Operators that create tensors or change their type: constants, ranges, casts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from kernelforge.agents.builtin.codegen.pointwise import number
from kernelforge.agents.builtin.ir.iteration_space import compute_type, from_storage, to_storage
from kernelforge.agents.builtin.ir.lowering import Lowering, lowers
from kernelforge.agents.builtin.ir.nodes import Dim, StoredTensor, Value, literal
from kernelforge.errors import UnsupportedError
from kernelforge.records import DType


def _shape(lo: Lowering, sizes: Sequence[int]) -> tuple[Dim, ...]:
    return tuple(_extent(lo, size) for size in sizes)


def _extent(lo: Lowering, size: int) -> Dim:
    """A small number may be how many parts an axis was cut into, the same by chance at both sizes: so a mask's may."""
    dim = lo.extent(size)
    return lo.computed(size) if dim.is_literal and size > 1 else dim


@lowers("full")
def _full(lo: Lowering, sizes: Sequence[int], value: float, **_: Any) -> Value:
    return lo.constant(number(value), _shape(lo, sizes))


@lowers("new_full")
def _new_full(lo: Lowering, _x: Value, sizes: Sequence[int], value: float, **_: Any) -> Value:
    return lo.constant(number(value), _shape(lo, sizes))


@lowers("full_like")
def _full_like(lo: Lowering, x: Value, value: float, **_: Any) -> Value:
    return lo.constant(number(value), x.shape)


def _register(name: str, text: str) -> None:
    def sized(lo: Lowering, sizes: Sequence[int], **_: Any) -> Value:
        return lo.constant(text, _shape(lo, sizes))

    def new(lo: Lowering, _x: Value, sizes: Sequence[int], **_: Any) -> Value:
        return lo.constant(text, _shape(lo, sizes))

    def like(lo: Lowering, x: Value, **_: Any) -> Value:
        return lo.constant(text, x.shape)

    handlers: dict[str, Callable[..., Value]] = {name: sized, f"new_{name}": new, f"{name}_like": like}
    for word, handler in handlers.items():
        lowers(word)(handler)


_register("zeros", "0")
_register("ones", "1")


@lowers("scalar_tensor")
def _scalar_tensor(lo: Lowering, value: float, **_: Any) -> Value:
    return lo.constant(number(value), ())


@lowers("arange")
def _arange(lo: Lowering, *bounds: int, **_: Any) -> Value:
    start, end, step = (0, *bounds, 1) if len(bounds) == 1 else (*bounds, 1)[:3]
    if start == 0 and step == 1:
        return lo.iota((_extent(lo, end if isinstance(end, int) else int(end)),), 0)
    counter = lo.iota((literal(-int((start - end) // step)),), 0)
    return lo.pointwise(f"{number(start)} + {{0}} * {number(step)}", counter, dtype=lo.dtype)


@lowers("copy")
def _copy(lo: Lowering, x: Value, source: Value, *_: Any) -> Value:
    """A weight that is overwritten. What is written to a part of a tensor would have to be seen in the whole."""
    if not isinstance(x, StoredTensor):
        raise UnsupportedError("the built-in Coder does not write to parts of a tensor ('aten.copy_')")
    return lo.expand(_to(lo, source), x.shape)


@lowers("to", "_to_copy", "type_as", "float", "double", "half", "long", "int", "bool")
def _to(lo: Lowering, x: Value, *_args: Any, **_kwargs: Any) -> Value:
    if x.dtype is lo.dtype:
        return x
    if x.dtype.is_floating and compute_type(lo.dtype) == "float":
        # Half precisions are computed with as floats: they are rounded here or nowhere.
        narrowed = from_storage(to_storage("{0}", lo.dtype), lo.dtype)
        return lo.pointwise(narrowed, x, dtype=lo.dtype)
    text = "{0} != 0" if lo.dtype is DType.BOOL else f"({compute_type(lo.dtype)}){{0}}"
    return lo.pointwise(text, x, dtype=lo.dtype)
