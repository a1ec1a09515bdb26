"""Cost of a request in sectors or wavefronts, and patterns: the lane-to-lane distances that the fast path compares.

Global and local memory count sectors of 32 bytes and lines of 128, shared memory wavefronts.
"""

from __future__ import annotations

from kernelforge.devices.emulated import layout as lay
from kernelforge.devices.emulated.codegen.numba_intrinsics import (
    load_i32,
    load_i64,
    load_u8,
    load_u16,
    load_u32,
    native,
    popcount,
    store_i64,
    store_u8,
    store_u16,
    store_u32,
    trailing_zeros,
)
from kernelforge.devices.emulated.layout import KEYS, MASKS, TABLE, UNITS


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
def scattered_sectors(ctx: int, addresses: int, mask: int, size: int) -> int:
    """The same as :func:`distinct_sectors`, where a lane's sector is below that of one before it."""
    scratch = load_i64(ctx + lay.CTX_SCRATCH)
    units = scratch + UNITS
    table = scratch + TABLE
    for k in range(128):
        store_i64(table + 8 * k, -1)
    count = 0
    lines = 0
    last = -1
    rest = mask
    while rest != 0:
        lane_id = trailing_zeros(rest)
        rest &= rest - 1
        address = load_i64(addresses + 8 * lane_id)
        final = (address + size - 1) >> 5
        sector = address >> 5
        while sector <= final:
            if sector != last:
                # An entry is a line's number and a bit for each of its sectors.
                line = sector >> 2
                bit = 1 << (sector & 3)
                slot = (line * 40503 + (line >> 7)) & 127
                while True:
                    entry = table + 8 * slot
                    stored = load_i64(entry)
                    if stored == -1:
                        stored = line << 4
                        lines += 1
                    if stored >> 4 == line:
                        if stored & bit == 0:
                            store_i64(entry, stored | bit)
                            store_i64(units + 8 * count, sector)
                            count += 1
                        break
                    slot = (slot + 1) & 127
                last = sector
            sector += 1
    return count + (lines << 16)


@native
def distinct_sectors(ctx: int, addresses: int, mask: int, size: int) -> int:
    """Collect the distinct sectors accessed into the units area; return how many + 65536 * how many lines."""
    units = load_i64(ctx + lay.CTX_SCRATCH) + UNITS
    count = 0
    lines = 0
    last = -1
    rest = mask
    while rest != 0:
        lane_id = trailing_zeros(rest)
        rest &= rest - 1
        address = load_i64(addresses + 8 * lane_id)
        sector = address >> 5
        if sector < last:
            return scattered_sectors(ctx, addresses, mask, size)
        final = (address + size - 1) >> 5
        while sector <= final:
            if sector != last:
                if count == 0 or sector >> 2 != last >> 2:
                    lines += 1
                store_i64(units + 8 * count, sector)
                count += 1
                last = sector
            sector += 1
    return count + (lines << 16)


@native
def store_masks(ctx: int, addresses: int, mask: int, size: int, count: int) -> int:
    """Collect the bytes that a store writes of each of its ``count`` sectors, which are in the units area, as masks of
    32 bits; return their address, or 0 if all sectors are complete."""
    scratch = load_i64(ctx + lay.CTX_SCRATCH)
    units = scratch + UNITS
    masks = scratch + MASKS
    for k in range(count):
        store_i64(masks + 8 * k, 0)
    at = 0
    rest = mask
    while rest != 0:
        lane_id = trailing_zeros(rest)
        rest &= rest - 1
        byte = load_i64(addresses + 8 * lane_id)
        end = byte + size
        while byte < end:
            sector = byte >> 5
            # Lanes mostly go on where the one before was, and sectors are in the order of lanes.
            while load_i64(units + 8 * at) != sector:
                at = at + 1 if at + 1 < count else 0
            part = min(end, (sector + 1) << 5) - byte
            written = ((1 << part) - 1) << (byte & 31)
            store_i64(masks + 8 * at, load_i64(masks + 8 * at) | written)
            byte += part
    for k in range(count):
        if load_i64(masks + 8 * k) != lay.COMPLETE_SECTOR:
            return masks
    return 0


@native
def distinct_addresses(ctx: int, addresses: int, mask: int) -> int:
    """Number of different lane addresses among the lanes of ``mask``; overwrites the units area."""
    count = 0
    last = -1
    rest = mask
    while rest != 0:
        lane_id = trailing_zeros(rest)
        rest &= rest - 1
        address = load_i64(addresses + 8 * lane_id)
        if address < last:
            return distinct_units(ctx, addresses, mask, 1, 0)
        if address != last:
            count += 1
            last = address
    return count


@native
def bank_wavefronts(ctx: int, addresses: int, mask: int, size: int) -> int:
    """Wavefronts of a shared access: 32 lanes at once up to 4 bytes, half-warps for 8, quarter-warps for 16.

    A wavefront serves one distinct word per bank, to any number of lanes; one address for all lanes is one wavefront.
    """
    if distinct_addresses(ctx, addresses, mask) == 1:
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
def ideal_shared(ctx: int, addresses: int, mask: int, size: int) -> int:
    """Conflict-free wavefronts for these lanes: one per group of lanes that the hardware serves together."""
    if distinct_addresses(ctx, addresses, mask) == 1:
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
    """Sectors + 65536 * lines of a local access: its frame is interleaved by 4-byte words, 8 lanes to a sector."""
    scratch = load_i64(ctx + lay.CTX_SCRATCH)
    keys = scratch + KEYS
    total = 0
    word = 0
    while word < size or word == 0:
        rest = mask
        while rest != 0:
            lane_id = trailing_zeros(rest)
            rest &= rest - 1
            row = (load_i64(addresses + 8 * lane_id) + word) >> 2
            store_i64(keys + 8 * lane_id, (row * 4 + (lane_id >> 3)) << 5)
        total += distinct_sectors(ctx, keys, mask, 1)
        word += 4
    return total


@native
def fold_hits(op: int) -> None:
    """Turn the per-alignment hit counts of the pattern into totals, and clear the pattern."""
    lanes = popcount(load_u32(op + lay.OP_MASK))
    ideal = load_i32(op + lay.OP_IDEAL)
    for word in range(lay.SLOTS // 32):
        counted = load_u32(op + lay.OP_KNOWN + 4 * word)
        store_u32(op + lay.OP_KNOWN + 4 * word, 0)
        while counted != 0:
            entry = op + lay.OP_SLOTS + lay.SLOT_ENTRY * (32 * word + trailing_zeros(counted))
            counted &= counted - 1
            hits = load_u32(entry + lay.ENTRY_HITS)
            cost = load_u16(entry + lay.ENTRY_COUNT)
            lines = load_u8(entry + lay.ENTRY_LINES)
            store_i64(op + lay.OP_REQUESTS, load_i64(op + lay.OP_REQUESTS) + hits)
            store_i64(op + lay.OP_TRANSACTIONS, load_i64(op + lay.OP_TRANSACTIONS) + hits * cost)
            store_i64(op + lay.OP_LINES, load_i64(op + lay.OP_LINES) + hits * lines)
            store_i64(op + lay.OP_THREADS, load_i64(op + lay.OP_THREADS) + hits * lanes)
            store_i64(op + lay.OP_IDEAL_TOTAL, load_i64(op + lay.OP_IDEAL_TOTAL) + hits * ideal)
            store_i64(entry, 0)
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
    lines: int,
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
    slot = reference & load_i32(op + lay.OP_ALIGNMENTS)
    entry = op + lay.OP_SLOTS + lay.SLOT_ENTRY * slot
    if same and load_u8(entry + lay.ENTRY_KNOWN) != 0 and load_u16(entry + lay.ENTRY_COUNT) != cost:
        same = False
    if not same:
        fold_hits(op)
        store_u32(op + lay.OP_SERIAL, load_u32(op + lay.OP_SERIAL) + 1)
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
    known_slots = op + lay.OP_KNOWN + 4 * (slot >> 5)
    store_u32(known_slots, load_u32(known_slots) | (1 << (slot & 31)))
    store_u16(entry + lay.ENTRY_COUNT, cost)
    store_u8(entry + lay.ENTRY_LINES, lines)
    store_u8(entry + lay.ENTRY_KNOWN, lay.KNOWN)
    store_u32(entry + lay.ENTRY_HITS, load_u32(entry + lay.ENTRY_HITS) + 1)
    return True
