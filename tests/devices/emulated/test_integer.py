"""Integer instructions equal NumPy's (or Python's) arithmetic, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.devices.emulated.harness import Device, apply, ptx_module

RNG = np.random.default_rng(7)
EDGES = [0, 1, 2, 31, 32, 33, 63, 64, 127, 128, 255, 256, 0x7FFF, 0x8000, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF]


def words(bits: int, count: int = 333) -> np.ndarray:
    edges = np.array([e % (1 << bits) for e in EDGES] + [(1 << bits) - 1, 1 << (bits - 1)], dtype=np.uint64)
    random = RNG.integers(0, 1 << 63, count, dtype=np.uint64) * 2 + RNG.integers(0, 2, count, dtype=np.uint64)
    random >>= RNG.integers(0, 64, count, dtype=np.uint64)
    both = np.concatenate([edges, random]) & np.uint64((1 << bits) - 1)
    return RNG.permutation(both).astype(f"u{bits // 8}")


def signed(x: np.ndarray) -> np.ndarray:
    return x.view(x.dtype.str.replace("u", "i"))


def to_int(value: int, bits: int, kind: str) -> int:
    value = int(value) % (1 << bits)
    return value - (1 << bits) if kind == "s" and value >> (bits - 1) else value


BINARY = {
    "add": lambda a, b, n: a + b,
    "sub": lambda a, b, n: a - b,
    "mul.lo": lambda a, b, n: a * b,
    "mul.hi": lambda a, b, n: (a * b) >> n,
    "min": lambda a, b, n: min(a, b),
    "max": lambda a, b, n: max(a, b),
    "div": lambda a, b, n: int(abs(a) // abs(b)) * (1 if (a < 0) == (b < 0) else -1),
    "rem": lambda a, b, n: abs(a) % abs(b) * (-1 if a < 0 else 1),
}


@pytest.mark.parametrize("bits", [16, 32, 64])
@pytest.mark.parametrize("sign", "us")
@pytest.mark.parametrize("op", BINARY)
def test_binary_arithmetic_is_exact(op: str, sign: str, bits: int) -> None:
    a, b = words(bits), words(bits)
    if op in ("div", "rem"):
        b[b == 0] = 3
    kind = f"{sign}{bits}"
    got = apply(f"{op}.{kind} {{d}}, {{a}}, {{b}};", kind, (kind, a), (kind, b))
    want = [
        BINARY[op](to_int(x, bits, sign), to_int(y, bits, sign), bits) % (1 << bits) for x, y in zip(a, b, strict=True)
    ]
    assert got.tolist() == want


@pytest.mark.parametrize("bits", [16, 32, 64])
@pytest.mark.parametrize("op", ["and", "or", "xor"])
def test_logic_is_exact(op: str, bits: int) -> None:
    a, b = words(bits), words(bits)
    want = {"and": a & b, "or": a | b, "xor": a ^ b}[op]
    assert np.array_equal(
        apply(f"{op}.b{bits} {{d}}, {{a}}, {{b}};", f"b{bits}", (f"b{bits}", a), (f"b{bits}", b)), want
    )


@pytest.mark.parametrize("bits", [16, 32, 64])
@pytest.mark.parametrize("op", ["shl.b", "shr.u", "shr.s"])
def test_shifts_clamp_large_counts(op: str, bits: int) -> None:
    a = words(bits)
    count = RNG.integers(0, 80, a.size).astype(np.uint32)
    got = apply(f"{op}{bits} {{d}}, {{a}}, {{b}};", f"b{bits}", (f"b{bits}", a), ("b32", count))
    want = []
    for x, c in zip(a, count, strict=True):
        if op == "shl.b":
            want.append((int(x) << int(c)) % (1 << bits))
        else:
            want.append((to_int(x, bits, op[-1]) >> int(c)) % (1 << bits))
    assert got.tolist() == want


@pytest.mark.parametrize("bits", [16, 32])
@pytest.mark.parametrize("sign", "us")
def test_wide_multiply_add(sign: str, bits: int) -> None:
    a, b = words(bits), words(bits)
    c = words(2 * bits, a.size - len(EDGES) - 2)
    got = apply(
        f"mad.wide.{sign}{bits} {{d}}, {{a}}, {{b}}, {{c}};",
        f"u{2 * bits}",
        (f"u{bits}", a),
        (f"u{bits}", b),
        (f"u{2 * bits}", c),
    )
    want = [
        (to_int(x, bits, sign) * to_int(y, bits, sign) + int(z)) % (1 << 2 * bits)
        for x, y, z in zip(a, b, c, strict=True)
    ]
    assert got.tolist() == want


@pytest.mark.slow
@pytest.mark.parametrize("bits", [32, 64])
def test_bit_counting(bits: int) -> None:
    a = words(bits)
    text = [f"{int(x):0{bits}b}" for x in a]
    source = (f"b{bits}", a)
    assert apply(f"popc.b{bits} {{d}}, {{a}};", "u32", source).tolist() == [t.count("1") for t in text]
    assert apply(f"clz.b{bits} {{d}}, {{a}};", "u32", source).tolist() == [len(t) - len(t.lstrip("0")) for t in text]
    assert apply(f"brev.b{bits} {{d}}, {{a}};", f"b{bits}", source).tolist() == [int(t[::-1], 2) for t in text]
    highest = [int(x).bit_length() - 1 for x in a]
    assert apply(f"bfind.u{bits} {{d}}, {{a}};", "u32", source).tolist() == [h % (1 << 32) for h in highest]
    moved = [(bits - 1 - h if h >= 0 else -1) % (1 << 32) for h in highest]
    assert apply(f"bfind.shiftamt.u{bits} {{d}}, {{a}};", "u32", source).tolist() == moved
    magnitude = [(~v if v < 0 else v) for v in (to_int(x, bits, "s") for x in a)]
    signs = [(v.bit_length() - 1) % (1 << 32) for v in magnitude]
    assert apply(f"bfind.s{bits} {{d}}, {{a}};", "u32", source).tolist() == signs


@pytest.mark.parametrize("kind", ["u32", "s32", "u64", "s64"])
def test_bit_field_extract(kind: str) -> None:
    bits = int(kind[1:])
    a = words(bits)
    position, length = (RNG.integers(0, 70, a.size).astype(np.uint32) for _ in range(2))
    got = apply(f"bfe.{kind} {{d}}, {{a}}, {{b}}, {{c}};", kind, (kind, a), ("u32", position), ("u32", length))
    want = []
    for x, p, n in zip(a, position, length, strict=True):
        value = int(x)
        sign = 0
        if kind[0] == "s" and n:
            sign = value >> min(int(p) + int(n) - 1, bits - 1) & 1
        out = 0
        for k in range(bits):
            source = int(p) + k
            out |= ((value >> source & 1) if k < n and source < bits else sign) << k
        want.append(out if n else 0)
    assert got.tolist() == want


@pytest.mark.slow
def test_bit_field_insert() -> None:
    a, b = words(32), words(32)
    for position, length in ((0, 8), (4, 12), (31, 1), (0, 32), (20, 40), (40, 4), (7, 0)):
        got = apply(f"bfi.b32 {{d}}, {{a}}, {{b}}, {position}, {length};", "b32", ("b32", a), ("b32", b))
        mask = (((1 << length) - 1) << position) & 0xFFFFFFFF
        want = [((int(x) << position) & mask) | (int(y) & ~mask & 0xFFFFFFFF) for x, y in zip(a, b, strict=True)]
        assert got.tolist() == want


@pytest.mark.parametrize("table", [0x00, 0x96, 0xE8, 0x1B, 0xFF, 0xCA])
def test_three_input_logic(table: int) -> None:
    a, b, c = words(32), words(32), words(32)
    got = apply(f"lop3.b32 {{d}}, {{a}}, {{b}}, {{c}}, {table};", "b32", ("b32", a), ("b32", b), ("b32", c))
    want = np.zeros_like(a)
    for k in range(32):
        s = np.uint32(k)
        index = ((a >> s) & 1) * 4 + ((b >> s) & 1) * 2 + ((c >> s) & 1)
        want |= ((np.uint32(table) >> index) & np.uint32(1)) << s
    assert np.array_equal(got, want)


def test_byte_permute() -> None:
    a, b, s = words(32), words(32), words(32)
    got = apply("prmt.b32 {d}, {a}, {b}, {c};", "b32", ("b32", a), ("b32", b), ("b32", s))
    want = []
    for x, y, sel in zip(a, b, s, strict=True):
        raw = int(x).to_bytes(4, "little") + int(y).to_bytes(4, "little")
        out = 0
        for k in range(4):
            n = int(sel) >> 4 * k & 15
            byte = raw[n & 7]
            out |= ((0xFF if byte >> 7 else 0) if n & 8 else byte) << 8 * k
        want.append(out)
    assert got.tolist() == want


@pytest.mark.parametrize("way", "lr")
@pytest.mark.parametrize("mode", ["wrap", "clamp"])
def test_funnel_shift(way: str, mode: str) -> None:
    a, b = words(32), words(32)
    c = RNG.integers(0, 70, a.size).astype(np.uint32)
    got = apply(f"shf.{way}.{mode}.b32 {{d}}, {{a}}, {{b}}, {{c}};", "b32", ("b32", a), ("b32", b), ("u32", c))
    want = []
    for x, y, n in zip(a, b, c, strict=True):
        n = int(n) & 31 if mode == "wrap" else min(int(n), 32)
        both = int(y) << 32 | int(x)
        want.append(((both << n) >> 32 if way == "l" else both >> n) & 0xFFFFFFFF)
    assert got.tolist() == want


@pytest.mark.parametrize("kinds", ["u32.u32", "s32.s32", "s32.u32", "u32.s32"])
def test_dot_product_of_bytes(kinds: str) -> None:
    a, b, c = words(32), words(32), words(32)
    got = apply(f"dp4a.{kinds} {{d}}, {{a}}, {{b}}, {{c}};", "b32", ("b32", a), ("b32", b), ("b32", c))
    x = a.view("u1" if kinds[0] == "u" else "i1").reshape(-1, 4).astype(np.int64)
    y = b.view("u1" if kinds[4] == "u" else "i1").reshape(-1, 4).astype(np.int64)
    assert np.array_equal(got, ((x * y).sum(1) + c).astype(np.uint64).astype(np.uint32))


def test_sad_and_saturating_add() -> None:
    a, b, c = words(32), words(32), words(32)
    got = apply("sad.s32 {d}, {a}, {b}, {c};", "b32", ("b32", a), ("b32", b), ("b32", c))
    want = (np.abs(signed(a).astype(np.int64) - signed(b)) + c).astype(np.uint64).astype(np.uint32)
    assert np.array_equal(got, want)
    got = apply("add.sat.s32 {d}, {a}, {b};", "b32", ("b32", a), ("b32", b))
    limits = np.iinfo(np.int32)
    assert np.array_equal(signed(got), np.clip(signed(a).astype(np.int64) + signed(b), limits.min, limits.max))


def test_carry_chain_adds_128_bits() -> None:
    body = """
    ld.param.u64 %d1, [out];
    mov.u64 %d2, 0xFFFFFFFFFFFFFFFF; mov.u64 %d3, 0x123456789ABCDEF0; mov.u64 %d4, 2; mov.u64 %d5, 0xFEDCBA9876543210;
    add.cc.u64 %d6, %d2, %d4; addc.u64 %d7, %d3, %d5;
    sub.cc.u64 %d8, %d4, %d2; subc.u64 %d9, %d3, %d5;
    st.global.u64 [%d1], %d6; st.global.u64 [%d1+8], %d7; st.global.u64 [%d1+16], %d8; st.global.u64 [%d1+24], %d9;
    """
    out = np.zeros(4, np.uint64)
    Device(ptx_module(body)).run(1, 1, out)
    a, b = 0x123456789ABCDEF0FFFFFFFFFFFFFFFF, 0xFEDCBA98765432100000000000000002
    total = (a + b) % (1 << 128)
    c, d = 0x123456789ABCDEF0_0000000000000002, 0xFEDCBA9876543210_FFFFFFFFFFFFFFFF
    difference = (c - d) % (1 << 128)
    assert [int(v) for v in out] == [total % (1 << 64), total >> 64, difference % (1 << 64), difference >> 64]


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1)), min_size=1, max_size=40),
    st.sampled_from(["add", "sub", "mul.lo", "mul.hi", "min", "max", "div", "rem"]),
    st.sampled_from("us"),
)
def test_any_pair_of_words(pairs: list[tuple[int, int]], op: str, sign: str) -> None:
    if op in ("div", "rem"):
        pairs = [(x, y or 1) for x, y in pairs]
    a, b = (np.array(column, dtype=np.uint32) for column in zip(*pairs, strict=True))
    got = apply(f"{op}.{sign}32 {{d}}, {{a}}, {{b}};", "b32", ("b32", a), ("b32", b))
    assert got.tolist() == [BINARY[op](to_int(x, 32, sign), to_int(y, 32, sign), 32) % (1 << 32) for x, y in pairs]
