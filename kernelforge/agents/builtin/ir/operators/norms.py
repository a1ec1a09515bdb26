"""Softmax and the normalisations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kernelforge.agents.builtin.codegen.pointwise import number
from kernelforge.agents.builtin.ir.lowering import Lowering, lowers, quotient
from kernelforge.agents.builtin.ir.nodes import StoredTensor, Value, product
from kernelforge.agents.builtin.ir.operators.reductions import centred
from kernelforge.agents.builtin.ir.operators.views import channelwise


@lowers("softmax", "_softmax")
def softmax(lo: Lowering, x: Value, axis: int, *_: Any) -> Value:
    top = lo.reduce("max", x, [axis])
    grown = lo.pointwise("exp({0} - {1})", x, top)
    return lo.pointwise("{0} / {1}", grown, lo.reduce("sum", grown, [axis]))


@lowers("log_softmax", "_log_softmax")
def log_softmax(lo: Lowering, x: Value, axis: int, *_: Any) -> Value:
    top = lo.reduce("max", x, [axis])
    total = lo.reduce("sum", lo.pointwise("exp({0} - {1})", x, top), [axis])
    return lo.pointwise("{0} - {1} - log({2})", x, top, total)


def affine(lo: Lowering, x: Value, weight: Value | None, bias: Value | None) -> Value:
    if weight is not None:
        x = lo.pointwise("{0} * {1}", x, weight)
    return x if bias is None else lo.pointwise("{0} + {1}", x, bias)


def _per_channel(lo: Lowering, x: Value, weight: Value | None, bias: Value | None) -> Value:
    rank = len(x.shape)
    return affine(lo, x, weight and channelwise(lo, weight, rank), bias and channelwise(lo, bias, rank))


def _standardised(lo: Lowering, x: Value, axes: Sequence[int], eps: float) -> Value:
    apart, variance = centred(lo, x, axes)
    return lo.pointwise(f"{{0}} * rsqrt({{1}} + {number(eps)})", apart, variance)


@lowers("layer_norm")
def _layer_norm(
    lo: Lowering, x: Value, shape: Sequence[int], weight: Value | None = None, bias: Value | None = None,
    eps: float = 1e-5, *_: Any,
) -> Value:  # fmt: skip
    return affine(lo, _standardised(lo, x, range(len(x.shape) - len(shape), len(x.shape)), eps), weight, bias)


@lowers("rms_norm")
def _rms_norm(
    lo: Lowering, x: Value, shape: Sequence[int], weight: Value | None = None, eps: float | None = None
) -> Value:
    axes = range(len(x.shape) - len(shape), len(x.shape))
    square = lo.reduce("sum", lo.pointwise("{0} * {0}", x), axes)
    small = number(1.1920928955078125e-07 if eps is None else eps)
    scaled = lo.pointwise(f"{{0}} * rsqrt({{1}} / {{2}} + {small})", x, square, lo.count(x, axes))
    return affine(lo, scaled, weight, None)


@lowers("batch_norm")
def _batch_norm(
    lo: Lowering, x: Value, weight: Value | None, bias: Value | None, mean: Value | None, variance: Value | None,
    training: bool, momentum: float, eps: float, *_: Any,
) -> Value:  # fmt: skip
    if training or mean is None or variance is None:
        scaled = _standardised(lo, x, [axis for axis in range(len(x.shape)) if axis != 1], eps)
    else:
        text = f"({{0}} - {{1}}) * rsqrt({{2}} + {number(eps)})"
        rank = len(x.shape)
        scaled = lo.pointwise(text, x, channelwise(lo, mean, rank), channelwise(lo, variance, rank))
    return _per_channel(lo, scaled, weight, bias)


@lowers("instance_norm")
def _instance_norm(
    lo: Lowering, x: Value, weight: Value | None, bias: Value | None, mean: Value | None, variance: Value | None,
    use_input: bool, momentum: float, eps: float, *_: Any,
) -> Value:  # fmt: skip
    if not use_input:
        return _batch_norm(lo, x, weight, bias, mean, variance, False, momentum, eps)
    return _per_channel(lo, _standardised(lo, x, range(2, len(x.shape)), eps), weight, bias)


@lowers("group_norm")
def _group_norm(
    lo: Lowering, x: Value, groups: int, weight: Value | None = None, bias: Value | None = None, eps: float = 1e-5,
    *_: Any,
) -> Value:  # fmt: skip
    layer = weight.layer if isinstance(weight, StoredTensor) else ""
    count = lo.number(groups, f"{layer}.num_groups")
    grouped = lo.reshape(x, (x.shape[0], count, quotient(x.shape[1], count), *x.shape[2:]))
    scaled = _standardised(lo, grouped, range(2, len(grouped.shape)), eps)
    return _per_channel(lo, lo.reshape(scaled, x.shape), weight, bias)


@lowers("glu")
def _glu(lo: Lowering, x: Value, axis: int = -1) -> Value:
    from kernelforge.agents.builtin.ir.operators.views import chunk

    first, second = chunk(lo, x, 2, axis)
    return lo.pointwise("{0} / (1.0f + exp(-{1}))", first, second)


@lowers("prelu")
def _prelu(lo: Lowering, x: Value, weight: Value) -> Value:
    slope = weight if len(x.shape) < 2 or product(weight.shape).value == 1 else channelwise(lo, weight, len(x.shape))
    return lo.pointwise("{0} > 0 ? {0} : {1} * {0}", x, slope)
