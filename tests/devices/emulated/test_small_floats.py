"""Conversions to and from narrow floats, in every rounding mode, against exact rationals."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from fractions import Fraction
from functools import cache, partial

import numpy as np
import pytest

from tests.devices.emulated.harness import apply
from tests.devices.emulated.test_floating import patterns
from tests.devices.emulated.test_integer import to_int, words

# Bits of exponent and mantissa, bias, and what the codes above the largest finite value mean.
FORMATS = {
    "e4m3": (4, 3, 7, 0x7E), "e5m2": (5, 2, 15, 0x7B), "e2m3": (2, 3, 1, 0x1F), "e3m2": (3, 2, 3, 0x1F),
    "e2m1": (2, 1, 1, 0x07), "f16": (5, 10, 15, 0x7BFF), "bf16": (8, 7, 127, 0x7F7F), "f32": (8, 23, 127, 0x7F7FFFFF),
    "f64": (11, 52, 1023, 0x7FEFFFFFFFFFFFFF), "tf32": (8, 10, 127, 0x3FBFF),
}  # fmt: skip
NAN = {"e4m3": 0x7F, "e5m2": 0x7F, "e2m3": 0x1F, "e3m2": 0x1F, "e2m1": 0x07, "f16": 0x7FFF, "bf16": 0x7FFF}


HALF = Fraction(1, 2)


@cache
def power(exponent: int) -> Fraction:
    """Two to an exponent."""
    return Fraction(2) ** exponent


def values(name: str) -> list[Fraction]:
    """The non-negative finite values of a format by their codes."""
    _, mantissa, bias, largest = FORMATS[name]
    result = []
    for code in range(largest + 1):
        exponent, fraction = code >> mantissa, code & ((1 << mantissa) - 1)
        unit = Fraction(2) ** (max(exponent, 1) - bias - mantissa)
        result.append(unit * (fraction + ((1 << mantissa) if exponent else 0)))
    return result


def rounded(x: float | Fraction, name: str, mode: str = "rn", saturates: bool = True, relu: bool = False) -> int:
    """Code of a number in a format, by the definition of its rounding mode."""
    exponent_bits, mantissa, bias, largest = FORMATS[name]
    sign_bit = 1 << (exponent_bits + mantissa)
    if isinstance(x, float) and math.isnan(x):
        return NAN[name]
    negative = x < 0 or (x == 0 and isinstance(x, float) and math.copysign(1, x) < 0)
    if relu and x < 0:
        return 0
    sign = sign_bit if negative else 0
    if isinstance(x, float) and math.isinf(x):
        return sign | (largest if saturates else largest + 1)
    size = abs(Fraction(x))
    if not size:
        return sign
    # Steps of the last place at this magnitude; an exponent below the least shares its place.
    exponent = max(math.frexp(float(size))[1] - 1 if size < 2**1000 else size.numerator.bit_length(), 1 - bias)
    while power(exponent) > size and exponent > 1 - bias:
        exponent -= 1
    while power(exponent + 1) <= size:
        exponent += 1
    steps = size / power(exponent - mantissa)
    floor = steps.numerator // steps.denominator
    rest = steps - floor
    above = rest > HALF or (rest == HALF and floor % 2 == 1)
    up = {"rn": above, "rz": False, "rna": rest >= HALF, "rp": rest > 0 and not negative,
          "rm": rest > 0 and negative}[mode]  # fmt: skip
    code = ((exponent - 1 + bias) << mantissa) + floor + up
    if code > largest:
        towards_zero = mode == "rz" or (mode == "rp" and negative) or (mode == "rm" and not negative)
        code = largest if saturates or towards_zero else largest + 1
    return sign | code


def floats(count: int = 1500) -> np.ndarray:
    """f32 of every exponent, many near the ranges of the small formats, and ties of their last places."""
    rng = np.random.default_rng(3)
    near = (rng.standard_normal(count) * 2.0 ** rng.integers(-20, 17, count)).astype(np.float32)
    ties = (rng.integers(-64, 65, count) * 2.0 ** rng.integers(-20, 12, count)).astype(np.float32)
    return np.concatenate([patterns(32, count), near, ties])


@pytest.mark.parametrize("relu", ["", ".relu"])
@pytest.mark.parametrize("name", ["e4m3", "e5m2", "e2m3", "e3m2", "e2m1"])
def test_pairs_of_small_floats_round_once(name: str, relu: str) -> None:
    a = floats()
    b = np.roll(a, 7)
    if name == "e2m1":
        code = "{{ .reg .b8 t; cvt.rn.satfinite" + relu + ".e2m1x2.f32 t, {a}, {b}; mov.b16 {d}, {{t, 0}}; }}"
    else:
        code = f"cvt.rn.satfinite{relu}.{name}x2.f32 {{d}}, {{a}}, {{b}};"
    got = apply(code, "b16", ("f32", a), ("f32", b))
    convert = partial(rounded, name=name, relu=bool(relu))
    shift = 4 if name == "e2m1" else 8
    assert got.tolist() == [convert(float(x)) << shift | convert(float(y)) for x, y in zip(a, b, strict=True)]


@pytest.mark.parametrize("source", ["f16x2", "bf16x2"])
def test_pairs_of_halves_become_small_floats(source: str) -> None:
    both = words(32)
    halves = [(int(x) & 0xFFFF, int(x) >> 16) for x in both]
    for name in ("e4m3", "e5m2"):
        got = apply(f"cvt.rn.satfinite.{name}x2.{source} {{d}}, {{a}};", "b16", ("b32", both))
        want = []
        for pair in halves:
            numbers = [np.array(h, np.uint16).view(np.float16) if source == "f16x2"
                       else np.array(h << 16, np.uint32).view(np.float32) for h in pair]  # fmt: skip
            low, high = (rounded(float(n), name) for n in numbers)
            want.append(high << 8 | low)
        assert got.tolist() == want


@pytest.mark.parametrize("name", ["e4m3", "e5m2", "e2m3", "e3m2", "e2m1"])
def test_every_code_of_a_small_float_has_its_value(name: str) -> None:
    width = 4 if name == "e2m1" else 8
    codes = np.arange(1 << width, dtype=np.uint16)
    both = codes | (codes[::-1] << np.uint16(width))
    code = f"cvt.rn.f16x2.{name}x2 {{d}}, {{a}};"
    if name == "e2m1":
        code = "{{ .reg .b8 t, u; mov.b16 {{t, u}}, {a}; cvt.rn.f16x2.e2m1x2 {d}, t; }}"
    got = apply(code, "b32", ("b16", both))
    exponent, mantissa, _, largest = FORMATS[name]
    table = values(name)
    for k, code_bits in enumerate(codes.tolist()):
        magnitude = code_bits & ((1 << (exponent + mantissa)) - 1)
        sign = -1.0 if code_bits >> (exponent + mantissa) & 1 else 1.0
        want = sign * float(table[magnitude]) if magnitude <= largest else math.nan
        if name == "e5m2" and magnitude == 0x7C:
            want = sign * math.inf
        low, high = (
            np.array([int(g) & 0xFFFF, int(g) >> 16], np.uint16).view(np.float16) for g in (got[k], got[-1 - k])
        )
        for value in (low[0], high[1]):
            assert np.isnan(want) == np.isnan(value)
            assert np.isnan(want) or (value == want and np.signbit(value) == np.signbit(want))


@pytest.mark.parametrize("saturates", ["", ".satfinite"])
@pytest.mark.parametrize("mode", ["rz", "rp"])
def test_scales_are_powers_of_two(mode: str, saturates: str) -> None:
    a = floats()
    got = apply(f"cvt.{mode}{saturates}.ue8m0x2.f32 {{d}}, {{a}}, {{b}};", "b16", ("f32", a), ("f32", a[::-1].copy()))
    # Code k stands for the k-th of these; above the least, a number takes the next power below it or above it.
    scales = [power(k - 127) for k in range(256)]
    want = []
    for x in np.abs(a).tolist():
        if math.isnan(x):
            want.append(255)
            continue
        if math.isinf(x):
            want.append(254 if saturates else 255)
            continue
        size = Fraction(x)
        code = bisect_right(scales, size, lo=1) - 1 if mode == "rz" else bisect_left(scales, size, hi=255)
        want.append(min(code, 254) if saturates else code)
    assert (got & 255).tolist() == want[::-1]
    assert (got >> 8).tolist() == want
    codes = np.arange(256, dtype=np.uint16)
    back = apply("cvt.rn.bf16x2.ue8m0x2 {d}, {a};", "b32", ("b16", codes | codes << 8))
    powers = (back & np.uint32(0xFFFF0000)).view(np.float32)[:255]
    assert [Fraction(float(p)) for p in powers] == [Fraction(2) ** (k - 127) for k in range(255)]
    assert back[255] & 0xFFFF == 0x7FFF
    assert (back >> 16 == back & 0xFFFF).all()


@pytest.mark.parametrize("mode", ["rz", "rm", "rp"])
@pytest.mark.parametrize("target", ["f16", "bf16"])
@pytest.mark.parametrize("source", ["f32", "f64", "s16", "u32", "s64", "u64"])
def test_directed_rounding_to_halves(source: str, target: str, mode: str) -> None:
    bits = int(source[1:])
    a = (floats() if source == "f32" else patterns(64, 1500)) if source[0] == "f" else words(bits)
    got = apply(f"cvt.{mode}.{target}.{source} {{d}}, {{a}};", "b16", (source, a))
    numbers = a.tolist() if source[0] == "f" else [Fraction(to_int(x, bits, source[0])) for x in a]
    assert got.tolist() == [rounded(x, target, mode, saturates=False) for x in numbers]


@pytest.mark.parametrize("mode", ["rn", "rz", "rm", "rp"])
@pytest.mark.parametrize("target", ["f32", "f64", "bf16"])
@pytest.mark.parametrize("source", ["s64", "u64"])
def test_long_integers_round_once(source: str, target: str, mode: str) -> None:
    near = [(1 << k) + d for k in (24, 25, 53, 54, 60, 63) for d in range(-40, 41)]
    a = np.concatenate([words(64), np.array([n % (1 << 64) for n in near], np.uint64)])
    out = target if target != "bf16" else "b16"
    got = apply(f"cvt.{mode}.{target}.{source} {{d}}, {{a}};", out, (source, a))
    numbers = [Fraction(to_int(x, 64, source[0])) for x in a]
    assert got.tolist() == [rounded(x, target, mode, saturates=False) for x in numbers]


@pytest.mark.one_in(3)
@pytest.mark.parametrize("mode", ["rn", "rz"])
@pytest.mark.parametrize("options", ["", ".relu", ".satfinite", ".relu.satfinite"])
@pytest.mark.parametrize("target", ["f16", "bf16"])
def test_pairs_of_halves(target: str, options: str, mode: str) -> None:
    a = floats()
    got = apply(f"cvt.{mode}{options}.{target}x2.f32 {{d}}, {{a}}, {{b}};", "b32", ("f32", a), ("f32", np.roll(a, 5)))
    convert = partial(rounded, name=target, mode=mode, saturates="satfinite" in options, relu="relu" in options)
    assert (got >> 16).tolist() == [convert(float(x)) for x in a]
    assert (got & 0xFFFF).tolist() == [convert(float(x)) for x in np.roll(a, 5)]


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["rn", "rna", "rz"])
def test_tf32_rounds_in_every_mode(mode: str) -> None:
    a = floats()
    a = a[np.isfinite(a)]
    for options in ("", ".satfinite"):
        got = apply(f"cvt.{mode}{options}.tf32.f32 {{d}}, {{a}};", "b32", ("f32", a))
        assert got.tolist() == [rounded(float(x), "tf32", mode, bool(options)) << 13 for x in a]


@pytest.mark.parametrize("size", [16, 8, 4, 2])
@pytest.mark.parametrize("sign", ["s", "u"])
def test_packed_integers(sign: str, size: int) -> None:
    a, b, c = words(32), np.roll(words(32), 3), np.roll(words(32), 5)
    a[: len(a) // 2] = a[: len(a) // 2] % 64 - 32
    low, high = (-(1 << (size - 1)), (1 << (size - 1)) - 1) if sign == "s" else (0, (1 << size) - 1)
    parts = [[min(max(to_int(x, 32, "s"), low), high) % (1 << size) for x in v] for v in (a, b)]
    want = [x << size | y for x, y in zip(*parts, strict=True)]
    if size == 16:
        got = apply(f"cvt.pack.sat.{sign}16.s32 {{d}}, {{a}}, {{b}};", "b32", ("s32", a), ("s32", b))
    else:
        got = apply(f"cvt.pack.sat.{sign}{size}.s32.b32 {{d}}, {{a}}, {{b}}, {{c}};", "b32", ("s32", a), ("s32", b),
                    ("b32", c))  # fmt: skip
        want = [(int(z) << 2 * size | w) % (1 << 32) for w, z in zip(want, c, strict=True)]
    assert got.tolist() == want
