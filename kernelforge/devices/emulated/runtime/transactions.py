"""Cost of a request in sectors or wavefronts, and patterns: the lane-to-lane distances that the fast path compares.

Global and local memory count sectors of 32 bytes, shared memory wavefronts.
"""

from __future__ import annotations

from kernelforge.devices.emulated import layout as lay
from kernelforge.devices.emulated.codegen.numba_intrinsics import (
    load_i32,
    load_i64,
    load_u16,
    load_u32,
    native,
    popcount,
    store_i64,
    store_u16,
    store_u32,
    trailing_zeros,
)
from kernelforge.devices.emulated.layout import TABLE, UNITS


@native
def distinct_units(ctx: int, addresses: int, mask: int, size: int, shift: int) -> int:
    """Collect the distinct values of ``byte >> shift`` over all bytes accessed into the units area; return how many."""
    scratch = load_i64(ctx + lay.CTX_SCRATCH)
    units = scratch + UNITS
    table = scratch + TABLE
    for k in range(128):
        store_i64(table + 8 * k, -1)
    count = 0
    last = -1
    rest = mask
    while rest != 0:
        lane_id = trailing_zeros(rest)
        rest &= rest - 1
        address = load_i64(addresses + 8 * lane_id)
        first = address >> shift
        final = (address + size - 1) >> shift
        unit = first
        while unit <= final:
            if unit != last:
                slot = (unit * 40503 + (unit >> 7)) & 127
                while True:
                    stored = load_i64(table + 8 * slot)
                    if stored == unit:
                        break
                    if stored == -1:
                        store_i64(table + 8 * slot, unit)
                        store_i64(units + 8 * count, unit)
                        count += 1
                        break
                    slot = (slot + 1) & 127
                last = unit
            unit += 1
    return count


@native
def distinct_addresses(addresses: int, mask: int) -> int:
    """Number of different lane addresses among the lanes of ``mask``."""
    count = 0
    rest = mask
    while rest != 0:
        lane_id = trailing_zeros(rest)
        rest &= rest - 1
        address = load_i64(addresses + 8 * lane_id)
        before = mask & ((1 << lane_id) - 1)
        seen = False
        while before != 0:
            other = trailing_zeros(before)
            before &= before - 1
            if load_i64(addresses + 8 * other) == address:
                seen = True
                break
        if not seen:
            count += 1
    return count


@native
def bank_wavefronts(ctx: int, addresses: int, mask: int, size: int) -> int:
    """Wavefronts of a shared access: 32 lanes at once up to 4 bytes, half-warps for 8, quarter-warps for 16.

    A wavefront serves one distinct word per bank, to any number of lanes; one address for all lanes is one wavefront.
    """
    if distinct_addresses(addresses, mask) == 1:
        return 1
    scratch = load_i64(ctx + lay.CTX_SCRATCH)
    units = scratch + UNITS
    group = 32
    if size == 8:
        group = 16
    elif size >= 16:
        group = 8
    total = 0
    start = 0
    while start < 32:
        part = mask & (((1 << group) - 1) << start)
        if part != 0:
            count = distinct_units(ctx, addresses, part, size, 2)
            table = scratch + TABLE
            for k in range(32):
                store_i64(table + 8 * k, 0)
            most = 0
            for k in range(count):
                slot = table + 8 * (load_i64(units + 8 * k) & 31)
                hits = load_i64(slot) + 1
                store_i64(slot, hits)
                most = max(most, hits)
            total += most
        start += group
    return total


@native
def ideal_shared(addresses: int, mask: int, size: int) -> int:
    """Conflict-free wavefronts for these lanes: one per group of lanes that the hardware serves together."""
    if distinct_addresses(addresses, mask) == 1:
        return 1
    group = 32
    if size == 8:
        group = 16
    elif size >= 16:
        group = 8
    total = 0
    start = 0
    while start < 32:
        if mask & (((1 << group) - 1) << start) != 0:
            total += 1
        start += group
    return total


@native
def local_sectors(ctx: int, addresses: int, mask: int, size: int) -> int:
    """Sectors of a local access: the frame is interleaved by 4-byte words, so eight lanes share a sector."""
    scratch = load_i64(ctx + lay.CTX_SCRATCH)
    keys = scratch + TABLE + lay.SCRATCH_AREA
    total = 0
    word = 0
    while word < size or word == 0:
        rest = mask
        while rest != 0:
            lane_id = trailing_zeros(rest)
            rest &= rest - 1
            row = (load_i64(addresses + 8 * lane_id) + word) >> 2
            store_i64(keys + 8 * lane_id, row * 4 + (lane_id >> 3))
        total += distinct_addresses(keys, mask)
        word += 4
    return total


@native
def fold_hits(op: int) -> None:
    """Turn the per-alignment hit counts of the pattern into totals, and clear the pattern."""
    counted = load_u32(op + lay.OP_KNOWN)
    lanes = popcount(load_u32(op + lay.OP_MASK))
    ideal = load_i32(op + lay.OP_IDEAL)
    while counted != 0:
        k = trailing_zeros(counted)
        counted &= counted - 1
        hits = load_u32(op + lay.OP_HITS + 4 * k)
        if hits != 0:
            cost = load_u16(op + lay.OP_COUNTS + 2 * k)
            store_i64(op + lay.OP_REQUESTS, load_i64(op + lay.OP_REQUESTS) + hits)
            store_i64(op + lay.OP_TRANSACTIONS, load_i64(op + lay.OP_TRANSACTIONS) + hits * cost)
            store_i64(op + lay.OP_THREADS, load_i64(op + lay.OP_THREADS) + hits * lanes)
            store_i64(op + lay.OP_IDEAL_TOTAL, load_i64(op + lay.OP_IDEAL_TOTAL) + hits * ideal)
            store_u32(op + lay.OP_HITS + 4 * k, 0)
    store_u32(op + lay.OP_KNOWN, 0)
    store_u32(op + lay.OP_MASK, 0)
    store_i64(op + lay.OP_SPAN, 0)


@native
def remember(
    op: int,
    addresses: int,
    effective: int,
    mask: int,
    size: int,
    cost: int,
    ideal: int,
    base: int,
    limit: int,
    delta: int,
) -> bool:
    """Store the request's pattern, or add its alignment to the pattern it repeats; count it as one hit."""
    first = trailing_zeros(mask)
    reference = load_i64(effective + 8 * first)
    low = 0
    high = 0
    rest = mask
    same = load_u32(op + lay.OP_MASK) == mask and load_i64(op + lay.OP_DELTA) == delta
    while rest != 0:
        lane_id = trailing_zeros(rest)
        rest &= rest - 1
        d = load_i64(effective + 8 * lane_id) - reference
        low = min(low, d)
        high = max(high, d)
        if same and load_i32(op + lay.OP_DELTAS + 4 * lane_id) != d:
            same = False
    if low < -0x40000000 or high > 0x40000000:
        return False
    slot = reference & 31
    if same:
        counted = load_u32(op + lay.OP_KNOWN)
        if counted >> slot & 1 and load_u16(op + lay.OP_COUNTS + 2 * slot) != cost:
            same = False
    if not same:
        fold_hits(op)
        contiguous = True
        words = True
        for lane_id in range(lay.LANES):
            d = 0
            if mask >> lane_id & 1:
                d = load_i64(effective + 8 * lane_id) - reference
                if d != (lane_id - first) * size:
                    contiguous = False
                if (d - low) & 3:
                    words = False
            store_u32(op + lay.OP_DELTAS + 4 * lane_id, d)
        kind = lay.KIND_SCATTERED
        if contiguous:
            kind = lay.KIND_CONTIGUOUS
        elif words and size == 4 and high + 4 - low <= 128:
            kind = lay.KIND_WINDOW
            for lane_id in range(lay.LANES):
                if not mask >> lane_id & 1:
                    store_u32(op + lay.OP_DELTAS + 4 * lane_id, low)
        store_u32(op + lay.OP_KIND, kind)
        store_u32(op + lay.OP_FIRST, first)
        store_u32(op + lay.OP_WINDOW, low)
        store_u32(op + lay.OP_MASK, mask)
        store_i64(op + lay.OP_DELTA, delta)
        store_u32(op + lay.OP_IDEAL, ideal)
    store_i64(op + lay.OP_LOW, base - low)
    store_i64(op + lay.OP_SPAN, limit - high - size - (base - low) + 1)
    store_u32(op + lay.OP_KNOWN, load_u32(op + lay.OP_KNOWN) | (1 << slot))
    store_u16(op + lay.OP_COUNTS + 2 * slot, cost)
    hits = op + lay.OP_HITS + 4 * slot
    store_u32(hits, load_u32(hits) + 1)
    return True
