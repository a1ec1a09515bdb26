"""Tensor-core instructions: ``mma.sync`` and ``ldmatrix``."""

from __future__ import annotations

from kernelforge.devices.emulated import layout as lay
from kernelforge.devices.emulated.native import exported, load_f32, load_i64, load_u32, store_f32, store_u32
from kernelforge.devices.emulated.runtime.access import resolve
from kernelforge.devices.emulated.runtime.elements import read_element
from kernelforge.devices.emulated.runtime.numbers import half_to_f32
from kernelforge.devices.emulated.runtime.scratch import HOST, STRIDE


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
