"""Issue of bulk copies (``cp.async.bulk``, of bytes and of boxes): bounds, alignment, counts, and their transfers.

Generated code leaves the operands of each lane in areas of 512 bytes: the addresses of the target, the source and the
mbarrier, each i64; then the sizes (of a column in a wide mode the pixels of its halo) and, 128 bytes on, the masks of
CTAs, each i32; then five coordinates and three offsets, i32 per lane.
"""

from __future__ import annotations

from kernelforge.devices.emulated import layout as lay
from kernelforge.devices.emulated.codegen.numba_intrinsics import (
    copy_bytes,
    exported,
    fill_bytes,
    load_i32,
    load_i64,
    load_u8,
    load_u32,
    native,
    store_i64,
    store_u32,
    trailing_zeros,
)
from kernelforge.devices.emulated.layout import EFFECTIVE
from kernelforge.devices.emulated.runtime.access import find_allocation, resolve_peer
from kernelforge.devices.emulated.runtime.boxes import (
    COUNT,
    OFFSETS,
    box_bytes,
    count_range,
    count_request,
    is_tensor_map,
    visit_box,
)
from kernelforge.devices.emulated.runtime.faults import check_race, record_fault
from kernelforge.devices.emulated.runtime.mbarrier import check_barrier, offset_of, rank_of, record_of, site_of
from kernelforge.devices.emulated.runtime.products import check_reads
from kernelforge.devices.emulated.runtime.proxies import check_read, forget_stores, watches
from kernelforge.devices.emulated.runtime.tensor_memory import check_sources
from kernelforge.devices.emulated.runtime.transfers import BOX_LOAD, BOX_STORE, COPY, group_cell, new_transfer

TARGETS = 0
SOURCES = lay.SCRATCH_AREA
BARRIERS = 2 * lay.SCRATCH_AREA
SIZES = 3 * lay.SCRATCH_AREA
CTAS = SIZES + 4 * lay.LANES
COORDINATES = 4 * lay.SCRATCH_AREA
HALO_LIMIT = 512
HALO_LIMIT_128 = 32
OFFSET_LIMIT = 32
"""The operands of the wide modes are below these (PTX ISA, *cp.async.bulk.tensor*)."""
_COPY_OF_MAP = 256
"""Where the scratch holds a map that an instruction changes; its coordinates are before that."""

MULTICAST = 1
REDUCES = 2
IM2COL = 4
PAIRED = 8
WIDE = 16
WIDE_128 = 32
ROWS = 64
"""Flags of a copy, as generated code encodes them; from bit 8 on the operation and type of a reduction."""


@native
def locate(ctx: int, op: int, lane_id: int, address: int, size: int, align: int) -> int:
    """Host address of bytes that a copy reads or writes; 0 where it is a fault. ``address`` lacks the offset."""
    site = site_of(ctx, op)
    space = load_i32(op + lay.OP_SPACE)
    access = load_i32(op + lay.OP_ACCESS)
    address += load_i64(op + lay.OP_OFFSET)
    if load_i32(op + lay.OP_NARROW):
        address &= 0xFFFFFFFF
    window = load_i64(ctx + lay.CTX_SHARED_WINDOW)
    if space == lay.GENERIC:
        space = lay.GLOBAL
        if address >= window and address < window + lay.WINDOW_BYTES:
            space = lay.SHARED_CLUSTER
            address -= window
    if address & (align - 1) != 0:
        record_fault(ctx, lay.FAULT_COPY_ALIGNMENT, site, lane_id, address, size, space)
        return 0
    if space == lay.GLOBAL:
        row = find_allocation(ctx, address, size)
        if row == 0:
            record_fault(ctx, lay.FAULT_OUT_OF_BOUNDS, site, lane_id, address, size, space)
            return 0
        flags = load_i64(row + lay.ALLOC_FLAGS)
        if access != lay.LOAD and flags != 0:
            kind = lay.FAULT_MODULE_WRITE if flags & lay.FLAG_MODULE else lay.FAULT_READ_ONLY_WRITE
            record_fault(ctx, kind, site, lane_id, address, size, space)
            return 0
        return address + load_i64(ctx + lay.CTX_ARENA_DELTA)
    rank = address >> lay.PEER_SHIFT
    if space == lay.SHARED_CLUSTER and rank > 0 and rank != load_i32(ctx + lay.CTX_CLUSTER_CTARANK) + 1:
        return resolve_peer(ctx, site, lane_id, address, size)
    if space == lay.SHARED_CLUSTER and rank > 0:
        address &= (1 << lay.PEER_SHIFT) - 1
    if address < 0 or address > load_i64(ctx + lay.CTX_SHARED_BYTES) - size:
        record_fault(ctx, lay.FAULT_OUT_OF_BOUNDS, site, lane_id, address, size, lay.SHARED)
        return 0
    return load_i64(ctx + lay.CTX_SHARED) + address


@native
def count_global(ctx: int, op: int, host: int, size: int, access: int) -> None:
    """Count adjacent bytes of global memory as one request."""
    count_request(op, size)
    count_range(ctx, op, host - load_i64(ctx + lay.CTX_ARENA_DELTA), size, access, -1)


@native
def check_shared(ctx: int, op: int, lane_id: int, host: int, size: int, access: int) -> None:
    """Look for races of a copy in the CTA's own shared memory, as if its thread made the access at once.

    What it reads must not be a thread's store without a proxy fence.
    """
    start = load_i64(ctx + lay.CTX_SHARED)
    inside = host >= start and host < start + load_i64(ctx + lay.CTX_SHARED_BYTES)
    if load_i64(ctx + lay.CTX_MODE) & lay.MODE_RACECHECK and inside:
        addresses = load_i64(ctx + lay.CTX_SCRATCH) + EFFECTIVE
        store_i64(addresses + 8 * lane_id, host - start)
        check_race(ctx, op, site_of(ctx, op), addresses, 1 << lane_id, size, access, 0, 1)
        if access == lay.LOAD and watches(ctx):
            check_read(ctx, site_of(ctx, op), lane_id, host - start, size)


@native
def is_in_cluster(ctx: int, host: int) -> bool:
    """Whether a host address is in the shared memory of a CTA of the cluster."""
    distance = host - load_i64(ctx + lay.CTX_PEER_SHARED)
    ctas = load_i32(ctx + lay.CTX_CLUSTER_NCTARANK)
    return distance >= 0 and distance < ctas * load_i64(ctx + lay.CTX_PEER_STRIDE)


@native
def issue(
    ctx: int, op: int, lane_id: int, kind: int, target: int, source: int, size: int, barrier: int, code: int
) -> int:
    """Record a transfer that completes at a barrier; its target is undefined until then. Returns the entry, or 0.

    ``op`` is the record of the target, the barrier's comes after it.
    """
    site = site_of(ctx, op + lay.OP_RECORD)
    if not check_barrier(ctx, site, lane_id, barrier):
        return 0
    distance = barrier - load_i64(ctx + lay.CTX_PEER_SHARED)
    record = record_of(ctx, distance // load_i64(ctx + lay.CTX_PEER_STRIDE))
    check_reads(ctx, site_of(ctx, op), lane_id, record, offset_of(ctx, target), size)
    check_sources(ctx, site_of(ctx, op), lane_id, rank_of(ctx, target), offset_of(ctx, target), size)
    if code < 0:
        fill_bytes(target, load_i64(ctx + lay.CTX_POISON), size)
    check_shared(ctx, op, lane_id, target, size, lay.STORE if code < 0 else lay.ATOMIC)
    if code < 0 and watches(ctx):
        forget_stores(ctx, rank_of(ctx, target), offset_of(ctx, target), size)
    entry = new_transfer(ctx, record, lay.ASYNC_ARRIVALS_FIRST, kind, site, lane_id)
    store_i64(entry + lay.TRANSFER_TARGET, target)
    store_i64(entry + lay.TRANSFER_SOURCE, source)
    store_i64(entry + lay.TRANSFER_SIZE, size)
    store_i64(entry + lay.TRANSFER_BARRIER, barrier)
    store_u32(entry + lay.TRANSFER_OPERATION, code)
    store_i64(entry + lay.TRANSFER_OFFSET, offset_of(ctx, target))
    return entry


@native
def issue_grouped(ctx: int, op: int, lane_id: int, kind: int, target: int, source: int, size: int, code: int) -> int:
    """Record a transfer from shared memory that its thread waits for by groups; returns the entry."""
    check_shared(ctx, op, lane_id, source, size, lay.LOAD)
    record = record_of(ctx, load_i32(ctx + lay.CTX_CLUSTER_CTARANK))
    entry = new_transfer(ctx, record, lay.ASYNC_GROUPED_FIRST, kind, site_of(ctx, op), lane_id)
    store_i64(entry + lay.TRANSFER_TARGET, target)
    store_i64(entry + lay.TRANSFER_SOURCE, source)
    store_i64(entry + lay.TRANSFER_SIZE, size)
    store_u32(entry + lay.TRANSFER_OPERATION, code)
    store_u32(entry + lay.TRANSFER_GROUP, load_i32(group_cell(ctx, record, lane_id)))
    store_i64(entry + lay.TRANSFER_OFFSET, source - load_i64(ctx + lay.CTX_SHARED))
    return entry


@native
def locate_map(ctx: int, op: int, areas: int, lane_id: int, address: int, code: int) -> int:
    """Host address of a tensor map that a generic address names; 0 where it is a fault, as that of another mode is.

    What an instruction adds to its map is in a copy of it, which lasts until the next one.
    """
    mode = lay.MAP_TILES
    if code & IM2COL:
        mode = lay.MAP_WIDE if code & WIDE else lay.MAP_WIDE_128 if code & WIDE_128 else lay.MAP_IMAGES
    address += load_i64(op + lay.OP_OFFSET)
    window = load_i64(ctx + lay.CTX_PARAM_WINDOW)
    host = 0
    if address >= window and address < window + lay.WINDOW_BYTES:
        if address - window <= load_i64(ctx + lay.CTX_PARAM_BYTES) - lay.MAP_BYTES:
            host = load_i64(ctx + lay.CTX_PARAMS) + address - window
    elif find_allocation(ctx, address, lay.MAP_BYTES) != 0:
        host = address + load_i64(ctx + lay.CTX_ARENA_DELTA)
    right = host != 0 and address & 63 == 0 and is_tensor_map(host) and load_u8(host + lay.MAP_MODE) == mode
    if code & ROWS and right:
        right = load_u8(host + lay.MAP_RANK) == 2 and load_i32(host + lay.MAP_BOX + 4) == 1
    if not right:
        record_fault(ctx, lay.FAULT_NO_TENSOR_MAP, site_of(ctx, op), lane_id, address, lay.MAP_BYTES, lay.GENERIC)
        return 0
    if code & (ROWS | WIDE | WIDE_128) == 0:
        return host
    copy = load_i64(ctx + lay.CTX_SCRATCH) + _COPY_OF_MAP
    copy_bytes(copy, host, lay.MAP_BYTES)
    if code & ROWS:
        fill_bytes(copy + lay.MAP_MODE, lay.MAP_ROWS, 1)
        return copy
    halo = load_i32(areas + SIZES + 4 * lane_id)
    offset = load_i32(areas + COORDINATES + 4 * (lay.LANES * 5 + lane_id))
    if halo >= (HALO_LIMIT if code & WIDE else HALO_LIMIT_128) or offset >= OFFSET_LIMIT:
        record_fault(ctx, lay.FAULT_WIDE_COLUMN, site_of(ctx, op), lane_id, halo, offset, lay.GENERIC)
        return 0
    store_u32(copy + lay.MAP_HALO, halo)
    return copy


@native
def coordinates_of(ctx: int, areas: int, lane_id: int) -> int:
    """Address of the coordinates of a lane's box, and of its offsets in im2col mode behind them."""
    coordinates = load_i64(ctx + lay.CTX_SCRATCH)
    for axis in range(5):
        store_u32(coordinates + 4 * axis, load_i32(areas + COORDINATES + 4 * (lay.LANES * axis + lane_id)))
    for axis in range(3):
        value = load_i32(areas + COORDINATES + 4 * (lay.LANES * (5 + axis) + lane_id))
        store_u32(coordinates + OFFSETS + 4 * axis, value)
    return coordinates


@native
def starts_aligned(ctx: int, op: int, lane_id: int, at: int, coordinates: int) -> bool:
    """Whether a box begins at a multiple of 16 bytes along the innermost dimension; it is a fault otherwise.

    No document of NVIDIA's demands it, but an H100 ended every such load with an illegal instruction. So do stores
    (https://github.com/tile-ai/tilelang/issues/2527), and Triton forbids both for its descriptors
    (https://github.com/triton-lang/triton/pull/9112).
    """
    element = load_u8(at + lay.MAP_ELEMENT)
    start = load_i32(coordinates)
    if start * element & 15 == 0:
        return True
    record_fault(ctx, lay.FAULT_BOX_ALIGNMENT, site_of(ctx, op), lane_id, start, element, lay.GENERIC)
    return False


@native
def first_cta(ctx: int, areas: int, lane_id: int, code: int) -> int:
    """CTAs of the cluster that a copy goes to, as a mask: those of the operand, or the own one."""
    if code & MULTICAST:
        return load_u32(areas + CTAS + 4 * lane_id) & ((1 << load_i32(ctx + lay.CTX_CLUSTER_NCTARANK)) - 1)
    return 1 << load_i32(ctx + lay.CTX_CLUSTER_CTARANK)


@native
def peer_address(ctx: int, host: int, rank: int) -> int:
    """Host address of the same place in the shared memory of the CTA of a rank."""
    stride = load_i64(ctx + lay.CTX_PEER_STRIDE)
    return load_i64(ctx + lay.CTX_PEER_SHARED) + rank * stride + offset_of(ctx, host)


@native
def signalled_cta(ctx: int, barrier: int, rank: int, code: int) -> int:
    """Rank of the CTA whose mbarrier a copy to a CTA completes at: that one's, or, in pairs of CTAs, the one of its
    pair whose rank is as odd as that of the CTA which the instruction's mbarrier is in."""
    if code & PAIRED == 0:
        return rank
    return rank & ~1 | rank_of(ctx, barrier) & 1


@native
def cta_runs(ctx: int, op: int, lane_id: int, rank: int, host: int) -> bool:
    """Whether a CTA of the cluster has not ended; it is a fault otherwise."""
    peer = load_i64(ctx + lay.CTX_PEERS) + rank * lay.SLOT_BYTES
    if load_i64(peer + lay.SLOT_CTA) >= 0 and load_i64(peer + lay.SLOT_LIVE) != 0:
        return True
    record_fault(ctx, lay.FAULT_PEER_ENDED, site_of(ctx, op), lane_id, offset_of(ctx, host), 16, lay.SHARED_CLUSTER)
    return False


@native
def reduced_type(kind: int) -> int:
    """Position of a tensor map's type in the list of types of atomics; 15 where it cannot be reduced."""
    if kind == 2:
        return 0
    if kind == 3:
        return 1
    if kind == 4:
        return 3
    if kind == 5:
        return 4
    if kind == 6:
        return 6
    if kind == 7:
        return 2
    if kind == 8:
        return 5
    return 7 if kind == 9 else 15


@exported
def bulk_copy(ctx: int, op: int, areas: int, mask: int, code: int) -> None:
    """``cp.async.bulk`` of bytes, and its reductions. Records from ``op`` on: source, target, mbarrier if there is one.

    A target in global memory belongs to a group of the thread; others complete at an mbarrier.
    """
    to = op + lay.OP_RECORD
    operation = code >> 8 if code & REDUCES else -1
    while mask != 0:
        lane_id = trailing_zeros(mask)
        mask &= mask - 1
        size = load_i32(areas + SIZES + 4 * lane_id)
        if size <= 0 or size & 15 != 0:
            record_fault(ctx, lay.FAULT_COPY_SIZE, site_of(ctx, op), lane_id, 0, size, lay.GENERIC)
            continue
        source = locate(ctx, op, lane_id, load_i64(areas + SOURCES + 8 * lane_id), size, 16)
        if source == 0:
            continue
        in_global = not is_in_cluster(ctx, source)
        target = locate(ctx, to, lane_id, load_i64(areas + TARGETS + 8 * lane_id), size, 16)
        if target == 0:
            continue
        if load_i32(to + lay.OP_SPACE) == lay.GLOBAL:
            count_global(ctx, to, target, size, load_i32(to + lay.OP_ACCESS))
            issue_grouped(ctx, op, lane_id, COPY, target, source, size, operation)
            continue
        if in_global:
            count_global(ctx, op, source, size, lay.LOAD)
        else:
            check_shared(ctx, op, lane_id, source, size, lay.LOAD)
        address = load_i64(areas + BARRIERS + 8 * lane_id)
        barrier = locate(ctx, to + lay.OP_RECORD, lane_id, address, 8, 8)
        if barrier == 0 or not is_in_cluster(ctx, barrier) or not is_in_cluster(ctx, target):
            continue
        if code & MULTICAST == 0:
            issue(ctx, to, lane_id, COPY, target, source, size, barrier, operation)
            continue
        ctas = first_cta(ctx, areas, lane_id, code)
        while ctas != 0:
            rank = trailing_zeros(ctas)
            ctas &= ctas - 1
            if cta_runs(ctx, to, lane_id, rank, target):
                there = peer_address(ctx, target, rank)
                issue(ctx, to, lane_id, COPY, there, source, size, peer_address(ctx, barrier, rank), operation)


@exported
def box_load(ctx: int, op: int, areas: int, mask: int, code: int) -> None:
    """``cp.async.bulk.tensor`` to shared memory. Records from ``op`` on: source, target, mbarrier."""
    to = op + lay.OP_RECORD
    while mask != 0:
        lane_id = trailing_zeros(mask)
        mask &= mask - 1
        at = locate_map(ctx, op, areas, lane_id, load_i64(areas + SOURCES + 8 * lane_id), code)
        if at == 0:
            continue
        size = box_bytes(at)
        target = locate(ctx, to, lane_id, load_i64(areas + TARGETS + 8 * lane_id), size, 128)
        barrier = locate(ctx, to + lay.OP_RECORD, lane_id, load_i64(areas + BARRIERS + 8 * lane_id), 8, 8)
        if target == 0 or barrier == 0 or not is_in_cluster(ctx, barrier) or not is_in_cluster(ctx, target):
            continue
        coordinates = coordinates_of(ctx, areas, lane_id)
        if not starts_aligned(ctx, op, lane_id, at, coordinates):
            continue
        inside = visit_box(ctx, op, at, coordinates, 0, 0, COUNT, lay.LOAD, lane_id)
        if inside < 0:
            continue
        count_request(op, inside)
        ctas = first_cta(ctx, areas, lane_id, code)
        while ctas != 0:
            rank = trailing_zeros(ctas)
            ctas &= ctas - 1
            there = target
            where = barrier
            if code & MULTICAST:
                if not cta_runs(ctx, to, lane_id, rank, target):
                    continue
                signalled = signalled_cta(ctx, barrier, rank, code)
                if signalled >= load_i32(ctx + lay.CTX_CLUSTER_NCTARANK):
                    record_fault(ctx, lay.FAULT_PEER_ENDED, site_of(ctx, to), lane_id, 0, 8, lay.SHARED_CLUSTER)
                    continue
                if not cta_runs(ctx, to, lane_id, signalled, barrier):
                    continue
                there = peer_address(ctx, target, rank)
                where = peer_address(ctx, barrier, signalled)
            entry = issue(ctx, to, lane_id, BOX_LOAD, there, 0, size, where, -1)
            if entry != 0:
                copy_bytes(entry + lay.TRANSFER_MAP, at, lay.MAP_BYTES)
                copy_bytes(entry + lay.TRANSFER_AT, coordinates, 20)
                copy_bytes(entry + lay.TRANSFER_OFFSETS, coordinates + OFFSETS, 12)


@exported
def box_store(ctx: int, op: int, areas: int, mask: int, code: int) -> None:
    """``cp.async.bulk.tensor`` and ``cp.reduce.async.bulk.tensor`` to global memory. Records: source, target."""
    to = op + lay.OP_RECORD
    while mask != 0:
        lane_id = trailing_zeros(mask)
        mask &= mask - 1
        at = locate_map(ctx, to, areas, lane_id, load_i64(areas + TARGETS + 8 * lane_id), code)
        if at == 0:
            continue
        size = box_bytes(at)
        source = locate(ctx, op, lane_id, load_i64(areas + SOURCES + 8 * lane_id), size, 128)
        if source == 0:
            continue
        operation = -1
        if code & REDUCES:
            operation = (code >> 8) << 4 | reduced_type(load_u8(at + lay.MAP_TYPE))
            if operation & 15 == 15:
                record_fault(ctx, lay.FAULT_NO_TENSOR_MAP, site_of(ctx, to), lane_id, 0, lay.MAP_BYTES, lay.GENERIC)
                continue
        coordinates = coordinates_of(ctx, areas, lane_id)
        if not starts_aligned(ctx, to, lane_id, at, coordinates):
            continue
        inside = visit_box(ctx, to, at, coordinates, 0, 0, COUNT, load_i32(to + lay.OP_ACCESS), lane_id)
        if inside < 0:
            continue
        count_request(to, inside)
        entry = issue_grouped(ctx, op, lane_id, BOX_STORE, 0, source, size, operation)
        copy_bytes(entry + lay.TRANSFER_MAP, at, lay.MAP_BYTES)
        copy_bytes(entry + lay.TRANSFER_AT, coordinates, 20)


@exported
def try_cancel(ctx: int, op: int, areas: int, mask: int, code: int) -> None:
    """``clusterlaunchcontrol.try_cancel``: zeros, which say that no cluster was left to cancel.

    Records from ``op`` on: the answer's place, mbarrier. Both are in the own CTA, or in each of the cluster.
    """
    while mask != 0:
        lane_id = trailing_zeros(mask)
        mask &= mask - 1
        target = locate(ctx, op, lane_id, load_i64(areas + TARGETS + 8 * lane_id), 16, 16)
        barrier = locate(ctx, op + lay.OP_RECORD, lane_id, load_i64(areas + BARRIERS + 8 * lane_id), 8, 8)
        if target == 0 or barrier == 0 or not is_in_cluster(ctx, barrier) or not is_in_cluster(ctx, target):
            continue
        ctas = 1 << rank_of(ctx, target)
        if code & MULTICAST:
            ctas = (1 << load_i32(ctx + lay.CTX_CLUSTER_NCTARANK)) - 1
        while ctas != 0:
            rank = trailing_zeros(ctas)
            ctas &= ctas - 1
            if not cta_runs(ctx, op, lane_id, rank, target):
                continue
            there = peer_address(ctx, target, rank)
            entry = issue(ctx, op, lane_id, COPY, there, 0, 16, peer_address(ctx, barrier, rank), -1)
            if entry != 0:
                store_i64(entry + lay.TRANSFER_SOURCE, entry + lay.TRANSFER_MAP)  # zeros, in a new entry


@exported
def prefetch(ctx: int, op: int, areas: int, mask: int, code: int) -> None:
    """``cp.async.bulk.prefetch``, of bytes or, with ``code``, of a box: checked, and read by the caches."""
    while mask != 0:
        lane_id = trailing_zeros(mask)
        mask &= mask - 1
        address = load_i64(areas + SOURCES + 8 * lane_id)
        if code:
            at = locate_map(ctx, op, areas, lane_id, address, code)
            if at == 0:
                continue
            coordinates = coordinates_of(ctx, areas, lane_id)
            visit_box(ctx, op, at, coordinates, 0, 0, COUNT, lay.LOAD, lane_id)
            continue
        size = load_i32(areas + SIZES + 4 * lane_id)
        if size <= 0 or size & 15 != 0:
            record_fault(ctx, lay.FAULT_COPY_SIZE, site_of(ctx, op), lane_id, 0, size, lay.GENERIC)
            continue
        host = locate(ctx, op, lane_id, address, size, 16)
        if host != 0:
            count_range(ctx, op, host - load_i64(ctx + lay.CTX_ARENA_DELTA), size, lay.LOAD, -1)
