"""Tensor maps: the 128 bytes that tell ``cp.async.bulk.tensor`` where a tensor is and which box of it a copy moves.

The layout is ours; hardware's is not documented. The driver's ``cuTensorMapEncodeTiled`` takes the same facts, and
``cuTensorMapEncodeIm2col`` and ``cuTensorMapEncodeIm2colWide`` those of a map of images.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from typing import Final

from kernelforge.candidate.resolved import PixelMode, TensorMapArg
from kernelforge.devices.emulated import layout as lay

MAP_TYPES: Final = (
    "uint8", "uint16", "uint32", "int32", "uint64", "int64", "float16", "float32", "float64", "bfloat16",
)  # fmt: skip
"""Types of elements, as the CUDA driver API lists them (``CUtensorMapDataType``); booleans are ``uint8``."""
_SIZES = (1, 2, 4, 4, 8, 8, 2, 4, 8, 2)
_AS: Final = {"bool": "uint8", "int8": "uint8", "int16": "uint16"}
"""Types that are copied as others."""
_MODES: Final = {"im2col": lay.MAP_IMAGES, "im2col::w": lay.MAP_WIDE, "im2col::w::128": lay.MAP_WIDE_128}


def encode_tensor_map(
    address: int,
    kind: str,
    extents: Sequence[int],
    strides_bytes: Sequence[int],
    box: Sequence[int],
    *,
    steps: Sequence[int] = (1, 1, 1, 1, 1),
    swizzle_bytes: int = 0,
    nan_outside: bool = False,
    corners: tuple[Sequence[int], Sequence[int]] | None = None,
    mode: PixelMode = "im2col",
) -> bytes:
    """A tensor map. All extents are innermost first, strides leave the innermost dimension out.

    Args:
        address: Device address of the tensor.
        kind: Type of the elements, one of ``MAP_TYPES``.
        extents: Elements along each of 1 to 5 dimensions.
        strides_bytes: Distances of neighbours along each dimension but the innermost.
        box: Extents of the box that a copy moves; channels and pixels where there are ``corners``.
        steps: Each which element of the box is moved, by dimension; in im2col mode the traversal strides.
        swizzle_bytes: 0, 32, 64 or 128.
        nan_outside: Elements outside the tensor are NaN, not zero.
        corners: Lower and upper corner of a map of images, without the dimensions of channels and of images; of one
            in a wide mode only along the width.
        mode: Of a map of images.
    """
    rank, number = len(extents), MAP_TYPES.index(kind)

    def padded(values: Sequence[int], count: int) -> list[int]:
        return [*values, *(1 for _ in range(count))][:count]

    extent = list(box)
    if corners is not None:
        extent += [low & 0xFFFF | high << 16 for low, high in zip(*corners, strict=True)]
    packed = struct.pack(
        "<2q5q4q5i11B",
        lay.MAP_MAGIC_NUMBER, address, *padded(extents, 5), *padded(strides_bytes, 4), *padded(extent, 5),
        *padded(steps, 5), rank, _SIZES[number], number, (0, 32, 64, 128).index(swizzle_bytes), int(nan_outside),
        0 if corners is None else _MODES[mode],
    )  # fmt: skip
    return packed.ljust(lay.MAP_BYTES, b"\0")


def tensor_map_bytes(arg: TensorMapArg, address: int) -> bytes:
    """The map of a plan's ``tensor_map(...)`` on the contiguous tensor at a device address."""
    extents = tuple(reversed(arg.shape))
    kind = _AS.get(arg.dtype.value, arg.dtype.value)
    strides = [arg.dtype.itemsize * math.prod(extents[: axis + 1]) for axis in range(len(extents) - 1)]
    box, swizzle = arg.box[::-1], arg.swizzle_bytes
    if arg.pixels is None:
        return encode_tensor_map(address, kind, extents, strides, box, swizzle_bytes=swizzle)
    corners = arg.pixels.lower[::-1], arg.pixels.upper[::-1]
    steps = (1, *arg.pixels.stride[::-1])
    return encode_tensor_map(
        address, kind, extents, strides, box, steps=steps, swizzle_bytes=swizzle, corners=corners, mode=arg.pixels.mode
    )
