"""Operands of ``wgmma.mma_async`` in shared memory, by their descriptors, and what products may still read.

A descriptor names 8 x 16 byte parts, swizzled or not, and the distances between them: the canonical layouts of the PTX
ISA, *Matrix Descriptor Format*. Rows of A and columns of B are gathered as 32 bytes each, columns for a sparse A as 64.
"""

from __future__ import annotations

from kernelforge.devices.emulated import layout as lay
from kernelforge.devices.emulated.codegen.numba_intrinsics import (
    copy_bytes,
    exported,
    fill_bytes,
    load_i32,
    load_i64,
    load_u16,
    native,
    store_i64,
    store_u16,
    store_u32,
)
from kernelforge.devices.emulated.layout import EFFECTIVE
from kernelforge.devices.emulated.runtime.faults import check_race, record_fault
from kernelforge.devices.emulated.runtime.mbarrier import record_of, site_of
from kernelforge.devices.emulated.runtime.proxies import check_read, watches

CHUNK = 16


@native
def swizzle_bytes(descriptor: int) -> int:
    """Bytes of a row within a swizzled part; 16 without swizzle."""
    mode = descriptor >> 62 & 3
    return 16 if mode == 0 else 256 >> mode


@native
def chunk_offset(descriptor: int, offset: int) -> int:
    """Offset in shared memory of a chunk of 16 bytes that lies ``offset`` bytes into a matrix."""
    address = ((descriptor & 0x3FFF) << 4) + offset & 0x3FFFF
    row = (address >> 7) - (descriptor >> 49 & 7) & (swizzle_bytes(descriptor) >> 4) - 1
    return address ^ (row << 4)


@native
def line_offset(descriptor: int, line: int, k: int) -> int:
    """Offset in a matrix of the chunk ``k`` of a line, which is a row of A or a column of B."""
    leading = (descriptor >> 16 & 0x3FFF) << 4
    stride = (descriptor >> 32 & 0x3FFF) << 4
    span = swizzle_bytes(descriptor)
    inside = span // CHUNK
    return line % 8 * span + line // 8 * stride + k % inside * CHUNK + k // inside * leading


@native
def part_offset(descriptor: int, part: int, k: int) -> int:
    """Offset in a transposed matrix of the chunk of several lines, their ``part``, with row ``k``."""
    leading = (descriptor >> 16 & 0x3FFF) << 4
    stride = (descriptor >> 32 & 0x3FFF) << 4
    span = swizzle_bytes(descriptor)
    if span == CHUNK:
        return part * stride + k % 8 * CHUNK + k // 8 * leading
    return part % (span // CHUNK) * CHUNK + part // (span // CHUNK) * leading + k % 8 * span + k // 8 * stride


@native
def range_at(record: int, warp: int, position: int) -> int:
    """Address of a range in a warp's ring."""
    number = lay.RANGE_CAPACITY * warp + position % lay.RANGE_CAPACITY
    return record + lay.ASYNC_RANGES + lay.RANGE_BYTES * number


@exported
def product_operand(
    ctx: int, op: int, descriptor: int, out: int, first: int, lines: int, size: int, transposed: int
) -> None:
    """Gather ``lines`` rows of A, or columns of B, from ``first`` on, and remember what was read until the wait."""
    shared = load_i64(ctx + lay.CTX_SHARED)
    limit = load_i64(ctx + lay.CTX_SHARED_BYTES) - CHUNK
    low = limit
    high = 0
    count = 0
    addresses = load_i64(ctx + lay.CTX_SCRATCH) + EFFECTIVE
    racecheck = load_i64(ctx + lay.CTX_MODE) & lay.MODE_RACECHECK != 0
    proxies = watches(ctx)
    step = 8 if transposed else 1
    depth = size // 2 if transposed else size // CHUNK
    for line in range(0, lines, step):
        for k in range(depth):
            offset = 0
            if transposed:
                offset = part_offset(descriptor, (first + line) // 8, k)
            else:
                offset = line_offset(descriptor, first + line, k)
            at = chunk_offset(descriptor, offset)
            if at > limit:
                record_fault(ctx, lay.FAULT_OUT_OF_BOUNDS, site_of(ctx, op), 0, at, CHUNK, lay.SHARED)
                fill_bytes(out, 0, lines * size)
                return
            low = min(low, at)
            high = max(high, at + CHUNK)
            if transposed:
                for n in range(8):
                    store_u16(out + (line + n) * size + 2 * k, load_u16(shared + at + 2 * n))
            else:
                copy_bytes(out + line * size + k * CHUNK, shared + at, CHUNK)
            if proxies:
                check_read(ctx, site_of(ctx, op), 0, at, CHUNK)
            if racecheck:
                store_i64(addresses + 8 * count, at)
                count += 1
                if count == lay.LANES:
                    check_race(ctx, op, site_of(ctx, op), addresses, 0xFFFFFFFF, CHUNK, lay.LOAD, 0, 1)
                    count = 0
    if count != 0:
        check_race(ctx, op, site_of(ctx, op), addresses, (1 << count) - 1, CHUNK, lay.LOAD, 0, 1)
    record = record_of(ctx, load_i32(ctx + lay.CTX_CLUSTER_CTARANK))
    warp = load_i32(ctx + lay.CTX_WARP)
    cell = record + lay.ASYNC_READS + 8 * warp
    position = load_i32(cell)
    entry = range_at(record, warp, position)
    store_u32(cell, position + 1)
    store_u32(entry, low)
    store_u32(entry + 4, high)
    store_u32(entry + 8, load_i32(cell + 4))


@exported
def product_commit(ctx: int) -> None:
    """``wgmma.commit_group``."""
    record = record_of(ctx, load_i32(ctx + lay.CTX_CLUSTER_CTARANK))
    committed = record + lay.ASYNC_READS + 8 * load_i32(ctx + lay.CTX_WARP) + 4
    store_u32(committed, load_i32(committed) + 1)
    store_u32(load_i64(ctx + lay.CTX_STATE) + lay.W_PRODUCTS_COMMITTED, load_i32(committed))


@exported
def product_wait(ctx: int, pending: int) -> int:
    """``wgmma.wait_group``: the products of all groups but the last ``pending`` no longer read shared memory.

    A product is one of four warps. Until all of them have issued it the warp stops: -1. Otherwise returns 0.
    """
    record = record_of(ctx, load_i32(ctx + lay.CTX_CLUSTER_CTARANK))
    warp = load_i32(ctx + lay.CTX_WARP)
    cell = record + lay.ASYNC_READS + 8 * warp
    if load_i64(ctx + lay.CTX_IMPATIENCE) < 2:
        first = record + lay.ASYNC_READS + 8 * (warp & ~3)
        for k in range(4):
            if load_i32(first + 8 * k + 4) < load_i32(cell + 4) - pending:
                store_i64(ctx + lay.CTX_WAITS, 1)
                return -1
    store_i64(ctx + lay.CTX_PROGRESS, 1)
    complete = load_i64(ctx + lay.CTX_STATE) + lay.W_PRODUCTS_COMPLETE
    store_u32(complete, max(load_i32(complete), load_i32(cell + 4) - pending))
    for position in range(max(load_i32(cell) - lay.RANGE_CAPACITY, 0), load_i32(cell)):
        entry = range_at(record, warp, position)
        if load_i32(entry + 8) < load_i32(cell + 4) - pending:
            store_u32(entry + 4, 0)
    return 0


@native
def check_reads(ctx: int, site: int, lane_id: int, record: int, offset: int, size: int) -> None:
    """Record a fault if a copy to a CTA's shared memory overlaps what a product may still read."""
    for warp in range(lay.LANES):
        count = load_i32(record + lay.ASYNC_READS + 8 * warp)
        for position in range(max(count - lay.RANGE_CAPACITY, 0), count):
            entry = range_at(record, warp, position)
            if load_i32(entry) < offset + size and load_i32(entry + 4) > offset:
                record_fault(ctx, lay.FAULT_WGMMA_SOURCE, site, lane_id, offset, size, lay.SHARED)
                return
