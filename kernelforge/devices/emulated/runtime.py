"""Slow paths of generated code: exact checking and counting of memory accesses, atomics, and odd warp operations.

Every function takes host addresses as ``int64``. Areas of the context's scratch hold vectors of 32 lanes.
"""

from __future__ import annotations

from kernelforge.devices.emulated import layout as lay
from kernelforge.devices.emulated import memory as mem
from kernelforge.devices.emulated.native import (
    bits_to_f32,
    bits_to_f64,
    exported,
    f32_to_bits,
    f64_to_bits,
    load_f32,
    load_i32,
    load_i64,
    load_u8,
    load_u16,
    load_u32,
    native,
    popcount,
    store_f32,
    store_i64,
    store_u8,
    store_u16,
    store_u32,
    trailing_zeros,
)

# Scratch areas used inside one runtime call (512 bytes each); generated code uses the areas before these.
_EFFECTIVE = 16 * lay.SCRATCH_AREA
_HOST = 17 * lay.SCRATCH_AREA
_STRIDE = 18 * lay.SCRATCH_AREA
_UNITS = 19 * lay.SCRATCH_AREA  # distinct sectors of one request, up to 128 entries of 8 bytes
_TABLE = 21 * lay.SCRATCH_AREA  # 128-entry hash table, also 1 KiB
_SAME_SITE_FAULTS = 8


@native
def record_fault(ctx: int, kind: int, site: int, lane: int, address: int, size: int, space: int) -> None:
    """Count a fault; store it while there is room, at most eight per kind and instruction."""
    count = load_i64(ctx + lay.CTX_FAULT_COUNT)
    base = load_i64(ctx + lay.CTX_FAULTS)
    stored = load_i64(base)
    store_i64(ctx + lay.CTX_FAULT_COUNT, count + 1)
    if stored >= lay.FAULT_CAPACITY:
        return
    same = 0
    for k in range(stored):
        f = base + 8 + k * lay.FAULT_RECORD
        if load_i32(f + lay.FAULT_KIND) == kind and load_i32(f + lay.FAULT_SITE) == site:
            same += 1
    if same >= _SAME_SITE_FAULTS:
        return
    f = base + 8 + stored * lay.FAULT_RECORD
    store_u32(f + lay.FAULT_KIND, kind)
    store_u32(f + lay.FAULT_SITE, site)
    store_u32(f + lay.FAULT_LANE, lane)
    store_u32(f + lay.FAULT_WARP, load_i32(ctx + lay.CTX_WARP))
    store_i64(f + lay.FAULT_CTA, load_i64(ctx + lay.CTX_CTA))
    store_i64(f + lay.FAULT_ADDRESS, address)
    store_u32(f + lay.FAULT_BYTES, size)
    store_u32(f + lay.FAULT_SPACE, space)
    store_i64(base, stored + 1)


@native
def find_allocation(ctx: int, address: int, size: int) -> int:
    """Return the table row (host address) that holds ``[address, address + size)``, or 0."""
    if address < 0:
        return 0
    low = 0
    high = load_i64(ctx + lay.CTX_ALLOCATION_COUNT)
    table = load_i64(ctx + lay.CTX_ALLOCATIONS)
    while low < high:
        middle = (low + high) >> 1
        if load_i64(table + middle * lay.ALLOC_RECORD) <= address:
            low = middle + 1
        else:
            high = middle
    if low == 0:
        return 0
    row = table + (low - 1) * lay.ALLOC_RECORD
    base = load_i64(row + lay.ALLOC_BASE)
    if address - base <= load_i64(row + lay.ALLOC_SIZE) - size:
        return row
    return 0


@native
def distinct_units(ctx: int, addresses: int, mask: int, size: int, shift: int) -> int:
    """Collect the distinct values of ``byte >> shift`` over all bytes accessed into the units area; return how many."""
    scratch = load_i64(ctx + lay.CTX_SCRATCH)
    units = scratch + _UNITS
    table = scratch + _TABLE
    for k in range(128):
        store_i64(table + 8 * k, -1)
    count = 0
    last = -1
    rest = mask
    while rest != 0:
        lane = trailing_zeros(rest)
        rest &= rest - 1
        address = load_i64(addresses + 8 * lane)
        first = address >> shift
        final = (address + size - 1) >> shift
        unit = first
        while unit <= final:
            if unit != last:
                slot = (unit * 40503 + (unit >> 7)) & 127
                while True:
                    held = load_i64(table + 8 * slot)
                    if held == unit:
                        break
                    if held == -1:
                        store_i64(table + 8 * slot, unit)
                        store_i64(units + 8 * count, unit)
                        count += 1
                        break
                    slot = (slot + 1) & 127
                last = unit
            unit += 1
    return count


@native
def bank_wavefronts(ctx: int, addresses: int, mask: int, size: int) -> int:
    """Wavefronts of a shared access: 32 lanes at once up to 4 bytes, half-warps for 8, quarter-warps for 16.

    A wavefront serves one distinct word per bank, to any number of lanes; one address for all lanes is one wavefront.
    """
    if distinct_addresses(addresses, mask) == 1:
        return 1
    scratch = load_i64(ctx + lay.CTX_SCRATCH)
    units = scratch + _UNITS
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
            table = scratch + _TABLE
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
def distinct_addresses(addresses: int, mask: int) -> int:
    """Number of different lane addresses among the lanes of ``mask``."""
    count = 0
    rest = mask
    while rest != 0:
        lane = trailing_zeros(rest)
        rest &= rest - 1
        address = load_i64(addresses + 8 * lane)
        before = mask & ((1 << lane) - 1)
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
def l2_access(cache: int, sector: int, write: bool) -> None:
    """Look one sector up in L2, filling or dirtying it."""
    counters = cache + mem.CACHE_COUNTERS
    line = (sector >> 2) + 1
    bit = 1 << (sector & 3)
    sets = load_i64(cache + mem.CACHE_L2_SETS)
    base = load_i64(cache + mem.CACHE_L2_TAGS) + ((line ^ (line >> 11)) % sets) * mem.L2_WAYS * mem.L2_ENTRY
    tick = load_i64(cache + mem.CACHE_TICK) + 1
    store_i64(cache + mem.CACHE_TICK, tick)
    victim = base
    oldest = load_i64(base + 24)
    if write:
        store_i64(counters + 32, load_i64(counters + 32) + 1)
    else:
        store_i64(counters + 16, load_i64(counters + 16) + 1)
    for way in range(mem.L2_WAYS):
        entry = base + way * mem.L2_ENTRY
        if load_i64(entry) == line:
            store_i64(entry + 24, tick)
            valid = load_i64(entry + 8)
            if write:
                store_i64(entry + 16, load_i64(entry + 16) | bit)
            elif valid & bit:
                store_i64(counters + 24, load_i64(counters + 24) + 1)
            else:
                store_i64(counters + 40, load_i64(counters + 40) + 1)
            store_i64(entry + 8, valid | bit)
            return
        used = load_i64(entry + 24)
        if used < oldest:
            oldest = used
            victim = entry
    dirty = popcount(load_i64(victim + 16))
    store_i64(counters + 48, load_i64(counters + 48) + dirty)
    store_i64(victim, line)
    store_i64(victim + 8, bit)
    store_i64(victim + 16, bit if write else 0)
    store_i64(victim + 24, tick)
    if not write:
        store_i64(counters + 40, load_i64(counters + 40) + 1)


@native
def cache_access(ctx: int, count: int, access: int) -> None:
    """Send the distinct sectors of one request (in the units area) through the cache model."""
    cache = load_i64(ctx + lay.CTX_CACHE)
    units = load_i64(ctx + lay.CTX_SCRATCH) + _UNITS
    counters = cache + mem.CACHE_COUNTERS
    sets = load_i64(cache + mem.CACHE_L1_SETS)
    tags = load_i64(cache + mem.CACHE_L1_TAGS)
    for k in range(count):
        sector = load_i64(units + 8 * k)
        if access == lay.STORE:
            l2_access(cache, sector, True)
            continue
        if access == lay.ATOMIC:
            l2_access(cache, sector, False)
            l2_access(cache, sector, True)
            continue
        store_i64(counters, load_i64(counters) + 1)
        line = (sector >> 2) + 1
        bit = 1 << (sector & 3)
        base = tags + ((line ^ (line >> 8)) % sets) * mem.L1_WAYS * mem.L1_ENTRY
        tick = load_i64(cache + mem.CACHE_TICK) + 1
        store_i64(cache + mem.CACHE_TICK, tick)
        victim = base
        oldest = load_i64(base + 16)
        found = False
        for way in range(mem.L1_WAYS):
            entry = base + way * mem.L1_ENTRY
            if load_i64(entry) == line:
                found = True
                store_i64(entry + 16, tick)
                valid = load_i64(entry + 8)
                if valid & bit:
                    store_i64(counters + 8, load_i64(counters + 8) + 1)
                else:
                    store_i64(entry + 8, valid | bit)
                    l2_access(cache, sector, False)
                break
            used = load_i64(entry + 16)
            if used < oldest:
                oldest = used
                victim = entry
        if not found:
            store_i64(victim, line)
            store_i64(victim + 8, bit)
            store_i64(victim + 16, tick)
            l2_access(cache, sector, False)


_ATOMIC_MARK = 0x40
_MANY_READERS = 0x80


@native
def check_race(ctx: int, op: int, site: int, addresses: int, mask: int, size: int, access: int) -> None:
    """Compare a shared access with what other warps did since the last barrier, per 4-byte word."""
    shadow = load_i64(ctx + lay.CTX_SHADOW)
    epoch = load_i64(ctx + lay.CTX_EPOCH)
    warp = load_i32(ctx + lay.CTX_WARP)
    me = (epoch << 8) | warp
    rest = mask
    while rest != 0:
        lane = trailing_zeros(rest)
        rest &= rest - 1
        address = load_i64(addresses + 8 * lane)
        word = address >> 2
        while word <= (address + size - 1) >> 2:
            cell = shadow + 16 * word
            writer = load_i64(cell)
            reader = load_i64(cell + 8)
            race = False
            if writer >> 8 == epoch and writer & 0x3F != warp:
                race = not (access == lay.ATOMIC and writer & _ATOMIC_MARK != 0)
            if access != lay.LOAD and reader >> 8 == epoch and reader != me:
                race = True
            if race:
                record_fault(ctx, lay.FAULT_SHARED_RACE, site, lane, address, size, lay.SHARED)
            if access == lay.STORE:
                store_i64(cell, me)
            elif access == lay.ATOMIC:
                store_i64(cell, me | _ATOMIC_MARK)
            elif reader >> 8 == epoch and reader != me:
                store_i64(cell + 8, me | _MANY_READERS)
            else:
                store_i64(cell + 8, me)
            word += 1


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
def resolve(ctx: int, op: int, addresses: int, mask: int) -> int:
    """Check and count one request; return the lanes that may access memory.

    ``addresses`` holds each lane's base address (the record's offset is added here). For allowed lanes the host
    address and the distance between consecutive words are left in scratch. A new pattern is remembered when every
    lane is in one buffer and no mode needs to see each access.
    """
    scratch = load_i64(ctx + lay.CTX_SCRATCH)
    effective = scratch + _EFFECTIVE
    host = scratch + _HOST
    stride = scratch + _STRIDE
    size = load_i32(op + lay.OP_BYTES)
    align = load_i32(op + lay.OP_ALIGN)
    access = load_i32(op + lay.OP_ACCESS)
    declared = load_i32(op + lay.OP_SPACE)
    narrow = load_i32(op + lay.OP_NARROW)
    offset = load_i64(op + lay.OP_OFFSET)
    site = (op - load_i64(ctx + lay.CTX_OPS)) // lay.OP_RECORD
    mode = load_i64(ctx + lay.CTX_MODE)
    good = 0
    in_global = 0
    in_shared = 0
    in_local = 0
    in_param = 0
    single = True
    base = -1
    limit = -1
    delta = 0
    rest = mask
    while rest != 0:
        lane = trailing_zeros(rest)
        rest &= rest - 1
        bit = 1 << lane
        address = load_i64(addresses + 8 * lane) + offset
        if narrow != 0:
            address &= 0xFFFFFFFF
        space = declared
        if declared == lay.GENERIC:
            space = lay.GLOBAL
            if address >= lay.SHARED_WINDOW and address < lay.SHARED_WINDOW + lay.WINDOW_BYTES:
                space = lay.SHARED
                address -= lay.SHARED_WINDOW
            elif address >= lay.LOCAL_WINDOW and address < lay.LOCAL_WINDOW + lay.WINDOW_BYTES:
                space = lay.LOCAL
                address -= lay.LOCAL_WINDOW
            elif address >= lay.PARAM_WINDOW and address < lay.PARAM_WINDOW + lay.WINDOW_BYTES:
                space = lay.PARAM
                address -= lay.PARAM_WINDOW
        store_i64(effective + 8 * lane, address)
        if address & (align - 1) != 0:
            record_fault(ctx, lay.FAULT_MISALIGNED, site, lane, address, size, space)
            continue
        lane_base = 0
        lane_limit = 0
        lane_delta = 0
        step = 4
        if space == lay.SHARED:
            lane_limit = load_i64(ctx + lay.CTX_SHARED_BYTES)
            lane_delta = load_i64(ctx + lay.CTX_SHARED)
        elif space == lay.LOCAL:
            lane_limit = load_i64(ctx + lay.CTX_LOCAL_BYTES)
        elif space == lay.PARAM:
            lane_limit = load_i64(ctx + lay.CTX_PARAM_BYTES)
            lane_delta = load_i64(ctx + lay.CTX_PARAMS)
            if access != lay.LOAD:
                lane_limit = 0
        else:
            row = find_allocation(ctx, address, size)
            if row != 0:
                flags = load_i64(row + lay.ALLOC_FLAGS)
                if access != lay.LOAD and flags != 0:
                    kind = lay.FAULT_MODULE_WRITE if flags & lay.FLAG_MODULE else lay.FAULT_READ_ONLY_WRITE
                    record_fault(ctx, kind, site, lane, address, size, space)
                    continue
                lane_base = load_i64(row + lay.ALLOC_BASE)
                lane_limit = lane_base + load_i64(row + lay.ALLOC_SIZE)
                lane_delta = load_i64(ctx + lay.CTX_ARENA_DELTA)
        if address < lane_base or address > lane_limit - size:
            record_fault(ctx, lay.FAULT_OUT_OF_BOUNDS, site, lane, address, size, space)
            continue
        if space == lay.LOCAL:
            step = 4 * lay.LANES
            where = load_i64(ctx + lay.CTX_LOCAL) + (address >> 2) * step + 4 * lane + (address & 3)
            in_local |= bit
        else:
            where = address + lane_delta
            if space == lay.SHARED:
                in_shared |= bit
            elif space == lay.PARAM:
                in_param |= bit
            else:
                in_global |= bit
        if good != 0 and (lane_base != base or lane_limit != limit or lane_delta != delta):
            single = False
        base = lane_base
        limit = lane_limit
        delta = lane_delta
        store_i64(host + 8 * lane, where)
        store_i64(stride + 8 * lane, step)
        good |= bit
    if mask == 0:
        return 0
    cost = 0
    ideal = 0
    if in_global != 0:
        cost += distinct_units(ctx, effective, in_global, size, 5)
        ideal += (distinct_addresses(effective, in_global) * size + 31) >> 5
        if mode & lay.MODE_CACHE:
            cache_access(ctx, cost, access)
    if in_shared != 0:
        cost += bank_wavefronts(ctx, effective, in_shared, size)
        ideal += ideal_shared(effective, in_shared, size)
        if mode & lay.MODE_RACECHECK:
            check_race(ctx, op, site, effective, in_shared, size, access)
    if in_local != 0:
        cost += local_sectors(ctx, effective, in_local, size)
        ideal += (popcount(in_local) * size + 31) >> 5
    # A pattern holds addresses as the instruction has them; generic ones of a window differ from those checked here.
    same_space = in_local == 0 and (in_shared | in_param == 0 or (declared != lay.GENERIC and in_global == 0))
    watched = mode & (lay.MODE_RACECHECK | lay.MODE_CACHE) != 0 or (in_shared != 0 and mode & lay.MODE_RESIDENT != 0)
    regular = not watched and good == mask and single and same_space and access != lay.ATOMIC
    if regular and remember(op, addresses, effective, mask, size, cost, ideal, base, limit, delta):
        return good
    store_i64(op + lay.OP_REQUESTS, load_i64(op + lay.OP_REQUESTS) + 1)
    store_i64(op + lay.OP_TRANSACTIONS, load_i64(op + lay.OP_TRANSACTIONS) + cost)
    store_i64(op + lay.OP_THREADS, load_i64(op + lay.OP_THREADS) + popcount(good))
    store_i64(op + lay.OP_IDEAL_TOTAL, load_i64(op + lay.OP_IDEAL_TOTAL) + ideal)
    return good


@native
def local_sectors(ctx: int, addresses: int, mask: int, size: int) -> int:
    """Sectors of a local access: the frame is interleaved by 4-byte words, so eight lanes share a sector."""
    scratch = load_i64(ctx + lay.CTX_SCRATCH)
    keys = scratch + _TABLE + lay.SCRATCH_AREA
    total = 0
    word = 0
    while word < size or word == 0:
        rest = mask
        while rest != 0:
            lane = trailing_zeros(rest)
            rest &= rest - 1
            row = (load_i64(addresses + 8 * lane) + word) >> 2
            store_i64(keys + 8 * lane, row * 4 + (lane >> 3))
        total += distinct_addresses(keys, mask)
        word += 4
    return total


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


@native
def read_element(address: int, step: int, offset: int, width: int) -> int:
    """Load ``width`` bytes that lie ``offset`` bytes into an access whose words are ``step`` bytes apart."""
    where = address + (offset >> 2) * step + (offset & 3)
    if width == 4:
        return load_u32(where)
    if width == 8:
        if step == 4:
            return load_i64(where)
        return load_u32(where) | (load_u32(where + step) << 32)
    if width == 2:
        return load_u16(where)
    return load_u8(where)


@native
def write_element(address: int, step: int, offset: int, width: int, value: int) -> None:
    """Store ``width`` bytes; see :func:`read_element`."""
    where = address + (offset >> 2) * step + (offset & 3)
    if width == 4:
        store_u32(where, value)
    elif width == 8:
        if step == 4:
            store_i64(where, value)
        else:
            store_u32(where, value)
            store_u32(where + step, value >> 32)
    elif width == 2:
        store_u16(where, value)
    else:
        store_u8(where, value)


@exported("void(int64, int64, int64, int64, int64, int64)")
def slow_load(ctx: int, op: int, addresses: int, mask: int, out: int, width: int) -> None:
    """Load each lane's elements of ``width`` bytes into ``out`` (element-major); refused lanes get 0."""
    good = resolve(ctx, op, addresses, mask)
    scratch = load_i64(ctx + lay.CTX_SCRATCH)
    elements = load_i32(op + lay.OP_BYTES) // width
    for lane in range(lay.LANES):
        ok = good >> lane & 1
        address = load_i64(scratch + _HOST + 8 * lane)
        step = load_i64(scratch + _STRIDE + 8 * lane)
        for k in range(elements):
            value = 0
            if ok:
                value = read_element(address, step, k * width, width)
            write_element(out, 4, (k * lay.LANES + lane) * width, width, value)


@exported("void(int64, int64, int64, int64, int64, int64)")
def slow_store(ctx: int, op: int, addresses: int, mask: int, values: int, width: int) -> None:
    """Store each allowed lane's elements; lanes with one address: the highest lane wins."""
    good = resolve(ctx, op, addresses, mask)
    scratch = load_i64(ctx + lay.CTX_SCRATCH)
    elements = load_i32(op + lay.OP_BYTES) // width
    while good != 0:
        lane = trailing_zeros(good)
        good &= good - 1
        address = load_i64(scratch + _HOST + 8 * lane)
        step = load_i64(scratch + _STRIDE + 8 * lane)
        for k in range(elements):
            value = read_element(values, 4, (k * lay.LANES + lane) * width, width)
            write_element(address, step, k * width, width, value)


# Operations and types of atomics, as generated code encodes them: operation * 16 + type.
ATOMIC_OPERATIONS = ("add", "exch", "cas", "max", "min", "and", "or", "xor", "inc", "dec")
ATOMIC_TYPES = ("u32", "s32", "f32", "u64", "s64", "f64", "f16", "bf16", "f16x2", "bf16x2", "u16")
_FIRST_HALF_TYPE = 6


@native
def _signed(value: int) -> int:
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


@native
def add_halves(kind: int, old: int, b: int) -> int:
    """Sum of one or two packed 16-bit floats. f32 has enough bits that rounding twice is rounding once."""
    brain = kind % 2 == 1
    low = f32_to_half(f32_to_bits(half_to_f32(old & 0xFFFF, brain) + half_to_f32(b & 0xFFFF, brain)), brain)
    if kind < _FIRST_HALF_TYPE + 2:
        return low
    high = f32_to_half(f32_to_bits(half_to_f32(old >> 16, brain) + half_to_f32(b >> 16, brain)), brain)
    return low | (high << 16)


@native
def combine(operation: int, kind: int, old: int, b: int, c: int) -> int:
    """New value of one atomic; 32-bit values are non-negative integers."""
    if operation == 1:
        return b
    if operation == 2:
        return c if old == b else old
    if operation == 5:
        return old & b
    if operation == 6:
        return old | b
    if operation == 7:
        return old ^ b
    if operation == 8:
        return 0 if old >= b else old + 1
    if operation == 9:
        return b if old == 0 or old > b else old - 1
    if operation == 0:
        if kind >= _FIRST_HALF_TYPE:
            return add_halves(kind, old, b)
        if kind == 2:
            return f32_to_bits(bits_to_f32(old) + bits_to_f32(b))
        if kind == 5:
            return f64_to_bits(bits_to_f64(old) + bits_to_f64(b))
        if kind < 3:
            return (old + b) & 0xFFFFFFFF
        return old + b
    greater = False
    if kind == 0 or kind == 4:
        greater = old > b
    elif kind == 1:
        greater = _signed(old) > _signed(b)
    elif kind == 3:
        greater = (old ^ (-0x7FFFFFFFFFFFFFFF - 1)) > (b ^ (-0x7FFFFFFFFFFFFFFF - 1))
    if operation == 3:
        return old if greater else b
    return b if greater else old


@exported("void(int64, int64, int64, int64, int64, int64, int64, int64)")
def atomic(ctx: int, op: int, addresses: int, mask: int, b: int, c: int, out: int, code: int) -> None:
    """One read-modify-write per lane, in lane order. The old values go to ``out``."""
    good = resolve(ctx, op, addresses, mask)
    scratch = load_i64(ctx + lay.CTX_SCRATCH)
    kind = code & 15
    operation = code >> 4
    width = load_i32(op + lay.OP_BYTES)
    rest = mask
    while rest != 0:
        lane = trailing_zeros(rest)
        rest &= rest - 1
        at = lane * width
        old = 0
        if good >> lane & 1:
            address = load_i64(scratch + _HOST + 8 * lane)
            step = load_i64(scratch + _STRIDE + 8 * lane)
            old = read_element(address, step, 0, width)
            first = read_element(b, 4, at, width)
            second = read_element(c, 4, at, width)
            write_element(address, step, 0, width, combine(operation, kind, old, first, second))
        write_element(out, 4, at, width, old)


@exported("void(int64, int64, int64, int64, int64, int64, int64)")
def copy_async(ctx: int, read: int, write: int, target: int, source: int, mask: int, source_bytes: int) -> None:
    """``cp.async``: copy at once; bytes beyond ``source_bytes`` (one i32 per lane) become zero."""
    scratch = load_i64(ctx + lay.CTX_SCRATCH)
    wanted = 0
    rest = mask
    while rest != 0:
        lane = trailing_zeros(rest)
        rest &= rest - 1
        if load_i32(source_bytes + 4 * lane) > 0:
            wanted |= 1 << lane
    size = load_i32(write + lay.OP_BYTES)
    store_u32(read + lay.OP_BYTES, size)
    readable = resolve(ctx, read, source, wanted)
    keep = scratch + 15 * lay.SCRATCH_AREA
    for lane in range(lay.LANES):
        store_i64(keep + 8 * lane, load_i64(scratch + _HOST + 8 * lane))
    good = resolve(ctx, write, target, mask)
    while good != 0:
        lane = trailing_zeros(good)
        good &= good - 1
        limit = load_i32(source_bytes + 4 * lane) if readable >> lane & 1 else 0
        for k in range(size):
            value = 0
            if k < limit:
                value = load_u8(load_i64(keep + 8 * lane) + k)
            store_u8(load_i64(scratch + _HOST + 8 * lane) + k, value)


@exported("void(int64, int64, int64, int64)")
def fault_here(ctx: int, kind: int, site: int, mask: int) -> None:
    """Record a fault that is not a memory access, for the lowest lane of ``mask``."""
    lane = trailing_zeros(mask) if mask != 0 else 0
    record_fault(ctx, kind, -1 - site, lane, 0, 0, lay.GENERIC)


@exported("int64(int64, int64, int64, int64)")
def shuffle(ctx: int, values: int, mask: int, mode: int) -> int:
    """``shfl.sync`` with lane-dependent operands in areas 1 (b) and 2 (c); values in place; returns the predicates."""
    b = values + lay.SCRATCH_AREA
    c = values + 2 * lay.SCRATCH_AREA
    out = values + 3 * lay.SCRATCH_AREA
    valid = 0
    for lane in range(lay.LANES):
        bv = load_u32(b + 4 * lane)
        cv = load_u32(c + 4 * lane)
        segment = cv >> 8 & 31
        clamp = cv & 31
        bound = (lane & segment) | (clamp & ~segment)
        first = lane & segment
        delta = bv & 31
        source = lane
        ok = False
        if mode == 0:
            source = lane - delta
            ok = source >= bound
        elif mode == 1:
            source = lane + delta
            ok = source <= bound
        elif mode == 2:
            source = lane ^ delta
            ok = source <= bound
        else:
            source = first | (delta & ~segment)
            ok = source <= bound
        if not ok:
            source = lane
        else:
            valid |= 1 << lane
        store_u32(out + 4 * lane, load_u32(values + 4 * (source & 31)))
    for lane in range(lay.LANES):
        store_u32(values + 4 * lane, load_u32(out + 4 * lane))
    return valid


@exported("void(int64, int64, int64, int64, int64)")
def match(values: int, members: int, out: int, mask: int, code: int) -> None:
    """``match.sync``: per lane, the lanes of its member mask with the same value; ``.all``: all of them or none.

    ``code`` is the value's bytes, plus 16 for ``.all``.
    """
    width = code & 15
    rest = mask
    while rest != 0:
        lane = trailing_zeros(rest)
        rest &= rest - 1
        value = read_element(values, 4, lane * width, width)
        group = load_u32(members + 4 * lane) & mask
        peers = 0
        others = group
        while others != 0:
            other = trailing_zeros(others)
            others &= others - 1
            if read_element(values, 4, other * width, width) == value:
                peers |= 1 << other
        if code & 16 and peers != group:
            peers = 0
        store_u32(out + 4 * lane, peers)


# Reductions over the lanes that a lane's member mask names, as generated code encodes them.
GROUP_OPERATIONS = ("add", "umin", "umax", "smin", "smax", "and", "or", "xor", "ballot", "all", "any", "uni")


@exported("void(int64, int64, int64, int64, int64)")
def group_reduce(values: int, members: int, out: int, mask: int, operation: int) -> None:
    """``redux.sync`` and ``vote.sync`` (values 0 or 1) where member masks differ between lanes."""
    rest = mask
    while rest != 0:
        lane = trailing_zeros(rest)
        rest &= rest - 1
        others = load_u32(members + 4 * lane) & mask
        count = popcount(others)
        result = 0
        first = True
        while others != 0:
            other = trailing_zeros(others)
            others &= others - 1
            value = load_u32(values + 4 * other)
            if operation == 8:
                value = value << other
            if first:
                result = value
            elif operation == 0 or operation >= 9:
                result += value
            elif operation == 1:
                result = min(result, value)
            elif operation == 2:
                result = max(result, value)
            elif operation == 3:
                result = value if _signed(value) < _signed(result) else result
            elif operation == 4:
                result = value if _signed(value) > _signed(result) else result
            elif operation == 5:
                result &= value
            elif operation == 7:
                result ^= value
            else:
                result |= value
            first = False
        if operation == 9:
            result = 1 if result == count else 0
        elif operation == 10:
            result = 1 if result != 0 else 0
        elif operation == 11:
            result = 1 if result == 0 or result == count else 0
        store_u32(out + 4 * lane, result)


@exported("int64(int64, int64, int64, int64)")
def pick(ctx: int, state: int, blocks: int, held: int) -> int:
    """Take the lowest block with waiting lanes: its index, -1 when the warp is done, -2 when it waits at a barrier.

    Lanes held at barriers become waiting lanes of the blocks after them once no lane can run.
    """
    block = load_i32(state + lay.W_WAITING)
    waiting = state + lay.W_HEADER
    if block != lay.NOBODY:
        store_u32(state + lay.W_MASK, load_u32(waiting + 4 * block))
        store_u32(waiting + 4 * block, 0)
        block_after = block + 1
        while block_after < blocks and load_u32(waiting + 4 * block_after) == 0:
            block_after += 1
        store_u32(state + lay.W_WAITING, block_after if block_after < blocks else lay.NOBODY)
        return block
    if load_i32(state + lay.W_HELD) == 0:
        return -1
    store_u32(state + lay.W_HELD, 0)
    lowest = lay.NOBODY
    distinct = 0
    for k in range(blocks):
        mask = load_u32(state + held + 4 * k)
        if mask != 0:
            distinct += 1
            lowest = min(lowest, k)
            store_u32(waiting + 4 * k, mask)
            store_u32(state + held + 4 * k, 0)
    store_u32(state + lay.W_WAITING, lowest)
    store_u32(state + lay.W_RESUME, blocks)
    if distinct > 1:
        site = load_i32(state + lay.W_BARRIER_SITE)
        mask = load_u32(waiting + 4 * lowest)
        record_fault(ctx, lay.FAULT_DIVERGENT_BARRIER, -1 - site, trailing_zeros(mask), 0, 0, lay.GENERIC)
    return -2


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
    good = resolve(ctx, op, addresses, mask & ((1 << 8 * count) - 1))
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
                    where = load_i64(scratch + _HOST + 8 * source)
                    step = load_i64(scratch + _STRIDE + 8 * source)
                    value |= read_element(where, step, 2 * column, 2) << 16 * half
            store_u32(out + 128 * k + 4 * lane, value)


EXPORTS = {
    "kf_mma": mma,
    "kf_ldmatrix": ldmatrix,
    "kf_slow_load": slow_load,
    "kf_slow_store": slow_store,
    "kf_atomic": atomic,
    "kf_copy_async": copy_async,
    "kf_fault": fault_here,
    "kf_shuffle": shuffle,
    "kf_match": match,
    "kf_group_reduce": group_reduce,
    "kf_pick": pick,
}
"""Symbols that generated code may call."""
