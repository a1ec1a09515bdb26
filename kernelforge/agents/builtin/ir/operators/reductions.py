"""Sums, extremes, moments, norms and prefix sums."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from kernelforge.agents.builtin.codegen.pointwise import number
from kernelforge.agents.builtin.ir.lowering import Lowering, lowers
from kernelforge.agents.builtin.ir.nodes import Scan, Value, product
from kernelforge.errors import UnsupportedError
from kernelforge.records import DType


def axes_of(x: Value, axes: int | Sequence[int] | None) -> list[int]:
    rank = len(x.shape)
    selected = range(rank) if axes is None or axes == [] else [axes] if isinstance(axes, int) else axes
    return sorted({axis % rank for axis in selected})


def reduced(lo: Lowering, op: str, x: Value, axes: Any, keepdim: bool) -> Value:
    over = axes_of(x, axes)
    result: Value = lo.reduce("sum" if op == "mean" else op, x, over, lo.dtype)
    if op == "mean":
        result = lo.pointwise("{0} / {1}", result, lo.count(x, over))
    return result if keepdim else lo.drop(result, over)


def _register_reduction(name: str, op: str) -> None:
    @lowers(name)
    def handler(lo: Lowering, x: Value, axes: Any = None, keepdim: bool = False, dtype: Any = None) -> Value:
        return reduced(lo, op, x, axes, keepdim)


for _name, _op in (("sum", "sum"), ("mean", "mean"), ("prod", "prod"), ("amax", "max"), ("amin", "min")):
    _register_reduction(_name, _op)


def _arg(lo: Lowering, op: str, x: Value, axis: int | None, keepdim: bool) -> Value:
    if axis is None:
        x, axis = lo.reshape(x, (product(x.shape),)), 0
    result = lo.reduce(op, x, [axis], DType.INT64)
    return result if keepdim else lo.drop(result, [axis])


def _register_arg(name: str) -> None:
    @lowers(name)
    def handler(lo: Lowering, x: Value, axis: int | None = None, keepdim: bool = False) -> Value:
        return _arg(lo, name, x, axis, keepdim)


for _name in ("argmax", "argmin"):
    _register_arg(_name)


def _register_extreme(op: str) -> None:
    @lowers(op)
    def handler(lo: Lowering, x: Value, other: Any = None, keepdim: bool = False) -> Any:
        if other is None:
            return reduced(lo, op, x, None, False)
        if isinstance(other, Value):
            return lo.pointwise_operator("maximum" if op == "max" else "minimum", [x, other], {})
        values = lo.reduce(op, x, [other], x.dtype)
        places = lo.reduce(f"arg{op}", x, [other], DType.INT64)
        return [value if keepdim else lo.drop(value, [other]) for value in (values, places)]


for _name in ("max", "min"):
    _register_extreme(_name)


@lowers("aminmax")
def _aminmax(lo: Lowering, x: Value, *, dim: int | None = None, keepdim: bool = False) -> list[Value]:
    lo.dtype = x.dtype
    return [reduced(lo, op, x, dim, keepdim) for op in ("min", "max")]


@lowers("logsumexp")
def _logsumexp(lo: Lowering, x: Value, axes: Any, keepdim: bool = False) -> Value:
    over = axes_of(x, axes)
    top = lo.reduce("max", x, over)
    total = lo.reduce("sum", lo.pointwise("exp({0} - {1})", x, top), over)
    result = lo.pointwise("{0} + log({1})", top, total)
    return result if keepdim else lo.drop(result, over)


def centred(lo: Lowering, x: Value, axes: Sequence[int]) -> tuple[Value, Value]:
    """``x`` less its mean, and the mean of its square."""
    count = lo.count(x, axes)
    mean = lo.pointwise("{0} / {1}", lo.reduce("sum", x, axes), count)
    apart = lo.pointwise("{0} - {1}", x, mean)
    return apart, lo.pointwise("{0} / {1}", lo.reduce("sum", lo.pointwise("{0} * {0}", apart), axes), count)


def _register_moments(name: str, root: bool, with_mean: bool) -> None:
    @lowers(name)
    def handler(
        lo: Lowering, x: Value, axes: Any = None, unbiased: bool = True, keepdim: bool = False, *,
        correction: float | None = None,
    ) -> Any:  # fmt: skip
        if isinstance(axes, bool):
            axes, unbiased = None, axes
        lo.dtype = x.dtype
        over = axes_of(x, axes)
        count, less = lo.count(x, over), number(float(unbiased) if correction is None else float(correction))
        mean = lo.pointwise("{0} / {1}", lo.reduce("sum", x, over), count)
        squares = lo.reduce("sum", lo.pointwise("({0} - {1}) * ({0} - {1})", x, mean), over)
        text = f"{{0}} / ({{1}} - {less})"
        spread = lo.pointwise(f"sqrt({text})" if root else text, squares, count)
        results = [value if keepdim else lo.drop(value, over) for value in (spread, mean)]
        return results if with_mean else results[0]


for _name in ("var", "std"):
    _register_moments(_name, _name == "std", False)
    _register_moments(f"{_name}_mean", _name == "std", True)


def power_norm(lo: Lowering, x: Value, order: float, axes: Sequence[int]) -> Value:
    """The vector norm of an order over ``axes``, which stay as extents of 1."""
    if math.isinf(order):
        return lo.reduce("max" if order > 0 else "min", lo.pointwise("abs({0})", x), axes)
    terms, result = {
        0.0: ("({0} != 0 ? 1.0f : 0.0f)", "{0}"),
        1.0: ("abs({0})", "{0}"),
        2.0: ("{0} * {0}", "sqrt({0})"),
    }.get(float(order), (f"pow(abs({{0}}), {number(float(order))})", f"pow({{0}}, {number(1.0 / order)})"))
    return lo.pointwise(result, lo.reduce("sum", lo.pointwise(terms, x), axes))


@lowers("linalg_vector_norm", "norm")
def _norm(
    lo: Lowering, x: Value, order: float | str | None = 2, axes: Any = None, keepdim: bool = False, **_: Any
) -> Value:
    if isinstance(order, str) and order != "fro":
        raise UnsupportedError(f"the built-in Coder does not know the norm '{order}'")
    over = axes_of(x, axes)
    result = power_norm(lo, x, 2.0 if order is None or isinstance(order, str) else float(order), over)
    return result if keepdim else lo.drop(result, over)


@lowers("linalg_norm")
def _linalg_norm(
    lo: Lowering, x: Value, order: float | str | None = None, axes: Any = None, keepdim: bool = False, **_: Any
) -> Value:
    over = axes_of(x, axes)
    if order not in (None, "fro") and not (len(over) == 1 or (axes is None and len(x.shape) == 1)):
        raise UnsupportedError("the built-in Coder knows no other matrix norm than Frobenius's")
    return _norm(lo, x, order, axes, keepdim)


@lowers("frobenius_norm", "linalg_matrix_norm")
def _frobenius(lo: Lowering, x: Value, *arguments: Any) -> Value:
    order, axes, keepdim = (*arguments, [-2, -1], False)[:3] if arguments[:1] == ("fro",) else ("", [], False)
    if order != "fro":
        raise UnsupportedError("the built-in Coder knows no other matrix norm than Frobenius's")
    return _norm(lo, x, 2, axes, bool(keepdim))


def _register_test(name: str, op: str) -> None:
    @lowers(name)
    def handler(lo: Lowering, x: Value, axes: Any = None, keepdim: bool = False) -> Value:
        nonzero = lo.pointwise("{0} != 0 ? 1 : 0", x, dtype=DType.INT32)
        over = axes_of(x, axes)
        result = lo.reduce(op, nonzero, over, DType.INT64 if op == "sum" else DType.INT32)
        if op != "sum":
            result = lo.pointwise("{0} != 0", result, dtype=DType.BOOL)
        return result if keepdim else lo.drop(result, over)


for _name, _op in (("any", "max"), ("all", "min"), ("count_nonzero", "sum")):
    _register_test(_name, _op)


def _register_scan(name: str, op: str) -> None:
    @lowers(name)
    def handler(lo: Lowering, x: Value, axis: int, **_: Any) -> Value:
        return Scan(x.shape, lo.dtype, op, x, axis % len(x.shape), origin=lo.origin)


for _name, _op in (("cumsum", "sum"), ("cumprod", "prod"), ("logcumsumexp", "logaddexp")):
    _register_scan(_name, _op)


def _register_extreme_scan(name: str, op: str) -> None:
    @lowers(name)
    def handler(lo: Lowering, x: Value, axis: int) -> list[Value]:
        # Values only: a reference that also uses the indices raises that this form is not known.
        return [Scan(x.shape, x.dtype, op, x, axis % len(x.shape), origin=lo.origin)]


for _name, _op in (("cummax", "max"), ("cummin", "min")):
    _register_extreme_scan(_name, _op)
