"""``cp.async.bulk.tensor`` in im2col mode against a convolution's columns by their definition."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pytest

from tests.devices.emulated.harness import cuda
from tests.devices.emulated.test_bulk_copies import KINDS, Tensor, box_copies, map_argument, swizzled


def kernel(rank: int) -> str:
    """Load (0), store (1) or add (2) one column; coordinates come first in ``c``, then offsets."""
    coordinates = ", ".join(f"%{2 + axis}" for axis in range(rank))
    offsets = ", ".join(f"%{3 + rank + axis}" for axis in range(rank - 2))
    values = ", ".join(f'"r"(c[{axis}])' for axis in range(rank))
    shifts = ", ".join(f'"h"((short)c[{rank + axis}])' for axis in range(rank - 2))
    load = f"""
asm volatile("cp.async.bulk.prefetch.tensor.{rank}d.L2.global.im2col [%1, {{{coordinates}}}], {{{offsets}}};"
             :: "r"(0), "l"(&map), {values}, "r"(0), {shifts} : "memory");
asm volatile("cp.async.bulk.tensor.{rank}d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes"
             " [%0], [%1, {{{coordinates}}}], [%{2 + rank}], {{{offsets}}};"
             :: "r"(at(box)), "l"(&map), {values}, "r"(at(&b)), {shifts} : "memory");"""
    stores = (
        f'asm volatile("{copy}.im2col_no_offs.bulk_group [%1, {{{coordinates}}}], [%0];"'
        f' :: "r"(at(box)), "l"(&map), {values} : "memory");'
        for copy in (
            f"cp.async.bulk.tensor.{rank}d.global.shared::cta",
            f"cp.reduce.async.bulk.tensor.{rank}d.global.shared::cta.add",
        )
    )
    return box_copies(load, *stores)


def tensor_of(
    kind: str, shape: Sequence[int], box: Sequence[int], lower: Sequence[int], upper: Sequence[int],
    stride: Sequence[int] = (1, 1, 1), **options: object,
) -> Tensor:  # fmt: skip
    """Images and their map; corners and strides are outermost first."""
    x = np.random.default_rng(7).integers(0, 100, shape).astype(KINDS[kind])
    steps = (1, *stride[::-1])
    device = cuda(kernel(len(shape)))
    return Tensor(device, x, kind, box, corners=(lower[::-1], upper[::-1]), steps=steps, **options)


def windows_of(
    x: np.ndarray, lower: Sequence[int], upper: Sequence[int], stride: Sequence[int]
) -> list[tuple[int, ...]]:
    """Image and position of every window of all images, in order."""
    axes = [
        range(low, extent + high, step)
        for extent, low, high, step in zip(x.shape[1:-1], lower, upper, stride, strict=True)
    ]
    return list(itertools.product(range(x.shape[0]), *axes))


def pixel(x: np.ndarray, window: Sequence[int], offsets: Sequence[int], channels: slice, outside: object) -> np.ndarray:
    """Channels of one pixel; zeros, or ``outside``, where it or they are beyond the tensor."""
    at = (window[0], *(p + o for p, o in zip(window[1:], offsets, strict=True)))
    result = np.full(channels.stop - channels.start, outside, x.dtype)
    if all(0 <= a < extent for a, extent in zip(at, x.shape, strict=False)):
        inside = x[at][channels]
        result[: len(inside)] = inside
    return result


COLUMNS = [
    # kind, shape, (channels, pixels), lower, upper, stride, first window, offsets, first channel, options
    ("float16", (2, 5, 6, 32), (16, 24), (-1, -1), (-1, -1), (1, 1), 0, (0, 0), 0, {}),
    ("float16", (2, 5, 6, 32), (16, 24), (-1, -1), (-1, -1), (1, 1), 7, (2, 1), 16, {}),
    ("float16", (3, 5, 6, 64), (64, 100), (0, 0), (-2, -2), (1, 1), 5, (2, 2), 0, {"swizzle_bytes": 128}),
    ("float32", (2, 8, 9, 8), (8, 16), (-1, -1), (-1, -1), (2, 2), 3, (1, 2), 0, {"swizzle_bytes": 32}),
    ("float32", (2, 8, 9, 12), (8, 64), (0, -2), (1, 0), (3, 1), 11, (0, 0), 8, {"nan_outside": True}),
    ("float32", (2, 9, 16), (16, 12), (-1,), (-1,), (1,), 4, (2,), 0, {"swizzle_bytes": 64}),
    ("uint8", (3, 4, 5, 6, 16), (16, 50), (-1, 0, -1), (-1, -2, 0), (1, 1, 2), 30, (2, 2, 0), 0, {}),
]  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "shape", "box", "lower", "upper", "stride", "first", "offsets", "channel", "options"), COLUMNS
)
def test_a_column_has_the_pixels_of_windows_in_order(
    kind: str, shape: tuple[int, ...], box: tuple[int, int], lower: tuple[int, ...], upper: tuple[int, ...],
    stride: tuple[int, ...], first: int, offsets: tuple[int, ...], channel: int, options: dict[str, object],
) -> None:  # fmt: skip
    tensor = tensor_of(kind, shape, box, lower, upper, stride, **options)
    windows = windows_of(tensor.x, lower, upper, stride)
    start = windows[first]
    windows = windows[first : first + box[1]]
    outside = np.nan if options.get("nan_outside") else 0
    channels = slice(channel, channel + box[0])
    expected = np.full((box[1], box[0]), outside, tensor.x.dtype)  # pixels beyond the last image
    for row, window in enumerate(windows):
        expected[row] = pixel(tensor.x, window, offsets, channels, outside)
    out = np.zeros(expected.nbytes, np.uint8)
    c = np.array([channel, *start[:0:-1], start[0], *offsets[::-1]], np.int32)
    tensor.device.run(1, 64, map_argument(tensor), c, out, out.nbytes, 0, shared=out.nbytes)
    raw = swizzled(expected.reshape(-1).view(np.uint8), options.get("swizzle_bytes", 0))  # type: ignore[arg-type]
    np.testing.assert_array_equal(out.view(tensor.x.dtype), raw.view(tensor.x.dtype))


@pytest.mark.parametrize("how", [1, 2])
def test_a_column_is_stored_or_added(how: int) -> None:
    tensor = tensor_of("float16", (2, 5, 6, 16), (16, 40), (0, 1), (0, -1), (1, 1))
    values = np.random.default_rng(8).integers(0, 100, (40, 16)).astype(np.float16)
    windows = windows_of(tensor.x, (0, 1), (0, -1), (1, 1))[15:]
    expected = tensor.x.copy()
    for row, window in enumerate(windows[:40]):
        expected[window] = values[row] + (expected[window] if how == 2 else 0)
    raw = values.reshape(-1).view(np.uint8).copy()
    start = windows[0]
    c = np.array([0, *start[:0:-1], start[0], 0, 0], np.int32)
    tensor.device.run(1, 64, map_argument(tensor), c, raw, raw.nbytes, how, shared=raw.nbytes)
    assert np.array_equal(tensor.read(), expected)


@pytest.mark.parametrize("how", [0, 1])
def test_a_map_of_tiles_is_no_map_of_images(how: int) -> None:
    tensor = tensor_of("float16", (2, 5, 6, 16), (16, 40), (0, 1), (0, -1), (1, 1))
    tensor.map = tensor.map.copy()
    tensor.map[118] = 0
    tensor.map[88:108].view(np.int32)[:] = (16, 2, 2, 1, 1)
    arguments = (map_argument(tensor), np.zeros(6, np.int32), np.zeros(1280, np.uint8), 1280, how)
    report = tensor.device.run(1, 64, *arguments, shared=1280, clean=False)
    assert "no_tensor_map" in {fault.kind for fault in report.faults}


@pytest.mark.parametrize(("word", "value"), [(2, 0x7FFF), (2, -0x80000000), (1, 4000), (1, 0), (1, -1)])
def test_a_map_that_a_kernel_wrote_is_a_fault(word: int, value: int) -> None:
    """Corners that leave no window, and pixels beyond the limits."""
    tensor = tensor_of("float16", (2, 5, 6, 16), (16, 40), (0, 1), (0, -1), (1, 1))
    tensor.map = tensor.map.copy()
    tensor.map[88:108].view(np.int32)[word] = value
    arguments = (map_argument(tensor), np.zeros(6, np.int32), np.zeros(1280, np.uint8), 1280, 0)
    report = tensor.device.run(1, 64, *arguments, shared=1280, clean=False)
    assert "no_tensor_map" in {fault.kind for fault in report.faults}
