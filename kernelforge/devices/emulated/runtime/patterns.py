"""Patterns of requests: an instruction's lane-to-lane distances, which generated code compares on its fast path."""

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


@native
def fold_hits(op: int) -> None:
    """Turn the per-alignment hit counts of the pattern into totals, and forget the pattern."""
    known = load_u32(op + lay.OP_KNOWN)
    lanes = popcount(load_u32(op + lay.OP_MASK))
    ideal = load_i32(op + lay.OP_IDEAL)
    while known != 0:
        k = trailing_zeros(known)
        known &= known - 1
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
        lane = trailing_zeros(rest)
        rest &= rest - 1
        d = load_i64(effective + 8 * lane) - reference
        low = min(low, d)
        high = max(high, d)
        if same and load_i32(op + lay.OP_DELTAS + 4 * lane) != d:
            same = False
    if low < -0x40000000 or high > 0x40000000:
        return False
    slot = reference & 31
    if same:
        known = load_u32(op + lay.OP_KNOWN)
        if known >> slot & 1 and load_u16(op + lay.OP_COUNTS + 2 * slot) != cost:
            same = False
    if not same:
        fold_hits(op)
        contiguous = True
        words = True
        for lane in range(lay.LANES):
            d = 0
            if mask >> lane & 1:
                d = load_i64(effective + 8 * lane) - reference
                if d != (lane - first) * size:
                    contiguous = False
                if (d - low) & 3:
                    words = False
            store_u32(op + lay.OP_DELTAS + 4 * lane, d)
        kind = lay.KIND_SCATTERED
        if contiguous:
            kind = lay.KIND_CONTIGUOUS
        elif words and size == 4 and high + 4 - low <= 128:
            kind = lay.KIND_WINDOW
            for lane in range(lay.LANES):
                if not mask >> lane & 1:
                    store_u32(op + lay.OP_DELTAS + 4 * lane, low)
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
