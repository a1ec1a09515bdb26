"""Results that an H100 computed (benchmarks/hardware_numerics.py), bit for bit, and rules of the PTX ISA beside them."""

from __future__ import annotations

import numpy as np
import pytest

from tests.devices.emulated.harness import Device, apply, cuda, ptx_module

F32 = np.array([0x7FC00000, 0x7F800001, 0xFFFFFFFF, 0xFF800001, 0x7FC12345], np.uint32).view(np.float32)
F64 = np.array([0x7FF8000020000000, 0xFFF8000020000000, 0x7FFFFFFFE0000000], np.uint64).view(np.float64)


@pytest.mark.parametrize("mode", ["rni", "rzi"])
@pytest.mark.parametrize("size", [8, 16, 32, 64])
@pytest.mark.parametrize("sign", ["s", "u"])
def test_a_nan_becomes_zero_or_the_top_bit_alone(sign: str, size: int, mode: str) -> None:
    width = max(size, 32)  # of the register, which a signed value fills with its sign
    top = 1 << (size - 1)
    filled = (1 << width) - top if sign == "s" else top
    out = f"b{width}"
    got = apply(f"cvt.{mode}.{sign}{size}.f64 {{d}}, {{a}};", out, ("f64", F64))
    assert set(got.tolist()) == {filled}
    got = apply(f"cvt.{mode}.{sign}{size}.f32 {{d}}, {{a}};", out, ("f32", F32))
    assert set(got.tolist()) == {top if size == 64 else 0}
    halves = np.array([0x7FFF, 0x7C01, 0xFE00], np.uint16)
    got = apply(f"cvt.{mode}.{sign}{size}.f16 {{d}}, {{a}};", out, ("b16", halves))
    assert set(got.tolist()) == {top if size == 64 else 0}


def test_rna_cuts_the_low_bits_of_a_nan_of_tf32() -> None:
    pairs = [(0x7F800001, 0x7F800000), (0x7FC00000, 0x7FC00000), (0x7FC12345, 0x7FC12000), (0x7FFFFFFF, 0x7FFFE000),
             (0xFFA00001, 0xFFA00000), (0xFFAFFFFF, 0xFFAFE000), (0xFFFFFFFF, 0xFFFFE000), (0xFF800000, 0xFF800000),
             (0x7F7FFFFF, 0x7F800000), (0x3F801000, 0x3F802000)]  # fmt: skip
    a, want = np.array(pairs, np.uint32).T
    assert apply("cvt.rna.tf32.f32 {d}, {a};", "b32", ("f32", a.view(np.float32))).tolist() == want.tolist()


@pytest.mark.parametrize("op", ["min", "max", "min.NaN", "max.NaN", "max.xorsign.abs"])
def test_minimum_and_maximum_have_one_nan(op: str) -> None:
    a = np.array([0xFF800BFF, 0x7F817FFF, 0x2800400, 0xFF803000], np.uint32).view(np.float32)
    b = np.array([0xFF8C0001, 0x7FBFFFFF, 0xFF803000, 0x3F800000], np.uint32).view(np.float32)
    got = apply(f"{op}.f32 {{d}}, {{a}}, {{b}};", "b32", ("f32", a), ("f32", b)).tolist()
    numbers = [0x82800400 if "xorsign" in op else 0x2800400, 0xBF800000 if "xorsign" in op else 0x3F800000]
    assert got == [0x7FFFFFFF] * 2 + ([0x7FFFFFFF] * 2 if "NaN" in op else numbers)


# Old value, addend, result in global memory, result in shared memory.
SUMS = [(0x806DABA9, 0x804C0327, 0x80000000, 0x80B9AED0), (0x2DE7B2, 0xF31E40, 0xF31E40, 0x11082F9),
        (0x14E2BE, 0x87800019, 0x87800019, 0x877FFF8B), (0x539B79, 0xC300000, 0xC300000, 0xC300001),
        (0x800001, 0x80800000, 0x0, 0x1), (0x80800001, 0x800000, 0x80000000, 0x80000001),
        (0xE58F7B, 0x7F820001, 0x7FFFFFFF, 0x7FFFFFFF), (0xFF800000, 0x7F800000, 0x7FFFFFFF, 0x7FFFFFFF),
        (0x40400000, 0x3F800000, 0x40800000, 0x40800000)]  # fmt: skip


@pytest.mark.parametrize("form", ["red.{space}.add.f32 [{at}], %f1;", "atom.{space}.add.f32 %f2, [{at}], %f1;"])
@pytest.mark.parametrize("space", ["global", "shared", "generic"])
def test_sums_flush_subnormal_numbers_in_global_memory_alone(space: str, form: str) -> None:
    """Through generic addresses it is what they point to that counts."""
    old, addend, in_global, in_shared = np.array(SUMS, np.uint32).T
    text = form.replace(".{space}", "" if space == "generic" else f".{space}")
    body = f"""mov.u32 %r1, %tid.x; mul.wide.u32 %d1, %r1, 4;
ld.param.u64 %d2, [out]; add.u64 %d2, %d2, %d1; ld.param.u64 %d3, [old]; add.u64 %d3, %d3, %d1;
ld.param.u64 %d4, [by]; add.u64 %d4, %d4, %d1; mov.u64 %d5, s; add.u64 %d5, %d5, %d1;
ld.global.f32 %f0, [%d3]; ld.global.f32 %f1, [%d4]; st.global.f32 [%d2], %f0; st.shared.f32 [%d5], %f0;
cvta.shared.u64 %d6, %d5; cvta.global.u64 %d7, %d2;
{text.format(at="%d7" if space == "generic" else "%d2") if space != "shared" else ""}
{text.format(at="%d6" if space == "generic" else "%d5") if space != "global" else ""}
ld.shared.f32 %f3, [%d5]; st.global.f32 [%d2 + 128], %f3;"""
    parameters = ".param .u64 out, .param .u64 old, .param .u64 by"
    out = np.zeros(64, np.uint32)
    Device(ptx_module(body, parameters, ".shared .align 4 .b8 s[128];")).run(
        1, len(SUMS), out, old.copy(), addend.copy()
    )
    assert out[: len(SUMS)].tolist() == (old if space == "shared" else in_global).tolist()
    assert out[32 : 32 + len(SUMS)].tolist() == (old if space == "global" else in_shared).tolist()


def test_sums_of_vectors_flush_as_well() -> None:
    old, addend, want, _ = np.array(SUMS[:4], np.uint32).T
    body = """ld.param.u64 %d1, [out]; ld.param.u64 %d2, [by]; ld.global.v4.f32 {%f0, %f1, %f2, %f3}, [%d2];
red.global.add.v2.f32 [%d1], {%f0, %f1}; red.global.add.v4.f32 [%d1 + 16], {%f0, %f1, %f2, %f3};"""
    out = np.concatenate([old, old])
    Device(ptx_module(body, ".param .u64 out, .param .u64 by")).run(1, 1, out, addend.copy())
    assert out.tolist() == [*want[:2], *old[2:], *want]


def test_bulk_sums_flush_as_well() -> None:
    """The PTX ISA: ``cp.reduce.async.bulk.add.f32`` flushes subnormal inputs and results."""
    source = """extern "C" __global__ void k(float* y, const float* b) {
  __shared__ __align__(16) float s[4];
  for (int i = 0; i < 4; i++) s[i] = b[i];
  unsigned from = (unsigned)__cvta_generic_to_shared(s);
  asm volatile("fence.proxy.async.shared::cta;\\n"
    "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], 16;\\n"
    "cp.async.bulk.commit_group;\\ncp.async.bulk.wait_group 0;" :: "l"(y), "r"(from) : "memory");
}"""
    old, addend, want, _ = np.array(SUMS[:4], np.uint32).T
    out = old.copy()
    cuda(source).run(1, 1, out, addend.copy())
    assert out.tolist() == want.tolist()
