"""Inputs and weights of a size that no memory holds: of each large tensor only the first slices are drawn.

``get_inputs`` and the constructor of the model run with factories (``torch.rand``, ``torch.empty``, ...) that make
fewer slices of the first axis that has several. What they then do element by element, or along another axis, is the
same with all of them; anything else is refused. What was drawn, up to a number of pages, stands in the tensor again and
again: each element follows from its place, so that the device and the reference see the same without either holding the
tensor.

The number of pages is a prime that the draw's secret seed chooses. So no two elements a power of two apart are copies
of one another, as a kernel whose offsets overflow would confuse them, nor are those of any two rows within thousands.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from kernelforge.errors import TaskError
from kernelforge.evaluation.oracle.worker.inputs import derived_seed
from kernelforge.evaluation.oracle.worker.reference import Reference, Value

TILE_BYTES: Final = 64 << 20
"""Most bytes of a tile; as many slices of a large tensor are drawn as hold them."""

_PIECE = 1 << 24
"""Elements that are gathered at a time."""

_DRAWN = frozenset({"uniform_", "normal_", "random_", "bernoulli_", "exponential_", "bernoulli"})
_KEPT = frozenset({"clone", "_to_copy", "detach", "copy_", "fill_", "zero_", "alias", "lift_fresh"})
_LIKE = frozenset({"rand_like", "randn_like", "randint_like", "zeros_like", "ones_like", "full_like", "empty_like"})
_SLICEWISE = _DRAWN | _KEPT | _LIKE
_ALONG = frozenset({"_softmax", "_log_softmax", "cumsum", "sort"})
"""Operators along one axis, their second argument."""


class FewSlices(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Lets factories make fewer slices of large tensors, and refuses what cannot be done on those alone."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.extents: dict[int, tuple[torch.Tensor, int, int]] = {}
        """By identity of a tensor with fewer slices: itself, the axis, and how many slices there would be."""

    def __torch_dispatch__(
        self, func: Any, types: Sequence[Any], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        tensors = [value for value in tree_leaves((args, kwargs)) if isinstance(value, torch.Tensor)]
        if not tensors:
            return self._made(func, args, kwargs)
        cut = [self.extents[id(tensor)] for tensor in tensors if id(tensor) in self.extents]
        result = func(*args, **kwargs)
        if not cut:
            return result
        name = func._schema.name.split("::")[-1]
        (first, axis, extent), others = cut[0], cut[1:]
        slicewise = torch.Tag.pointwise in func.tags or name in _SLICEWISE
        slicewise |= name in _ALONG and args[1] % first.dim() != axis
        outcomes = [value for value in tree_leaves(result) if isinstance(value, torch.Tensor)]
        alike = all((other.shape, at, full) == (first.shape, axis, extent) for other, at, full in others)
        if not slicewise or not alike or any(value.shape != first.shape for value in outcomes):
            raise TaskError(f"'{name}' in get_inputs is none that can be done on some slices of a tensor alone")
        for value in outcomes:
            self.extents[id(value)] = (value, axis, extent)
        return result

    def _made(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The tensor of a factory, with fewer slices where it would be large."""
        schema = func._schema  # type: ignore[attr-defined]
        position = next((at for at, argument in enumerate(schema.arguments) if argument.name == "size"), None)
        if position is None or position >= len(args):
            return func(*args, **kwargs)
        shape = list(args[position])
        for tensor, axis, extent in list(self.extents.values()):
            if list(tensor.shape) == shape:  # of a tensor whose shape was asked for
                made = func(*args, **kwargs)
                self.extents[id(made)] = (made, axis, extent)
                return made
        first = next((at for at, size in enumerate(shape) if size > 1), None)
        total = torch.Size(shape).numel() * (kwargs.get("dtype") or torch.get_default_dtype()).itemsize
        if first is None or total < 2 * TILE_BYTES:
            return func(*args, **kwargs)
        extent = shape[first]
        shape[first] = min(-(-TILE_BYTES // (total // extent)), extent)
        made = func(*args[:position], shape, *args[position + 1 :], **kwargs)
        if shape[first] < extent:
            self.extents[id(made)] = (made, first, extent)
        return made


@dataclass(frozen=True)
class TiledTensor:
    """A large contiguous tensor that is one tile again and again."""

    shape: tuple[int, ...]
    tile: torch.Tensor
    """Its first elements, on one axis: a whole number of pages."""

    @property
    def nbytes(self) -> int:
        """Bytes of the whole tensor."""
        return torch.Size(self.shape).numel() * self.tile.itemsize

    def select(self, rows: Mapping[int, torch.Tensor]) -> torch.Tensor:
        """The tensor with some of its slices along each of some axes, the others whole."""
        offsets = torch.zeros((), dtype=torch.int64)
        below = 1
        offsets_along: list[torch.Tensor] = []
        for axis in reversed(range(len(self.shape))):
            numbers = rows[axis] if axis in rows else torch.arange(self.shape[axis])
            offsets_along.insert(0, numbers.long() * below)
            below *= self.shape[axis]
        result = torch.empty([len(along) for along in offsets_along], dtype=self.tile.dtype)
        if not offsets_along or not result.numel():
            return result
        # Offsets of one slice of the first axes at a time: those of all elements would take several times the result.
        cut = next(
            at
            for at in range(len(offsets_along))
            if result[(0,) * at].numel() <= _PIECE or at == len(offsets_along) - 1
        )
        for along in reversed(offsets_along[cut:]):
            offsets = along.view(-1, *[1] * offsets.dim()) + offsets
        outer = torch.zeros((), dtype=torch.int64)
        for along in reversed(offsets_along[:cut]):
            outer = along.view(-1, *[1] * outer.dim()) + outer
        for part, start in zip(result.view(-1, *offsets.shape), outer.view(-1).tolist(), strict=True):
            torch.take(self.tile, (offsets + start) % self.tile.numel(), out=part)
        return result


def _is_prime(number: int) -> bool:
    return number > 1 and all(number % divisor for divisor in range(2, int(number**0.5) + 1))


Tiles = dict[int | str, TiledTensor]
"""By position of an input, or by name of a weight."""


def draw_tiles(reference: Reference, seed: int) -> tuple[tuple[Value, ...], Tiles]:
    """The task's own inputs, in place of a large one its tile; and the large ones.

    Raises:
        TaskError: some slices alone cannot be drawn.
    """
    with FewSlices() as mode:
        inputs = list(reference.inputs(seed))
    tiles: Tiles = {}
    for position, value in enumerate(inputs):
        if isinstance(value, torch.Tensor) and id(value) in mode.extents:
            _, axis, extent = mode.extents[id(value)]
            shape = (*value.shape[:axis], extent, *value.shape[axis + 1 :])
            tiles[position] = _tile(value, shape, f"input {position}", seed)
            inputs[position] = tiles[position].tile
    return tuple(inputs), tiles


def weight_tiles(reference: Reference, described: Reference, seed: int) -> Tiles:
    """The tiles that stand for large weights.

    Args:
        reference: one that was constructed within :class:`FewSlices`.
        described: the same with all slices; its weights need no storage.
        seed: chooses the number of pages.

    Raises:
        TaskError: some slices alone are no part of a weight.
    """
    weights, tiles = reference.weights(), Tiles()
    for weight in described.weight_specs():
        drawn, shape = weights.get(weight.name), weight.spec.shape
        if drawn is not None and tuple(drawn.shape) == shape:
            continue
        fewer = [] if drawn is None else [part < extent for part, extent in zip(drawn.shape, shape, strict=False)]
        if drawn is None or drawn.dim() != len(shape) or fewer.count(True) != 1 or drawn.shape[-1] > shape[-1]:
            raise TaskError(f"some slices of the weight {weight.name} cannot be drawn alone")
        tiles[weight.name] = _tile(drawn, shape, f"the weight {weight.name}", seed)
    return tiles


def _tile(drawn: torch.Tensor, shape: tuple[int, ...], label: str, seed: int) -> TiledTensor:
    """A tensor of a shape that begins as one of fewer slices."""
    if not drawn.is_contiguous():
        raise TaskError(f"{label} is large and not contiguous")
    most = min(drawn.nbytes, TILE_BYTES) // mmap.PAGESIZE
    primes = [pages for pages in range(most // 2 + 1, most + 1) if _is_prime(pages)]
    pages = primes[derived_seed(seed, f"pages of {label}") % len(primes)]
    return TiledTensor(shape, drawn.reshape(-1)[: pages * mmap.PAGESIZE // drawn.itemsize].clone())
