"""``cp.async.bulk.tensor`` of Blackwell: im2col along the width with halos, and four rows gathered or scattered."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from kernelforge.candidate.resolved import PixelBox, TensorMapArg
from kernelforge.devices.emulated.errors import UnsupportedInstruction
from kernelforge.devices.emulated.tensor_maps import encode_tensor_map, tensor_map_bytes
from kernelforge.records import DType
from tests.devices.emulated.harness import Device, cuda, ptx_module, total
from tests.devices.emulated.test_bulk_copies import KINDS, Tensor, box_copies, map_argument, swizzled


def kernel(load: str, store: str = "") -> str:
    """Load by an instruction (0), or store by one (1); both find coordinates and 16-bit operands in ``c``."""
    values = ", ".join(f'"r"(c[{axis}])' for axis in range(5))
    operands = f'"r"(at(box)), "l"(&map), "r"(at(&b)), {values}, "h"((short)c[5]), "h"((short)c[6])'
    return box_copies(*(f'asm volatile("{text}" :: {operands} : "memory");' for text in (load, store)))


def wide(rank: int, mode: str) -> str:
    """A load of a column, and its prefetch."""
    coordinates = ", ".join(f"%{3 + axis}" for axis in range(rank))
    return (
        f"cp.async.bulk.prefetch.tensor.{rank}d.L2.global.{mode} [%1, {{{coordinates}}}], {{%8, %9}};"
        f"cp.async.bulk.tensor.{rank}d.shared::cluster.global.{mode}.mbarrier::complete_tx::bytes"
        f" [%0], [%1, {{{coordinates}}}], [%2], {{%8, %9}};"
    )


def images(
    kind: str, shape: Sequence[int], box: Sequence[int], corners: tuple[int, int], mode: str, stride: int = 1,
    **options: object,
) -> Tensor:  # fmt: skip
    x = np.random.default_rng(7).integers(1, 100, shape).astype(KINDS[kind])
    device = cuda(kernel(wide(len(shape), mode)))
    lower, upper = corners
    options = {"swizzle_bytes": 128, **options}
    return Tensor(device, x, kind, box, corners=([lower], [upper]), steps=(1, stride), mode=mode, **options)


def column(
    x: np.ndarray, at: Sequence[int], corners: tuple[int, int], stride: int, offset: int, count: int
) -> list[tuple[int, ...]]:
    """Coordinates of pixels along the width, outermost first: from a position on, then of the images that follow."""
    image, *fixed, width = at
    positions = list(range(corners[0], x.shape[-2] + corners[1], stride))
    first = list(range(width, x.shape[-2] + corners[1], stride)) or [width]
    walk = [(image, p) for p in first]
    while len(walk) < count:
        image += 1
        walk += [(image, p) for p in positions]
    return [(n, *fixed, p + offset) for n, p in walk[:count]]


def channels(x: np.ndarray, pixels: Sequence[tuple[int, ...]], first: int, count: int, outside: object) -> np.ndarray:
    result = np.full((len(pixels), count), outside, x.dtype)
    for row, at in enumerate(pixels):
        if all(0 <= a < extent for a, extent in zip(at, x.shape, strict=False)):
            inside = x[at][first : first + count]
            result[row, : len(inside)] = inside
    return result


COLUMNS = [
    # kind, shape, (channels, pixels), corners, stride, position, halo, offset, first channel, options
    ("float16", (40, 9, 7, 64), (64, 128), (0, 0), 1, (7, 2, 3), 2, 0, 0, {}),  # the first example of the PTX ISA
    ("float16", (16, 9, 67, 64), (64, 128), (-1, 0), 2, (7, 2, -1), 1, 0, 0, {}),  # and those of wOffset
    ("float16", (16, 9, 67, 64), (64, 128), (-1, 0), 2, (7, 2, -1), 0, 1, 0, {}),
    ("float16", (60, 7, 7, 64), (64, 128), (-1, -1), 3, (7, 2, -1), 0, 2, 0, {}),
    ("float32", (4, 9, 16), (16, 24), (-2, 1), 1, (1, 5), 3, 4, 8, {"swizzle_bytes": 64}),  # and images beyond the last
    ("float16", (3, 4, 5, 6, 32), (32, 20), (0, -1), 1, (1, 3, 4, 5), 2, 1, 0, {"nan_outside": True}),
    ("float16", (3, 5, 6, 32), (32, 20), (1, -1), 2, (0, 7, -3), 0, 0, 0, {}),  # left of its box, and a row outside
]  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "shape", "box", "corners", "stride", "at", "halo", "offset", "channel", "options"), COLUMNS
)
@pytest.mark.parametrize("mode", ["im2col::w", "im2col::w::128"])
def test_a_wide_column_goes_along_the_width_and_has_a_halo(
    mode: str, kind: str, shape: tuple[int, ...], box: tuple[int, int], corners: tuple[int, int], stride: int,
    at: tuple[int, ...], halo: int, offset: int, channel: int, options: dict[str, object],
) -> None:  # fmt: skip
    tensor = images(kind, shape, box, corners, mode, stride, **options)
    pixels = column(tensor.x, at, corners, stride, offset, box[1] + halo)
    if mode == "im2col::w::128":
        walk = column(tensor.x, at, corners, stride, offset, 128 + halo)
        pixels = [pixel for group in range(0, 128, 32) for pixel in walk[group : group + 32 + halo]]
    outside = np.nan if options.get("nan_outside") else 0
    expected = channels(tensor.x, pixels, channel, box[0], outside)
    out = np.zeros(expected.nbytes, np.uint8)
    c = np.array([channel, *at[::-1], *[0] * (4 - len(at)), halo, offset], np.int32)
    report = tensor.device.run(1, 64, map_argument(tensor), c, out, out.nbytes, 0, shared=out.nbytes)
    raw = swizzled(expected.reshape(-1).view(np.uint8), options.get("swizzle_bytes", 128))  # type: ignore[arg-type]
    np.testing.assert_array_equal(out.view(tensor.x.dtype), raw.view(tensor.x.dtype))
    assert not report.faults


@pytest.mark.parametrize(
    ("mode", "halo", "offset", "kinds"),
    [
        ("im2col::w", 511, 31, []), ("im2col::w", 512, 0, ["wide_column"]), ("im2col::w", 0, 32, ["wide_column"]),
        ("im2col::w::128", 31, 0, []), ("im2col::w::128", 32, 0, ["wide_column"]),
        ("im2col::w::128", -1, 0, ["wide_column"]),
    ],
)  # fmt: skip
def test_a_halo_and_an_offset_have_bounds(mode: str, halo: int, offset: int, kinds: list[str]) -> None:
    tensor = images("float16", (40, 5, 6, 32), (32, 128), (0, 0), mode, swizzle_bytes=64)
    size = 64 * (128 + halo if mode == "im2col::w" else 4 * (32 + halo))
    c = np.array([0, 0, 0, 0, 0, halo, offset], np.int32)
    report = tensor.device.run(
        1, 64, map_argument(tensor), c, np.zeros(size, np.uint8), size, 0, shared=size, clean=not kinds
    )
    assert sorted({fault.kind for fault in report.faults} - {"mbarrier_deadlock"}) == kinds
    if kinds:
        assert f"here they are {halo & 0xFFFF} and {offset}" in "".join(map(str, report.faults))


@pytest.mark.parametrize(("byte", "value"), [(118, 3), (118, 1), (118, 0), (118, 4), (118, 200), (116, 1)])
def test_a_map_of_another_mode_is_a_fault(byte: int, value: int) -> None:
    """So is one that swizzles less than 64 bytes, and numbers that name no mode."""
    tensor = images("float16", (4, 5, 6, 32), (8, 16), (0, 0), "im2col::w")
    tensor.map = tensor.map.copy()
    tensor.map[byte] = value
    out = np.zeros(256, np.uint8)
    arguments = (map_argument(tensor), np.zeros(7, np.int32), out, out.nbytes, 0)
    report = tensor.device.run(1, 64, *arguments, shared=out.nbytes, clean=False)
    assert "no_tensor_map" in {fault.kind for fault in report.faults}


def test_a_plan_makes_such_a_map() -> None:
    box = PixelBox((-1,), (2,), (3,), "im2col::w::128")
    arg = TensorMapArg(0, 0, DType.FLOAT16, (4, 5, 6, 32), (128, 32), 64, box)
    expected = encode_tensor_map(
        4096, "float16", (32, 6, 5, 4), (64, 384, 1920), (32, 128), steps=(1, 3), swizzle_bytes=64,
        corners=((-1,), (2,)), mode="im2col::w::128",
    )  # fmt: skip
    assert tensor_map_bytes(arg, 4096) == expected
    assert expected[118] == 3


GATHER = (
    "cp.async.bulk.prefetch.tensor.2d.L2.global.tile::gather4 [%1, {%3, %4, %5, %6, %7}];"
    "cp.async.bulk.tensor.2d.shared::cluster.global.tile::gather4.mbarrier::complete_tx::bytes"
    " [%0], [%1, {%3, %4, %5, %6, %7}], [%2];"
)
SCATTER = "cp.async.bulk.tensor.2d.global.shared::cta.tile::scatter4.bulk_group [%1, {%3, %4, %5, %6, %7}], [%0];"


def rows(kind: str, shape: tuple[int, int], width: int, height: int = 1, **options: object) -> Tensor:
    x = np.random.default_rng(9).integers(1, 100, shape).astype(KINDS[kind])
    return Tensor(cuda(kernel(GATHER, SCATTER)), x, kind, (width, height), **options)


ROWS = [
    ("float16", (40, 64), 64, 0, (3, 39, 3, 0), {"swizzle_bytes": 128}),
    ("float16", (40, 64), 32, 8, (5, -1, 40, 7), {"swizzle_bytes": 64}),
    ("float32", (40, 20), 8, 16, (1, 2, 2000000000, 4), {}),
    ("uint8", (9, 48), 32, -16, (8, 1, 0, 4), {"swizzle_bytes": 32}),
]


@pytest.mark.parametrize(("kind", "shape", "width", "start", "picked", "options"), ROWS)
def test_four_rows_are_gathered(
    kind: str, shape: tuple[int, int], width: int, start: int, picked: tuple[int, ...], options: dict[str, int]
) -> None:
    tensor = rows(kind, shape, width, **options)
    expected = np.zeros((4, width), tensor.x.dtype)
    for k, row in enumerate(picked):
        for column in range(max(start, 0), min(start + width, shape[1])):
            expected[k, column - start] = tensor.x[row, column] if 0 <= row < shape[0] else 0
    out = np.zeros(expected.nbytes, np.uint8)
    c = np.array([start, *picked, 0, 0], np.int32)
    report = tensor.device.run(1, 64, map_argument(tensor), c, out, out.nbytes, 0, shared=out.nbytes)
    raw = swizzled(expected.reshape(-1).view(np.uint8), options.get("swizzle_bytes", 0))
    np.testing.assert_array_equal(out, raw)
    assert total(report, "requests", "global", "load") > 0


@pytest.mark.parametrize(("kind", "shape", "width", "start", "picked", "options"), ROWS)
def test_four_rows_are_scattered(
    kind: str, shape: tuple[int, int], width: int, start: int, picked: tuple[int, ...], options: dict[str, int]
) -> None:
    tensor = rows(kind, shape, width, **options)
    values = np.random.default_rng(8).integers(100, 200, (4, width)).astype(tensor.x.dtype)
    if len(set(picked)) < 4:  # which of two stores to one row comes last is open
        values[2] = values[0]
    expected = tensor.x.copy()
    for k, row in enumerate(picked):
        for column in range(max(start, 0), min(start + width, shape[1])):
            if 0 <= row < shape[0]:
                expected[row, column] = values[k, column - start]
    raw = swizzled(values.reshape(-1).view(np.uint8), options.get("swizzle_bytes", 0))
    c = np.array([start, *picked, 0, 0], np.int32)
    tensor.device.run(1, 64, map_argument(tensor), c, raw, raw.nbytes, 1, shared=raw.nbytes)
    assert np.array_equal(tensor.read(), expected)


@pytest.mark.parametrize("how", [0, 1])
def test_gathered_rows_need_a_box_of_one_row(how: int) -> None:
    tensor = rows("float16", (40, 64), 64, 2)
    out = np.zeros(512, np.uint8)
    arguments = (map_argument(tensor), np.zeros(7, np.int32), out, out.nbytes, how)
    report = tensor.device.run(1, 64, *arguments, shared=out.nbytes, clean=False)
    assert "no_tensor_map" in {fault.kind for fault in report.faults}


@pytest.mark.parametrize(
    "instruction",
    [
        "cp.async.bulk.tensor.3d.shared::cluster.global.tile::gather4.mbarrier::complete_tx::bytes"
        " [%r0], [%d0, {%r1, %r1, %r1, %r1, %r1}], [%r2];",
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile::gather4.mbarrier::complete_tx::bytes"
        " [%r0], [%d0, {%r1, %r1}], [%r2];",
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile::scatter4.mbarrier::complete_tx::bytes"
        " [%r0], [%d0, {%r1, %r1, %r1, %r1, %r1}], [%r2];",
        "cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.tile::scatter4.bulk_group"
        " [%d0, {%r1, %r1, %r1, %r1, %r1}], [%r0];",
        "cp.async.bulk.tensor.4d.shared::cluster.global.im2col::w.mbarrier::complete_tx::bytes"
        " [%r0], [%d0, {%r1, %r1, %r1, %r1}], [%r2], {%h1, %h1, %h1};",
        "cp.async.bulk.tensor.2d.shared::cluster.global.im2col::w.mbarrier::complete_tx::bytes"
        " [%r0], [%d0, {%r1, %r1}], [%r2], {%h1, %h1};",
        "cp.async.bulk.tensor.4d.global.shared::cta.im2col::w.bulk_group [%d0, {%r1, %r1, %r1, %r1}], [%r0];",
        "cp.async.bulk.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%r0], [%d0], %r1, [%r2];",
    ],
)
def test_other_shapes_of_these_instructions_are_refused(instruction: str) -> None:
    with pytest.raises(UnsupportedInstruction):
        Device(ptx_module(instruction, target="sm_100a")).run(1, 32, np.zeros(1, np.uint64))
