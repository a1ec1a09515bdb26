"""Lowerings of the operators that are not elementwise."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kernelforge.agents.builtin.helpers import INFINITY
from kernelforge.agents.builtin.ir import (
    ONE,
    Contraction,
    Conv2d,
    Gather,
    Iota,
    Scan,
    Value,
    View,
    Window,
    literal,
    product,
)  # fmt: skip
from kernelforge.agents.builtin.loops import output_dim
from kernelforge.agents.builtin.lower import Lowering, broadcast, lowers
from kernelforge.agents.builtin.pointwise import number
from kernelforge.errors import UnsupportedError
from kernelforge.records import DType

# --- views ---------------------------------------------------------------------------------------------------------


@lowers("view", "reshape", "_unsafe_view")
def _view(lo: Lowering, x: Value, sizes: Sequence[int]) -> Value:
    return lo.reshape(x, lo.shape_like(sizes, x))


@lowers("flatten")
def _flatten(lo: Lowering, x: Value, first: int = 0, last: int = -1) -> Value:
    first, last = first % len(x.shape), last % len(x.shape)
    return lo.reshape(x, (*x.shape[:first], product(x.shape[first : last + 1]), *x.shape[last + 1 :]))


@lowers("transpose", "swapaxes")
def _transpose(lo: Lowering, x: Value, a: int, b: int) -> Value:
    order = list(range(len(x.shape)))
    order[a], order[b] = order[b], order[a]
    return lo.permute(x, order)


@lowers("t", "numpy_T", "mT", "matrix_H")
def _t(lo: Lowering, x: Value) -> Value:
    return x if len(x.shape) < 2 else _transpose(lo, x, -2, -1)


@lowers("permute")
def _permute(lo: Lowering, x: Value, order: Sequence[int]) -> Value:
    return lo.permute(x, order)


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
        x.shape[axis - lead] if axis >= lead and size in (-1, x.shape[axis - lead].value) else literal(size)
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
def _select(lo: Lowering, x: Value, axis: int, index: int) -> Value:
    axis %= len(x.shape)
    if index < 0:
        raise UnsupportedError("the built-in Coder selects from the front only")
    templates = [f"{{{k if k < axis else k - 1}}}" for k in range(len(x.shape))]
    templates[axis] = str(index)
    return View((*x.shape[:axis], *x.shape[axis + 1 :]), x.dtype, x, tuple(templates), origin=lo.origin)


@lowers("to", "_to_copy", "type_as", "float")
def _to(lo: Lowering, x: Value, *_args: Any, **_kwargs: Any) -> Value:
    return x if x.dtype is lo.dtype else lo.pointwise("{0}", x, dtype=lo.dtype)


# --- reductions ----------------------------------------------------------------------------------------------------


def _axes(x: Value, axes: int | Sequence[int] | None) -> list[int]:
    rank = len(x.shape)
    chosen = range(rank) if axes is None or axes == [] else [axes] if isinstance(axes, int) else axes
    return sorted({axis % rank for axis in chosen})


def _reduced(lo: Lowering, op: str, x: Value, axes: Any, keepdim: bool) -> Value:
    chosen = _axes(x, axes)
    result: Value = lo.reduce("sum" if op == "mean" else op, x, chosen, lo.dtype)
    if op == "mean":
        result = lo.pointwise("{0} / {1}", result, lo.count(x, chosen))
    return result if keepdim else lo.drop(result, chosen)


def _register_reduction(name: str, op: str) -> None:
    @lowers(name)
    def handler(lo: Lowering, x: Value, axes: Any = None, keepdim: bool = False, dtype: Any = None) -> Value:
        return _reduced(lo, op, x, axes, keepdim)


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
            return _reduced(lo, op, x, None, False)
        if isinstance(other, Value):
            return lo.pointwise_operator("maximum" if op == "max" else "minimum", [x, other], {})
        values = lo.reduce(op, x, [other], x.dtype)
        places = lo.reduce(f"arg{op}", x, [other], DType.INT64)
        return [value if keepdim else lo.drop(value, [other]) for value in (values, places)]


for _name in ("max", "min"):
    _register_extreme(_name)


@lowers("logsumexp")
def _logsumexp(lo: Lowering, x: Value, axes: Any, keepdim: bool = False) -> Value:
    chosen = _axes(x, axes)
    top = lo.reduce("max", x, chosen)
    total = lo.reduce("sum", lo.pointwise("exp({0} - {1})", x, top), chosen)
    result = lo.pointwise("{0} + log({1})", top, total)
    return result if keepdim else lo.drop(result, chosen)


def centred(lo: Lowering, x: Value, axes: Sequence[int]) -> tuple[Value, Value]:
    """``x`` less its mean, and the mean of its square."""
    count = lo.count(x, axes)
    mean = lo.pointwise("{0} / {1}", lo.reduce("sum", x, axes), count)
    apart = lo.pointwise("{0} - {1}", x, mean)
    return apart, lo.pointwise("{0} / {1}", lo.reduce("sum", lo.pointwise("{0} * {0}", apart), axes), count)


# --- normalisation -------------------------------------------------------------------------------------------------


@lowers("softmax", "_softmax")
def _softmax(lo: Lowering, x: Value, axis: int, *_: Any) -> Value:
    top = lo.reduce("max", x, [axis])
    grown = lo.pointwise("exp({0} - {1})", x, top)
    return lo.pointwise("{0} / {1}", grown, lo.reduce("sum", grown, [axis]))


@lowers("log_softmax", "_log_softmax")
def _log_softmax(lo: Lowering, x: Value, axis: int, *_: Any) -> Value:
    top = lo.reduce("max", x, [axis])
    total = lo.reduce("sum", lo.pointwise("exp({0} - {1})", x, top), [axis])
    return lo.pointwise("{0} - {1} - log({2})", x, top, total)


def _affine(lo: Lowering, x: Value, weight: Value | None, bias: Value | None) -> Value:
    if weight is not None:
        x = lo.pointwise("{0} * {1}", x, weight)
    return x if bias is None else lo.pointwise("{0} + {1}", x, bias)


@lowers("layer_norm")
def _layer_norm(
    lo: Lowering, x: Value, shape: Sequence[int], weight: Value | None = None, bias: Value | None = None,
    eps: float = 1e-5, *_: Any,
) -> Value:  # fmt: skip
    apart, variance = centred(lo, x, range(len(x.shape) - len(shape), len(x.shape)))
    return _affine(lo, lo.pointwise(f"{{0}} * rsqrt({{1}} + {number(eps)})", apart, variance), weight, bias)


@lowers("rms_norm")
def _rms_norm(
    lo: Lowering, x: Value, shape: Sequence[int], weight: Value | None = None, eps: float | None = None
) -> Value:
    axes = range(len(x.shape) - len(shape), len(x.shape))
    square = lo.reduce("sum", lo.pointwise("{0} * {0}", x), axes)
    small = number(1.1920928955078125e-07 if eps is None else eps)
    scaled = lo.pointwise(f"{{0}} * rsqrt({{1}} / {{2}} + {small})", x, square, lo.count(x, axes))
    return _affine(lo, scaled, weight, None)


@lowers("batch_norm")
def _batch_norm(
    lo: Lowering, x: Value, weight: Value | None, bias: Value | None, mean: Value | None, variance: Value | None,
    training: bool, momentum: float, eps: float, *_: Any,
) -> Value:  # fmt: skip
    def channel(value: Value) -> Value:
        rest = (ONE,) * (len(x.shape) - 2)
        return View((ONE, *value.shape, *rest), value.dtype, value, ("{1}",), origin=lo.origin)

    if training or mean is None or variance is None:
        axes = [axis for axis in range(len(x.shape)) if axis != 1]
        apart, spread = centred(lo, x, axes)
        scaled = lo.pointwise(f"{{0}} * rsqrt({{1}} + {number(eps)})", apart, spread)
    else:
        text = f"({{0}} - {{1}}) * rsqrt({{2}} + {number(eps)})"
        scaled = lo.pointwise(text, x, channel(mean), channel(variance))
    return _affine(lo, scaled, weight and channel(weight), bias and channel(bias))


# --- losses --------------------------------------------------------------------------------------------------------


def _averaged(lo: Lowering, loss: Value, reduction: int, count: Value | None = None) -> Value:
    if reduction == 0:
        return loss
    axes = list(range(len(loss.shape)))
    total = lo.reduce("sum", loss, axes)
    if reduction == 1:
        total = lo.pointwise("{0} / {1}", total, count or lo.count(loss, axes))
    return lo.drop(total, axes)


@lowers("cross_entropy_loss")
def _cross_entropy(
    lo: Lowering, x: Value, target: Value, weight: Value | None = None, reduction: int = 1,
    ignore_index: int = -100, label_smoothing: float = 0.0,
) -> Value:  # fmt: skip
    if weight is not None or label_smoothing or target.dtype.is_floating or len(x.shape) != 2:
        raise UnsupportedError("the built-in Coder knows cross-entropy of (rows, classes) with class indices only")
    lo.dtype = x.dtype
    label = lo.insert(target, 1)
    safe = lo.pointwise("{0} < 0 ? 0 : {0}", label, dtype=target.dtype)
    top = lo.reduce("max", x, [1])
    total = lo.reduce("sum", lo.pointwise("exp({0} - {1})", x, top), [1])
    chosen = Gather((x.shape[0], ONE), x.dtype, x, safe, 1, origin=lo.origin)
    text = f"{{3}} == {ignore_index} ? 0.0f : {{1}} + log({{2}}) - {{0}}"
    loss = lo.drop(lo.pointwise(text, chosen, top, total, label, dtype=x.dtype), [1])
    counted = lo.pointwise(f"{{0}} == {ignore_index} ? 0.0f : 1.0f", target, dtype=x.dtype)
    return _averaged(lo, loss, reduction, lo.reduce("sum", counted, [0]))


@lowers("mse_loss")
def _mse(lo: Lowering, x: Value, y: Value, reduction: int = 1) -> Value:
    return _averaged(lo, lo.pointwise("({0} - {1}) * ({0} - {1})", x, y), reduction)


@lowers("l1_loss")
def _l1(lo: Lowering, x: Value, y: Value, reduction: int = 1) -> Value:
    return _averaged(lo, lo.pointwise("abs({0} - {1})", x, y), reduction)


# --- contractions --------------------------------------------------------------------------------------------------


def contract(lo: Lowering, a: Value, b: Value) -> Value:
    """``a @ b`` for operands of rank two or more."""
    if len(b.shape) == 2 and len(a.shape) > 2:
        lead = a.shape[:-1]
        flat = contract(lo, lo.reshape(a, (product(lead), a.shape[-1])), b)
        return lo.reshape(flat, (*lead, b.shape[-1]))
    lead_a, lead_b = a.shape[:-2], b.shape[:-2]
    rank = max(len(lead_a), len(lead_b))
    batch = tuple(
        next((dim for dim in options if dim.value != 1), options[0])
        for axis in range(-rank, 0)
        if (options := [lead[axis] for lead in (lead_a, lead_b) if len(lead) >= -axis])
    )
    a = a if lead_a == batch else lo.expand(a, (*batch, *a.shape[-2:]))
    b = b if lead_b == batch else lo.expand(b, (*batch, *b.shape[-2:]))
    return Contraction((*batch, a.shape[-2], b.shape[-1]), a.dtype, a, b, origin=lo.origin)


@lowers("matmul", "mm", "bmm")
def _matmul(lo: Lowering, a: Value, b: Value) -> Value:
    rows, columns = len(a.shape) == 1, len(b.shape) == 1
    result = contract(lo, lo.insert(a, 0) if rows else a, lo.insert(b, 1) if columns else b)
    gone = ([-2] if rows else []) + ([-1] if columns else [])
    return lo.drop(result, gone) if gone else result


@lowers("linear")
def _linear(lo: Lowering, x: Value, weight: Value, bias: Value | None = None) -> Value:
    lead = x.shape[:-1]
    flat = x if len(lead) == 1 else lo.reshape(x, (product(lead), x.shape[-1]))
    result = _affine(lo, contract(lo, flat, _t(lo, weight)), None, bias)
    return result if len(lead) == 1 else lo.reshape(result, (*lead, weight.shape[0]))


@lowers("addmm", "baddbmm")
def _addmm(lo: Lowering, c: Value, a: Value, b: Value, *, beta: float = 1, alpha: float = 1) -> Value:
    return lo.pointwise(f"{number(float(beta))} * {{0}} + {number(float(alpha))} * {{1}}", c, contract(lo, a, b))


@lowers("scaled_dot_product_attention")
def _attention(
    lo: Lowering, q: Value, k: Value, v: Value, mask: Value | None = None, dropout: float = 0.0,
    is_causal: bool = False, *, scale: float | None = None, enable_gqa: bool = False,
) -> Value:  # fmt: skip
    if dropout or enable_gqa:
        raise UnsupportedError("the built-in Coder knows attention without dropout and without grouped heads")
    scores = contract(lo, q, _t(lo, k))
    if scale is None:
        scores = lo.pointwise("{0} * rsqrt((float){1})", scores, lo.count(q, [-1]))
    else:
        scores = lo.pointwise(f"{{0}} * {number(float(scale))}", scores)
    if mask is not None:
        fill = f"{{1}} ? {{0}} : -{INFINITY}" if mask.dtype is DType.BOOL else "{0} + {1}"
        scores = lo.pointwise(fill, scores, mask)
    if is_causal:
        row, column = (Iota(scores.shape, DType.INT32, axis, origin=lo.origin) for axis in (-2, -1))
        scores = lo.pointwise(f"{{1}} >= {{2}} ? {{0}} : -{INFINITY}", scores, row, column)
    return contract(lo, _softmax(lo, scores, -1), v)


# --- convolution, windows, scans -----------------------------------------------------------------------------------


def _pair(value: int | Sequence[int]) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else (value[0], value[-1])


@lowers("conv2d")
def _conv2d(
    lo: Lowering, x: Value, weight: Value, bias: Value | None = None, stride: Any = 1, padding: Any = 0,
    dilation: Any = 1, groups: int = 1,
) -> Value:  # fmt: skip
    if isinstance(padding, str) or len(x.shape) != 4:
        raise UnsupportedError("the built-in Coder knows conv2d of a batch with numeric padding only")
    steps, pads, spread = _pair(stride), _pair(padding), _pair(dilation)
    shape = (
        x.shape[0], weight.shape[0],
        *(output_dim(x.shape[2 + a], weight.shape[2 + a].value, steps[a], pads[a], spread[a]) for a in (0, 1)),
    )  # fmt: skip
    result: Value = Conv2d(shape, x.dtype, x, weight, steps, pads, spread, groups, origin=lo.origin)
    if bias is not None:
        per_channel = View((ONE, *bias.shape, ONE, ONE), bias.dtype, bias, ("{1}",), origin=lo.origin)
        result = lo.pointwise("{0} + {1}", result, per_channel)
    return result


def _window(
    lo: Lowering, op: str, x: Value, kernel: Any, stride: Any, padding: Any, dilation: Any, **more: Any
) -> Value:
    size, pads, spread = _pair(kernel), _pair(padding), _pair(dilation)
    steps = _pair(stride) if stride not in (None, []) else size
    extents = (output_dim(x.shape[a - 2], size[a], steps[a], pads[a], spread[a]) for a in (0, 1))
    return Window((*x.shape[:-2], *extents), x.dtype, op, x, size, steps, pads, spread, **more, origin=lo.origin)


@lowers("max_pool2d")
def _max_pool2d(
    lo: Lowering, x: Value, kernel: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1, ceil: bool = False
) -> Value:
    if ceil:
        raise UnsupportedError("the built-in Coder knows no pooling with ceil_mode")
    return _window(lo, "max", x, kernel, stride, padding, dilation)


@lowers("avg_pool2d")
def _avg_pool2d(
    lo: Lowering, x: Value, kernel: Any, stride: Any = None, padding: Any = 0, ceil: bool = False,
    count_include_pad: bool = True, divisor: int | None = None,
) -> Value:  # fmt: skip
    if ceil or divisor is not None:
        raise UnsupportedError("the built-in Coder knows no pooling with ceil_mode or a divisor")
    return _window(lo, "avg", x, kernel, stride, padding, 1, count_padding=count_include_pad)


@lowers("adaptive_avg_pool2d")
def _adaptive_avg_pool2d(lo: Lowering, x: Value, size: Sequence[int]) -> Value:
    if list(_pair(size)) != [1, 1]:
        raise UnsupportedError("the built-in Coder knows adaptive pooling to 1x1 only")
    return _reduced(lo, "mean", x, [-2, -1], True)


@lowers("cumsum")
def _cumsum(lo: Lowering, x: Value, axis: int, **_: Any) -> Value:
    return Scan(x.shape, lo.dtype, "sum", x, axis % len(x.shape), origin=lo.origin)


@lowers("cumprod")
def _cumprod(lo: Lowering, x: Value, axis: int, **_: Any) -> Value:
    return Scan(x.shape, lo.dtype, "prod", x, axis % len(x.shape), origin=lo.origin)


@lowers("embedding")
def _embedding(lo: Lowering, weight: Value, index: Value, *_: Any) -> Value:
    flat = index if len(index.shape) == 1 else lo.reshape(index, (product(index.shape),))
    rows = Gather((flat.shape[0], weight.shape[1]), weight.dtype, weight, lo.insert(flat, 1), 0, origin=lo.origin)
    return rows if len(index.shape) == 1 else lo.reshape(rows, (*index.shape, weight.shape[1]))
