"""``tensor_map``: what ``cuTensorMapEncodeTiled`` takes resolves, and everything that it refuses is refused here."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kernelforge.candidate import LaunchSignature, PlanLimits, ResolvedPlan, parse_plan, signatures
from kernelforge.candidate.resolved import PixelBox, TensorMapArg
from kernelforge.errors import PlanError
from kernelforge.records import DType, TensorSpec

X = TensorSpec.contiguous((8, 32), DType.FLOAT32)


def resolve(line: str, spec: TensorSpec = X, **options: Any) -> ResolvedPlan:
    text = f"def forward(x):\n    out = empty((4, 16, 8, 64), dtype=float16)\n    {line}\n    return out\n"
    return parse_plan(text).resolve([spec], {}, {}, **options)


def spec(*shape: int, dtype: DType = DType.FLOAT32) -> TensorSpec:
    return TensorSpec.contiguous(shape, dtype)


def test_a_tensor_map_names_its_buffer_shape_and_box() -> None:
    plan = resolve("k[1, 32](tensor_map(x, box=(4, 16)), tensor_map(out[2], box=(16, 8, 64), swizzle=128), i32(3))")
    first, second, _ = plan.launches[0].args
    assert first == TensorMapArg(0, 0, DType.FLOAT32, (8, 32), (4, 16), 0)
    assert second == TensorMapArg(1, 2 * 16 * 8 * 64 * 2, DType.FLOAT16, (16, 8, 64), (16, 8, 64), 128)
    assert signatures(plan) == [LaunchSignature("k", ("tensor_map", "tensor_map", "i32"))]
    assert ResolvedPlan.from_wire(json.loads(json.dumps(plan.to_wire()))) == plan


def test_a_tensor_map_keeps_its_tensor_alive() -> None:
    text = """
def forward(x):
    a = empty_like(x)
    first[1, 32](x, a)
    tiles = tensor_map(a, box=(8, 32))
    b = empty_like(x)
    second[1, 32](x, b)
    out = empty((3, 3))
    third[1, 32](tiles, b, out)
    return out
"""
    plan = parse_plan(text).resolve([X], {}, {})
    assert plan.launches[0].args[1].buffer != plan.launches[1].args[1].buffer
    assert plan.launches[2].args[0] == TensorMapArg(plan.launches[0].args[1].buffer, 0, X.dtype, (8, 32), (8, 32), 0)


ACCEPTED = [
    ("box=256", spec(1000), (256,), 0),
    ("box=[4]", spec(7), (4,), 0),
    ("box=(8, 8), swizzle=32", spec(8, 32), (8, 8), 32),
    ("box=(8, 16), swizzle=64", spec(8, 32), (8, 16), 64),
    ("box=(256, 32), swizzle=128", spec(8, 32), (256, 32), 128),
    ("box=(1, 1, 1, 1, 4)", spec(2, 3, 4, 5, 4), (1, 1, 1, 1, 4), 0),
    ("box=(1, 16)", spec(3, 16, dtype=DType.INT8), (1, 16), 0),
    ("box=(1, 2)", spec(3, 2, dtype=DType.INT64), (1, 2), 0),
    ("box=(1, 8)", TensorSpec(shape=(1, 8), dtype=DType.FLOAT32, stride=(3, 1)), (1, 8), 0),
]


@pytest.mark.parametrize(("options", "tensor", "box", "swizzle"), ACCEPTED)
def test_what_cuda_takes_resolves(options: str, tensor: TensorSpec, box: tuple[int, ...], swizzle: int) -> None:
    (argument,) = resolve(f"k[1, 32](tensor_map(x, {options}))", tensor).launches[0].args
    assert argument == TensorMapArg(0, 0, tensor.dtype, tensor.shape, box, swizzle)


IMAGES = spec(2, 6, 8, 32, dtype=DType.FLOAT16)


@pytest.mark.parametrize(
    ("options", "tensor", "box", "pixels"),
    [
        ("box=(64, 32), lower=(-1, -1), upper=(-1, -1)", IMAGES, (64, 32), PixelBox((-1, -1), (-1, -1), (1, 1))),
        (
            "box=(1024, 8), lower=[0, 0], upper=(-5, 127), stride=(1, 8)",
            IMAGES,
            (1024, 8),
            PixelBox((0, 0), (-5, 127), (1, 8)),
        ),
        (
            "box=(5, 16), lower=-32768, upper=32767, stride=2",
            spec(2, 3, 16),
            (5, 16),
            PixelBox((-32768,), (32767,), (2,)),
        ),
        (
            "box=(5, 16), lower=(-16, 0, 1), upper=(15, 0, -1)",
            spec(2, 3, 4, 5, 16),
            (5, 16),
            PixelBox((-16, 0, 1), (15, 0, -1), (1, 1, 1)),
        ),
    ],
)
def test_a_map_of_images_has_pixels_and_channels(
    options: str, tensor: TensorSpec, box: tuple[int, ...], pixels: PixelBox
) -> None:
    plan = resolve(f"k[1, 32](tensor_map(x, {options}))", tensor)
    assert plan.launches[0].args == (TensorMapArg(0, 0, tensor.dtype, tensor.shape, box, 0, pixels),)
    assert signatures(plan) == [LaunchSignature("k", ("tensor_map",))]
    assert ResolvedPlan.from_wire(json.loads(json.dumps(plan.to_wire()))) == plan


@pytest.mark.parametrize(
    ("options", "pixels", "swizzle"),
    [
        ("lower=-32768, upper=32767, mode='im2col::w', swizzle=64",
         PixelBox((-32768,), (32767,), (1,), "im2col::w"), 64),
        ("lower=(-1,), upper=[0], stride=2, mode='im2col::w::128', swizzle=128",
         PixelBox((-1,), (0,), (2,), "im2col::w::128"), 128),
    ],
)  # fmt: skip
def test_a_wide_map_of_images_has_corners_along_the_width(options: str, pixels: PixelBox, swizzle: int) -> None:
    plan = resolve(f"k[1, 32](tensor_map(x, box=(128, 32), {options}))", IMAGES)
    assert plan.launches[0].args == (TensorMapArg(0, 0, IMAGES.dtype, IMAGES.shape, (128, 32), swizzle, pixels),)
    assert ResolvedPlan.from_wire(json.loads(json.dumps(plan.to_wire()))) == plan


REFUSED = [
    ("x, box=(8, 8), mode='im2col'", X, "mode belongs to images"),
    ("x, box=(8, 8), lower=(0, 0), upper=(0, 0), mode='w'", IMAGES,
     "mode is 'im2col', 'im2col::w' or 'im2col::w::128', not 'w'"),
    ("x, box=(8, 8), lower=0, upper=0, mode=2", IMAGES, "mode is 'im2col', 'im2col::w' or 'im2col::w::128', not 2"),
    ("x, box=(8, 32), lower=0, upper=0, mode='im2col::w'", IMAGES,
     "a map in mode 'im2col::w' needs a swizzle of 64 or 128 bytes, not 0"),
    ("x, box=(8, 32), lower=0, upper=0, mode='im2col::w::128', swizzle=64", IMAGES,
     "copies in mode 'im2col::w::128' move 128 pixels, box has 8"),
    ("x, box=(8, 32), lower=(0, 0), upper=(0, 0), mode='im2col::w', swizzle=64", IMAGES,
     "lower has 2 numbers, 'im2col::w' needs one, of the width"),
    ("x, box=(8, 32), lower=0, upper=-8, mode='im2col::w', swizzle=64", IMAGES,
     "lower 0 is beyond upper -8 of a dimension with 8 elements"),
    ("x, box=(8, 8), stride=2", X, "stride belongs to images"),
    ("x, box=(8, 8), lower=0, upper=0", X, "lower and upper are of images, (N, W, C) to (N, D, H, W, C); this tensor"),
    ("x, box=(8, 8), lower=(0, 0)", IMAGES, "a tensor map of images needs both lower= and upper="),
    ("x, box=(8, 8), lower=0, upper=(0, 0)", IMAGES, "lower has 1 number, the images 2 dimensions: one for each"),
    ("x, box=(8, 8), lower=(0, 0), upper=(0, 0, 0)", IMAGES, "upper has 3 numbers, the images 2 dimensions"),
    ("x, box=(8, 8), lower=(0, -129), upper=(0, 0)", IMAGES, "lower is (0, -129); with 2 of them each is -128 to 127"),
    ("x, box=(8, 8), lower=(0, 0), upper=(0, 0), stride=(0, 1)", IMAGES, "stride is (0, 1); each is 1 to 8"),
    ("x, box=(8, 8), lower=(0, 0), upper=(0, -8)", IMAGES, "lower 0 is beyond upper -8 of a dimension with 8 elements"),
    ("x, box=(8, 8, 8, 8), lower=(0, 0), upper=(0, 0)", IMAGES, "box of a map of images is (pixels, channels), not 4"),
    ("x, box=(1025, 8), lower=(0, 0), upper=(0, 0)", IMAGES, "box is (1025, 8); pixels are 1 to 1,024, channels 1 to"),
    ("x, box=(8, 4), lower=(0, 0), upper=(0, 0)", IMAGES, "a row of the box has 8 bytes; tensor_map needs a multiple"),
    ("x, box=(1024, 256), lower=(0, 0), upper=(0, 0)", IMAGES, "a tile of (1024, 256) takes 524.3 KB"),
    ("x, box=(8, 32), lower=(0, 0), upper=(0, 0), swizzle=32", IMAGES, "a row of the box has 64 bytes, more than"),
    ("x, lower=(0, 0), upper=(0, 0)", IMAGES, "tensor_map needs box="),
    ("x, box=(8, 8)", TensorSpec(shape=(8, 32), dtype=DType.FLOAT32, stride=(1, 8)),
     "tensor_map needs a contiguous tensor, this one has shape (8, 32) and stride (1, 8)"),
    ("x, box=()", spec(), "tensor_map takes 1 to 5 dimensions, this tensor has 0; view it"),
    ("x, box=(1, 1, 1, 1, 1, 4)", spec(2, 2, 2, 2, 2, 4), "tensor_map takes 1 to 5 dimensions, this tensor has 6"),
    ("x, box=(1, 4)", spec(0, 4), "dimension 0 has 0 elements; tensor_map takes 1 to 4,294,967,296"),
    ("x, box=(1, 4)", spec(2**32 + 4, 4), "dimension 0 has 4,294,967,300 elements; tensor_map takes 1 to 4,294,967,"),
    ("x, box=(1, 16)", spec(2, 2**31, 2**30, dtype=DType.INT8),
     "dimension 0 has a stride of 2,305,843,009,213,693,952 bytes; tensor_map needs multiples of 16 below"),
    ("x[1:], box=4", spec(8), "the tensor begins 4 bytes into its memory; tensor_map needs a multiple of 16"),
    ("x, box=(4, 4)", spec(4, 7), "dimension 0 has a stride of 28 bytes; tensor_map needs multiples of 16"),
    ("x, box=(4, 4, 4)", spec(4, 1, 6), "dimension 1 has a stride of 24 bytes"),
    ("x, box=(8,)", X, "box has 1 extent, the tensor 2 dimensions: one for each"),
    ("x, box=8", X, "box has 1 extent, the tensor 2 dimensions: one for each"),
    ("x, box=(1, 8, 8)", X, "box has 3 extents, the tensor 2 dimensions: one for each"),
    ("x, box=(0, 8)", X, "box is (0, 8); each extent is 1 to 256"),
    ("x, box=(8, 257)", X, "box is (8, 257); each extent is 1 to 256"),
    ("x, box=(8, 4.0)", X, "an extent of box must be an int, got the float 4.0"),
    ("x, box='a'", X, "box needs a sequence, got a string"),
    ("x, box=x", X, "box needs a sequence"),
    ("x, box=True", spec(8), "box needs a sequence, got a bool"),
    ("x, box=(8, 2)", X, "a row of the box has 8 bytes; tensor_map needs a multiple of 16"),
    ("x, box=(256, 256)", X, "a tile of (256, 256) takes 262.1 KB; a block has 232.4 KB of shared memory"),
    ("x, box=(8, 16), swizzle=32", X, "a row of the box has 64 bytes, more than the swizzle of 32; take at most 8"),
    ("x, box=(8, 8), swizzle=16", X, "swizzle is 0, 32, 64 or 128 bytes, not 16"),
    ("x, box=(8, 8), swizzle=False", X, "swizzle is 0, 32, 64 or 128 bytes, not False"),
    ("x, box=(8, 8), swizzle=None", X, "swizzle must be an int, got None"),
    ("x, box=(8, 8), swizzle='128B'", X, "swizzle must be an int, got a string"),
    ("x", X, "tensor_map needs box=, the extents of a tile"),
    ("x, (8, 8)", X, "tensor_map takes 1 argument, got 2"),
    ("x, box=(8, 8), interleave=16", X, "tensor_map has no argument 'interleave'"),
    ("3, box=8", X, "tensor_map takes a tensor, not an int"),
    ("tensor_map(x, box=(8, 8)), box=8", X, "tensor_map takes a tensor, not a tensor map"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "tensor", "message"), REFUSED)
def test_what_cuda_refuses_is_refused_with_its_line(call: str, tensor: TensorSpec, message: str) -> None:
    with pytest.raises(PlanError) as caught:
        resolve(f"k[1, 32](tensor_map({call}), out)", tensor)
    assert message in str(caught.value)
    assert caught.value.line == 3


USES = [
    ("a = tensor_map(x, box=(8, 8)) == 1", "a tensor map cannot be compared"),
    ("a = tensor_map(x, box=(8, 8)) + 1", "+ cannot join a tensor map and an int"),
    ("a = tensor_map(x, box=(8, 8)).shape", "a tensor map has no attribute 'shape'"),
    ("a = tensor_map(x, box=(8, 8))[0]", "[...] needs a sequence, got a tensor map"),
    ("a = i32(tensor_map(x, box=(8, 8)))", "the value of i32(...) must be an int, got a tensor map"),
    ("return tensor_map(x, box=(8, 8))", "forward returns tensors, not a tensor map"),
    ("tensor_map(x, box=(8, 8))", "this line has no effect"),
]


@pytest.mark.parametrize(("line", "message"), USES)
def test_a_tensor_map_is_for_launches_alone(line: str, message: str) -> None:
    with pytest.raises(PlanError) as caught:
        resolve(f"k[1, 1](x)\n    {line}")
    assert message in str(caught.value)


def test_arguments_are_counted_with_their_alignment() -> None:
    line = "k[1, 32](i32(1), tensor_map(x, box=(8, 8)), i32(2))"
    assert resolve(line, limits=PlanLimits(parameter_bytes=260)).launches
    with pytest.raises(PlanError, match="the arguments of k take 260 bytes; the limit is 259 bytes"):
        resolve(line, limits=PlanLimits(parameter_bytes=259))
