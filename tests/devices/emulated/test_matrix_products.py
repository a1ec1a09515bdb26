"""``mma`` of every type and shape, and ``wmma``, against NumPy; fragments are laid out by the PTX ISA's formulas."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest

from kernelforge.devices.emulated.errors import UnsupportedInstruction
from tests.devices.emulated.harness import Device, cuda, ptx_module
from tests.devices.emulated.nvrtc import PRECOMPILED
from tests.devices.emulated.tensor_core_sums import tensor_core_sum

RNG = np.random.default_rng(29)
LANES = np.arange(32)
GROUP, MEMBER = LANES >> 2, LANES & 3

Coordinates = Callable[[int], tuple[np.ndarray, np.ndarray]]
"""Row and column of every lane's element number i."""


def a_elements(rows: int, per_register: int) -> Coordinates:
    """Elements of A: registers alternate between rows g and g + 8, and then go on by four registers' columns."""

    def at(i: int) -> tuple[np.ndarray, np.ndarray]:
        register, element = divmod(i, per_register)
        halves = rows // 8
        row = GROUP + (8 if register % halves else 0)
        return row, MEMBER * per_register + element + 4 * per_register * (register // halves)

    return at


def b_elements(per_register: int) -> Coordinates:
    def at(i: int) -> tuple[np.ndarray, np.ndarray]:
        register, element = divmod(i, per_register)
        return MEMBER * per_register + element + 4 * per_register * register, GROUP

    return at


def c_elements(i: int) -> tuple[np.ndarray, np.ndarray]:
    """Elements of C and D, which are the same for f16, two in a register, and 32 bits."""
    return GROUP + 8 * (i >> 1), MEMBER * 2 + (i & 1)


def test_formulas_are_those_of_the_ptx_isa() -> None:
    """Figures of the sections on m16n8k16 (f16), m16n8k32 (8 bits) and m16n8k64 (4 bits), as that page gives them."""
    for i in range(8):
        row, column = a_elements(16, 2)(i)
        assert (row == (GROUP if i in (0, 1, 4, 5) else GROUP + 8)).all()
        assert (column == MEMBER * 2 + (i & 1) + (8 if i >= 4 else 0)).all()
    for i in range(16):
        row, column = a_elements(16, 4)(i)
        assert (row == (GROUP if 0 <= i < 4 or 8 <= i < 12 else GROUP + 8)).all()
        assert (column == MEMBER * 4 + (i & 3) + (16 if i >= 8 else 0)).all()
    for i in range(32):
        row, column = a_elements(16, 8)(i)
        assert (row == (GROUP if 0 <= i < 8 or 16 <= i < 24 else GROUP + 8)).all()
        assert (column == MEMBER * 8 + (i & 7) + (32 if i >= 16 else 0)).all()
    for i in range(8):
        row, column = b_elements(4)(i)
        assert (row == MEMBER * 4 + (i & 3) + (16 if i >= 4 else 0)).all()
        assert (column == GROUP).all()


def fragment(matrix: np.ndarray, at: Coordinates, count: int, bits: int) -> np.ndarray:
    """Registers of a matrix of raw elements: (registers, 32) words."""
    words = np.zeros((count * bits // 32, 32), np.uint64)
    for i in range(count):
        row, column = at(i)
        register, shift = divmod(i * bits, 32)
        words[register] |= matrix[row, column].astype(np.uint64) << np.uint64(shift)
    return words.astype(np.uint32)


def raw_f16(x: np.ndarray) -> np.ndarray:
    return x.astype(np.float16).view(np.uint16)


def raw_bf16(x: np.ndarray) -> np.ndarray:
    return (x.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)


def value_bf16(raw: np.ndarray) -> np.ndarray:
    return (raw.astype(np.uint32) << 16).view(np.float32)


def value_fp8(raw: np.ndarray, exponent_bits: int) -> np.ndarray:
    """e4m3 or e5m2 by their definitions."""
    fraction_bits = 7 - exponent_bits
    bias = (1 << exponent_bits - 1) - 1
    sign = np.where(raw & 128, -1.0, 1.0)
    exponent = (raw >> fraction_bits & ((1 << exponent_bits) - 1)).astype(int)
    fraction = (raw & ((1 << fraction_bits) - 1)) / (1 << fraction_bits)
    value = np.where(exponent == 0, fraction * 2.0 ** (1 - bias), (1 + fraction) * 2.0 ** (exponent - bias))
    if exponent_bits == 5:
        value = np.where(exponent == 31, np.where(fraction == 0, np.inf, np.nan), value)
    else:
        value = np.where(raw & 127 == 127, np.nan, value)
    return sign * value


def elements(kind: str, shape: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
    """Random elements: raw bits, and values."""
    if kind == "f16":
        raw = raw_f16(RNG.standard_normal(shape))
        return raw, raw.view(np.float16).astype(np.float64)
    if kind == "bf16":
        raw = raw_bf16(RNG.standard_normal(shape))
        return raw, value_bf16(raw).astype(np.float64)
    if kind == "tf32":
        raw = RNG.standard_normal(shape).astype(np.float32).view(np.uint32)
        return raw, (raw & np.uint32(0xFFFFE000)).view(np.float32).astype(np.float64)
    if kind in ("e4m3", "e5m2"):
        raw = RNG.integers(0, 256, shape).astype(np.uint8)
        raw[(raw & 127) >= (127 if kind == "e4m3" else 124)] = 1
        return raw, value_fp8(raw, int(kind[1]))
    if kind == "b1":
        raw = RNG.integers(0, 2, shape).astype(np.uint8)
        return raw, raw.astype(np.int64)
    bits = int(kind[1:])
    raw = RNG.integers(0, 1 << bits, shape).astype(np.uint8)
    values = raw.astype(np.int64)
    return raw, np.where(values >> bits - 1, values - (1 << bits), values) if kind[0] == "s" else values


BITS = {"f16": 16, "bf16": 16, "tf32": 32, "b1": 1, "e4m3": 8, "e5m2": 8, "s8": 8, "u8": 8, "s4": 4, "u4": 4}


def run_words(instruction: str, counts: tuple[int, int, int], *words: np.ndarray) -> np.ndarray:
    """Run one ``mma`` on registers of 32 bits; returns the registers of D."""
    names, lines = [], ["mov.u32 %r127, %tid.x;"]
    number = 0
    for index, count in enumerate(counts):
        lines.append(f"ld.param.u64 %d{index}, [p{index}];")
        lines.append(f"mad.wide.u32 %d{index}, %r127, 4, %d{index};")
        names.append([f"%r{number + k}" for k in range(count)])
        lines += [f"ld.global.b32 {name}, [%d{index}+{128 * k}];" for k, name in enumerate(names[-1])]
        number += count
    a, b, c = ("{" + ", ".join(group) + "}" for group in names)
    lines.append(f"{instruction} {c}, {a}, {b}, {c};")
    lines += [f"st.global.b32 [%d2+{128 * k}], {name};" for k, name in enumerate(names[2])]
    text = ptx_module("\n".join(lines), ", ".join(f".param .u64 p{k}" for k in range(3)), target="sm_120a")
    out = words[2].copy()
    Device(text).run(1, 32, np.ascontiguousarray(words[0]), np.ascontiguousarray(words[1]), out)
    return out


def product(name: str, rows: int, depth: int, kinds: tuple[str, str], result: str, extra: str = "", tail: str = ""):  # type: ignore[no-untyped-def]
    """Raw C, values of A B and C, and D of a random product."""
    (raw_a, a), (raw_b, b) = elements(kinds[0], (rows, depth)), elements(kinds[1], (depth, 8))
    if result == "s32":
        c = RNG.integers(-1000, 1000, (rows, 8)).astype(np.int32)
    else:
        c = RNG.standard_normal((rows, 8)).astype(np.float16 if result == "f16" else np.float32)
    instruction = f"mma.sync.aligned.{name}.row.col{extra}.{result}.{kinds[0]}.{kinds[1]}.{result}{tail}"
    return a, b, c, matrix_of(instruction, BITS[kinds[0]], raw_a, raw_b, c)


def matrix_of(instruction: str, bits: int, raw_a: np.ndarray, raw_b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """The bits of D, from matrices: raw A and B with elements of ``bits``, and the values of C."""
    rows, depth = raw_a.shape
    c_bits, per_register = 8 * c.itemsize, 32 // bits
    a_count, b_count, c_count = rows * depth // 32, depth * 8 // 32, rows * 8 // 32
    words = (
        fragment(raw_a, a_elements(rows, per_register), a_count, bits),
        fragment(raw_b, b_elements(per_register), b_count, bits),
        fragment(c.view(f"u{c.itemsize}"), c_elements, c_count, c_bits),
    )
    counts = (a_count * bits // 32, b_count * bits // 32, c_count * c_bits // 32)
    out = run_words(instruction, counts, *words)
    d = np.zeros((rows, 8), np.uint32)
    for i in range(c_count):
        row, column = c_elements(i)
        register, shift = divmod(i * c_bits, 32)
        d[row, column] = out[register] >> np.uint32(shift) & np.uint32((1 << c_bits) - 1)
    return d


FLOATS = [
    *(("m16n8k8", kind, kind, result) for kind, result in (("f16", "f32"), ("f16", "f16"), ("bf16", "f32"))),
    *(("m16n8k16", kind, kind, result) for kind, result in (("f16", "f32"), ("f16", "f16"), ("bf16", "f32"))),
    ("m16n8k4", "tf32", "tf32", "f32"),
    ("m16n8k8", "tf32", "tf32", "f32"),
    *(
        (shape, *kinds, result)
        for shape in ("m16n8k16", "m16n8k32")
        for kinds in itertools.product(("e4m3", "e5m2"), repeat=2)
        for result in ("f32", "f16")
    ),
]


@pytest.mark.one_in(3)
@pytest.mark.parametrize(("shape", "first", "second", "result"), FLOATS)
def test_products_of_floats(shape: str, first: str, second: str, result: str) -> None:
    depth = int(shape.partition("k")[2])
    a, b, c, d = product(shape, 16, depth, (first, second), result)
    expected = tensor_core_sum(a, b, c, (first, second, result))
    numbers = d.astype(np.uint16).view(np.float16) if result == "f16" else d.view(np.float32)
    assert np.array_equal(numbers, expected, equal_nan=True)


PAIR, UPPER = LANES % 16 // 4, LANES // 16
"""Of each lane: its quad pair, and whether it is one of the pair's last four lanes."""


@pytest.mark.slow
@pytest.mark.parametrize("result", ["f32", "f16"])
@pytest.mark.parametrize("layout", ["row.col", "row.row", "col.col", "col.row"])
def test_four_quad_pairs_of_volta_multiply_each_their_own(layout: str, result: str) -> None:
    """The PTX ISA's formulas of m8n8k4 on f16, with row and column of every lane's element number i."""
    across = LANES % 4 + 4 * UPPER
    (raw_a, a), (raw_b, b) = elements("f16", (4, 8, 4)), elements("f16", (4, 4, 8))
    c = RNG.standard_normal((4, 8, 8)).astype(np.float16 if result == "f16" else np.float32)

    def a_at(i: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return (PAIR, across, i + 0 * LANES) if layout.startswith("row") else (PAIR, i + 4 * UPPER, LANES % 4)

    def b_at(i: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return (PAIR, i + 0 * LANES, across) if layout.endswith("col") else (PAIR, LANES % 4, i + 4 * UPPER)

    def c_at(i: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        if result == "f16":
            return PAIR, across, i + 0 * LANES
        return PAIR, (LANES & 1) + (i & 2) + 4 * UPPER, (i & 4) + (LANES & 2) + (i & 1)

    def words(raw: np.ndarray, at: Callable[[int], tuple[np.ndarray, ...]], count: int) -> np.ndarray:
        each = 32 // (8 * raw.itemsize)
        parts = [raw[at(i)].astype(np.uint32) << np.uint32(i % each * 16) for i in range(count)]
        return np.array([np.bitwise_or.reduce(parts[k : k + each]) for k in range(0, count, each)], np.uint32)

    raw_c = words(c.view(f"u{c.itemsize}"), c_at, 8)
    instruction = f"mma.sync.aligned.m8n8k4.{layout}.{result}.f16.f16.{result}"
    out = run_words(instruction, (2, 2, len(raw_c)), words(raw_a, a_at, 4), words(raw_b, b_at, 4), raw_c)
    want = np.array([tensor_core_sum(a[pair], b[pair], c[pair], ("f16", "f16", result)) for pair in range(4)])
    assert np.array_equal(out, words(want.view(f"u{want.itemsize}"), c_at, 8))


def test_a_kernel_for_volta_counts_the_products_of_all_quad_pairs() -> None:
    c = ", ".join(f"%{k}" for k in range(8))
    source = f"""extern "C" __global__ void k(float* out) {{
      float c[8];
      for (int i = 0; i < 8; i++) c[i] = i;
      asm volatile("mma.sync.aligned.m8n8k4.row.col.f32.f16.f16.f32 {{{c}}}, {{%8, %9}}, {{%8, %9}}, {{{c}}};"
        : {", ".join(f'"+f"(c[{k}])' for k in range(8))} : "r"(0x3c003c00), "r"(0x3c003c00));
      for (int i = 0; i < 8; i++) out[8 * threadIdx.x + i] = c[i];
    }}"""
    out = np.zeros((32, 8), np.float32)
    report = cuda(source).run(1, 32, out)
    assert (out == np.arange(8) + 4).all()
    assert report.matrix == {"f16.f32": (2 * 4 * 8 * 8 * 4, 0)}


def test_a_sum_in_f32_of_f16_is_no_product_of_quad_pairs() -> None:
    words = np.zeros((2, 32), np.uint32), np.zeros((2, 32), np.uint32), np.zeros((8, 32), np.uint32)
    with pytest.raises(UnsupportedInstruction):
        run_words("mma.sync.aligned.m8n8k4.row.col.f16.f16.f16.f32", (2, 2, 8), *words)


INTEGERS = [
    (shape, *kinds)
    for shapes, types in ((("m8n8k16", "m16n8k16", "m16n8k32"), ("s8", "u8")),
                          (("m8n8k32", "m16n8k32", "m16n8k64"), ("s4", "u4")))
    for shape in shapes
    for kinds in itertools.product(types, repeat=2)
]  # fmt: skip


@pytest.mark.parametrize(("shape", "first", "second"), INTEGERS)
def test_products_of_integers(shape: str, first: str, second: str) -> None:
    rows, depth = int(shape[1 : shape.index("n")]), int(shape.partition("k")[2])
    a, b, c, d = product(shape, rows, depth, (first, second), "s32")
    assert np.array_equal(d.view(np.int32), a @ b + c)


@pytest.mark.parametrize("shape", ["m8n8k128", "m16n8k128", "m16n8k256"])
@pytest.mark.parametrize("operation", ["xor", "and"])
def test_products_of_single_bits(shape: str, operation: str) -> None:
    rows, depth = int(shape[1 : shape.index("n")]), int(shape.partition("k")[2])
    a, b, c, d = product(shape, rows, depth, ("b1", "b1"), "s32", tail=f".{operation}.popc")
    combine = np.bitwise_xor if operation == "xor" else np.bitwise_and
    expected = combine(a[:, :, None], b[None, :, :]).sum(axis=1) + c
    assert np.array_equal(d.view(np.int32), expected)


def test_integer_sums_wrap_or_saturate() -> None:
    def largest(option: str) -> np.ndarray:
        words = np.full((2, 32), 0x7F7F7F7F, np.uint32)
        c = np.full((4, 32), 0x7FFFFFFF, np.uint32)
        c[0] = 5
        instruction = f"mma.sync.aligned.m16n8k16.row.col{option}.s32.s8.s8.s32"
        return run_words(instruction, (2, 1, 4), words, words[:1], c).view(np.int32)

    assert largest("")[0].tolist() == [5 + 16 * 127 * 127] * 32
    assert largest("")[1].tolist() == [16 * 127 * 127 - 1 - (1 << 31)] * 32
    assert largest(".satfinite")[0].tolist() == [5 + 16 * 127 * 127] * 32
    assert largest(".satfinite")[1].tolist() == [(1 << 31) - 1] * 32


def test_infinities_and_nan() -> None:
    a, b, c = np.zeros((4, 32), np.uint32), np.zeros((2, 32), np.uint32), np.zeros((4, 32), np.uint32)
    a[0, 0] = 0x7C00  # row 0, column 0: infinity
    a[0, 4] = 0x7E00  # row 1: NaN
    b[0] = 0x3C003C00
    d = run_words("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32", (4, 2, 4), a, b, c)
    assert d[0, :4].tolist() == [0x7F800000] * 4
    assert d[0, 4:8].tolist() == [0x7FFFFFFF] * 4
    d = run_words("mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16", (4, 2, 2), a, b, c[:2])
    assert d[0, :8].tolist() == [0x7C007C00] * 4 + [0x7FFF7FFF] * 4


def test_f16_sums_are_rounded_once() -> None:
    """1 + 2**-11 lies halfway between two halves, so that 2**-24 more, a product of its own, decides."""
    a, b, c = np.zeros((2, 32), np.uint32), np.zeros((1, 32), np.uint32), np.full((2, 32), 0x3C003C00, np.uint32)
    halves = np.float16([2.0**-11, 2.0**-24]).view(np.uint16)
    a[0] = np.where(MEMBER == 0, int(halves[0]) | int(halves[1]) << 16, 0)
    b[0] = np.where(MEMBER == 0, 0x3C003C00, 0)
    d = run_words("mma.sync.aligned.m16n8k8.row.col.f16.f16.f16.f16", (2, 1, 2), a, b, c)
    assert d[0].tolist() == [0x3C013C01] * 32
    assert d[1].tolist() == [0x3C003C00] * 32


@pytest.mark.parametrize("rounding", ["", ".rn"])
@pytest.mark.parametrize(("rows", "depth"), [(8, 4), (16, 4), (16, 8), (16, 16)])
def test_products_of_doubles(rows: int, depth: int, rounding: str) -> None:
    counts = rows * depth // 32, depth * 8 // 32, rows * 8 // 32
    fields = [", ".join(f"%{n}" for n in range(start, start + count)) for start, count in
              ((counts[2], counts[0]), (counts[2] + counts[0], counts[1]))]  # fmt: skip
    totals = ", ".join(f"%{n}" for n in range(counts[2]))
    source = f"""extern "C" __global__ void k(const double* a, const double* b, double* d) {{
      double x[{counts[0]}], y[{counts[1]}], z[{counts[2]}];
      for (int i = 0; i < {counts[0]}; i++) x[i] = a[32 * i + threadIdx.x];
      for (int i = 0; i < {counts[1]}; i++) y[i] = b[32 * i + threadIdx.x];
      for (int i = 0; i < {counts[2]}; i++) z[i] = d[32 * i + threadIdx.x];
      asm volatile("mma.sync.aligned.m{rows}n8k{depth}.row.col.f64.f64.f64.f64{rounding} {{{totals}}}, {{{fields[0]}}}, {{{fields[1]}}}, {{{totals}}};"
        : {", ".join(f'"+d"(z[{i}])' for i in range(counts[2]))}
        : {", ".join(f'"d"(x[{i}])' for i in range(counts[0]))}, {", ".join(f'"d"(y[{i}])' for i in range(counts[1]))});
      for (int i = 0; i < {counts[2]}; i++) d[32 * i + threadIdx.x] = z[i];
    }}"""  # noqa: E501
    a, b, c = RNG.standard_normal((rows, depth)), RNG.standard_normal((depth, 8)), RNG.standard_normal((rows, 8))
    x = np.array([a[a_elements(rows, 1)(i)] for i in range(counts[0])])
    y = np.array([b[b_elements(1)(i)] for i in range(counts[1])])
    d = np.array([c[c_elements(i)] for i in range(counts[2])])
    cuda(source).run(1, 32, x, y, d)
    expected = a @ b + c
    assert np.allclose(d, [expected[c_elements(i)] for i in range(counts[2])], rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize("option", ["", ".trans"])
def test_stmatrix_is_the_reverse_of_ldmatrix(count: int, option: str) -> None:
    registers = ", ".join(f"%{k}" for k in range(count))
    source = f"""extern "C" __global__ void k(const unsigned short* x, unsigned short* y) {{
      __shared__ __align__(16) unsigned short s[256], t[256];
      for (int k = threadIdx.x; k < 256; k += 32) s[k] = x[k], t[k] = 0;
      __syncwarp();
      unsigned r[4], from = __cvta_generic_to_shared(s + 8 * threadIdx.x);
      unsigned to = __cvta_generic_to_shared(t + 8 * threadIdx.x);
      asm volatile("ldmatrix.sync.aligned.m8n8.x{count}.shared.b16 {{{registers}}}, [%{count}];"
        : {", ".join(f'"=r"(r[{k}])' for k in range(count))} : "r"(from));
      asm volatile("stmatrix.sync.aligned.m8n8.x{count}{option}.shared.b16 [%{count}], {{{registers}}};"
        :: {", ".join(f'"r"(r[{k}])' for k in range(count))}, "r"(to));
      __syncwarp();
      for (int k = threadIdx.x; k < 256; k += 32) y[k] = t[k];
    }}"""
    x, y = RNG.integers(0, 1 << 16, (4, 8, 8)).astype(np.uint16), np.zeros((4, 8, 8), np.uint16)
    report = cuda(source).run(1, 32, x, y)
    expected = x.swapaxes(1, 2) if option else x
    assert np.array_equal(y[:count], expected[:count])
    assert not y[count:].any()
    rows = [op for op in report.memory if op.opcode.startswith("stmatrix")]
    assert [(op.access, op.requests, op.threads) for op in rows] == [("store", 1, 8 * count)]


def test_stmatrix_outside_shared_memory_faults() -> None:
    source = """extern "C" __global__ void k() {
      __shared__ __align__(16) unsigned s[32];
      s[threadIdx.x] = 0;
      unsigned to = __cvta_generic_to_shared(s) + threadIdx.x * 32;
      asm volatile("stmatrix.sync.aligned.m8n8.x1.shared.b16 [%0], {%1};" :: "r"(to), "r"(threadIdx.x));
    }"""
    report = cuda(source).run(1, 32, clean=False)
    assert [(f.kind, f.space, f.bytes) for f in report.faults] == [("out_of_bounds", "shared", 16)] * 4


def test_movmatrix_transposes() -> None:
    source = """extern "C" __global__ void k(const unsigned* x, unsigned* y) {
      unsigned r;
      asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(r) : "r"(x[threadIdx.x]));
      y[threadIdx.x] = r;
    }"""
    x, y = RNG.integers(0, 1 << 32, 32).astype(np.uint32), np.zeros(32, np.uint32)
    cuda(source).run(1, 32, x, y)
    assert np.array_equal(y.view(np.uint16).reshape(8, 8), x.view(np.uint16).reshape(8, 8).T)


WMMA = """#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <mma.h>
using namespace nvcuda;
constexpr int SIZES;
extern "C" __global__ void k(const INPUT* a, const INPUT* b, const TOTAL* c, TOTAL* d, int lda, int ldb, int ldc) {
  __shared__ __align__(32) INPUT s[1024];
  for (int k = threadIdx.x; k < M * K; k += 32) s[k] = a[k];
  __syncwarp();
  wmma::fragment<wmma::matrix_a, M, N, K, ELEMENT, wmma::A_major> x;
  wmma::fragment<wmma::matrix_b, M, N, K, ELEMENT, wmma::B_major> y;
  wmma::fragment<wmma::accumulator, M, N, K, TOTAL> z;
  wmma::load_matrix_sync(x, s, lda);
  wmma::load_matrix_sync(y, b, PITCH);
  wmma::load_matrix_sync(z, c, ldc, wmma::mem_C_major);
  for (int i = 0; i < z.num_elements; i++) z.x[i] = z.x[i] + (TOTAL)1;
  wmma::mma_sync(z, x, y, z);
  wmma::store_matrix_sync(d, z, ldc, wmma::mem_C_major);
}"""
WMMA_TYPES = {
    "f16 f32": ("half", "half", "float", np.float16, np.float32),
    "f16 f16": ("half", "half", "half", np.float16, np.float16),
    "bf16": ("__nv_bfloat16", "__nv_bfloat16", "float", np.uint16, np.float32),
    "tf32": ("float", "wmma::precision::tf32", "float", np.float32, np.float32),
    "f64": ("double", "double", "double", np.float64, np.float64),
    "s8": ("signed char", "signed char", "int", np.int8, np.int32),
    "u8": ("unsigned char", "unsigned char", "int", np.uint8, np.int32),
}
SQUARES = [(16, 16, 16), (32, 8, 16), (8, 32, 16)]
WMMA_CASES = [
    *((kind, shape) for kind in ("f16 f32", "f16 f16", "bf16", "s8", "u8") for shape in SQUARES),
    ("tf32", (16, 16, 8)),
    ("f64", (8, 8, 4)),
]


@pytest.mark.one_in(3)
@pytest.mark.parametrize("layouts", ["row row row", "col col col", "row col row", "col row col"])
@pytest.mark.parametrize(("kind", "shape"), WMMA_CASES)
def test_wmma(kind: str, shape: tuple[int, int, int], layouts: str) -> None:
    m, n, k = shape
    la, lb, lc = layouts.split()
    memory_type, element, total_name, dtype, total_type = WMMA_TYPES[kind]
    pitch_b = n if lb == "row" else k
    source = WMMA.replace("INPUT", memory_type).replace("ELEMENT", element).replace("TOTAL", total_name)
    source = (
        source.replace("A_major", f"{la}_major").replace("B_major", f"{lb}_major").replace("C_major", f"{lc}_major")
    )
    source = source.replace("PITCH", str(pitch_b)).replace("SIZES", f"M = {m}, N = {n}, K = {k}")
    shapes = ((m, k), (k, n))
    if kind == "bf16":
        a, b = (raw_bf16(RNG.standard_normal(s)) for s in shapes)
        values = [value_bf16(x).astype(np.float64) for x in (a, b)]
    elif np.issubdtype(dtype, np.integer):
        bounds = np.iinfo(dtype)
        a, b = (RNG.integers(bounds.min, bounds.max + 1, s).astype(dtype) for s in shapes)
        values = [x.astype(np.int64) for x in (a, b)]
    else:
        a, b = (RNG.standard_normal(s).astype(dtype) for s in shapes)
        values = [x.astype(np.float64) for x in (a, b)]
        if kind == "tf32":
            values = [(x.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32).astype(np.float64) for x in (a, b)]
    c = RNG.integers(-9, 9, (m, n)).astype(total_type)
    expected = values[0] @ values[1] + c + 1

    def laid_out(x: np.ndarray, layout: str) -> np.ndarray:
        return np.ascontiguousarray(x if layout == "row" else x.T)

    d = np.zeros_like(laid_out(c, lc))
    inputs = [laid_out(x, layout) for x, layout in zip((a, b, c), (la, lb, lc), strict=True)]
    cuda(source, PRECOMPILED).run(1, 32, *inputs, d, k if la == "row" else m, pitch_b, n if lc == "row" else m)
    result = d if lc == "row" else d.T
    if np.issubdtype(total_type, np.integer):
        assert np.array_equal(result, expected)
    else:
        # A tensor core cuts terms below 8 off at 2**-23.
        assert np.allclose(result.astype(np.float64), expected, rtol=2 * np.finfo(total_type).eps, atol=17 * 2.0**-23)


def test_wmma_outside_a_buffer_faults() -> None:
    source = WMMA.replace("INPUT", "half").replace("ELEMENT", "half").replace("TOTAL", "float")
    source = source.replace("A_major", "row_major").replace("B_major", "row_major").replace("C_major", "row_major")
    source = source.replace("PITCH", "16").replace("SIZES", "M = 16, N = 16, K = 16")
    a = np.zeros((16, 16), np.float16)
    c = np.zeros((16, 16), np.float32)
    report = cuda(source, PRECOMPILED).run(1, 32, a, a[:15], c, c.copy(), 16, 16, 16, clean=False)
    assert {(f.kind, f.space) for f in report.faults} == {("out_of_bounds", "global")}
    line = next(n for n, text in enumerate(source.splitlines(), 1) if "load_matrix_sync(y" in text)
    assert {f.source_line for f in report.faults} == {line}


SUB_BYTE = """
#include <mma.h>
using namespace nvcuda;
extern "C" __global__ void k(const unsigned* a, const unsigned* b, int* d) {
  wmma::fragment<wmma::matrix_a, 8, 8, DEPTH, wmma::experimental::precision::TYPE, wmma::row_major> x;
  wmma::fragment<wmma::matrix_b, 8, 8, DEPTH, wmma::experimental::precision::TYPE, wmma::col_major> y;
  wmma::fragment<wmma::accumulator, 8, 8, DEPTH, int> z;
  wmma::load_matrix_sync(x, a, DEPTH);
  wmma::load_matrix_sync(y, b, DEPTH);
  wmma::fill_fragment(z, 3);
  PRODUCT(z, x, y, z);
  wmma::store_matrix_sync(d, z, 8, wmma::mem_row_major);
}"""


@pytest.mark.parametrize("kind", ["s4", "u4", "b1"])
def test_wmma_below_a_byte(kind: str) -> None:
    depth = 128 if kind == "b1" else 32
    call = "wmma::bmma_sync" if kind == "b1" else "wmma::mma_sync"
    source = SUB_BYTE.replace("DEPTH", str(depth)).replace("TYPE", kind).replace("PRODUCT", call)
    (raw_a, a), (raw_b, b) = elements(kind, (8, depth)), elements(kind, (depth, 8))

    def words(raw: np.ndarray) -> np.ndarray:
        bits = BITS[kind]
        groups = raw.reshape(8, -1, 32 // bits).astype(np.uint64)
        return (groups << (bits * np.arange(32 // bits)).astype(np.uint64)).sum(axis=2).astype(np.uint32)

    d = np.zeros((8, 8), np.int32)
    cuda(source).run(1, 32, words(raw_a), words(np.ascontiguousarray(raw_b.T)), d)
    expected = (a[:, :, None] ^ b[None]).sum(axis=1) if kind == "b1" else a @ b
    assert np.array_equal(d, expected + 3)
