"""Mutations of where values are read: masks, axes, indices, borders, window steps."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F

from kernelforge.evaluation.audit.injection import (
    MOVES,
    Call,
    Change,
    MutationNotApplicable,
    Recorded,
    is_tensor,
    with_argument,
)
from kernelforge.evaluation.audit.mutants import call_fault


@call_fault("diagonal", "a triangular mask is off by one diagonal")
def diagonal(recorded: Recorded) -> Iterator[tuple[str, Change]]:
    if recorded.call.name in ("tril", "triu", "tril_", "triu_"):
        offset = recorded.call.argument("diagonal") or 0
        for detail, step in (("plus-1", 1), ("minus-1", -1)):
            yield detail, partial(with_argument, "diagonal", offset + step)


_JOINS = frozenset({"cat", "stack", "index_select"})


@call_fault("axis", "an operator runs along another axis")
def axis(recorded: Recorded) -> Iterator[tuple[str, Change]]:
    call = recorded.call
    if not call.args or not is_tensor(call.args[0]) or call.name in _JOINS:
        return
    rank = call.args[0].dim()
    for argument in call.func._schema.arguments:
        dim = call.argument(argument.name)
        if argument.name in ("dim", "dims") and rank >= 2 and call.name not in MOVES:
            single = dim[0] if isinstance(dim, list | tuple) and len(dim) == 1 else dim
            if isinstance(single, int) and not isinstance(single, bool):
                other = (single % rank - 1) % rank
                yield "", partial(_along, argument.name, [other] if isinstance(dim, list | tuple) else other)


def _along(name: str, dim: Any, call: Call) -> Any:
    right = call.run()
    wrong = call.with_argument(name, dim).run()
    first, other = (value[0] if isinstance(value, tuple | list) else value for value in (right, wrong))
    if first.shape != other.shape:
        raise MutationNotApplicable("another axis gives another shape")
    return wrong


@call_fault("shifted", "an index is off by one: the start of a slice, a row taken, a shift of a roll")
def shifted(recorded: Recorded) -> Iterator[tuple[str, Change]]:
    name = recorded.call.name
    if name == "slice":
        yield "plus-1", partial(_shifted_slice, 1)
        yield "minus-1", partial(_shifted_slice, -1)
    elif name == "select":
        yield "plus-1", _shifted_select
    elif name == "roll":
        yield "plus-1", lambda call: call.run().roll(1, -1)
    elif name in ("gather", "index_select"):
        yield "plus-1", lambda call: _shifted_index(call, 2, call.args[1])
    elif name == "embedding":
        yield "plus-1", lambda call: _shifted_index(call, 1, 0)


def _shifted_slice(step: int, call: Call) -> Any:
    x = call.args[0]
    dim = call.argument("dim", 0)
    extent = x.shape[dim]
    start, end = call.argument("start"), call.argument("end")
    start = 0 if start is None else min(max(start + extent if start < 0 else start, 0), extent)
    end = extent if end is None else min(max(end + extent if end < 0 else end, 0), extent)
    if start + step < 0 or end + step > extent:
        raise MutationNotApplicable("the shifted slice leaves the tensor")
    return torch.ops.aten.slice(x, dim, start + step, end + step, call.argument("step", 1))


def _shifted_select(call: Call) -> Any:
    x, dim, index = call.args
    if x.shape[dim] < 2:
        raise MutationNotApplicable("there is one to take")
    return call.with_argument("index", (index + 1) % x.shape[dim]).run()


def _shifted_index(call: Call, position: int, dim: int) -> Any:
    extent = call.args[0].shape[dim]
    if extent < 2:
        raise MutationNotApplicable("there is one to take")
    index = (call.args[position] + 1) % extent
    return call.taking(*call.args[:position], index, *call.args[position + 1 :]).run()


_POOLS = ("max_pool2d_with_indices", "max_pool3d_with_indices")


@call_fault("padding", "the border is read as something else, or lies on the other side")
def padding(recorded: Recorded) -> Iterator[tuple[str, Change]]:
    call = recorded.call
    if call.name == "convolution" and any(call.args[4]) and not call.args[6]:
        yield "edge-values", partial(_padded_convolution, 0)
        yield "one-side", partial(_padded_convolution, 1)
    elif call.name in _POOLS and any(call.argument("padding") or ()):
        yield "zeros", _zero_padded_pool
    elif call.name == "constant_pad_nd":
        yield "value", lambda call: call.with_argument("value", (call.argument("value") or 0.0) + 1.0).run()
        yield "other-side", _other_side


def _padded_convolution(shift: int, call: Call) -> Any:
    x, pads = call.args[0], list(call.args[4])
    spread: list[int] = []
    for pad in reversed(pads):
        spread += [pad + (shift if pad else 0), pad - (shift if pad else 0)]
    wide = F.pad(x, spread) if shift else F.pad(x, spread, mode="replicate")
    return call.taking(wide, *call.args[1:4], [0] * len(pads), *call.args[5:]).run()


def _zero_padded_pool(call: Call) -> Any:
    pads = list(call.argument("padding"))
    pads = pads * (call.args[0].dim() - 2) if len(pads) == 1 else pads
    wide = F.pad(call.args[0], [side for pad in reversed(pads) for side in (pad, pad)])
    changed = call.taking(wide, *call.args[1:]).with_argument("padding", [0] * len(pads))
    return changed.run()


def _other_side(call: Call) -> Any:
    pads = list(call.args[1])
    turned = [side for pair in zip(pads[1::2], pads[::2], strict=True) for side in pair]
    if turned == pads:
        raise MutationNotApplicable("both sides are padded alike")
    return call.with_argument("pad", turned).run()


@call_fault("step", "the stride or the dilation of a window is taken as 1")
def step(recorded: Recorded) -> Iterator[tuple[str, Change]]:
    call = recorded.call
    for name in ("stride", "dilation"):
        value = call.argument(name)
        windows = call.name == "convolution" or "pool" in call.name
        if windows and isinstance(value, list | tuple) and any(extent != 1 for extent in value):
            yield f"{name}-1", partial(_cropped, name, [1] * len(value))


def _cropped(name: str, value: Any, call: Call) -> Any:
    right, wrong = call.run(), call.with_argument(name, value).run()
    rights = right if isinstance(right, tuple) else (right,)
    wrongs = wrong if isinstance(wrong, tuple) else (wrong,)
    cropped = []
    for want, have in zip(rights, wrongs, strict=True):
        if any(a > b for a, b in zip(want.shape, have.shape, strict=True)):
            raise MutationNotApplicable("the changed window gives fewer results")
        cropped.append(have[tuple(slice(extent) for extent in want.shape)].contiguous())
    return tuple(cropped) if isinstance(right, tuple) else cropped[0]
