"""Operations on the halves and bytes of a word, DPX, pairs of f32, and reductions of floats, against NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from tests.devices.emulated.harness import Device, apply, ptx_module
from tests.devices.emulated.nvrtc import compile_ptx
from tests.devices.emulated.test_floating import assert_same, flushed, patterns
from tests.devices.emulated.test_integer import to_int, words

TESTS = {"eq": np.equal, "ne": np.not_equal, "ge": np.greater_equal, "gt": np.greater, "le": np.less_equal,
         "lt": np.less}  # fmt: skip


def clipped(x: np.ndarray, bits: int, signed: bool) -> np.ndarray:
    return np.clip(x, -(1 << (bits - 1)), (1 << (bits - 1)) - 1) if signed else np.clip(x, 0, (1 << bits) - 1)


def expected(name: str, bits: int, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Elements of the result of an intrinsic, as CUDA's documentation has it, from unsigned ones of ``bits``."""
    sa, sb = (np.where(x >> (bits - 1) & 1, x - (1 << bits), x) for x in (a, b))
    ones = (1 << bits) - 1
    if name[:3] in ("cmp", "set"):
        test = TESTS[name[3:5]]
        flags = test(sa, sb) if name[5:] == "s" else test(a, b)
        return flags * (ones if name[:3] == "cmp" else 1)
    table = {
        "abs": lambda: np.abs(sa), "absss": lambda: clipped(np.abs(sa), bits, True), "neg": lambda: -sa,
        "negss": lambda: clipped(-sa, bits, True), "absdiffs": lambda: np.abs(sa - sb),
        "absdiffu": lambda: np.abs(a - b), "add": lambda: a + b, "addss": lambda: clipped(sa + sb, bits, True),
        "addus": lambda: clipped(a + b, bits, False), "avgs": lambda: (sa + sb + (sa + sb >= 0)) >> 1,
        "avgu": lambda: (a + b + 1) >> 1, "haddu": lambda: (a + b) >> 1, "maxs": lambda: np.maximum(sa, sb),
        "maxu": lambda: np.maximum(a, b), "mins": lambda: np.minimum(sa, sb), "minu": lambda: np.minimum(a, b),
        "sub": lambda: a - b, "subss": lambda: clipped(sa - sb, bits, True),
        "subus": lambda: clipped(a - b, bits, False), "sads": lambda: np.abs(sa - sb), "sadu": lambda: np.abs(a - b),
    }  # fmt: skip
    return table[name]()


UNARY = ("abs", "absss", "neg", "negss")
BINARY = ("absdiffs", "absdiffu", "add", "addss", "addus", "avgs", "avgu", "haddu", "maxs", "maxu", "mins", "minu",
          "sub", "subss", "subus", "sads", "sadu",
          *(f"{verb}{test}{sign}" for verb in ("cmp", "set") for test in TESTS
            for sign in (("",) if test in ("eq", "ne") else ("s", "u"))))  # fmt: skip


def run_lines(lines: list[str], arch: str, *inputs: np.ndarray) -> np.ndarray:
    """Results of expressions of ``a``, ``b`` and ``c`` over arrays of 32-bit words."""
    body = "\n".join(f"y[{k} * n + t] = {line};" for k, line in enumerate(lines))
    source = f"""extern "C" __global__ void k(const unsigned* x, unsigned* y, int n) {{
      int t = blockIdx.x * 128 + threadIdx.x;
      if (t >= n) return;
      unsigned a = x[t], b = x[n + t], c = x[2 * n + t];
      {body}
    }}"""
    count = len(inputs[0])
    x, y = np.concatenate(inputs), np.zeros((len(lines), count), np.uint32)
    Device(compile_ptx(source, arch=arch)).run(-(-count // 128), 128, x, y, count)
    return y


@pytest.mark.slow
@pytest.mark.parametrize("arch", ["compute_80", "compute_90a", "compute_120a"])
@pytest.mark.parametrize("count", [2, 4])
def test_simd_intrinsics(count: int, arch: str) -> None:
    a, b = words(32, 900), words(32, 900)
    b[:100] = a[:100]
    names = [*UNARY, *BINARY]
    lines = [f"__v{n}{count}(a)" if n in UNARY else f"__v{n}{count}(a, b)" for n in names]
    results = run_lines(lines, arch, a, b, b)
    bits = 32 // count
    parts = [[(v.astype(np.int64) >> (bits * k)) & ((1 << bits) - 1) for k in range(count)] for v in (a, b)]
    for name, got in zip(names, results, strict=True):
        values = [expected(name, bits, x, y) for x, y in zip(*parts, strict=True)]
        if name in ("sads", "sadu"):
            want = sum(values) % (1 << 32)
        else:
            want = sum((v % (1 << bits)) << (bits * k) for k, v in enumerate(values))
        assert np.array_equal(got, np.asarray(want, np.uint32)), name


@pytest.mark.parametrize("arch", ["compute_80", "compute_90a"])
@pytest.mark.parametrize("kind", ["s32", "u32", "s16x2", "u16x2"])
def test_dpx_intrinsics(kind: str, arch: str) -> None:
    a, b, c = words(32), words(32)[::-1].copy(), np.roll(words(32), 9)
    bits, signed = int(kind[1:3]), kind[0] == "s"
    cast = "" if kind != "s32" else "(int)"
    names = [
        f"{op}{relu}" for op in ("addmax", "addmin", "max3", "min3") for relu in (("", "_relu") if signed else ("",))
    ]
    arguments = ", ".join(f"{cast}{v}" for v in "abc")
    lines = [f"__vi{n.replace('_relu', '')}_{kind}{'_relu' if 'relu' in n else ''}({arguments})" for n in names]
    results = run_lines(lines, arch, a, b, c)
    count = 32 // bits

    def elements(v: np.ndarray) -> list[np.ndarray]:
        raw = [(v.astype(np.int64) >> (bits * k)) & ((1 << bits) - 1) for k in range(count)]
        return [np.where(r >> (bits - 1) & 1, r - (1 << bits), r) for r in raw] if signed else raw

    for name, got in zip(names, results, strict=True):
        want = np.zeros(len(a), np.int64)
        for k, (x, y, z) in enumerate(zip(elements(a), elements(b), elements(c), strict=True)):
            if name.startswith("add"):
                total = (x + y) % (1 << bits)
                first, second = np.where(signed & (total >> (bits - 1)), total - (1 << bits), total), z
            else:
                first, second = (np.maximum if "max" in name else np.minimum)(x, y), z
            value = (np.maximum if "max" in name else np.minimum)(first, second)
            value = np.maximum(value, 0) if "relu" in name else value
            want += (value % (1 << bits)) << (bits * k)
        assert np.array_equal(got, want.astype(np.uint32)), name


def nth_set(word: int, base: int, count: int) -> int:
    if count == 0:
        return base if word >> base & 1 else 0xFFFFFFFF
    positions = range(base, 32) if count > 0 else range(base, -1, -1)
    ones = [p for p in positions if word >> p & 1]
    return ones[abs(count) - 1] if len(ones) >= abs(count) else 0xFFFFFFFF


def test_nth_set_bit() -> None:
    a = words(32)
    base, count = words(32)[: len(a)] % 32, (words(32) % 21).astype(np.int32) - 10
    got = apply("fns.b32 {d}, {a}, {b}, {c};", "b32", ("b32", a), ("b32", base), ("s32", count))
    assert got.tolist() == [nth_set(int(x), int(y), int(z)) for x, y, z in zip(a, base, count, strict=True)]


# Bytes of the result, highest first, of {b, a} for the control values 0 to 3 (PTX ISA, table of prmt's modes).
BYTES = {
    "f4e": ["3210", "4321", "5432", "6543"], "b4e": ["5670", "6701", "7012", "0123"],
    "rc8": ["0000", "1111", "2222", "3333"], "ecl": ["3210", "3211", "3222", "3333"],
    "ecr": ["0000", "1110", "2210", "3210"], "rc16": ["1010", "3232", "1010", "3232"],
}  # fmt: skip


@pytest.mark.parametrize("mode", BYTES)
def test_modes_of_prmt(mode: str) -> None:
    a, b, c = words(32), words(32), words(32)
    got = apply(f"prmt.b32.{mode} {{d}}, {{a}}, {{b}}, {{c}};", "b32", ("b32", a), ("b32", b), ("b32", c))
    for x, y, z, g in zip(a.tolist(), b.tolist(), c.tolist(), got.tolist(), strict=True):
        eight = [*x.to_bytes(4, "little"), *y.to_bytes(4, "little")]
        assert g == int.from_bytes(bytes(eight[int(k)] for k in BYTES[mode][z % 4]), "big")


@pytest.mark.parametrize("sign", ["s32", "u32"])
@pytest.mark.parametrize("mode", ["clamp", "wrap"])
def test_extension_from_some_bits(mode: str, sign: str) -> None:
    a, b = words(32), words(32) % 40
    got = apply(f"szext.{mode}.{sign} {{d}}, {{a}}, {{b}};", "b32", ("b32", a), ("b32", b))
    for x, n, g in zip(a.tolist(), b.tolist(), got.tolist(), strict=True):
        length = n if mode == "clamp" else n % 32
        want = x if length > 31 else 0 if not length else to_int(x % (1 << length), length, sign[0])
        assert g == want % (1 << 32)


def test_logic_with_a_predicate() -> None:
    a, b, c = words(32), words(32), words(32)
    a[::3] = 0
    code = """{{ .reg .pred p, q; setp.lt.u32 q, {c}, 1000; lop3.or.b32 {d}|p, {a}, {b}, {a}, 0x80, q;
      @p or.b32 {d}, {d}, 0x80000000; @!p and.b32 {d}, {d}, 0x7fffffff; }}"""
    got = apply(code, "b32", ("b32", a), ("b32", b), ("b32", c))
    both = a & b
    assert np.array_equal(got, np.where((both != 0) | (c < 1000), both | 0x80000000, both & 0x7FFFFFFF))


@pytest.mark.parametrize("option", ["hi.sat.s32", "lo.s32"])
def test_saturating_products(option: str) -> None:
    a, b, c = (words(32).view(np.int32) for _ in range(3))
    c[::2] |= np.int32(-(1 << 31))
    got = apply(f"mad.{option} {{d}}, {{a}}, {{b}}, {{c}};", "s32", ("s32", a), ("s32", b), ("s32", c))
    for x, y, z, g in zip(a.tolist(), b.tolist(), c.tolist(), got.tolist(), strict=True):
        want = min(max((x * y >> 32) + z, -(1 << 31)), (1 << 31) - 1) if "sat" in option else x * y + z
        assert g == want % (1 << 32)


@pytest.mark.slow
@pytest.mark.parametrize("ftz", ["", ".ftz"])
def test_pairs_of_single_floats(ftz: str) -> None:
    a, b, c = (patterns(32) for _ in range(3))
    pairs = [np.ascontiguousarray(v[: len(v) // 2 * 2]).view(np.uint64) for v in (a, b, c)]
    x, y, z = (p.view(np.float32) for p in pairs)
    inputs = [("b64", p) for p in pairs]
    clean = flushed if ftz else lambda v: v
    with np.errstate(all="ignore"):
        for op, function in (("add", np.add), ("sub", np.subtract), ("mul", np.multiply)):
            got = apply(f"{op}.rn{ftz}.f32x2 {{d}}, {{a}}, {{b}};", "b64", *inputs[:2])
            assert_same(got.view(np.uint32), clean(function(clean(x), clean(y))))
    for mode in ("rn", "rz", "rp"):
        got = apply(f"fma.{mode}{ftz}.f32x2 {{d}}, {{a}}, {{b}}, {{c}};", "b64", *inputs)
        want = apply(f"fma.{mode}{ftz}.f32 {{d}}, {{a}}, {{b}}, {{c}};", "f32", ("f32", x), ("f32", y), ("f32", z))
        assert_same(got.view(np.uint32), want.view(np.float32))


@pytest.mark.parametrize("options", ["", ".abs", ".NaN", ".abs.NaN"])
@pytest.mark.parametrize("verb", ["min", "max"])
def test_reduction_of_floats(verb: str, options: str) -> None:
    body = f"""mov.u32 %r1, %tid.x; mul.wide.u32 %d1, %r1, 4; ld.param.u64 %d2, [x]; add.u64 %d3, %d1, %d2;
      ld.global.f32 %f1, [%d3]; ld.param.u32 %r2, [members]; mov.f32 %f2, 0f00000000;
      redux.sync.{verb}{options}.f32 %f2, %f1, %r2;
      ld.param.u64 %d2, [out]; add.u64 %d3, %d1, %d2; st.global.f32 [%d3], %f2;"""
    device = Device(ptx_module(body, ".param .u64 out, .param .u64 x, .param .u32 members", target="sm_100a"))
    rng = np.random.default_rng(8)
    for with_nan in (False, True):
        x = rng.standard_normal(32).astype(np.float32)
        x[3], x[5] = -0.0, 0.0
        if with_nan:
            x[rng.integers(0, 32, 3)] = np.nan
        out = np.zeros(32, np.float32)
        device.run(1, 32, out, x, 0xFFFFFFFF)
        y = np.abs(x) if "abs" in options else x
        function = {"min": np.min, "max": np.max} if "NaN" in options else {"min": np.nanmin, "max": np.nanmax}
        want = function[verb](y)
        assert (np.isnan(out) == np.isnan(want)).all()
        assert np.isnan(want) or (out == want).all()
    alone = np.full(32, np.nan, np.float32)
    device.run(1, 32, out, alone, 0xFFFFFFFF)
    assert (out.view(np.uint32) == 0x7FFFFFFF).all()
