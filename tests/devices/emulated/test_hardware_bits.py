"""Results that an H100 computed (benchmarks/hardware_numerics.py), bit for bit, with rules of the PTX ISA."""

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


APPROXIMATE = {
    "ex2": [(0x1, 0x3F800000), (0x807FFFFF, 0x3F800000), (0x7F800000, 0x7F800000), (0xFF800000, 0x0),
            (0x33067D33, 0x3F800000), (0xB368923E, 0x3F800000), (0x33FFFFFF, 0x3F800000), (0xB3FFFFFF, 0x3F800000)],
    "lg2": [(0x0, 0xFF800000), (0x80000000, 0xFF800000), (0x800000, 0xC2FBFFFF), (0x3E800000, 0xBFFFFFFF),
            (0x3F800000, 0x0), (0x42000000, 0x40A00000), (0x8B72F1D, 0xC2DAF738), (0xFD37277, 0xC2BE8D3B),
            (0x211E7261, 0xC272C4C1), (0x6638C69E, 0x429B0F2B), (0x7F800000, 0x7F800000)],
    "sin": [(0x80000000, 0x80000000), (0x1, 0x0), (0x807FFFFF, 0x80000000), (0x80800000, 0x80000000),
            (0x33800000, 0x0), (0x4C800000, 0x0), (0xCC800000, 0x80000000), (0x7F7FFFFF, 0x0),
            (0x4BE3A17D, 0x80000000), (0xCB811FD3, 0x3F800000), (0xCBE5546A, 0x0), (0x8A791F4F, 0x80000000)],
    "cos": [(0x80000000, 0x3F800000), (0x1, 0x3F800000), (0x4C800000, 0x3F800000), (0x7F7FFFFF, 0x3F800000),
            (0xCB4B59CD, 0xBF800000), (0xCB6F5E19, 0x3F800000), (0xCC27D13D, 0xBF800000), (0x2206CD42, 0x3F800000)],
    "tanh": [(0x80000000, 0x80000000), (0x1, 0x1), (0x807FFFFF, 0x807FFFFF), (0x3B800000, 0x3B800000),
             (0xBB2006E8, 0xBB2006E8), (0x3ADEFE7B, 0x3ADEFE7B), (0x41000000, 0x3F800000), (0xFF800000, 0xBF800000)],
    "rcp": [(0x0, 0x7F800000), (0x80000000, 0xFF800000), (0x1, 0x7F800000), (0x807FFFFF, 0xFE800001),
            (0x7F800000, 0x0), (0xFF800000, 0x80000000), (0x80800000, 0xFE800000)],
    "rsqrt": [(0x0, 0x7F800000), (0x80000000, 0xFF800000), (0x807FFFFF, 0x7FFFFFFF), (0x7F800000, 0x0)],
    "sqrt": [(0x80000000, 0x80000000), (0x1, 0x1A3504F3), (0x807FFFFF, 0x7FFFFFFF), (0x7F800000, 0x7F800000)],
}  # fmt: skip
INVALID = {"lg2": [0xFF800000, 0x80800000], "sin": [0x7F800000, 0xFF800000], "cos": [0x7F800000, 0xFF800000],
           "rsqrt": [0xFF800000, 0x80800000], "sqrt": [0xFF800000, 0x80800000]}  # fmt: skip


@pytest.mark.parametrize("op", APPROXIMATE)
def test_approximate_functions_have_the_corners_of_an_h100(op: str) -> None:
    bad = [0x7FC00000, 0xFF800001, *INVALID.get(op, [])]
    a, want = np.array([*APPROXIMATE[op], *((bits, 0x7FFFFFFF) for bits in bad)], np.uint32).T
    assert apply(f"{op}.approx.f32 {{d}}, {{a}};", "b32", ("f32", a.view(np.float32))).tolist() == want.tolist()


@pytest.mark.parametrize("op", APPROXIMATE)
@pytest.mark.parametrize("variation", [1, 7, 2**32 - 1])
def test_every_variation_has_one_nan_and_the_signs_of_zeros(op: str, variation: int) -> None:
    bad = np.array([0x7FC00000, 0xFF800001, *INVALID.get(op, [])], np.uint32).view(np.float32)
    got = apply(f"{op}.approx.f32 {{d}}, {{a}};", "b32", ("f32", bad), variation=variation)
    assert set(got.tolist()) == {0x7FFFFFFF}
    zeros = np.array([0.0, -0.0], np.float32)
    expected = [want for bits in (0, 0x80000000) for a, want in APPROXIMATE[op] if a == bits]
    got = apply(f"{op}.approx.f32 {{d}}, {{a}};", "b32", ("f32", zeros), variation=variation)
    assert got.tolist()[-len(expected) :] == expected or not expected


@pytest.mark.parametrize(
    ("op", "rows"),
    [("tanh.approx.f16", [(0x5B6, 0x5B6), (0x1A2B, 0x1A2B), (0x5162, 0x3C00), (0xA66E, 0xA66D), (0x7C01, 0x7FFF)]),
     ("tanh.approx.bf16", [(0x25B, 0x25B), (0x3B81, 0x3B80), (0x6197, 0x3F80), (0xAFBE, 0xAFBE), (0xFFC0, 0x7FFF)]),
     ("ex2.approx.f16", [(0x11C6, 0x3C00), (0x38C0, 0x3E09), (0x4C00, 0x7C00), (0x8001, 0x3C00), (0xB9D1, 0x38D5),
                         (0xCB07, 0x3D9), (0xCD42, 0x7), (0xCE3A, 0x0), (0x7E00, 0x7FFF)]),
     ("ex2.approx.ftz.bf16", [(0x3BB9, 0x3F80), (0x7004, 0x7F80), (0xB0FF, 0x3F80), (0xEB51, 0x0), (0x7F81, 0x7FFF)])],
)  # fmt: skip
def test_approximate_results_of_16_bits_are_rounded_towards_zero(op: str, rows: list[tuple[int, int]]) -> None:
    a, want = np.array(rows, np.uint16).T
    assert apply(f"{op} {{d}}, {{a}};", "b16", ("b16", a)).tolist() == want.tolist()


@pytest.mark.parametrize(
    ("op", "rows"),
    [("rcp", [(0xF2482C16, 0x7FF0000000000000), (0x1000002F10E97F, 0x7FD0000000000000),
              (0x30000092E63175, 0x7FB0000000000000), (0x7FF000006E115D71, 0x0),
              (0x80000000AB8BA7F5, 0xFFF0000000000000),
              (0xFA000000C2AA25F5, 0x85E0000000000000), (0xFFFBB0A6F88B13B4, 0x7FFFFFFF00000000)]),
     ("rsqrt", [(0xF2482C16, 0x7FF0000000000000), (0x1000002F10E97F, 0x5FE0000000000000),
                (0x20000031F112F1, 0x5FD6A09E00000000), (0x7FF000006E115D71, 0x0),
                (0x80000000AB8BA7F5, 0xFFF0000000000000), (0xFA000000C2AA25F5, 0x7FFFFFFF00000000)])],
)  # fmt: skip
def test_approximate_doubles_see_the_upper_half_of_their_operand(op: str, rows: list[tuple[int, int]]) -> None:
    """7ff00000 6e115d71 is an infinity to them, and 00000000 f2482c16 a zero."""
    a, want = np.array(rows, np.uint64).T
    got = apply(f"{op}.approx.ftz.f64 {{d}}, {{a}};", "f64", ("f64", a.view(np.float64)))
    assert got.tolist() == want.tolist()
