"""Losses. ``reduction`` is ATen's: 0 none, 1 mean, 2 sum."""

from __future__ import annotations

from kernelforge.agents.builtin.codegen.pointwise import number
from kernelforge.agents.builtin.ir.lowering import Lowering, lowers
from kernelforge.agents.builtin.ir.nodes import ONE, Gather, Value
from kernelforge.agents.builtin.ir.operators.norms import log_softmax
from kernelforge.agents.builtin.ir.operators.reductions import power_norm
from kernelforge.errors import UnsupportedError


def averaged(lo: Lowering, loss: Value, reduction: int, count: Value | None = None) -> Value:
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
    lo.dtype = x.dtype
    if target.dtype.is_floating:
        terms = lo.pointwise("-{0} * {1}", log_softmax(lo, x, 1), target)
        rows = lo.drop(lo.reduce("sum", terms, [1]), [1])
        return averaged(lo, rows, reduction)
    if weight is not None or label_smoothing or len(x.shape) != 2:
        if label_smoothing:
            raise UnsupportedError("the built-in Coder knows no smoothed labels")
        return _nll(lo, log_softmax(lo, x, 1 if len(x.shape) > 1 else 0), target, weight, reduction, ignore_index)
    label = lo.insert(target, 1)
    safe = lo.pointwise("{0} < 0 ? 0 : {0}", label, dtype=target.dtype)
    top = lo.reduce("max", x, [1])
    total = lo.reduce("sum", lo.pointwise("exp({0} - {1})", x, top), [1])
    picked = Gather((x.shape[0], ONE), x.dtype, x, safe, 1, origin=lo.origin)
    text = f"{{3}} == {ignore_index} ? 0.0f : {{1}} + log({{2}}) - {{0}}"
    loss = lo.drop(lo.pointwise(text, picked, top, total, label, dtype=x.dtype), [1])
    counted = lo.pointwise(f"{{0}} == {ignore_index} ? 0.0f : 1.0f", target, dtype=x.dtype)
    return averaged(lo, loss, reduction, lo.reduce("sum", counted, [0]))


@lowers("nll_loss", "nll_loss_nd", "nll_loss2d")
def _nll(
    lo: Lowering, x: Value, target: Value, weight: Value | None = None, reduction: int = 1, ignore_index: int = -100
) -> Value:
    axis = 1 if len(x.shape) > 1 else 0
    label = lo.insert(target, axis)
    ignored = f"{{0}} == {ignore_index}"
    safe = lo.pointwise(f"{ignored} ? 0 : {{0}}", label, dtype=target.dtype)
    picked = Gather(label.shape, x.dtype, x, safe, axis, origin=lo.origin)
    if weight is None:
        weighed: Value = lo.pointwise(f"{ignored} ? 0.0f : 1.0f", label, dtype=x.dtype)
    else:
        shape = tuple(dim if k == axis else ONE for k, dim in enumerate(x.shape))
        wide = lo.expand(lo.view(weight, shape, (f"{{{axis}}}",)), x.shape)
        own = Gather(label.shape, x.dtype, wide, safe, axis, origin=lo.origin)
        weighed = lo.pointwise(f"{ignored} ? 0.0f : {{1}}", label, own, dtype=x.dtype)
    # An ignored label's weight is 0, and its logarithm may be infinite.
    loss = lo.drop(lo.pointwise("{1} == 0.0f ? 0.0f : -{0} * {1}", picked, weighed, dtype=x.dtype), [axis])
    if reduction != 1:
        return averaged(lo, loss, reduction)
    weights = lo.drop(weighed, [axis])
    return averaged(lo, loss, 1, lo.reduce("sum", weights, range(len(weights.shape))))


def _register_loss(names: tuple[str, ...], template: str, *defaults: float) -> None:
    """A loss of two tensors, elementwise; ``template`` names further numbers ``{a}`` and ``{b}``."""

    @lowers(*names)
    def handler(lo: Lowering, x: Value, y: Value, *more: float) -> Value:
        reduction, numbers = 1, list(defaults)
        reduction = int(more[0]) if more else 1
        for number_index, value in enumerate(more[1:]):
            numbers[number_index] = value
        texts = {name: number(float(value)) for name, value in zip("ab", numbers, strict=False)}
        return averaged(lo, lo.pointwise(template.format("{0}", "{1}", **texts), x, y), reduction)


_register_loss(("mse_loss",), "({0} - {1}) * ({0} - {1})")
_register_loss(("l1_loss",), "abs({0} - {1})")
_register_loss(
    ("smooth_l1_loss",),
    "abs({0} - {1}) < {a} ? 0.5f * ({0} - {1}) * ({0} - {1}) / {a} : abs({0} - {1}) - 0.5f * {a}",
    1.0,
)
_register_loss(
    ("huber_loss",),
    "abs({0} - {1}) <= {a} ? 0.5f * ({0} - {1}) * ({0} - {1}) : {a} * (abs({0} - {1}) - 0.5f * {a})",
    1.0,
)
_register_loss(("soft_margin_loss",), "log1p(exp(-{0} * {1}))")


def _settings(more: tuple[float, ...], *defaults: float) -> tuple[list[float], int]:
    """Numbers before the reduction, and the reduction."""
    values = [*more, *(*defaults, 1)[len(more) :]]
    return [float(value) for value in values[:-1]], int(values[-1])


@lowers("hinge_embedding_loss")
def _hinge_embedding(lo: Lowering, x: Value, target: Value, *more: float) -> Value:
    (margin,), reduction = _settings(more, 1.0)
    text = f"({{1}} == 1 ? 0.0f : max({number(margin)} - {{0}}, 0.0f)) + ({{1}} == -1 ? 0.0f : {{0}})"
    return averaged(lo, lo.pointwise(text, x, target, dtype=x.dtype), reduction)


@lowers("margin_ranking_loss")
def _margin_ranking(lo: Lowering, x: Value, y: Value, target: Value, *more: float) -> Value:
    (margin,), reduction = _settings(more, 0.0)
    text = f"max(-{{2}} * ({{0}} - {{1}}) + {number(margin)}, 0.0f)"
    return averaged(lo, lo.pointwise(text, x, y, target, dtype=x.dtype), reduction)


@lowers("kl_div")
def _kl_div(lo: Lowering, x: Value, y: Value, reduction: int = 1, *, log_target: bool = False) -> Value:
    text = "exp({1}) * ({1} - {0})" if log_target else "({1} > 0 ? {1} * log({1}) : 0.0f) - {1} * {0}"
    return averaged(lo, lo.pointwise(text, x, y), reduction)


@lowers("binary_cross_entropy")
def _bce(lo: Lowering, x: Value, y: Value, weight: Value | None = None, reduction: int = 1) -> Value:
    loss: Value = lo.pointwise("-({1} * max(log({0}), -100.0f) + (1.0f - {1}) * max(log1p(-{0}), -100.0f))", x, y)
    return averaged(lo, loss if weight is None else lo.pointwise("{0} * {1}", loss, weight), reduction)


@lowers("binary_cross_entropy_with_logits")
def _bce_with_logits(
    lo: Lowering, x: Value, y: Value, weight: Value | None = None, positive: Value | None = None, reduction: int = 1
) -> Value:
    soft = "log1p(exp(-abs({0}))) + max(-{0}, 0.0f)"
    if positive is None:
        loss: Value = lo.pointwise(f"(1.0f - {{1}}) * {{0}} + ({soft})", x, y)
    else:
        loss = lo.pointwise(f"(1.0f - {{1}}) * {{0}} + (1.0f + ({{2}} - 1.0f) * {{1}}) * ({soft})", x, y, positive)
    return averaged(lo, loss if weight is None else lo.pointwise("{0} * {1}", loss, weight), reduction)


@lowers("poisson_nll_loss")
def _poisson(lo: Lowering, x: Value, y: Value, log_input: bool, full: bool, eps: float, reduction: int) -> Value:
    text = "exp({0}) - {1} * {0}" if log_input else f"{{0}} - {{1}} * log({{0}} + {number(eps)})"
    if full:
        text += " + ({1} > 1.0f ? {1} * log({1}) - {1} + 0.5f * log(6.283185307179586f * {1}) : 0.0f)"
    return averaged(lo, lo.pointwise(text, x, y), reduction)


# --- losses of pairs of rows ---------------------------------------------------------------------------------------


@lowers("cosine_similarity")
def _cosine_similarity(lo: Lowering, x: Value, y: Value, axis: int = 1, eps: float = 1e-8) -> Value:
    products = (lo.pointwise("{0} * {1}", *pair) for pair in ((x, y), (x, x), (y, y)))
    dot, xx, yy = (lo.reduce("sum", value, [axis]) for value in products)
    small = number(eps)
    text = f"{{0}} / (max(sqrt({{1}}), {small}) * max(sqrt({{2}}), {small}))"
    return lo.drop(lo.pointwise(text, dot, xx, yy), [axis])


@lowers("cosine_embedding_loss")
def _cosine_embedding(lo: Lowering, x: Value, y: Value, target: Value, *more: float) -> Value:
    (margin,), reduction = _settings(more, 0.0)
    lo.dtype = x.dtype
    products = (lo.pointwise("{0} * {1}", *pair) for pair in ((x, y), (x, x), (y, y)))
    dot, xx, yy = (lo.drop(lo.reduce("sum", value, [-1]), [-1]) for value in products)
    cosine = lo.pointwise("{0} * rsqrt(({1} + 1e-12f) * ({2} + 1e-12f))", dot, xx, yy)
    text = f"{{1}} == 1 ? 1.0f - {{0}} : ({{1}} == -1 ? max({{0}} - {number(margin)}, 0.0f) : 0.0f)"
    return averaged(lo, lo.pointwise(text, cosine, target, dtype=x.dtype), reduction)


@lowers("pairwise_distance")
def distance(lo: Lowering, x: Value, y: Value, order: float = 2.0, eps: float = 1e-6, keepdim: bool = False) -> Value:
    result = power_norm(lo, lo.pointwise(f"{{0}} - {{1}} + {number(eps)}", x, y), order, [-1])
    return result if keepdim else lo.drop(result, [-1])


@lowers("triplet_margin_loss")
def _triplet(
    lo: Lowering, anchor: Value, near: Value, far: Value, margin: float = 1.0, order: float = 2.0, eps: float = 1e-6,
    swap: bool = False, reduction: int = 1,
) -> Value:  # fmt: skip
    to_near, to_far = (distance(lo, anchor, other, order, eps) for other in (near, far))
    if swap:
        to_far = lo.pointwise("min({0}, {1})", to_far, distance(lo, near, far, order, eps))
    text = f"max({{0}} - {{1}} + {number(float(margin))}, 0.0f)"
    return averaged(lo, lo.pointwise(text, to_near, to_far), reduction)
