"""Memory accesses that the fast path of generated code refuses: check bounds, count costs, then load or store."""

from __future__ import annotations

from kernelforge.devices.emulated import layout as lay
from kernelforge.devices.emulated.codegen.numba_intrinsics import (
    exported,
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
from kernelforge.devices.emulated.layout import EFFECTIVE, HOST, STRIDE
from kernelforge.devices.emulated.runtime.cache import cache_access, note_words_of_lanes
from kernelforge.devices.emulated.runtime.faults import check_race, record_fault
from kernelforge.devices.emulated.runtime.proxies import forget_stores, note_stores
from kernelforge.devices.emulated.runtime.sanitize import check_global, check_shared
from kernelforge.devices.emulated.runtime.transactions import (
    bank_wavefronts,
    distinct_addresses,
    distinct_sectors,
    distinct_units,
    ideal_shared,
    local_sectors,
    remember,
    store_masks,
)


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


@native
def row_holds(row: int, address: int, size: int) -> bool:
    """Whether ``[address, address + size)`` lies in the allocation of a table row."""
    first = address - load_i64(row + lay.ALLOC_BASE)
    return first >= 0 and first <= load_i64(row + lay.ALLOC_SIZE) - size


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
    return row if row_holds(row, address, size) else 0


@native
def resolve_peer(ctx: int, site: int, lane_id: int, address: int, size: int) -> int:
    """Host address of an access to the shared memory of another CTA of the cluster; 0 where it is a fault."""
    rank = (address >> lay.PEER_SHIFT) - 1
    offset = address & ((1 << lay.PEER_SHIFT) - 1)
    if rank >= load_i32(ctx + lay.CTX_CLUSTER_NCTARANK) or offset > load_i64(ctx + lay.CTX_SHARED_BYTES) - size:
        record_fault(ctx, lay.FAULT_OUT_OF_BOUNDS, site, lane_id, address, size, lay.SHARED_CLUSTER)
        return 0
    peer = load_i64(ctx + lay.CTX_PEERS) + rank * lay.SLOT_BYTES
    if load_i64(peer + lay.SLOT_CTA) < 0 or load_i64(peer + lay.SLOT_LIVE) == 0:
        record_fault(ctx, lay.FAULT_PEER_ENDED, site, lane_id, address, size, lay.SHARED_CLUSTER)
        return 0
    store_i64(peer + lay.SLOT_TOUCHED, load_i64(peer + lay.SLOT_PHASE) + 1)
    store_u32(peer + lay.SLOT_TOUCH_SITE, site)
    store_u32(peer + lay.SLOT_TOUCH_LANE, lane_id)
    store_u32(peer + lay.SLOT_TOUCH_WARP, load_i32(ctx + lay.CTX_WARP))
    store_i64(peer + lay.SLOT_TOUCH_CTA, load_i64(ctx + lay.CTX_CTA))
    store_i64(peer + lay.SLOT_TOUCH_ADDRESS, address)
    return load_i64(ctx + lay.CTX_PEER_SHARED) + rank * load_i64(ctx + lay.CTX_PEER_STRIDE) + offset


@native
def count_peers(ctx: int, op: int, addresses: int, mask: int, size: int) -> None:
    """Count one request to the shared memory of other CTAs, in sectors as global memory."""
    ideal = (distinct_addresses(ctx, addresses, mask) * size + 31) >> 5
    sectors = distinct_units(ctx, addresses, mask, size, 5)
    store_i64(op + lay.OP_PEER_REQUESTS, load_i64(op + lay.OP_PEER_REQUESTS) + 1)
    store_i64(op + lay.OP_PEER_SECTORS, load_i64(op + lay.OP_PEER_SECTORS) + sectors)
    store_i64(op + lay.OP_PEER_THREADS, load_i64(op + lay.OP_PEER_THREADS) + popcount(mask))
    store_i64(op + lay.OP_PEER_IDEAL, load_i64(op + lay.OP_PEER_IDEAL) + ideal)


@native
def resolve(ctx: int, op: int, addresses: int, mask: int, values: int, width: int) -> int:
    """Check and count one request; return the lanes that may access memory.

    ``addresses`` holds each lane's base address (the record's offset is added here). For allowed lanes the host
    address and the distance between consecutive words are left in scratch. A new pattern is remembered when every
    lane is in one buffer and no mode needs each access. A store passes its ``values``, elements of ``width`` bytes
    element-major, other accesses 0.
    """
    scratch = load_i64(ctx + lay.CTX_SCRATCH)
    effective = scratch + EFFECTIVE
    host = scratch + HOST
    stride = scratch + STRIDE
    size = load_i32(op + lay.OP_BYTES)
    align = load_i32(op + lay.OP_ALIGN)
    access = load_i32(op + lay.OP_ACCESS)
    declared = load_i32(op + lay.OP_SPACE)
    narrow = load_i32(op + lay.OP_NARROW)
    offset = load_i64(op + lay.OP_OFFSET)
    site = (op - load_i64(ctx + lay.CTX_OPS)) // lay.OP_RECORD
    mode = load_i64(ctx + lay.CTX_MODE)
    shared_window = load_i64(ctx + lay.CTX_SHARED_WINDOW)
    local_window = load_i64(ctx + lay.CTX_LOCAL_WINDOW)
    param_window = load_i64(ctx + lay.CTX_PARAM_WINDOW)
    good = 0
    in_global = 0
    in_shared = 0
    in_local = 0
    in_param = 0
    in_peers = 0
    single = True
    base = -1
    limit = -1
    delta = 0
    row = 0
    rest = mask
    while rest != 0:
        lane_id = trailing_zeros(rest)
        rest &= rest - 1
        bit = 1 << lane_id
        address = load_i64(addresses + 8 * lane_id) + offset
        if narrow != 0:
            address &= 0xFFFFFFFF
        space = declared
        if declared == lay.GENERIC:
            space = lay.GLOBAL
            if address >= shared_window and address < shared_window + lay.WINDOW_BYTES:
                space = lay.SHARED
                address -= shared_window
            elif address >= local_window and address < local_window + lay.WINDOW_BYTES:
                space = lay.LOCAL
                address -= local_window
            elif address >= param_window and address < param_window + lay.WINDOW_BYTES:
                space = lay.PARAM
                address -= param_window
        if space == lay.SHARED_CLUSTER or (declared == lay.GENERIC and space == lay.SHARED):
            space = lay.SHARED
            if address >> lay.PEER_SHIFT == load_i32(ctx + lay.CTX_CLUSTER_CTARANK) + 1:
                address &= (1 << lay.PEER_SHIFT) - 1
            elif address >> lay.PEER_SHIFT > 0:
                space = lay.SHARED_CLUSTER
        store_i64(effective + 8 * lane_id, address)
        if address & (align - 1) != 0:
            record_fault(ctx, lay.FAULT_MISALIGNED, site, lane_id, address, size, space)
            continue
        if space == lay.SHARED_CLUSTER:
            peer = resolve_peer(ctx, site, lane_id, address, size)
            if peer != 0:
                if mode & lay.MODE_PROXIES and access != lay.LOAD:
                    forget_stores(ctx, (address >> lay.PEER_SHIFT) - 1, address & ((1 << lay.PEER_SHIFT) - 1), size)
                in_peers |= bit
                good |= bit
                single = False
                store_i64(host + 8 * lane_id, peer)
                store_i64(stride + 8 * lane_id, 4)
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
            # Lanes mostly access the buffer of the lane before.
            if row == 0 or not row_holds(row, address, size):
                row = find_allocation(ctx, address, size)
            if row != 0:
                flags = load_i64(row + lay.ALLOC_FLAGS)
                if access != lay.LOAD and flags != 0:
                    kind = lay.FAULT_MODULE_WRITE if flags & lay.FLAG_MODULE else lay.FAULT_READ_ONLY_WRITE
                    record_fault(ctx, kind, site, lane_id, address, size, space)
                    continue
                lane_base = load_i64(row + lay.ALLOC_BASE)
                lane_limit = lane_base + load_i64(row + lay.ALLOC_SIZE)
                lane_delta = load_i64(ctx + lay.CTX_ARENA_DELTA)
        if address < lane_base or address > lane_limit - size:
            record_fault(ctx, lay.FAULT_OUT_OF_BOUNDS, site, lane_id, address, size, space)
            continue
        if space == lay.LOCAL:
            step = 4 * lay.LANES
            where = load_i64(ctx + lay.CTX_LOCAL) + (address >> 2) * step + 4 * lane_id + (address & 3)
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
        store_i64(host + 8 * lane_id, where)
        store_i64(stride + 8 * lane_id, step)
        good |= bit
    if mask == 0:
        return 0
    cost = 0
    lines = 0
    ideal = 0
    if in_global != 0:
        if mode & lay.MODE_SANITIZE and load_i32(op + lay.OP_SPECULATIVE) == 0:
            check_global(ctx, site, effective, host, in_global, size, access, values, width)
        ideal += (distinct_addresses(ctx, effective, in_global) * size + 31) >> 5
        sectors_and_lines = distinct_sectors(ctx, effective, in_global, size)
        cost += sectors_and_lines & 0xFFFF
        lines += sectors_and_lines >> 16
        if mode & lay.MODE_CACHE:
            masks = store_masks(ctx, effective, in_global, size, cost) if access == lay.STORE else 0
            cache_access(ctx, cost, access, masks)
            if access == lay.LOAD:
                note_words_of_lanes(ctx, effective, in_global, size)
    if in_shared != 0:
        cost += bank_wavefronts(ctx, effective, in_shared, size)
        ideal += ideal_shared(ctx, effective, in_shared, size)
        if mode & lay.MODE_SANITIZE_SHARED and load_i32(op + lay.OP_SPECULATIVE) == 0:
            check_shared(ctx, site, effective, in_shared, size, access)
        if mode & lay.MODE_RACECHECK:
            check_race(ctx, op, site, effective, in_shared, size, access, values, width)
        if mode & lay.MODE_PROXIES and access != lay.LOAD:
            note_stores(ctx, effective, in_shared, size)
    if in_peers != 0:
        count_peers(ctx, op, effective, in_peers, size)
        if good == in_peers:
            return good
    if in_local != 0:
        sectors_and_lines = local_sectors(ctx, effective, in_local, size)
        cost += sectors_and_lines & 0xFFFF
        lines += sectors_and_lines >> 16
        ideal += (popcount(in_local) * size + 31) >> 5
    # A pattern holds addresses as the instruction has them; generic ones of a window differ from those checked here.
    same_space = in_local == 0 and (
        in_shared | in_param == 0 or (declared != lay.GENERIC and declared != lay.SHARED_CLUSTER and in_global == 0)
    )
    watched = mode & (lay.MODE_RACECHECK | lay.MODE_CACHE | lay.MODE_SANITIZE) != 0
    regular = not watched and good == mask and single and same_space and access != lay.ATOMIC
    if regular and remember(op, addresses, effective, mask, size, cost, lines, ideal, base, limit, delta):
        return good
    store_i64(op + lay.OP_REQUESTS, load_i64(op + lay.OP_REQUESTS) + 1)
    store_i64(op + lay.OP_TRANSACTIONS, load_i64(op + lay.OP_TRANSACTIONS) + cost)
    store_i64(op + lay.OP_LINES, load_i64(op + lay.OP_LINES) + lines)
    store_i64(op + lay.OP_THREADS, load_i64(op + lay.OP_THREADS) + popcount(good & ~in_peers))
    store_i64(op + lay.OP_IDEAL_TOTAL, load_i64(op + lay.OP_IDEAL_TOTAL) + ideal)
    return good


@exported
def slow_load(ctx: int, op: int, addresses: int, mask: int, out: int, width: int) -> None:
    """Load each lane's elements of ``width`` bytes into ``out`` (element-major); refused lanes get 0."""
    good = resolve(ctx, op, addresses, mask, 0, 4)
    scratch = load_i64(ctx + lay.CTX_SCRATCH)
    elements = load_i32(op + lay.OP_BYTES) // width
    for lane_id in range(lay.LANES):
        ok = good >> lane_id & 1
        address = load_i64(scratch + HOST + 8 * lane_id)
        step = load_i64(scratch + STRIDE + 8 * lane_id)
        for k in range(elements):
            value = 0
            if ok:
                value = read_element(address, step, k * width, width)
            write_element(out, 4, (k * lay.LANES + lane_id) * width, width, value)


@exported
def slow_store(ctx: int, op: int, addresses: int, mask: int, values: int, width: int) -> None:
    """Store each allowed lane's elements; lanes with one address: the highest lane wins."""
    good = resolve(ctx, op, addresses, mask, values, width)
    scratch = load_i64(ctx + lay.CTX_SCRATCH)
    elements = load_i32(op + lay.OP_BYTES) // width
    while good != 0:
        lane_id = trailing_zeros(good)
        good &= good - 1
        address = load_i64(scratch + HOST + 8 * lane_id)
        step = load_i64(scratch + STRIDE + 8 * lane_id)
        for k in range(elements):
            value = read_element(values, 4, (k * lay.LANES + lane_id) * width, width)
            write_element(address, step, k * width, width, value)
