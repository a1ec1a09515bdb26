"""Mutations of reductions, scans and products, and of their precision."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

from kernelforge.evaluation.audit.injection import Call, Change, MutationNotApplicable, Recorded, is_tensor
from kernelforge.evaluation.audit.mutants import call_fault
from kernelforge.evaluation.oracle.worker.sequential_sums import SequentialSums

_REDUCTIONS = frozenset({
    "sum", "mean", "amax", "amin", "max", "min", "argmax", "argmin", "prod", "var", "var_mean", "std", "std_mean",
    "any", "all", "logsumexp", "linalg_vector_norm", "norm",
})  # fmt: skip

_PRODUCTS = {"mm": (0, 1), "bmm": (0, 1), "mv": (0, 1), "dot": (0, 1), "addmm": (1, 2), "baddbmm": (1, 2),
             "convolution": (0, 1)}  # fmt: skip
"""Contractions, and which arguments they contract."""

_SCANS = frozenset({"cumsum", "cumprod", "cummax", "cummin", "logcumsumexp"})

_WARP, _BLOCK = 32, 1024

_Count = Callable[[int], int]

_LOST: dict[str, _Count] = {
    "last": lambda extent: 1,
    "tail-32": lambda extent: extent % _WARP,
    "past-1024": lambda extent: max(extent - _BLOCK, 0),
}
"""How many terms of an axis are lost, by what goes wrong."""


@call_fault("lost-terms", "a reduction or product misses its last term, a partial warp, or all terms past 1024")
def lost_terms(recorded: Recorded) -> Iterator[tuple[str, Change]]:
    name = recorded.call.name
    if name in _REDUCTIONS and is_tensor(recorded.call.args[0]):
        for detail in _LOST:
            yield detail, partial(_reduced_less, detail)
    elif name in _PRODUCTS:
        for detail in _LOST:
            yield detail, partial(_product_less, detail)


def _lost(detail: str, extent: int) -> int:
    count = _LOST[detail](extent)
    if not 0 < count < extent:
        raise MutationNotApplicable("no term would be lost")
    return count


def _reduced_less(detail: str, call: Call) -> Any:
    x = call.args[0]
    dim = call.argument("dim")
    dims = [dim] if isinstance(dim, int) else list(dim or [])
    if not dims:
        x, last = x.reshape(-1), 0
        if x.numel() < 2:
            raise MutationNotApplicable("one term")
    else:
        last = max(dim % max(x.dim(), 1) for dim in dims)
    count = _lost(detail, x.shape[last] if x.dim() else 1)
    kept = x.shape[last] - count
    shape = call.run()
    less = call.taking(x.narrow(last, 0, kept), *call.args[1:]).run()
    if call.name == "mean":
        less = less * (kept / x.shape[last])
    return less.reshape(shape.shape) if is_tensor(less) and is_tensor(shape) else less


def _without(x: torch.Tensor, dim: int, detail: str) -> torch.Tensor:
    """The tensor with the lost slices along an axis set to zero."""
    count = _lost(detail, x.shape[dim])
    changed = x.clone()
    changed.narrow(dim, x.shape[dim] - count, count).zero_()
    return changed


def _product_less(detail: str, call: Call) -> Any:
    lhs_index = _PRODUCTS[call.name][0]
    if call.name == "convolution":
        # The contracted axes are the filter's: its last channel, or its last tap where there is one channel.
        weight = call.args[1]
        axes = [1, *range(weight.dim() - 1, 1, -1)] if not call.args[6] else [0, *range(weight.dim() - 1, 1, -1)]
        selected = next((axis for axis in axes if weight.shape[axis] > 1), None)
        if selected is None:
            raise MutationNotApplicable("one term")
        args = (call.args[0], _without(weight, selected, detail), *call.args[2:])
    else:
        args = (*call.args[:lhs_index], _without(call.args[lhs_index], -1, detail), *call.args[lhs_index + 1 :])
    return call.taking(*args).run()


@call_fault("lost-carry", "a scan starts anew at each warp or block: what came before is not added")
def lost_carry(recorded: Recorded) -> Iterator[tuple[str, Change]]:
    if recorded.call.name in _SCANS:
        for length in (_WARP, 256, _BLOCK):
            yield str(length), partial(_scanned_apart, length)


def _scanned_apart(length: int, call: Call) -> Any:
    x, dim = call.args[0], call.args[1]
    if not x.dim() or x.shape[dim] <= length:
        raise MutationNotApplicable("one block holds the axis")
    parts = [call.taking(part, *call.args[1:]).run() for part in x.split(length, dim)]
    if isinstance(parts[0], tuple):
        return tuple(torch.cat(pieces, dim) for pieces in zip(*parts, strict=True))
    return torch.cat(parts, dim)


@call_fault("lost-candidate", "a sort or a selection of the largest never looks at the last element")
def lost_candidate(recorded: Recorded) -> Iterator[tuple[str, Change]]:
    if recorded.call.name in ("topk", "kthvalue"):
        yield "last", _selected_less


def _selected_less(call: Call) -> Any:
    x, count = call.args[0], call.args[1]
    dim = call.argument("dim", -1)
    if x.shape[dim] <= count:
        raise MutationNotApplicable("all are selected")
    return call.taking(x.narrow(dim, 0, x.shape[dim] - 1), *call.args[1:]).run()


@call_fault("lost-update", "two threads add to one place without an atomic operation, or the last update is not made")
def lost_update(recorded: Recorded) -> Iterator[tuple[str, Change]]:
    if recorded.call.name in ("scatter_add", "index_add", "scatter", "scatter_reduce", "index_copy"):
        yield "last", _updated_less


def _updated_less(call: Call) -> Any:
    x, dim, index, source, *rest = call.args
    if not is_tensor(source) or index.dim() == 0 or index.shape[dim if index.dim() > 1 else 0] < 2:
        raise MutationNotApplicable("one update")
    along = dim if index.dim() > 1 else 0
    index = index.narrow(along, 0, index.shape[along] - 1)
    source = source.narrow(dim, 0, source.shape[dim] - 1)
    return call.taking(x, dim, index, source, *rest).run()


def _tf32(x: torch.Tensor) -> torch.Tensor:
    """Rounded to TF32's ten bits of fraction, to nearest, ties to even."""
    bits = x.view(torch.int32)
    bits = (bits + 0xFFF + ((bits >> 13) & 1)) & ~0x1FFF
    return torch.where(torch.isfinite(x), bits.view(torch.float32), x)


def _rounded(narrow: torch.dtype, x: torch.Tensor) -> torch.Tensor:
    return x.to(narrow).to(x.dtype)


_OPERANDS: dict[torch.dtype, dict[str, tuple[float, Callable[[torch.Tensor], torch.Tensor]]]] = {
    torch.float64: {"f32": (2.0**-24, partial(_rounded, torch.float32))},
    torch.float32: {
        "bf16": (2.0**-8, partial(_rounded, torch.bfloat16)),
        "tf32": (2.0**-11, _tf32),
        "f16": (2.0**-11, partial(_rounded, torch.float16)),
    },
}
"""Roundings of an operand that lose what its dtype holds, with their unit roundoff."""


@call_fault("rounded-operands", "operands are rounded to TF32, bfloat16 or float16, as for tensor cores")
def rounded_operands(recorded: Recorded) -> Iterator[tuple[str, Change]]:
    call = recorded.call
    positions: tuple[int, ...]
    if call.name in _PRODUCTS:
        positions = _PRODUCTS[call.name]
    elif call.name in ("sum", "mean", "cumsum", "prod", "var", "var_mean", "linalg_vector_norm", "logsumexp"):
        positions = (0,)
    else:
        return
    first = call.args[positions[0]]
    if is_tensor(first):
        for detail, (unit, rounding) in _OPERANDS.get(first.dtype, {}).items():
            # What the outputs' dtype cannot show is no fault.
            if unit > call.setting.resolution:
                yield detail, partial(_with_rounded, positions, rounding)


def _with_rounded(positions: tuple[int, ...], rounding: Callable[[torch.Tensor], torch.Tensor], call: Call) -> Any:
    args = tuple(rounding(value) if index in positions else value for index, value in enumerate(call.args))
    return call.taking(*args).run()


@call_fault("narrow-accumulator", "terms are added in float16 where the task asks for more")
def narrow_accumulator(recorded: Recorded) -> Iterator[tuple[str, Change]]:
    call = recorded.call
    if call.setting.accumulator == "float16" or call.name not in _REDUCTIONS | _SCANS | _PRODUCTS.keys():
        return
    first = call.args[_PRODUCTS.get(call.name, (0, 0))[0]]
    if is_tensor(first) and first.dtype in (torch.float32, torch.float16):
        yield "f16", _summed_in_half


def _summed_in_half(call: Call) -> Any:
    sums = SequentialSums(torch.float16)
    with sums:
        result = call.run()
    if not sums.replaced:
        raise MutationNotApplicable("this operator is not summed in order")
    return result
