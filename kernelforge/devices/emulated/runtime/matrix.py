"""Matrix instructions of a warp (``ldmatrix``, ``mma.sync``) and the number formats that they read."""

from __future__ import annotations

from kernelforge.devices.emulated import layout as lay
from kernelforge.devices.emulated.codegen.numba_intrinsics import (
    bits_to_f32,
    exported,
    f32_to_bits,
    load_f32,
    load_i64,
    load_u32,
    native,
    store_f32,
    store_u32,
)
from kernelforge.devices.emulated.layout import HOST, STRIDE
from kernelforge.devices.emulated.runtime.access import read_element, resolve


@native
def signed(value: int) -> int:
    return value - 0x100000000 if value >= 0x80000000 else value


@native
def half_to_f32(bits: int, brain: bool) -> float:
    """Value of a 16-bit float, exactly."""
    if brain:
        return bits_to_f32(bits << 16)
    sign = (bits & 0x8000) << 16
    exponent = bits >> 10 & 31
    mantissa = bits & 0x3FF
    if exponent == 31:
        return bits_to_f32(sign | 0x7F800000 | (mantissa << 13))
    if exponent == 0:
        # 2**-14 in front of the mantissa, and off again.
        return bits_to_f32(sign | f32_to_bits(bits_to_f32(0x38800000 | (mantissa << 13)) - bits_to_f32(0x38800000)))
    return bits_to_f32(sign | ((exponent + 112) << 23) | (mantissa << 13))


@native
def f32_to_half(bits: int, brain: bool) -> int:
    """Bit pattern of an f32 rounded to nearest even in 16 bits; NaN becomes 0x7FFF."""
    magnitude = bits & 0x7FFFFFFF
    sign = bits >> 16 & 0x8000
    if magnitude > 0x7F800000:
        return 0x7FFF
    if brain:
        return sign | ((magnitude + 0x7FFF + (magnitude >> 16 & 1)) >> 16)
    if magnitude >= 0x477FF000:
        return sign | 0x7C00
    if magnitude < 0x38800000:
        # The last bit of a sum near 1/2 is 2**-24, the smallest half.
        half = bits_to_f32(0x3F000000)
        return sign | (f32_to_bits(bits_to_f32(magnitude) + half) - 0x3F000000)
    return sign | ((magnitude - 0x38000000 + 0xFFF + (magnitude >> 13 & 1)) >> 13)


@exported("void(int64, int64, int64, int64, int64, int64, int64)")
def mma(ctx: int, a: int, b: int, c: int, out: int, depth: int, brain: int) -> None:
    """``mma.m16n8k{depth}``: registers as rows of 32 lanes (PTX ISA, fragments of mma.m16n8k8 and m16n8k16)."""
    left = load_i64(ctx + lay.CTX_SCRATCH)  # 16 x depth f32
    right = left + 2 * lay.SCRATCH_AREA  # depth x 8 f32
    for lane in range(lay.LANES):
        group = lane >> 2
        pair = 2 * (lane & 3)
        for k in range(depth // 4):
            bits = load_u32(a + 128 * k + 4 * lane)
            at = left + 4 * ((group + 8 * (k & 1)) * depth + pair + 8 * (k >> 1))
            store_f32(at, half_to_f32(bits & 0xFFFF, brain != 0))
            store_f32(at + 4, half_to_f32(bits >> 16, brain != 0))
        for k in range(depth // 8):
            bits = load_u32(b + 128 * k + 4 * lane)
            at = right + 4 * ((pair + 8 * k) * 8 + group)
            store_f32(at, half_to_f32(bits & 0xFFFF, brain != 0))
            store_f32(at + 32, half_to_f32(bits >> 16, brain != 0))
    for lane in range(lay.LANES):
        for k in range(4):
            row = (lane >> 2) + 8 * (k >> 1)
            column = 2 * (lane & 3) + (k & 1)
            total = float(load_f32(c + 128 * k + 4 * lane))
            for m in range(depth):
                total += float(load_f32(left + 4 * (row * depth + m))) * float(load_f32(right + 4 * (m * 8 + column)))
            store_f32(out + 128 * k + 4 * lane, total)


@exported("void(int64, int64, int64, int64, int64, int64, int64)")
def ldmatrix(ctx: int, op: int, addresses: int, mask: int, out: int, count: int, transposed: int) -> None:
    """``ldmatrix``: lane 8m + r points at row r of matrix m; every lane gets two elements of each matrix."""
    good = resolve(ctx, op, addresses, mask & ((1 << 8 * count) - 1), 0, 4)
    scratch = load_i64(ctx + lay.CTX_SCRATCH)
    for k in range(count):
        for lane in range(lay.LANES):
            value = 0
            for half in range(2):
                row = lane >> 2
                column = 2 * (lane & 3) + half
                if transposed:
                    row, column = column, row
                source = 8 * k + row
                if good >> source & 1:
                    where = load_i64(scratch + HOST + 8 * source)
                    step = load_i64(scratch + STRIDE + 8 * source)
                    value |= read_element(where, step, 2 * column, 2) << 16 * half
            store_u32(out + 128 * k + 4 * lane, value)
