"""Conversions between types."""

from __future__ import annotations

import numpy as np
import pytest

from tests.devices.emulated.harness import apply
from tests.devices.emulated.test_floating import assert_same, patterns
from tests.devices.emulated.test_integer import to_int, words

KINDS = ["u8", "s8", "u16", "s16", "u32", "s32", "u64", "s64"]


@pytest.mark.one_in(4)
@pytest.mark.parametrize("source", KINDS)
@pytest.mark.parametrize("target", KINDS)
def test_integer_to_integer(source: str, target: str) -> None:
    bits, size = int(source[1:]), int(target[1:])
    a = words(bits)
    out = target if size > 8 else target[0] + "16"
    got = apply(f"cvt.{target}.{source} {{d}}, {{a}};", out, (source, a))
    width = max(size, 16)
    want = [to_int(to_int(x, bits, source[0]) % (1 << size), size, target[0]) % (1 << width) for x in a]
    assert got.tolist() == want
    got = apply(f"cvt.sat.{target}.{source} {{d}}, {{a}};", out, (source, a))
    low, high = (-(1 << (size - 1)), (1 << (size - 1)) - 1) if target[0] == "s" else (0, (1 << size) - 1)
    assert got.tolist() == [min(max(to_int(x, bits, source[0]), low), high) % (1 << width) for x in a]


@pytest.mark.parametrize("mode", ["rni", "rzi", "rmi", "rpi"])
@pytest.mark.parametrize("target", ["u16", "s16", "u32", "s32", "u64", "s64"])
@pytest.mark.parametrize("source", ["f32", "f64"])
def test_float_to_integer_saturates(source: str, target: str, mode: str) -> None:
    a = patterns(int(source[1:]))
    size = int(target[1:])
    got = apply(f"cvt.{mode}.{target}.{source} {{d}}, {{a}};", target, (source, a))
    low, high = (-(1 << (size - 1)), (1 << (size - 1)) - 1) if target[0] == "s" else (0, (1 << size) - 1)
    function = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}[mode]
    want = []
    for x in a:
        if np.isnan(x):
            want.append(1 << (size - 1) if source == "f64" or size == 64 else 0)
        elif np.isinf(x):
            want.append((high if x > 0 else low) % (1 << size))
        else:
            want.append(min(max(int(function(x)), low), high) % (1 << size))
    assert got.tolist() == want


@pytest.mark.parametrize("source", ["u32", "s32", "u64", "s64"])
@pytest.mark.parametrize("target", ["f32", "f64", "f16"])
def test_integer_to_float_rounds_to_nearest(source: str, target: str) -> None:
    bits = int(source[1:])
    a = words(bits)
    exact = [to_int(x, bits, source[0]) for x in a]
    kind = f"f{int(target[1:]) // 8}"
    with np.errstate(all="ignore"):
        want = np.array(
            [np.array(v, dtype=("i" if source[0] == "s" else "u") + str(bits // 8)).astype(kind) for v in exact]
        )
    out = target if target != "f16" else "b16"
    assert_same(apply(f"cvt.rn.{target}.{source} {{d}}, {{a}};", out, (source, a)), want)


@pytest.mark.slow
def test_between_float_types() -> None:
    single, double, half = patterns(32), patterns(64), patterns(16)
    with np.errstate(all="ignore"):
        assert_same(apply("cvt.f64.f32 {d}, {a};", "f64", ("f32", single)), single.astype(np.float64))
        assert_same(apply("cvt.rn.f32.f64 {d}, {a};", "f32", ("f64", double)), double.astype(np.float32))
        assert_same(apply("cvt.f32.f16 {d}, {a};", "f32", ("b16", half.view(np.uint16))), half.astype(np.float32))
        assert_same(apply("cvt.rn.f16.f32 {d}, {a};", "b16", ("f32", single)), single.astype(np.float16))
        assert_same(apply("cvt.rn.f16.f64 {d}, {a};", "b16", ("f64", double)), double.astype(np.float16))
        near = double.astype(np.float32)
    low = apply("cvt.rm.f32.f64 {d}, {a};", "f32", ("f64", double)).view(np.float32)
    finite = np.isfinite(double) & np.isfinite(near)
    assert (low[finite].astype(np.float64) <= double[finite]).all()
    assert (np.nextafter(low[finite], np.float32(np.inf)).astype(np.float64) > double[finite]).all()


def test_rounding_to_an_integral_value() -> None:
    a = patterns(32)
    with np.errstate(all="ignore"):
        for mode, function in (("rni", np.rint), ("rzi", np.trunc), ("rmi", np.floor), ("rpi", np.ceil)):
            assert_same(apply(f"cvt.{mode}.f32.f32 {{d}}, {{a}};", "f32", ("f32", a)), function(a))


def test_bfloat16_round_trip() -> None:
    a = patterns(32)
    bits = a.view(np.uint32).astype(np.uint64)
    want = ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)
    want[np.isnan(a)] = 0x7FFF
    got = apply("cvt.rn.bf16.f32 {d}, {a};", "b16", ("f32", a))
    assert np.array_equal(got, want)
    packed = apply("cvt.rn.bf16x2.f32 {d}, {a}, {b};", "b32", ("f32", a), ("f32", a[::-1].copy()))
    assert np.array_equal(packed, want.astype(np.uint32) << 16 | want[::-1])
