"""Matrix products, and attention."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kernelforge.agents.builtin.codegen.cpp_emitter import INFINITY
from kernelforge.agents.builtin.codegen.pointwise import number
from kernelforge.agents.builtin.ir.lowering import Lowering, lowers, quotient
from kernelforge.agents.builtin.ir.nodes import Contraction, Iota, Value, product
from kernelforge.agents.builtin.ir.operators.norms import affine, softmax
from kernelforge.agents.builtin.ir.operators.reductions import power_norm
from kernelforge.agents.builtin.ir.operators.views import transposed
from kernelforge.errors import UnsupportedError
from kernelforge.records import DType


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
    if b.shape[-1].value == 1:
        # A tile of results would have one column: a row of sums reads memory as any other.
        return lo.reduce("sum", lo.pointwise("{0} * {1}", a, transposed(lo, b)), [-1])
    return Contraction((*batch, a.shape[-2], b.shape[-1]), a.dtype, a, b, origin=lo.origin)


@lowers("matmul", "mm", "bmm", "mv", "dot", "vdot", "chain_matmul", "linalg_vecdot")
def matmul(lo: Lowering, a: Value, b: Value) -> Value:
    rows, columns = len(a.shape) == 1, len(b.shape) == 1
    result = contract(lo, lo.insert(a, 0) if rows else a, lo.insert(b, 1) if columns else b)
    gone = ([-2] if rows else []) + ([-1] if columns else [])
    return lo.drop(result, gone) if gone else result


@lowers("outer", "ger")
def _outer(lo: Lowering, a: Value, b: Value) -> Value:
    return lo.pointwise("{0} * {1}", lo.insert(a, 1), lo.insert(b, 0))


@lowers("linear")
def linear(lo: Lowering, x: Value, weight: Value, bias: Value | None = None) -> Value:
    lead = x.shape[:-1]
    flat = x if len(lead) == 1 else lo.reshape(x, (product(lead), x.shape[-1]))
    result = affine(lo, contract(lo, flat, transposed(lo, weight)), None, bias)
    return result if len(lead) == 1 else lo.reshape(result, (*lead, weight.shape[0]))


@lowers("addmm", "baddbmm")
def _addmm(lo: Lowering, c: Value, a: Value, b: Value, *, beta: float = 1, alpha: float = 1) -> Value:
    return _added(lo, c, contract(lo, a, b), beta, alpha)


@lowers("addmv")
def _addmv(lo: Lowering, c: Value, a: Value, b: Value, *, beta: float = 1, alpha: float = 1) -> Value:
    return _added(lo, c, matmul(lo, a, b), beta, alpha)


def _added(lo: Lowering, c: Value, result: Value, beta: float, alpha: float) -> Value:
    return lo.pointwise(f"{number(float(beta))} * {{0}} + {number(float(alpha))} * {{1}}", c, result)


@lowers("einsum")
def _einsum(lo: Lowering, equation: str, values: Sequence[Value], **_: Any) -> Value:
    """Operands one after another, each letter once in each, as torch takes them; letters are summed when none needs
    them any more."""
    inputs, _arrow, output = equation.replace(" ", "").partition("->")
    words = inputs.split(",")
    if not output or any(len(set(word)) != len(word) or "." in word for word in words):
        raise UnsupportedError("the built-in Coder knows einsum of operands with distinct letters only")
    pairs = list(zip(words, values, strict=True))
    word, value = pairs[0]
    for following, (other, factor) in enumerate(pairs[1:], 2):
        needed = set(output).union(*words[following:])
        word, value = _summed(lo, word, value, needed | set(other))
        other, factor = _summed(lo, other, factor, needed | set(word))
        word, value = _product(lo, word, value, other, factor, needed)
    word, value = _summed(lo, word, value, set(output))
    return lo.permute(value, [word.index(letter) for letter in output])


def _summed(lo: Lowering, word: str, value: Value, needed: set[str]) -> tuple[str, Value]:
    """An operand of einsum without the letters that nothing needs."""
    gone = [axis for axis, letter in enumerate(word) if letter not in needed]
    if not gone:
        return word, value
    return "".join(letter for letter in word if letter in needed), lo.drop(lo.reduce("sum", value, gone), gone)


def _product(lo: Lowering, first: str, a: Value, second: str, b: Value, needed: set[str]) -> tuple[str, Value]:
    """Two operands of einsum, permuted to (batch, own, summed) and multiplied; the letters of the product, and it."""
    dims = dict(zip(first, a.shape, strict=True)) | dict(zip(second, b.shape, strict=True))
    batch = [letter for letter in first if letter in second and letter in needed]
    summed = [letter for letter in first if letter in second and letter not in needed]
    rows, columns = ([letter for letter in word if letter not in batch + summed] for word in (first, second))
    order = "".join((*batch, *rows, *columns))
    if not summed:
        factors = (_spread(lo, value, word, order) for value, word in ((a, first), (b, second)))
        return order, lo.pointwise("{0} * {1}", *factors)

    def arranged(x: Value, word: str, middle: list[str], last: list[str]) -> Value:
        moved = lo.permute(x, [word.index(letter) for letter in (*batch, *middle, *last)])
        parts = (product(tuple(dims[letter] for letter in part)) for part in (middle, last))
        return lo.reshape(moved, (*(dims[letter] for letter in batch), *parts))

    result = contract(lo, arranged(a, first, rows, summed), arranged(b, second, summed, columns))
    return order, lo.reshape(result, tuple(dims[letter] for letter in order))


def _spread(lo: Lowering, value: Value, word: str, order: str) -> Value:
    """A value with its axes in another order, and one of extent 1 for each letter that it lacks."""
    value = lo.permute(value, [word.index(letter) for letter in order if letter in word])
    for axis, letter in enumerate(order):
        value = value if letter in word else lo.insert(value, axis)
    return value


@lowers("cdist")
def _cdist(lo: Lowering, a: Value, b: Value, order: float = 2.0, *_: Any) -> Value:
    apart = lo.pointwise("{0} - {1}", lo.insert(a, len(a.shape) - 1), lo.insert(b, len(b.shape) - 2))
    return lo.drop(power_norm(lo, apart, order, [-1]), [-1])


@lowers("kron")
def _kron(lo: Lowering, a: Value, b: Value) -> Value:
    for _ in range(len(b.shape) - len(a.shape)):
        a = lo.insert(a, 0)
    for _ in range(len(a.shape) - len(b.shape)):
        b = lo.insert(b, 0)
    shape = tuple(product(pair) for pair in zip(a.shape, b.shape, strict=True))
    of_a = lo.view(a, shape, [f"({{{k}}} / {{e{k}}})" for k in range(len(shape))], b.shape)
    of_b = lo.view(b, shape, [f"({{{k}}} % {{e{k}}})" for k in range(len(shape))], b.shape)
    return lo.pointwise("{0} * {1}", of_a, of_b)


@lowers("scaled_dot_product_attention")
def _attention(
    lo: Lowering, q: Value, k: Value, v: Value, mask: Value | None = None, dropout: float = 0.0,
    is_causal: bool = False, *, scale: float | None = None, enable_gqa: bool = False,
) -> Value:  # fmt: skip
    if dropout:
        raise UnsupportedError("the built-in Coder knows attention without dropout only")
    if enable_gqa and q.shape[-3].value != k.shape[-3].value:
        k, v = (_per_query_head(lo, value, q) for value in (k, v))
    scores = contract(lo, q, transposed(lo, k))
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
    return contract(lo, softmax(lo, scores, -1), v)


def _per_query_head(lo: Lowering, value: Value, q: Value) -> Value:
    """Keys or values of a group of heads, once for each of its query heads."""
    share = quotient(q.shape[-3], value.shape[-3])
    axis = len(value.shape) - 3
    templates = [f"{{{k}}}" if k != axis else f"({{{k}}} / {{e0}})" for k in range(len(value.shape))]
    return lo.view(value, (*value.shape[:axis], q.shape[-3], *value.shape[axis + 1 :]), templates, (share,))
