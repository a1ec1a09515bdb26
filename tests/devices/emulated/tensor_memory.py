"""Matrices, descriptors and one-product kernels of tensor memory (``tcgen05``), for its tests."""

from __future__ import annotations

import shutil
import subprocess
import sysconfig
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from kernelforge.devices.emulated.report import LaunchReport
from kernelforge.hardware.wheels import RELEASES
from tests.devices.emulated.harness import Device, ptx_module
from tests.devices.emulated.tensor_core_sums import Array, block_sum, toward_zero
from tests.devices.emulated.test_matrix_products import elements as plain_elements

RNG = np.random.default_rng(5)
BYTES = {"f16": 2, "bf16": 2, "tf32": 4}
CODES = {
    "f16": 0, "bf16": 1, "tf32": 2, "e4m3": 0, "e5m2": 1, "e2m3": 3, "e3m2": 4, "e2m1": 5, "u8": 0, "s8": 1,
}  # fmt: skip
RESULTS = {"f16": 0, "f32": 1, "s32": 2}
SWIZZLES = {"none": (0, 16), "128B.32B": (1, 128), "128B": (2, 128), "64B": (4, 64), "32B": (6, 32)}
"""Code in a descriptor, and bytes of a row."""
A_AT, B_AT, IMAGE_BYTES = 0, 32768, 65536
D_AT, TENSOR_A_AT, A_SCALES_AT, B_SCALES_AT = 0, 256, 264, 272
"""Columns of D, and in tensor memory of A, and of the scales of A and B."""


def element_bytes(kind: str) -> int:
    """Bytes of an element."""
    return BYTES.get(kind, 1)


def elements(kind: str, shape: tuple[int, int]) -> tuple[Array, Array]:
    """Random elements: raw bits, those of 4 and 6 bits in bytes, and values."""
    if kind not in ("e2m3", "e3m2", "e2m1"):
        return plain_elements(kind, shape)
    width, fraction = int(kind[1]), int(kind[3])
    raw = RNG.integers(0, 1 << 1 + width + fraction, shape).astype(np.uint8)
    exponent = raw >> fraction & (1 << width) - 1
    significand = (raw & (1 << fraction) - 1) / (1 << fraction) + (exponent > 0)
    value = np.ldexp(significand, np.maximum(exponent.astype(np.int64), 1) - ((1 << width - 1) - 1))
    return raw, np.where(raw >> width + fraction, -value, value)


class Layout(NamedTuple):
    """Places of the elements of a matrix in shared memory."""

    offsets: Array
    """Of each element (line, k), in bytes."""
    leading: int
    stride: int


def layout(lines: int, depth: int, size: int, swizzle: str, transposed: bool) -> Layout:
    """The canonical layouts of the PTX ISA, for matrices that are wider than one instruction where the swizzle is."""
    line, k = np.indices((lines, depth))
    span = SWIZZLES[swizzle][1]
    chunk = 16 // size
    rows = 4 if swizzle == "128B.32B" else 8
    if not transposed and swizzle == "none":
        leading, stride = 128, 256
        offset = line % 8 * 16 + line // 8 * stride + k // chunk * leading + k % chunk * size
    elif not transposed:
        leading, stride = 16, 8 * span
        offset = line % 8 * span + line // 8 * stride + k * size
    elif swizzle == "none":
        leading, stride = 128, 128 * max(depth // 8, 1)
        offset = line % chunk * size + line // chunk * stride + k % 8 * 16 + k // 8 * leading
    else:
        parts = span // 16
        stride = rows * span
        leading = stride * (depth // rows)
        offset = line % chunk * size + line // chunk % parts * 16 + line // chunk // parts * leading
        offset = offset + k % rows * span + k // rows * stride
    if swizzle == "128B.32B":
        return Layout(offset ^ ((offset >> 7 & 3) << 5), leading, stride)
    return Layout(offset ^ ((offset >> 7 & span // 16 - 1) << 4), leading, stride)


def matrix_descriptor(at: int, leading: int, stride: int, swizzle: str) -> int:
    """The descriptor of a matrix in shared memory."""
    return at >> 4 | leading >> 4 << 16 | stride >> 4 << 32 | 1 << 46 | SWIZZLES[swizzle][0] << 61


def instruction_descriptor(m: int, n: int, a: str, b: str, result: str, *flags: int) -> int:
    """The descriptor of an instruction; ``flags`` are numbers of further bits."""
    types = RESULTS[result] << 4 | CODES[a] << 7 | CODES[b] << 10
    return types | n >> 3 << 17 | m >> 4 << 24 | sum(1 << bit for bit in flags)


def memory_of(raw: Array, offsets: Array, nbytes: int) -> Array:
    """Shared memory with a matrix at these offsets."""
    image = np.zeros(nbytes, np.uint8)
    parts = np.ascontiguousarray(raw).view(np.uint8).reshape(*raw.shape, raw.dtype.itemsize)
    for byte in range(raw.dtype.itemsize):
        image[offsets + byte] = parts[..., byte]
    return image


def packed_chunks(raw: Array, bits: int) -> Array:
    """Rows of elements of 4 or 6 bits: sixteen adjacent ones, then zeros up to 16 bytes."""
    split = np.unpackbits(raw.reshape(len(raw), -1, 16, 1), axis=-1, bitorder="little")[..., :bits]
    chunks = np.packbits(split.reshape(*split.shape[:2], -1), axis=-1, bitorder="little")
    out = np.zeros((*chunks.shape[:2], 16), np.uint8)
    out[..., : chunks.shape[-1]] = chunks
    return out.reshape(len(raw), -1)


def kernel(
    instruction: str, a_in_tensor: bool, n: int, *, lanes: tuple[int, ...] = (), scale: str = "", scaled: bool = False
) -> str:
    """One product: shared memory, D, A and scales come from global memory, and D goes back there; 128 threads."""
    chunk = 8
    names = "{" + ", ".join(f"%r{20 + k}" for k in range(chunk)) + "}"
    moves = []
    for column in range(0, n, chunk):
        loads = " ".join(f"ld.global.b32 %r{20 + k}, [%d7+{512 * (column + k)}];" for k in range(chunk))
        moves.append(f"{loads} tcgen05.st.sync.aligned.32x32b.x8.b32 [%r9+{D_AT + column}], {names};")
    for column in range(0 if a_in_tensor else 8, 24 if scaled else 8, chunk):
        loads = " ".join(f"ld.global.b32 %r{20 + k}, [%d8+{512 * (column + k)}];" for k in range(chunk))
        moves.append(f"{loads} tcgen05.st.sync.aligned.32x32b.x8.b32 [%r9+{TENSOR_A_AT + column}], {names};")
    back = []
    for column in range(0, n, chunk):
        stores = " ".join(f"st.global.b32 [%d7+{512 * (column + k)}], %r{20 + k};" for k in range(chunk))
        back.append(f"tcgen05.ld.sync.aligned.32x32b.x8.b32 {names}, [%r9+{D_AT + column}];")
        back.append(f"tcgen05.wait::ld.sync.aligned; {stores}")
    masks = " ".join(f"mov.b32 %r{14 + k}, {word};" for k, word in enumerate(lanes))
    disabled = ", {%r14, %r15, %r16, %r17}" if lanes else ""
    if scaled:
        disabled = f", [%r8+{A_SCALES_AT}], [%r8+{B_SCALES_AT}]"
    a = f"[%r8+{TENSOR_A_AT}]" if a_in_tensor else "%d4"
    body = f"""
mov.u32 %r0, %tid.x; ld.param.u64 %d0, [image]; ld.param.u64 %d1, [c]; ld.param.u64 %d3, [a];
ld.param.u64 %d4, [da]; ld.param.u64 %d5, [db]; ld.param.u32 %r3, [keep]; setp.ne.s32 %p3, %r3, 0;
ld.param.u32 %r10, [idesc]; shl.b32 %r1, %r0, 4; mov.u32 %r11, bar; mov.u32 %r12, where;
setp.eq.s32 %p4, %r0, 0; @%p4 mbarrier.init.shared::cta.b64 [%r11], 1; setp.lt.u32 %p5, %r0, 32;
@!%p5 bra ALLOCATED;
tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r12], 512;
ALLOCATED:
FILL: cvt.u64.u32 %d2, %r1; add.u64 %d2, %d0, %d2; ld.global.v4.b32 {{%r4, %r5, %r6, %r7}}, [%d2];
mov.u32 %r2, s; add.u32 %r2, %r2, %r1; st.shared.v4.b32 [%r2], {{%r4, %r5, %r6, %r7}};
add.u32 %r1, %r1, 2048; setp.lt.u32 %p0, %r1, {IMAGE_BYTES}; @%p0 bra FILL;
fence.proxy.async; bar.sync 0;
ld.shared.b32 %r8, [%r12]; shr.u32 %r13, %r0, 5; shl.b32 %r13, %r13, 21; add.u32 %r9, %r8, %r13;
mul.wide.u32 %d6, %r0, 4; add.u64 %d7, %d1, %d6; add.u64 %d8, %d3, %d6;
{" ".join(moves)}
tcgen05.wait::st.sync.aligned; tcgen05.fence::before_thread_sync; bar.sync 0; tcgen05.fence::after_thread_sync;
@!%p4 bra ISSUED;
{masks}
tcgen05.mma.{instruction} [%r8+{D_AT}], {a}, %d5, %r10{disabled}, %p3{scale};
tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%r11];
ISSUED:
WAIT: mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r11], 0; @!%p2 bra WAIT;
tcgen05.fence::after_thread_sync;
{" ".join(back)}
bar.sync 0;
@!%p5 bra FREE;
tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r8, 512;
FREE:
"""
    parameters = (
        ".param .u64 image, .param .u64 c, .param .u64 a, .param .u64 da, .param .u64 db, .param .u32 idesc, "
        ".param .u32 keep"
    )
    shared = f".shared .align 1024 .b8 s[{IMAGE_BYTES}]; .shared .align 8 .b64 bar; .shared .align 4 .b32 where;"
    return ptx_module(body, parameters, shared, target="sm_100a")


def rows_of_d(m: int, n: int, weights: bool = False, first: int = 0) -> tuple[Array, Array]:
    """Lane and column of each element of D."""
    row, column = np.indices((m, n))
    if weights and m < 128:
        parts = 128 // m
        return row + column // (n // parts) * m, column % (n // parts)
    if m == 64:
        return row // 16 * 32 + row % 16 + first, column
    return row, column


class Case:
    """One product with random operands."""

    def __init__(
        self, kind: str, result: str, a_type: str, b_type: str, m: int, n: int, *, a: str = "128B", b: str = "128B",
        a_transposed: bool = False, b_transposed: bool = False, signs: tuple[int, int] = (1, 1),
        weights: bool = False, flags: tuple[int, ...] = (), lanes: tuple[int, ...] = (), scale: int = 0,
    ) -> None:  # fmt: skip
        size = element_bytes(a_type)
        self.kind, self.result, self.m, self.n, self.k = kind, result, m, n, 32 // size
        self.scale, self.weights = scale, weights
        a_raw, a_values = elements(a_type, (m, self.k))
        b_raw, b_values = elements(b_type, (n, self.k))
        self.image = np.zeros(IMAGE_BYTES, np.uint8)
        self.descriptors = [0, 0]
        a_bits = {"e2m1": 4, "e2m3": 6, "e3m2": 6}
        for number, (raw, at, lines, swizzle, flip, element) in enumerate((
            (a_raw, A_AT, m, a, a_transposed, a_type), (b_raw, B_AT, n, b, b_transposed, b_type),
        )):  # fmt: skip
            if swizzle == "tensor":
                continue
            where = layout(lines, self.k, size, swizzle, flip)
            data = packed_chunks(raw, a_bits[element]) if element in a_bits else raw
            self.image |= np.roll(memory_of(data, where.offsets, IMAGE_BYTES), at)
            self.descriptors[number] = matrix_descriptor(at, where.leading, where.stride, swizzle)
        containers = a_raw << 2 if a_type == "e2m1" else a_raw
        words = np.ascontiguousarray(containers).view(np.uint8).reshape(m, 32).view(np.uint32)
        self.tensor_a = np.zeros((8, 128), np.uint32)
        lanes_of_a, columns_of_a = rows_of_d(m, 8)
        self.tensor_a[columns_of_a, lanes_of_a] = words
        self.lanes, self.columns_of_d = rows_of_d(m, n, weights)
        self.columns = int(self.columns_of_d.max()) + 1
        if result == "s32":
            self.c = RNG.integers(-1000, 1000, (m, n)).astype(np.int32)
        else:
            self.c = RNG.standard_normal((m, n)).astype(np.float16 if result == "f16" else np.float32)
        self.values = signs[0] * signs[1] * a_values, b_values.T
        self.types = a_type, b_type, result
        bits = [*flags, *((13,) if signs[0] < 0 else ()), *((14,) if signs[1] < 0 else ())]
        bits += [15] * a_transposed + [16] * b_transposed
        self.idesc = instruction_descriptor(m, n, a_type, b_type, result, *bits)
        name = f"{'ws.' if weights else ''}cta_group::1.kind::{kind}"
        self.text = kernel(name, a == "tensor", self.columns, lanes=lanes, scale=f", {scale}" if scale else "")

    def cells(self, matrix: Array) -> Array:
        """Tensor memory with D, by columns and lanes."""
        out = np.full((self.columns, 128), 0x12345678, np.uint32)
        out[self.columns_of_d, self.lanes] = matrix.view(np.uint16 if self.result == "f16" else np.uint32)
        return out

    def run(self, *, keep: int = 1, clean: bool = True, **options: object) -> tuple[Array, LaunchReport]:
        """The cells of D afterwards, and the report."""
        cells = self.cells(self.c)
        report = Device(self.text).run(
            1, 128, self.image, cells, self.tensor_a, *self.descriptors, self.idesc, keep, clean=clean, **options
        )
        return cells, report

    def exact(self, keep: int = 1) -> Array:
        """D in float64, without any rounding."""
        product: Array = self.values[0].astype(np.float64) @ self.values[1] + keep * np.ldexp(
            self.c.astype(np.float64), -self.scale
        )
        return product

    def expected(self, keep: int = 1) -> Array:
        """D as tensor cores compute it."""
        if self.result == "s32":
            wide: Array = self.exact(keep).astype(np.int64)
            return wide.astype(np.int32)
        c = keep * np.ldexp(self.c.astype(np.float64), -self.scale)
        sums = block_sum(*self.values, c, self.types, 25)
        with np.errstate(over="ignore"):
            return sums.astype(np.float16) if self.result == "f16" else toward_zero(sums, 23).astype(np.float32)

    def check(self, keep: int = 1) -> None:
        """Compare every cell of D's columns with NumPy's float64, and bit for bit with the sums of tensor cores."""
        cells, _ = self.run(keep=keep)
        d = cells[self.columns_of_d, self.lanes]
        if self.result == "s32":
            values: Array = d.view(np.int32)
        elif self.result == "f16":
            values = d.astype(np.uint16).view(np.float16)
        else:
            values = d.view(np.float32)
        scale = np.abs(self.values[0]).astype(np.float64) @ np.abs(self.values[1]) + np.abs(self.c)
        error = np.abs(values.astype(np.float64) - self.exact(keep)) / np.maximum(scale, 1)
        inside = np.abs(self.exact(keep)) < 65000 if self.result == "f16" else np.isfinite(error)
        assert inside.mean() > 0.1
        assert error[inside].max() <= (2.0**-10 if self.result == "f16" else 2.0**-20)
        assert np.array_equal(cells, self.cells(self.expected(keep)))


def assemble(texts: Iterable[str], folder: Path) -> None:
    """Assemble PTX with ``ptxas``; the test is skipped where it is not installed."""
    wheels = [Path(sysconfig.get_path("purelib"), "nvidia", release.programs, "ptxas") for release in RELEASES.values()]
    ptxas = next((path for path in (shutil.which("ptxas"), *wheels) if path and Path(path).exists()), None)
    if ptxas is None:
        pytest.skip("ptxas is not installed")
    for text in texts:
        (folder / "k.ptx").write_text(text)
        command = [ptxas, "-arch", "sm_100a", folder / "k.ptx", "-o", folder / "k.cubin"]
        subprocess.run(command, check=True)
