"""``mma.sp`` and ``wgmma.mma_async.sp`` of every type and shape, against NumPy on the expanded matrix.

Metadata are laid out as the figures of the PTX ISA show them, not by the rule that the device computes with.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from tests.devices.emulated.harness import Device, ptx_module
from tests.devices.emulated.tensor_core_sums import tensor_core_sum
from tests.devices.emulated.test_matrix_products import (
    BITS,
    RNG,
    a_elements,
    b_elements,
    c_elements,
    elements,
    fragment,
)
from tests.devices.emulated.test_wgmma import SWIZZLE, Case, a_fragment, descriptor, kernel, layout, memory_of

PAIRS = {"f16": (4, 1), "bf16": (4, 1), "tf32": (2, 1), "e4m3": (4, 1), "e5m2": (4, 1), "s8": (4, 1), "u8": (4, 1),
         "s4": (8, 2), "u4": (8, 2)}  # fmt: skip
"""Columns of a chunk of A, of which half are stored, and how many of them stay together."""


def sparse(kind: str, rows: int, depth: int, ordered: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A random sparse matrix: what is stored of it, its metadata by chunk (rows, chunks), and all values."""
    chunk, together = PAIRS[kind]
    raw, values = elements(kind, (rows, depth))
    units = chunk // together
    stored = np.zeros((rows, depth // 2), raw.dtype)
    metadata = np.zeros((rows, depth // chunk), np.uint32)
    dense = np.zeros_like(values)
    for row, number in np.ndindex(metadata.shape):
        kept = RNG.permutation(units)[: units // 2]
        if ordered or kind == "tf32":
            kept.sort()
        metadata[row, number] = (0b0100, 0b1110)[kept[0]] if kind == "tf32" else kept[0] | kept[1] << 2
        columns = [number * chunk + unit * together + k for unit in kept for k in range(together)]
        stored[row, number * chunk // 2 : (number + 1) * chunk // 2] = raw[row, columns]
        dense[row, columns] = values[row, columns]
    return stored, metadata, dense


def words_of(metadata: np.ndarray, columns: int) -> np.ndarray:
    """Words of 16 rows by the lanes of a group that hold them: (holders, 8), for shapes of so many columns."""
    chunks = metadata.shape[1]
    per_word = chunks // columns
    word = [
        (metadata[:, per_word * k : per_word * (k + 1)] << np.arange(0, 4 * per_word, 4, dtype=np.uint32)).sum(1)
        for k in range(columns)
    ]
    if per_word == 4:  # rows g and g + 8 share a word
        return np.array([w[:8] | w[8:] << 16 for w in word], np.uint32)
    return np.array([half for w in word for half in (w[:8], w[8:])], np.uint32)


def lanes_of(words: np.ndarray, selector: int) -> np.ndarray:
    """The metadata register of a warp; lanes that hold none have what is not allowed."""
    register = np.zeros(32, np.uint32)
    for k, word in enumerate(words):
        register[len(words) * selector + k :: 4] = word
    return register


def run_words(instruction: str, selector: int, *words: np.ndarray, clean: bool = True):  # type: ignore[no-untyped-def]
    """Run one ``mma.sp`` on registers of A, B, C and metadata; returns the registers of D, and the report."""
    lines, groups, number = ["mov.u32 %r127, %tid.x;"], [], 0
    for index, part in enumerate(words):
        lines.append(f"ld.param.u64 %d{index}, [p{index}]; mad.wide.u32 %d{index}, %r127, 4, %d{index};")
        groups.append([f"%r{number + k}" for k in range(len(part))])
        lines += [f"ld.global.b32 {name}, [%d{index}+{128 * k}];" for k, name in enumerate(groups[-1])]
        number += len(part)
    a, b, c = ("{" + ", ".join(group) + "}" for group in groups[:3])
    lines.append(f"{instruction} {c}, {a}, {b}, {c}, {groups[3][0]}, {selector};")
    lines += [f"st.global.b32 [%d2+{128 * k}], {name};" for k, name in enumerate(groups[2])]
    text = ptx_module("\n".join(lines), ", ".join(f".param .u64 p{k}" for k in range(4)), target="sm_120a")
    out = words[2].copy()
    report = Device(text).run(1, 32, *(np.ascontiguousarray(w) for w in words[:2]), out, words[3], clean=clean)
    return out, report


CASES = [
    *(("m16n8k16", kind, kind, result, 1) for kind, result in (("f16", "f32"), ("f16", "f16"), ("bf16", "f32"))),
    *(("m16n8k32", kind, kind, result, 2) for kind, result in (("f16", "f32"), ("f16", "f16"), ("bf16", "f32"))),
    ("m16n8k8", "tf32", "tf32", "f32", 1), ("m16n8k16", "tf32", "tf32", "f32", 2),
    *(("m16n8k64", *kinds, result, 2) for kinds in itertools.product(("e4m3", "e5m2"), repeat=2)
      for result in ("f32", "f16")),
    *(("m16n8k32", *kinds, "s32", 1) for kinds in itertools.product(("s8", "u8"), repeat=2)),
    *(("m16n8k64", *kinds, "s32", 2) for kinds in itertools.product(("s8", "u8"), repeat=2)),
    *(("m16n8k64", *kinds, "s32", 1) for kinds in itertools.product(("s4", "u4"), repeat=2)),
    *(("m16n8k128", *kinds, "s32", 2) for kinds in itertools.product(("s4", "u4"), repeat=2)),
]  # fmt: skip


@pytest.mark.one_in(3)
@pytest.mark.parametrize(("shape", "first", "second", "result", "columns"), CASES)
def test_sparse_products(shape: str, first: str, second: str, result: str, columns: int) -> None:
    depth, bits = int(shape.partition("k")[2]), BITS[first]
    for ordered in (False, True):
        stored, metadata, a = sparse(first, 16, depth, ordered)
        raw_b, b = elements(second, (depth, 8))
        if result == "s32":
            c = RNG.integers(-1000, 1000, (16, 8)).astype(np.int32)
        else:
            c = RNG.standard_normal((16, 8)).astype(np.float16 if result == "f16" else np.float32)
        c_bits = 16 if result == "f16" else 32
        raw_c = c.view(f"u{c_bits // 8}")
        words = words_of(metadata, columns)
        selector = int(RNG.integers(4 // len(words)))
        out, _ = run_words(
            f"mma.sp{'::ordered_metadata' if ordered else ''}.sync.aligned.{shape}.row.col"
            f".{result}.{first}.{second}.{result}",
            selector,
            fragment(stored, a_elements(16, 32 // bits), depth // 4, bits),
            fragment(raw_b, b_elements(32 // bits), depth // 4, bits),
            fragment(raw_c, c_elements, 4, c_bits),
            lanes_of(words, selector)[None],
        )
        d = np.zeros((16, 8), np.uint32)
        for i in range(4):
            register, shift = divmod(i * c_bits, 32)
            d[c_elements(i)] = out[register] >> np.uint32(shift) & np.uint32((1 << c_bits) - 1)
        if result == "s32":
            assert np.array_equal(d.view(np.int32), a @ b + c)
            continue
        expected = tensor_core_sum(a, b, c, (first, second, result), sparse=True)
        numbers = d.astype(np.uint16).view(np.float16) if result == "f16" else d.view(np.float32)
        assert np.array_equal(numbers, expected, equal_nan=True)


F16 = "mma.sp::ordered_metadata.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32"


def test_rows_of_b_that_are_not_selected_do_not_count() -> None:
    a, b, c = np.full((2, 32), 0x3C003C00, np.uint32), np.zeros((2, 32), np.uint32), np.zeros((4, 32), np.uint32)
    b[:, 1::2] = 0x7C007C00  # rows 2 and 3 of each chunk of four: infinity
    metadata = np.full((1, 32), 0x44444444, np.uint32)  # elements 0 and 1 of each chunk
    out, _ = run_words(F16, 0, a, b, c, metadata)
    assert not out.any()
    out, _ = run_words(F16, 0, a, b, c, np.full((1, 32), 0xEEEEEEEE, np.uint32))
    assert (out == 0x7F800000).all()


@pytest.mark.parametrize(
    ("instruction", "metadata", "faults"),
    [
        (F16, 0x44444454, True), (F16, 0x44444414, True), (F16, 0x4E4D4C98, False),
        (F16.replace("::ordered_metadata", ""), 0x44444414, False),
        (F16.replace("::ordered_metadata", ""), 0x4444440F, True),
        (F16.replace("k16", "k8").replace("f16", "tf32"), 0xEEEE4444, False),
        (F16.replace("k16", "k8").replace("f16", "tf32"), 0xEEEE444C, True),
    ],
)  # fmt: skip
def test_metadata_that_are_undefined_fault(instruction: str, metadata: int, faults: bool) -> None:
    a, b, c = np.zeros((2, 32), np.uint32), np.zeros((2, 32), np.uint32), np.zeros((4, 32), np.uint32)
    words = np.zeros((1, 32), np.uint32)
    words[0, 3::4] = metadata
    _, report = run_words(instruction, 3, a, b, c, words, clean=False)
    assert [fault.kind for fault in report.faults] == ["sparse_metadata"] * faults


class SparseCase(Case):
    """One product of a warpgroup with a sparse A."""

    def __init__(
        self, total: str, kind: str, b_kind: str, n: int, *, a: str, b: str, flip: bool, selector: int
    ) -> None:
        super().__init__(total, kind, b_kind, n, a=a, b=b, b_transposed=flip)
        self.k *= 2
        stored, metadata, a_values = sparse(kind, 64, self.k, ordered=True)
        b_raw, b_values = elements(b_kind, (n, self.k))
        size = stored.dtype.itemsize
        self.image = np.zeros(65536, np.uint8)
        self.descriptors = []
        for raw, at, swizzle, flipped in ((stored, 0, "32B", False), (b_raw, 32768, b, flip)):
            offsets, leading, stride = wide_layout(*raw.shape, size, swizzle, flipped)
            self.image |= np.roll(memory_of(raw, offsets, 65536), at)
            self.descriptors.append(descriptor(at, leading, stride, swizzle))
        self.a = a_fragment(stored)
        self.product = a_values @ b_values.T
        self.values, self.kinds = (a_values, b_values.T), (kind, b_kind, total)
        words = [lanes_of(words_of(metadata[16 * w : 16 * w + 16], 2), selector) for w in range(4)]
        flags = "" if total == "s32" else ", 1, 1"
        if size == 2:
            flags += f", {int(flip)}" if a == "registers" else f", 0, {int(flip)}"
        name = f"sp.sync.aligned.m64n{n}k{self.k}.{total}.{kind}.{b_kind}"
        text = kernel(name, n // 4 if total == "f16" else n // 2, a == "registers", flags)
        self.text = text.replace("mma_async.sync.aligned.sp", "mma_async.sp").replace(
            ", %p3", f", %r40, {selector}, %p3"
        ).replace("wgmma.fence", "ld.global.b32 %r40, [%d8+2048];\nwgmma.fence")  # fmt: skip
        self.a = np.concatenate([self.a, np.concatenate(words)[None]])


def wide_layout(lines: int, depth: int, size: int, swizzle: str, flipped: bool) -> tuple[np.ndarray, int, int]:
    """The layout of lines of up to 64 bytes: of up to four chunks, or of up to 32 rows where it is flipped."""
    if swizzle != "none" and not flipped:
        return layout(lines, depth, size, swizzle, flipped)
    line, k = np.indices((lines, depth))
    if not flipped:
        chunk = 16 // size
        return line % 8 * 16 + line // 8 * 512 + k // chunk * 128 + k % chunk * size, 128, 512
    span = SWIZZLE[swizzle][1]
    parts, near, far = span // 16, 8 * span, 32 * span
    offset = line % 8 * 2 + line // 8 % parts * 16 + line // 8 // parts * far + k % 8 * span + k // 8 * near
    offset ^= (offset >> 7 & parts - 1) << 4
    return offset, *((near, far) if swizzle == "none" else (far, near))


TYPES = [("f32", "f16", "f16"), ("f16", "f16", "f16"), ("f32", "bf16", "bf16"), ("f32", "tf32", "tf32"),
         ("f32", "e4m3", "e5m2"), ("f16", "e5m2", "e4m3"), ("s32", "s8", "u8"), ("s32", "u8", "u8")]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("total", "kind", "b_kind"), TYPES)
def test_sparse_products_of_a_warpgroup(total: str, kind: str, b_kind: str) -> None:
    wide = kind in ("e4m3", "e5m2", "s8", "u8")
    SparseCase(total, kind, b_kind, 16, a="32B", b="64B", flip=False, selector=0).check()
    SparseCase(total, kind, b_kind, 64, a="registers", b="none", flip=False, selector=0 if wide else 1).check()


@pytest.mark.parametrize("swizzle", ["none", "64B", "128B"])
def test_a_transposed_b_of_a_sparse_product(swizzle: str) -> None:
    SparseCase("f32", "f16", "f16", 64, a="32B", b=swizzle, flip=True, selector=1).check()
