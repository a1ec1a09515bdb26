"""Specifications of tensor maps for the driver: dimensions are innermost first there."""

from __future__ import annotations

from kernelforge.candidate.resolved import PixelBox, TensorMapArg
from kernelforge.devices.cuda.worker.driver import PixelBoxSpec, TensorMapSpec
from kernelforge.devices.cuda.worker.launch_binding import tensor_map_spec
from kernelforge.records import DType


def test_a_map_of_tiles() -> None:
    arg = TensorMapArg(0, 0, DType.FLOAT16, (3, 40, 96), (1, 8, 64), 128)
    assert tensor_map_spec(arg, 4096) == TensorMapSpec(4096, "float16", (96, 40, 3), (192, 7680), (64, 8, 1), 128)


def test_a_wide_map_of_images() -> None:
    arg = TensorMapArg(0, 0, DType.FLOAT32, (3, 14, 9, 16), (64, 16), 64, PixelBox((-2,), (4,), (2,), "im2col::w"))
    assert tensor_map_spec(arg, 4096) == TensorMapSpec(
        4096, "float32", (16, 9, 14, 3), (64, 576, 8064), (16, 64), 64, PixelBoxSpec((-2,), (4,), (2,), "im2col::w")
    )


def test_a_map_of_images() -> None:
    arg = TensorMapArg(0, 0, DType.FLOAT32, (3, 14, 9, 16), (64, 8), 32, PixelBox((-1, -2), (3, 4), (2, 1)))
    assert tensor_map_spec(arg, 4096) == TensorMapSpec(
        4096, "float32", (16, 9, 14, 3), (64, 576, 8064), (8, 64), 32, PixelBoxSpec((-2, -1), (4, 3), (1, 2))
    )
