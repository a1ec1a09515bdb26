"""``cvt.rs`` against exact rationals, with the random bits of each value as others have measured them on a B200."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest

from tests.devices.emulated.harness import apply
from tests.devices.emulated.test_small_floats import FORMATS, NAN, floats


def rounded(x: float, name: str, random: int, count: int, saturates: bool, relu: bool) -> int:
    """Code of a number: the part of its last place that is cut off, to ``count`` bits, and ``random`` may carry."""
    exponent_bits, mantissa, bias, largest = FORMATS[name]
    if math.isnan(x):
        return NAN[name]
    if relu and x < 0:
        return 0
    sign = 1 << (exponent_bits + mantissa) if math.copysign(1, x) < 0 else 0
    limit = largest if saturates else largest + 1
    if math.isinf(x):
        return sign | limit
    if x == 0:
        return sign
    exponent = max(math.frexp(x)[1] - 1, 1 - bias)
    steps = Fraction(abs(x)) / Fraction(2) ** (exponent - mantissa)
    code = ((exponent - 1 + bias) << mantissa) + (math.floor(steps * 2**count) + random >> count)
    return sign | min(code, limit)


def reverse(bits: int) -> int:
    return int(f"{bits:016b}"[::-1], 2)


def bits_of_fp8(word: int) -> list[int]:
    """Of the first value, in the highest place, to the last one."""
    high, low = word >> 16, word & 0xFFFF
    return [reverse(high), high, reverse(low), low]


def bits_of_fp4(word: int) -> list[int]:
    high = (word >> 24) << 8 | word >> 8 & 0xFF
    low = (word >> 16 & 0xFF) << 8 | word & 0xFF
    return [reverse(high), high, reverse(low), low]


def inputs() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    a = floats()
    rng = np.random.default_rng(11)
    random = rng.integers(0, 1 << 32, len(a), dtype=np.uint64).astype(np.uint32)
    random[:64] = [0, 0xFFFFFFFF] * 32
    random[64:96] = 1 << np.arange(32, dtype=np.uint32)
    return a, np.roll(a, 7), random


@pytest.mark.parametrize("option", ["", ".relu", ".satfinite", ".relu.satfinite"])
@pytest.mark.parametrize(("name", "count"), [("f16", 13), ("bf16", 16)])
def test_pairs_of_halves(name: str, count: int, option: str) -> None:
    a, b, random = inputs()
    got = apply(
        f"cvt.rs{option}.{name}x2.f32 {{d}}, {{a}}, {{b}}, {{c}};", "b32", ("f32", a), ("f32", b), ("b32", random)
    )
    mask, flags = (1 << count) - 1, ("satfinite" in option, "relu" in option)
    for word, x, y, bits in zip(got.tolist(), a.tolist(), b.tolist(), random.tolist(), strict=True):
        high = rounded(x, name, bits >> 16 & mask, count, *flags)
        low = rounded(y, name, bits & mask, count, *flags)
        assert word == high << 16 | low, (x, y, hex(bits))


FORMS: list[tuple[str, int, Callable[[int], list[int]]]] = [
    ("e4m3", 8, bits_of_fp8), ("e5m2", 8, bits_of_fp8), ("e2m3", 8, bits_of_fp8), ("e3m2", 8, bits_of_fp8),
    ("e2m1", 4, bits_of_fp4),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize(("name", "distance", "bits_of"), FORMS)
def test_fours_of_small_floats(name: str, distance: int, bits_of: Callable[[int], list[int]], relu: bool) -> None:
    a, b, random = inputs()
    option = ".relu" if relu else ""
    code = f"cvt.rs{option}.satfinite.{name}x4.f32 {{d}}, {{{{{{a}}, {{b}}, {{b}}, {{a}}}}}}, {{c}};"
    out = "b16" if name == "e2m1" else "b32"
    got = apply(code, out, ("f32", a), ("f32", b), ("b32", random))
    for word, x, y, bits in zip(got.tolist(), a.tolist(), b.tolist(), random.tolist(), strict=True):
        want = 0
        for value, own in zip((x, y, y, x), bits_of(bits), strict=True):
            want = want << distance | rounded(value, name, own, 16, True, relu)
        assert word == want, (x, y, hex(bits))


def test_a_value_between_two_is_rounded_up_as_often_as_it_is_near() -> None:
    random = np.random.default_rng(12).integers(0, 1 << 32, 20000, dtype=np.uint64).astype(np.uint32)
    a = np.full(len(random), np.float32(1 + 0.3 / 8))
    code = "cvt.rs.satfinite.e4m3x4.f32 {d}, {{{a}, {a}, {a}, {a}}}, {b};"
    got = apply(code, "b32", ("f32", a), ("b32", random)).view(np.uint8)
    assert set(np.unique(got)) == {0x38, 0x39}
    assert abs((got == 0x39).mean() - 0.3) < 0.01
