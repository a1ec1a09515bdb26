"""Torch with every sum accumulated in order, one term after the other.

An honest kernel may add the terms of a reduction in order, in one accumulator; eager torch adds pairwise and errs less.
Running the reference once under :class:`SequentialSums` measures what the plainest honest kernel would err, for
these very inputs, through all later operators. The tolerance is derived from that measurement, not from a formula.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode

_MAX_PRODUCT_ELEMENTS = 1 << 16
"""Elements of one matrix product that are summed in order; the rest keep torch's value. Enough to find the worst."""

_MAX_HOST_ELEMENTS = 1 << 23
"""Terms of one reduction that are copied from a GPU and summed in order on the host; the rest keep torch's value."""

_LONGEST_RUN = 1 << 16
"""Terms that one accumulator takes in order; sums of as many are then added in order. No kernel takes millions: a whole
tensor in one float32 would lose so much that reading half of it could pass for rounding."""

_UNORDERED = frozenset({
    "convolution", "_cdist_forward", "_pdist_forward", "mse_loss", "smooth_l1_loss", "huber_loss",
    "binary_cross_entropy", "soft_margin_loss", "multi_margin_loss", "nll_loss_forward", "nll_loss2d_forward",
    "avg_pool1d", "avg_pool2d", "avg_pool3d", "_adaptive_avg_pool2d", "_adaptive_avg_pool3d",
    "mkldnn_rnn_layer", "grid_sampler_2d", "native_batch_norm", "cumprod", "prod", "scatter_add", "index_add",
    "scatter_reduce", "_embedding_bag", "linalg_vector_norm", "_scaled_dot_product_flash_attention_for_cpu",
})  # fmt: skip
"""Operators that sum; where no handler takes them, the length of the sum stands in for a measurement."""


class SequentialSums(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Replace reductions by in-order ones in ``accumulator`` (float64 inputs always accumulate in float64)."""

    def __init__(self, accumulator: torch.dtype) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.accumulator = accumulator
        self.replaced = 0
        """Operator calls that were summed in order."""
        self.unordered_terms = 0
        """Longest sum among operators that could not be replaced; 0 when all were."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        name = func.overloadpacket.__name__
        handler = _HANDLERS.get(name)
        if handler is not None:
            result = handler(self, func, *args, **(kwargs or {}))
            if result is not NotImplemented:
                self.replaced += 1
                return result
        result = func(*args, **(kwargs or {}))
        if name in _UNORDERED:
            self.unordered_terms = max(self.unordered_terms, _terms(name, args, result))
        return result

    def dtype_for(self, x: torch.Tensor) -> torch.dtype:
        return torch.float64 if x.dtype == torch.float64 else self.accumulator


def running(x: torch.Tensor, dim: int, dtype: torch.dtype, *, product: bool = False) -> torch.Tensor:
    """Cumulative sum (or product) along ``dim``, each term taken into a ``dtype`` accumulator in order."""
    if x.dim() == 0:
        return x.to(dtype)
    if _complete_sum(x):
        return _in_order(x.to(dtype), dim, product)
    lines = x.movedim(dim, -1).reshape(-1, x.shape[dim])
    result = (lines.cumprod if product else lines.cumsum)(-1, dtype=dtype)
    first = _first_lines(lines)
    result[:first] = _in_order(lines[:first].to(dtype).cpu(), -1, product).to(x.device)
    return result.reshape(x.movedim(dim, -1).shape).movedim(-1, dim)


def _complete_sum(x: torch.Tensor) -> bool:
    """Whether every term is summed in order: on a GPU that would take longer than all the rest."""
    return x.is_cpu


def _in_order(x: torch.Tensor, dim: int, product: bool = False) -> torch.Tensor:
    # A result that leaves the type's range is an infinity, which the tolerance knows what to do with.
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        return torch.from_numpy((np.multiply if product else np.add).accumulate(x.contiguous().numpy(), axis=dim))


def _first_lines(lines: torch.Tensor) -> int:
    """Number of lines that are summed in order where the host does that for a GPU: enough to find the worst."""
    return min(lines.shape[0], max(_MAX_HOST_ELEMENTS // max(lines.shape[1], 1), 1))


def ordered_sum(x: torch.Tensor, dims: Sequence[int], keepdim: bool, dtype: torch.dtype) -> torch.Tensor:
    """Sum over ``dims`` (all when empty) in C order of the reduced axes."""
    reduced = sorted({dim % x.dim() for dim in dims}) if dims else list(range(x.dim()))
    kept = [dim for dim in range(x.dim()) if dim not in reduced]
    lines = x.permute(*kept, *reduced).reshape(math.prod(x.shape[dim] for dim in kept), -1)
    if not lines.shape[-1]:
        total = lines.sum(-1, dtype=dtype)
    elif _complete_sum(x):
        total = _line_sums(lines, dtype)
    else:
        total = lines.sum(-1, dtype=dtype)
        first = _first_lines(lines)
        total[:first] = _line_sums(lines[:first].cpu(), dtype).to(x.device)
    shape = [1 if dim in reduced else x.shape[dim] for dim in range(x.dim()) if keepdim or dim not in reduced]
    return total.reshape(shape)


def _line_sums(lines: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Sum of each row of a host tensor in order, in runs of at most :data:`_LONGEST_RUN` terms."""
    length = lines.shape[-1]
    if length <= _LONGEST_RUN:
        return _in_order(lines.to(dtype), -1)[..., -1]
    full_runs = length - length % _LONGEST_RUN
    runs = _line_sums(lines[:, :full_runs].reshape(-1, _LONGEST_RUN), dtype).reshape(lines.shape[0], -1)
    if full_runs < length:
        runs = torch.cat([runs, _line_sums(lines[:, full_runs:], dtype).unsqueeze(1)], dim=1)
    return _line_sums(runs, dtype)


def ordered_bmm(a: torch.Tensor, b: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Batched matrix product (B, M, K) x (B, K, N), terms added in order of K; only the first rows of a large one."""
    result = torch.bmm(a, b).to(dtype)
    rows = min(a.shape[1], max(_MAX_PRODUCT_ELEMENTS // max(b.shape[2], 1), 1))
    batches = min(a.shape[0], max(_MAX_PRODUCT_ELEMENTS // max(rows * b.shape[2], 1), 1))
    lhs, rhs = a[:batches, :rows].to(dtype), b[:batches].to(dtype)
    total = torch.zeros(batches, rows, b.shape[2], dtype=dtype, device=a.device)
    for k in range(a.shape[2]):
        total.addcmul_(lhs[:, :, k : k + 1], rhs[:, k : k + 1])
    result[:batches, :rows] = total
    return result


def _sum(mode: SequentialSums, func: Any, x: torch.Tensor, dim: Any = None, keepdim: bool = False, **kw: Any) -> Any:
    dtype = kw.get("dtype") or x.dtype
    if not x.is_floating_point() or not dtype.is_floating_point or x.numel() == 0:
        return NotImplemented
    return ordered_sum(x, _dims(dim), keepdim, mode.dtype_for(x)).to(dtype)


def _mean(mode: SequentialSums, func: Any, x: torch.Tensor, dim: Any = None, keepdim: bool = False, **kw: Any) -> Any:
    if not x.is_floating_point() or x.numel() == 0:
        return NotImplemented
    total = ordered_sum(x, _dims(dim), keepdim, mode.dtype_for(x))
    # Times the reciprocal, as kernels do: one rounding more than a division.
    return (total * _reciprocal(x, total)).to(kw.get("dtype") or x.dtype)


def _reciprocal(x: torch.Tensor, total: torch.Tensor) -> torch.Tensor:
    """One over the number of terms behind each element of ``total``, rounded to its dtype."""
    return torch.tensor(max(total.numel(), 1) / x.numel(), dtype=total.dtype, device=x.device)


def _moments(x: torch.Tensor, dims: Sequence[int], dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor, float]:
    """Mean and sum of squared deviations with dims kept, and the number of terms."""
    total = ordered_sum(x, dims, True, dtype)
    count = x.numel() / max(total.numel(), 1)
    mean = total * _reciprocal(x, total)
    return mean, ordered_sum((x.to(dtype) - mean).square(), dims, True, dtype), count


def _var_mean(mode: SequentialSums, func: Any, x: torch.Tensor, dim: Any = None, **kw: Any) -> Any:
    if not x.is_floating_point() or x.numel() == 0 or x.dim() == 0:
        return NotImplemented
    correction = kw.get("correction")
    mean, squares, count = _moments(x, _dims(dim), mode.dtype_for(x))
    variance = squares / max(count - (1.0 if correction is None else correction), 0.0)
    name = func.overloadpacket.__name__
    first = variance.sqrt() if name.startswith("std") else variance
    if not kw.get("keepdim", False):
        shape = ordered_sum(x, _dims(dim), False, mode.dtype_for(x)).shape
        first, mean = first.reshape(shape), mean.reshape(shape)
    return (first.to(x.dtype), mean.to(x.dtype)) if name.endswith("_mean") else first.to(x.dtype)


def _mm(mode: SequentialSums, func: Any, a: torch.Tensor, b: torch.Tensor) -> Any:
    if not a.is_floating_point() or a.numel() == 0:
        return NotImplemented
    return ordered_bmm(a.unsqueeze(0), b.unsqueeze(0), mode.dtype_for(a))[0].to(a.dtype)


def _bmm(mode: SequentialSums, func: Any, a: torch.Tensor, b: torch.Tensor) -> Any:
    if not a.is_floating_point() or a.numel() == 0:
        return NotImplemented
    return ordered_bmm(a, b, mode.dtype_for(a)).to(a.dtype)


def _addmm(
    mode: SequentialSums,
    func: Any,
    base: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    *,
    beta: Any = 1,
    alpha: Any = 1,
) -> Any:
    if not a.is_floating_point() or a.numel() == 0:
        return NotImplemented
    batched = a.dim() == 3
    lhs, rhs = (a, b) if batched else (a.unsqueeze(0), b.unsqueeze(0))
    product = ordered_bmm(lhs, rhs, mode.dtype_for(a))
    product = product if batched else product[0]
    return (base * beta + product * alpha).to(a.dtype) if beta else (product * alpha).to(a.dtype)


def _vector(mode: SequentialSums, func: Any, a: torch.Tensor, b: torch.Tensor) -> Any:
    """``mv`` and ``dot``."""
    if not a.is_floating_point() or a.numel() == 0:
        return NotImplemented
    return ordered_sum(a.to(mode.dtype_for(a)) * b, [-1], False, mode.dtype_for(a)).to(a.dtype)


def _convolution(
    mode: SequentialSums,
    func: Any,
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> Any:
    if transposed or x.dim() != 4 or x.numel() == 0:
        return NotImplemented
    dtype = mode.dtype_for(x)
    kernel = weight.shape[2:]
    if not _complete_sum(x) and x.shape[0] > 1:
        # Columns of a whole batch at full size would not fit: images that are not looked at keep torch's value.
        result = func(x, weight, bias, stride, padding, dilation, transposed, output_padding, groups)
        settings = (stride, padding, dilation, transposed, output_padding, groups)
        result[:1] = _convolution(mode, func, x[:1], weight, bias, *settings)
        return result
    columns = F.unfold(x, tuple(kernel), tuple(dilation), tuple(padding), tuple(stride))
    batch, rows, places = columns.shape
    columns = columns.reshape(batch * groups, rows // groups, places)
    filters = weight.reshape(groups, weight.shape[0] // groups, -1).repeat(batch, 1, 1)
    size = [(x.shape[2 + i] + 2 * padding[i] - dilation[i] * (kernel[i] - 1) - 1) // stride[i] + 1 for i in range(2)]
    result = ordered_bmm(filters, columns, dtype).reshape(batch, weight.shape[0], *size)
    if bias is not None:
        result = result + bias.to(dtype).reshape(1, -1, 1, 1)
    return result.to(x.dtype)


def _softmax(mode: SequentialSums, func: Any, x: torch.Tensor, dim: int, half_to_float: bool = False) -> Any:
    if x.numel() == 0 or x.dim() == 0:
        return NotImplemented
    dtype = mode.dtype_for(x)
    shifted = x.to(dtype) - x.to(dtype).amax(dim, keepdim=True)
    powers = shifted.exp()
    total = ordered_sum(powers, [dim], True, dtype)
    log = func.overloadpacket.__name__ == "_log_softmax"
    return (shifted - total.log() if log else powers / total).to(torch.float32 if half_to_float else x.dtype)


def _logsumexp(mode: SequentialSums, func: Any, x: torch.Tensor, dim: Any, keepdim: bool = False) -> Any:
    dims = _dims(dim)
    if not x.is_floating_point() or x.numel() == 0 or x.dim() == 0:
        return NotImplemented
    dtype = mode.dtype_for(x)
    top = x.to(dtype).amax(dims, keepdim=True)
    result = ordered_sum((x.to(dtype) - top).exp(), dims, True, dtype).log() + top
    return (result if keepdim else result.reshape(ordered_sum(x, dims, False, dtype).shape)).to(x.dtype)


def _vector_norm(
    mode: SequentialSums, func: Any, x: torch.Tensor, ord: Any = 2, dim: Any = None, *rest: Any, **kw: Any
) -> Any:
    ord = 2 if ord is None else ord
    if ord not in (1, 2) or not x.is_floating_point() or x.numel() == 0:
        return NotImplemented
    keepdim = rest[0] if rest else kw.get("keepdim", False)
    dtype = mode.dtype_for(x)
    terms = x.to(dtype).square() if ord == 2 else x.to(dtype).abs()
    total = ordered_sum(terms, _dims(dim), keepdim, dtype)
    return (total.sqrt() if ord == 2 else total).to(kw.get("dtype") or x.dtype)


def _layer_norm(
    mode: SequentialSums, func: Any, x: torch.Tensor, shape: Sequence[int], weight: Any, bias: Any, eps: float
) -> Any:
    if x.numel() == 0:
        return NotImplemented
    dtype = mode.dtype_for(x)
    mean, squares, count = _moments(x, list(range(-len(shape), 0)), dtype)
    rstd = torch.rsqrt(squares / count + eps)
    result = (x.to(dtype) - mean) * rstd
    result = result if weight is None else result * weight
    result = result if bias is None else result + bias
    return result.to(x.dtype), mean.to(x.dtype), rstd.to(x.dtype)


def _group_norm(
    mode: SequentialSums,
    func: Any,
    x: torch.Tensor,
    weight: Any,
    bias: Any,
    n: int,
    c: int,
    hw: int,
    group: int,
    eps: float,
) -> Any:
    if x.numel() == 0:
        return NotImplemented
    dtype = mode.dtype_for(x)
    grouped = x.reshape(n, group, -1)
    mean, squares, count = _moments(grouped, [-1], dtype)
    rstd = torch.rsqrt(squares / count + eps)
    result = ((grouped.to(dtype) - mean) * rstd).reshape(n, c, hw)
    result = result if weight is None else result * weight.reshape(1, c, 1)
    result = result if bias is None else result + bias.reshape(1, c, 1)
    return result.reshape(x.shape).to(x.dtype), mean.reshape(n, group).to(x.dtype), rstd.reshape(n, group).to(x.dtype)


def _batch_norm(mode: SequentialSums, func: Any, x: torch.Tensor, weight: Any, bias: Any, *rest: Any) -> Any:
    """``native_batch_norm`` in training mode. Running statistics are not updated: they are no output."""
    if len(rest) != 5 or not rest[2] or x.numel() == 0:
        return NotImplemented
    eps = rest[4]
    dtype = mode.dtype_for(x)
    channels = [1, -1] + [1] * (x.dim() - 2)
    mean, squares, count = _moments(x, [0, *range(2, x.dim())], dtype)
    rstd = torch.rsqrt(squares / count + eps)
    result = (x.to(dtype) - mean) * rstd
    result = result if weight is None else result * weight.reshape(channels)
    result = result if bias is None else result + bias.reshape(channels)
    return result.to(x.dtype), mean.reshape(-1).to(x.dtype), rstd.reshape(-1).to(x.dtype)


def _scan(mode: SequentialSums, func: Any, x: torch.Tensor, dim: int, *, dtype: Any = None) -> Any:
    if not x.is_floating_point() or x.numel() == 0 or x.dim() == 0:
        return NotImplemented
    product = func.overloadpacket.__name__ == "cumprod"
    return running(x, dim, mode.dtype_for(x), product=product).to(dtype or x.dtype)


def _product(
    mode: SequentialSums, func: Any, x: torch.Tensor, dim: Any = None, keepdim: bool = False, **kw: Any
) -> Any:
    """``prod`` over one axis."""
    if not x.is_floating_point() or x.numel() == 0 or x.dim() == 0 or not isinstance(dim, int):
        return NotImplemented
    last = running(x, dim, mode.dtype_for(x), product=True).narrow(dim, x.shape[dim] - 1, 1)
    return (last if keepdim else last.squeeze(dim)).to(kw.get("dtype") or x.dtype)


def _nll_loss(
    mode: SequentialSums, func: Any, x: torch.Tensor, target: torch.Tensor, weight: Any, reduction: int, ignore: int
) -> Any:
    if weight is not None or reduction == 0 or x.dim() != 2:
        return NotImplemented
    kept = target != ignore
    terms = -x.gather(1, target.where(kept, 0).unsqueeze(1)).squeeze(1).where(kept, 0.0)
    total, count = ordered_sum(terms, [], False, mode.dtype_for(x)), kept.sum().to(x.dtype)
    return (total / count if reduction == 1 else total).to(x.dtype), count


def _pointwise_loss(
    mode: SequentialSums, func: Any, x: torch.Tensor, target: torch.Tensor, reduction: int = 1, *rest: Any
) -> Any:
    """Losses that are a sum or mean over elements; ``rest`` is their threshold."""
    if reduction == 0 or x.numel() == 0:
        return NotImplemented
    terms = func(x, target, 0, *rest)
    total = ordered_sum(terms, [], False, mode.dtype_for(x))
    return (total * _reciprocal(terms, total) if reduction == 1 else total).to(x.dtype)


def _attention(
    mode: SequentialSums,
    func: Any,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    attn_mask: torch.Tensor | None = None,
    scale: float | None = None,
) -> Any:
    """The CPU kernel behind ``scaled_dot_product_attention``: (batch, heads, length, width)."""
    if q.dim() != 4 or dropout_p or q.shape[1] != k.shape[1] or q.numel() == 0:
        return NotImplemented
    dtype = mode.dtype_for(q)
    queries, keys = q.shape[2], k.shape[2]
    factor = 1.0 / math.sqrt(q.shape[3]) if scale is None else scale
    # One kernel: scores stay in the accumulator's type, those of rows that are not summed in order among them.
    lhs, rhs = q.to(dtype).flatten(0, 1), k.to(dtype).flatten(0, 1).transpose(1, 2)
    scores = (ordered_bmm(lhs, rhs, dtype) * factor).reshape(*q.shape[:2], queries, keys)
    if attn_mask is not None:
        scores = scores + attn_mask
    if is_causal:
        scores = scores.masked_fill(torch.ones(queries, keys, dtype=torch.bool, device=q.device).triu(1), -math.inf)
    powers = (scores - scores.amax(-1, keepdim=True)).exp()
    total = ordered_sum(powers, [-1], True, dtype)
    result = ordered_bmm((powers / total).flatten(0, 1), v.flatten(0, 1).to(dtype), dtype)
    return result.reshape(q.shape[0], q.shape[1], queries, v.shape[3]).to(q.dtype), total.squeeze(-1)


def _dims(dim: Any) -> list[int]:
    if dim is None:
        return []
    return [dim] if isinstance(dim, int) else list(dim)


def _terms(name: str, args: Sequence[Any], result: Any) -> int:
    """About how many terms one output element of an unreplaced operator sums."""
    if name == "convolution":
        weight, transposed, groups = args[1], args[6], args[8]
        filters = weight.shape[1] * groups if transposed else weight.shape[0]
        return int(weight.numel() // max(filters, 1))
    first = result[0] if isinstance(result, tuple | list) else result
    return int(args[0].numel() // max(first.numel(), 1)) or 1


_HANDLERS: dict[str, Callable[..., Any]] = {
    "sum": _sum,
    "mean": _mean,
    "var": _var_mean,
    "std": _var_mean,
    "var_mean": _var_mean,
    "std_mean": _var_mean,
    "mm": _mm,
    "bmm": _bmm,
    "addmm": _addmm,
    "baddbmm": _addmm,
    "mv": _vector,
    "dot": _vector,
    "convolution": _convolution,
    "_softmax": _softmax,
    "_log_softmax": _softmax,
    "logsumexp": _logsumexp,
    "linalg_vector_norm": _vector_norm,
    "norm": _vector_norm,
    "native_layer_norm": _layer_norm,
    "native_group_norm": _group_norm,
    "native_batch_norm": _batch_norm,
    "cumsum": _scan,
    "cumprod": _scan,
    "prod": _product,
    "nll_loss_forward": _nll_loss,
    "mse_loss": _pointwise_loss,
    "smooth_l1_loss": _pointwise_loss,
    "huber_loss": _pointwise_loss,
    "_scaled_dot_product_flash_attention_for_cpu": _attention,
}
