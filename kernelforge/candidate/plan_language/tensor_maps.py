"""``tensor_map(x, box=..., swizzle=...)``, checked against what ``cuTensorMapEncodeTiled`` takes.

The bounds are those that the CUDA Driver API states for that function ("Tensor Map Object Management"), for tiles
that are neither interleaved nor strided.
"""

from __future__ import annotations

import math
from typing import Any

from kernelforge.candidate.plan_language.interpreter import Machine
from kernelforge.candidate.plan_language.tensors import is_contiguous
from kernelforge.candidate.plan_language.values import (
    Fault,
    Tensor,
    TensorMap,
    bytes_text,
    kind_of,
    plural,
    sequence,
    show,
    whole,
)

MAX_RANK = 5
MAX_EXTENT = 1 << 32
MAX_STRIDE_BYTES = 1 << 40
MAX_BOX = 256
ALIGNMENT_BYTES = 16
SWIZZLES = (0, 32, 64, 128)


def tensor_map(machine: Machine, tensor: Any, *, box: Any = None, swizzle: Any = 0) -> TensorMap:
    """A tensor as a kernel copies it by tiles.

    Args:
        machine: The resolution it belongs to.
        tensor: Contiguous, of 1 to 5 dimensions.
        box: Extents of a tile, outermost first, one per dimension.
        swizzle: Bytes that chunks of 16 are exchanged within, 0 for none.
    """
    if type(tensor) is not Tensor:
        raise Fault(f"tensor_map takes a tensor, not {kind_of(tensor)}")
    _check_tensor(tensor)
    if box is None:
        raise Fault("tensor_map needs box=, the extents of a tile: tensor_map(x, box=(64, 32))")
    extents = _box(tensor, box)
    tile = math.prod(extents) * tensor.dtype.itemsize
    if tile > machine.limits.dynamic_shared_bytes:
        raise Fault(
            f"a tile of {show(extents)} takes {bytes_text(tile)}; "
            f"a block has {bytes_text(machine.limits.dynamic_shared_bytes)} of shared memory"
        )
    if whole(swizzle, "swizzle") not in SWIZZLES or type(swizzle) is bool:
        raise Fault(f"swizzle is 0, 32, 64 or 128 bytes, not {show(swizzle)}")
    row = extents[-1] * tensor.dtype.itemsize
    if swizzle and row > swizzle:
        raise Fault(
            f"a row of the box has {row} bytes, more than the swizzle of {swizzle}; "
            f"take at most {swizzle // tensor.dtype.itemsize} elements, or no swizzle"
        )
    return TensorMap(tensor, extents, swizzle)


def _check_tensor(tensor: Tensor) -> None:
    if not is_contiguous(tensor):
        raise Fault(
            f"tensor_map needs a contiguous tensor, this one has shape {show(tensor.shape)} and stride "
            f"{show(tensor.stride)}"
        )
    if not 1 <= len(tensor.shape) <= MAX_RANK:
        raise Fault(f"tensor_map takes 1 to {MAX_RANK} dimensions, this tensor has {len(tensor.shape)}; view it")
    for axis, extent in enumerate(tensor.shape):
        if not 1 <= extent <= MAX_EXTENT:
            raise Fault(f"dimension {axis} has {plural(extent, 'element')}; tensor_map takes 1 to {MAX_EXTENT:,}")
    if tensor.offset_bytes % ALIGNMENT_BYTES:
        raise Fault(
            f"the tensor begins {tensor.offset_bytes:,} bytes into its memory; "
            f"tensor_map needs a multiple of {ALIGNMENT_BYTES}"
        )
    step = tensor.dtype.itemsize
    for axis in range(len(tensor.shape) - 1, 0, -1):
        step *= tensor.shape[axis]
        if step % ALIGNMENT_BYTES or step >= MAX_STRIDE_BYTES:
            raise Fault(
                f"dimension {axis - 1} has a stride of {step:,} bytes; tensor_map needs multiples of "
                f"{ALIGNMENT_BYTES} below {MAX_STRIDE_BYTES:,}"
            )


def _box(tensor: Tensor, box: Any) -> tuple[int, ...]:
    given = (box,) if type(box) is int else sequence(box, "box")
    if len(given) != len(tensor.shape):
        raise Fault(
            f"box has {plural(len(given), 'extent')}, the tensor {plural(len(tensor.shape), 'dimension')}: one for each"
        )
    extents = tuple(whole(extent, "an extent of box") for extent in given)
    if not all(1 <= extent <= MAX_BOX for extent in extents):
        raise Fault(f"box is {show(extents)}; each extent is 1 to {MAX_BOX}")
    row = extents[-1] * tensor.dtype.itemsize
    if row % ALIGNMENT_BYTES:
        raise Fault(f"a row of the box has {plural(row, 'byte')}; tensor_map needs a multiple of {ALIGNMENT_BYTES}")
    return extents
