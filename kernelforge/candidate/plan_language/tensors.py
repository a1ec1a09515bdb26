"""Operations on tensors in a plan: attributes, allocation, contiguous views, and ``tensor_map``.

The bounds of tensor maps are those that the CUDA Driver API states for ``cuTensorMapEncodeTiled`` ("Tensor Map Object
Management"), for tiles that are neither interleaved nor strided, and for ``cuTensorMapEncodeIm2col`` and
``cuTensorMapEncodeIm2colWide``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, get_args

from kernelforge.candidate.plan_language.interpreter import Machine, PendingFill, row_major
from kernelforge.candidate.plan_language.values import (
    INT_BOUND,
    Fault,
    Tensor,
    TensorMap,
    as_int,
    bytes_text,
    kind_of,
    plural,
    sequence,
    show,
)
from kernelforge.candidate.resolved import PixelBox, PixelMode
from kernelforge.records.task import DType

MAX_DIMENSIONS = 16

PROPERTIES: dict[str, Callable[[Tensor], Any]] = {
    "shape": lambda tensor: tensor.shape,
    "dtype": lambda tensor: tensor.dtype,
    "ndim": lambda tensor: len(tensor.shape),
}


def _axis(tensor: Tensor, value: Any) -> int:
    axis = as_int(value, "a dimension")
    rank = len(tensor.shape)
    if not -rank <= axis < rank:
        raise Fault(f"dimension {axis} of a tensor with {rank} dimensions")
    return axis


def _size(tensor: Tensor, *args: Any) -> Any:
    return tensor.shape[_axis(tensor, args[0])] if args else tensor.shape


def _stride(tensor: Tensor, *args: Any) -> Any:
    return tensor.stride[_axis(tensor, args[0])] if args else tensor.stride


def is_contiguous(tensor: Tensor) -> bool:
    """Whether elements follow each other in memory; extents of 1 may have any stride."""
    expected = 1
    for extent, stride in zip(reversed(tensor.shape), reversed(tensor.stride), strict=True):
        if extent != 1 and stride != expected:
            return False
        expected *= max(extent, 1)
    return True


def _require_contiguous(tensor: Tensor) -> None:
    if not is_contiguous(tensor):
        raise Fault(
            f"a view needs a contiguous tensor, this one has shape {show(tensor.shape)} and stride "
            f"{show(tensor.stride)}; pass it whole and index it in the kernel by its strides"
        )


def _with_shape(tensor: Tensor, shape: tuple[int, ...], offset_bytes: int) -> Tensor:
    return Tensor(tensor.storage, offset_bytes, shape, row_major(shape), tensor.dtype)


def _view(tensor: Tensor, *args: Any) -> Tensor:
    shape = list(_extents(args[0] if len(args) == 1 and type(args[0]) is tuple else args, unknown=True))
    _require_contiguous(tensor)
    numel = tensor.numel
    if shape.count(-1) > 1:
        raise Fault("a view takes at most one -1")
    if -1 in shape:
        rest = -math.prod(shape)
        if rest == 0 or numel % rest:
            raise Fault(f"{numel:,} elements cannot be viewed as {show(tuple(shape))}")
        shape[shape.index(-1)] = numel // rest
    if math.prod(shape) != numel:
        raise Fault(f"{numel:,} elements cannot be viewed as {show(tuple(shape))}")
    return _with_shape(tensor, tuple(shape), tensor.offset_bytes)


def _flatten(tensor: Tensor, start: Any = 0, end: Any = -1) -> Tensor:
    if not tensor.shape:
        return _view(tensor, 1)
    rank = len(tensor.shape)
    first, last = _axis(tensor, start) % rank, _axis(tensor, end) % rank
    if first > last:
        raise Fault("flatten ends before it starts")
    middle = math.prod(tensor.shape[first : last + 1])
    return _view(tensor, (*tensor.shape[:first], middle, *tensor.shape[last + 1 :]))


METHODS: dict[str, tuple[Callable[..., Any], int, int]] = {
    "size": (_size, 0, 1),
    "stride": (_stride, 0, 1),
    "numel": (lambda tensor: tensor.numel, 0, 0),
    "dim": (lambda tensor: len(tensor.shape), 0, 0),
    "is_contiguous": (is_contiguous, 0, 0),
    "view": (_view, 1, MAX_DIMENSIONS),
    "reshape": (_view, 1, MAX_DIMENSIONS),
    "flatten": (_flatten, 0, 2),
}
"""Methods of a tensor with the least and the most arguments they take."""


def index(tensor: Tensor, keys: tuple[Any, ...]) -> Tensor:
    """``x[i]``, ``x[a:b]``, ``x[i, a:b]``: leading indices, then slices whose result is contiguous."""
    _require_contiguous(tensor)
    if len(keys) > len(tensor.shape):
        raise Fault(f"{len(keys)} indices for a tensor with {len(tensor.shape)} dimensions")
    offset = 0
    shape: list[int] = []
    stride: list[int] = []
    for axis, key in enumerate(keys):
        extent, step = tensor.shape[axis], tensor.stride[axis]
        if type(key) is slice:
            start, stop, jump = key.indices(extent)
            if jump != 1:
                raise Fault("slices of a tensor have no step")
            # An empty slice starts inside the tensor, so that its offset is one.
            offset += min(start, max(extent - 1, 0)) * step if stop <= start else start * step
            shape.append(max(stop - start, 0))
            stride.append(step)
        else:
            position = as_int(key, "an index")
            if not -extent <= position < extent:
                raise Fault(f"index {position} is out of range: dimension {axis} has {extent} elements")
            offset += (position % extent) * step
    shape.extend(tensor.shape[len(keys) :])
    stride.extend(tensor.stride[len(keys) :])
    offset_bytes = tensor.offset_bytes + offset * tensor.dtype.itemsize
    view = Tensor(tensor.storage, offset_bytes, tuple(shape), tuple(stride), tensor.dtype)
    if not is_contiguous(view):
        raise Fault(
            "this slice is not contiguous; slice the first dimension that is not indexed, or index in the kernel"
        )
    return _with_shape(tensor, view.shape, offset_bytes)


def _extents(values: Any, unknown: bool = False) -> tuple[int, ...]:
    extents = tuple(as_int(value, "an extent of a shape") for value in values)
    if len(extents) > MAX_DIMENSIONS:
        raise Fault(f"a shape has at most {MAX_DIMENSIONS} dimensions")
    for extent in extents:
        if extent < 0 and not (unknown and extent == -1):
            raise Fault(f"the shape {show(extents)} has a negative extent")
    if math.prod(extents) > INT_BOUND // 8:
        raise Fault(f"the shape {show(extents)} is beyond any memory")
    return extents


def dtype_of(value: Any) -> DType:
    if isinstance(value, DType):
        return value
    raise Fault(f"dtype takes a name such as float32 or x.dtype, not {kind_of(value)}")


def _shape_and_dtype(args: tuple[Any, ...], dtype: Any) -> tuple[tuple[int, ...], DType]:
    if args and isinstance(args[-1], DType):
        if dtype is not None:
            raise Fault("the dtype is given twice")
        args, dtype = args[:-1], args[-1]
    if not args:
        raise Fault("a shape is missing: empty((n, d), dtype=float32)")
    shape = args[0] if len(args) == 1 and type(args[0]) is tuple else args
    return _extents(shape), DType.FLOAT32 if dtype is None else dtype_of(dtype)


def empty(machine: Machine, *args: Any, dtype: Any = None) -> Tensor:
    return machine.allocate(*_shape_and_dtype(args, dtype))


def zeros(machine: Machine, *args: Any, dtype: Any = None) -> Tensor:
    return _zeroed(machine, empty(machine, *args, dtype=dtype))


def empty_like(machine: Machine, tensor: Any, *, dtype: Any = None) -> Tensor:
    if type(tensor) is not Tensor:
        raise Fault(f"empty_like and zeros_like take a tensor, not {kind_of(tensor)}")
    return machine.allocate(tensor.shape, tensor.dtype if dtype is None else dtype_of(dtype))


def zeros_like(machine: Machine, tensor: Any, *, dtype: Any = None) -> Tensor:
    return _zeroed(machine, empty_like(machine, tensor, dtype=dtype))


def _zeroed(machine: Machine, tensor: Tensor) -> Tensor:
    if tensor.storage.nbytes:
        machine.add(PendingFill(tensor.storage, machine.line))
    return tensor


def slice_of(start: Any, stop: Any, step: Any) -> slice:
    """A slice of ints, or a fault."""
    for part in (start, stop, step):
        if part is not None:
            as_int(part, "a bound of a slice")
    if step == 0:
        raise Fault("a slice cannot have the step 0")
    return slice(start, stop, step)


MAX_RANK = 5
MAX_EXTENT = 1 << 32
MAX_STRIDE_BYTES = 1 << 40
MAX_BOX = 256
MAX_PIXELS = 1024
MAX_TRAVERSAL_STRIDE = 8
CORNER_RANGES = {1: (-(1 << 15), (1 << 15) - 1), 2: (-128, 127), 3: (-16, 15)}
"""What the corners of a pixel box may be, by its dimensions."""
MODES: tuple[PixelMode, ...] = get_args(PixelMode)
WIDE_SWIZZLES = (64, 128)
PIXELS_OF_128 = 128
ALIGNMENT_BYTES = 16
SWIZZLES = (0, 32, 64, 128)


def tensor_map(
    machine: Machine,
    tensor: Any,
    *,
    box: Any = None,
    swizzle: Any = 0,
    lower: Any = None,
    upper: Any = None,
    stride: Any = None,
    mode: Any = None,
) -> TensorMap:
    """A tensor that a kernel copies by tiles: ``tensor_map(x, box=..., swizzle=...)``.

    Args:
        machine: The resolution it belongs to.
        tensor: Contiguous, of 1 to 5 dimensions.
        box: Extents of a tile, outermost first, one per dimension; with ``lower`` and ``upper`` pixels and channels.
        swizzle: Bytes within which chunks of 16 are exchanged, 0 for none.
        lower: First position of a filter's window along each dimension between the first and the last one.
        upper: Last position there, counted from the last element.
        stride: Distance of such positions, 1 where it is left out.
        mode: Of a map of images, ``im2col`` where it is left out; in the wide ones the three numbers before are of the
            width alone.
    """
    if type(tensor) is not Tensor:
        raise Fault(f"tensor_map takes a tensor, not {kind_of(tensor)}")
    _check_tensor(tensor)
    if box is None:
        raise Fault("tensor_map needs box=, the extents of a tile: tensor_map(x, box=(64, 32))")
    pixels = None
    if lower is None and upper is None:
        for name, value in (("stride", stride), ("mode", mode)):
            if value is not None:
                raise Fault(f"{name} belongs to images: tensor_map(x, box=(pixels, channels), lower=..., upper=...)")
        extents = _box(tensor, box)
    else:
        pixels = _pixel_box(tensor, lower, upper, stride, _mode(mode))
        extents = _column(tensor, box)
        _check_mode(pixels.mode, extents, swizzle)
    tile = math.prod(extents) * tensor.dtype.itemsize
    if tile > machine.limits.dynamic_shared_bytes:
        raise Fault(
            f"a tile of {show(extents)} takes {bytes_text(tile)}; "
            f"a block has {bytes_text(machine.limits.dynamic_shared_bytes)} of shared memory"
        )
    if as_int(swizzle, "swizzle") not in SWIZZLES or type(swizzle) is bool:
        raise Fault(f"swizzle is 0, 32, 64 or 128 bytes, not {show(swizzle)}")
    row = extents[-1] * tensor.dtype.itemsize
    if swizzle and row > swizzle:
        raise Fault(
            f"a row of the box has {row} bytes, more than the swizzle of {swizzle}; "
            f"take at most {swizzle // tensor.dtype.itemsize} elements, or no swizzle"
        )
    return TensorMap(tensor, extents, swizzle, pixels)


def _mode(mode: Any) -> PixelMode:
    for name in MODES:
        if mode in (None, name):
            return name
    raise Fault(f"mode is {', '.join(map(show, MODES[:-1]))} or {show(MODES[-1])}, not {show(mode)}")


def _check_mode(mode: PixelMode, column: tuple[int, int], swizzle: Any) -> None:
    """Refuse what ``cuTensorMapEncodeIm2colWide`` does and the other functions do not."""
    if mode != "im2col" and swizzle not in WIDE_SWIZZLES:
        raise Fault(f"a map in mode {show(mode)} needs a swizzle of 64 or 128 bytes, not {show(swizzle)}")
    if mode == "im2col::w::128" and column[0] != PIXELS_OF_128:
        raise Fault(f"copies in mode {show(mode)} move {PIXELS_OF_128} pixels, box has {column[0]}")


def _pixel_box(tensor: Tensor, lower: Any, upper: Any, stride: Any, mode: PixelMode) -> PixelBox:
    """The corners of the box of a map of images, checked as ``cuTensorMapEncodeIm2col`` does."""
    spatial = len(tensor.shape) - 2
    if spatial not in CORNER_RANGES:
        raise Fault(
            f"lower and upper are of images, (N, W, C) to (N, D, H, W, C); this tensor has "
            f"{plural(len(tensor.shape), 'dimension')}"
        )
    if lower is None or upper is None:
        raise Fault("a tensor map of images needs both lower= and upper=, the first and last position of its windows")
    images, needed = tensor.shape[1:-1], f"the images {plural(spatial, 'dimension')}: one for each"
    if mode != "im2col":
        images, spatial, needed = images[-1:], 1, f"{show(mode)} needs one, of the width"
    corners = [_numbers(values, name, spatial, needed) for name, values in (("lower", lower), ("upper", upper))]
    least, most = CORNER_RANGES[spatial]
    for name, corner in zip(("lower", "upper"), corners, strict=True):
        if not all(least <= value <= most for value in corner):
            raise Fault(f"{name} is {show(corner)}; with {spatial} of them each is {least} to {most}")
    for extent, low, high in zip(images, *corners, strict=True):
        if low > extent - 1 + high:
            raise Fault(f"lower {low} is beyond upper {high} of a dimension with {plural(extent, 'element')}")
    strides = (1,) * spatial if stride is None else _numbers(stride, "stride", spatial, needed)
    if not all(1 <= step <= MAX_TRAVERSAL_STRIDE for step in strides):
        raise Fault(f"stride is {show(strides)}; each is 1 to {MAX_TRAVERSAL_STRIDE}")
    return PixelBox(corners[0], corners[1], strides, mode)


def _numbers(values: Any, name: str, count: int, needed: str) -> tuple[int, ...]:
    items = (values,) if type(values) is int else sequence(values, name)
    if len(items) != count:
        raise Fault(f"{name} has {plural(len(items), 'number')}, {needed}")
    return tuple(as_int(item, f"a number of {name}") for item in items)


def _column(tensor: Tensor, box: Any) -> tuple[int, int]:
    """Pixels and channels of one copy in im2col mode."""
    sizes = sequence(box, "box")
    if len(sizes) != 2:
        raise Fault(f"box of a map of images is (pixels, channels), not {plural(len(sizes), 'extent')}")
    pixels, channels = (as_int(extent, "an extent of box") for extent in sizes)
    if not (1 <= pixels <= MAX_PIXELS and 1 <= channels <= MAX_BOX):
        raise Fault(f"box is {show((pixels, channels))}; pixels are 1 to {MAX_PIXELS:,}, channels 1 to {MAX_BOX}")
    _check_row(tensor, channels)
    return pixels, channels


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
    sizes = (box,) if type(box) is int else sequence(box, "box")
    if len(sizes) != len(tensor.shape):
        raise Fault(
            f"box has {plural(len(sizes), 'extent')}, the tensor {plural(len(tensor.shape), 'dimension')}: one for each"
        )
    extents = tuple(as_int(extent, "an extent of box") for extent in sizes)
    if not all(1 <= extent <= MAX_BOX for extent in extents):
        raise Fault(f"box is {show(extents)}; each extent is 1 to {MAX_BOX}")
    _check_row(tensor, extents[-1])
    return extents


def _check_row(tensor: Tensor, elements: int) -> None:
    row = elements * tensor.dtype.itemsize
    if row % ALIGNMENT_BYTES:
        raise Fault(f"a row of the box has {plural(row, 'byte')}; tensor_map needs a multiple of {ALIGNMENT_BYTES}")
