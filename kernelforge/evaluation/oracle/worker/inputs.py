"""Input distributions that a task is checked on.

``task``: the task's own ``get_inputs``. ``normal``: signed unit normal. ``large``: normal of large magnitude, the
extremes often at the end of an axis. ``edge``: zeros of both signs, subnormals, the smallest normal, repeated maxima,
rows of zeros and of tiny numbers. ``sparse``: normal, but of all tensors save one at most three elements of each row
and column are not zero. Integers, booleans and scalars always come from the task's own generator: their range means
something (class numbers).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Final

import torch

from kernelforge.evaluation.oracle.worker.reference import Value, storage_span
from kernelforge.evaluation.oracle.worker.torch_device import HOST, generator

FAMILIES: Final = ("task", "normal", "large", "edge", "sparse")

_OF_HALF_SUMS: Final = ("sparse",)
"""Families for tasks that allow a float16 accumulator alone. What such a sum may err grows with its length, until it
covers operands rounded to 8 bits. Where a few products make an output no sum errs by much: the rounding shows."""

SCALES: Final[Mapping[str, tuple[float, ...]]] = {
    "task": (1.0,),
    "normal": (1.0, 0.1),
    "large": (1e4, 1e3, 1e2, 10.0),
    "edge": (1.0,),
    "sparse": (1.0,),
}
"""Factors tried for each family, largest first; the first at which torch itself passes is used."""


def families_of(accumulator: str) -> tuple[str, ...]:
    """Families to be tried for a task whose candidates may accumulate in that type; the task's own first."""
    return tuple(family for family in FAMILIES if accumulator == "float16" or family not in _OF_HALF_SUMS)


def derived_seed(seed: int, label: str) -> int:
    """A seed of its own for each purpose, so that weights and inputs of one draw are independent."""
    digest = hashlib.sha256(f"{seed}:{label}".encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1


def draw_inputs(own: Sequence[Value], family: str, seed: int, scale: float = 1.0) -> tuple[Value, ...]:
    """Inputs of one family, with the shapes, dtypes and strides of the task's ``own``.

    Raises:
        KeyError: there is no such family.
    """
    if family not in SCALES:
        raise KeyError(family)
    if family == "task":
        return tuple(own)
    device = next((value.device for value in own if isinstance(value, torch.Tensor)), HOST)
    draws = generator(device, seed)
    inputs = tuple(
        _redrawn(value, family, draws, scale)
        if isinstance(value, torch.Tensor) and value.is_floating_point()
        else value
        for value in own
    )
    if family == "sparse":
        matrices = [v for v in inputs if isinstance(v, torch.Tensor) and v.is_floating_point() and v.dim() >= 2]
        dense = derived_seed(seed, "dense") % len(matrices) if len(matrices) > 1 else -1
        for position, matrix in enumerate(matrices):
            if position != dense:
                _thin_out(matrix, draws)
    return inputs


def _redrawn(own: torch.Tensor, family: str, draws: torch.Generator, scale: float) -> torch.Tensor:
    if family == "edge":
        values = _edge_values(own.shape, own.dtype, draws)
    else:
        values = torch.randn(own.shape, generator=draws, dtype=torch.float32, device=draws.device).mul_(scale)
        if family == "large":
            _move_extremes_last(values, draws)
    return with_strides(values, own)


_TERMS = 3
"""One alone would be exact in 8 bits that are scaled by the largest element of a row."""


def _thin_out(values: torch.Tensor, draws: torch.Generator) -> None:
    """Leave at most :data:`_TERMS` elements of each row and column, the same in each matrix of the last two axes, and
    set all others to zero: whichever of the two a product sums over, so many terms are left."""
    rows, columns = values.shape[-2:]
    kept = torch.zeros(rows, columns, dtype=torch.bool, device=values.device)
    for _ in range(_TERMS):
        order = [torch.randperm(extent, generator=draws, device=draws.device) for extent in (rows, columns)]
        kept[order[0][: min(rows, columns)], order[1][: min(rows, columns)]] = True
    values.masked_fill_(~kept, 0.0)


def _move_extremes_last(values: torch.Tensor, draws: torch.Generator) -> None:
    """Swap the largest element of a third of all lines with the last one, and the smallest of another third.

    A tail that is left out of a maximum shows where the maximum is in the tail: by chance that is rare in long lines.
    """
    for axis in range(values.dim() if values.numel() else 0):
        end = values.narrow(axis, values.shape[axis] - 1, 1)
        kind = torch.randint(3, tuple(end.shape), generator=draws, device=draws.device)
        for chosen, extreme in ((kind == 1, values.argmax(axis, True)), (kind == 2, values.argmin(axis, True))):
            last, other = end.clone(), values.gather(axis, extreme)
            values.scatter_(axis, extreme, torch.where(chosen, last, other))
            end.copy_(torch.where(chosen, other, end))


def with_strides(values: torch.Tensor, own: torch.Tensor) -> torch.Tensor:
    """``values`` with the dtype and the strides of ``own``, whose shape they have."""
    if own.is_contiguous():
        return torch.empty_like(own).copy_(values)
    strided = storage_span(own).clone().as_strided(own.shape, own.stride(), 0)
    if any(stride == 0 and extent > 1 for extent, stride in zip(own.shape, own.stride(), strict=True)):
        # Expanded tensors share elements: fill the storage, not the view.
        span = storage_span(strided)
        span.copy_(values.reshape(-1)[: span.numel()])
    else:
        strided.copy_(values)
    return strided


def _edge_values(shape: torch.Size, dtype: torch.dtype, draws: torch.Generator) -> torch.Tensor:
    limits, device = torch.finfo(dtype), draws.device
    subnormal = max(limits.tiny * 2.0**-6, limits.smallest_normal * 2.0**-6)
    pool = torch.tensor(
        [0.0, -0.0, 1.0, -1.0, 0.5, -2.5, subnormal, -subnormal, limits.tiny, -limits.tiny, 1e-4, 8.0, 8.0, -8.0],
        dtype=torch.float64,
        device=device,
    ).to(dtype)
    values = pool[torch.randint(len(pool), tuple(shape), generator=draws, device=device)]
    if values.dim() >= 2:
        rows = values.view(-1, values.shape[-1])
        kind = torch.randint(16, (rows.shape[0], 1), generator=draws, device=device)
        signs = pool.new_tensor([8.0, -8.0])[torch.randint(2, tuple(rows.shape), generator=draws, device=device)]
        # No row of one value but zero: rounding its mean is a matter of luck, and norms amplify it.
        rows.copy_(torch.where(kind // 2 == 1, signs, rows)).masked_fill_(kind // 2 == 0, 0.0)
        # Small and tiny ones: next to a norm's epsilon, and far below it; of some the last element is all there is.
        tiny = _SMALL if dtype == torch.float16 else _TINY
        shrunk = torch.where((kind >= 5) & (kind < 8), tiny, 1.0)
        rows.mul_(torch.where(kind == 4, _SMALL, shrunk).to(dtype))
        rows[:, -1:].masked_fill_(kind // 2 == 3, 8.0)
    return values


_SMALL, _TINY = 2.0**-10, 2.0**-60
"""Factors of rows, powers of two: nothing is rounded."""
