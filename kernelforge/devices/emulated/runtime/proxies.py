"""Stores to shared memory that bulk copies and ``wgmma`` read: each needs a ``fence.proxy.async`` between them.

Threads access memory through the generic proxy, bulk copies and ``wgmma`` through the async proxy. A store is visible
to the latter only after a proxy fence on the way from it to the read (PTX ISA, *Async proxy* and *Causality order*):
by the thread that stored, or by one that comes after it. ``cp.async`` counts as neither, for CUTLASS has no fence
between it and ``wgmma``. A fence counts for every later read, whether or not it is ordered before it, and only for
stores to shared memory of its own CTA: a kernel that leaves the fence to another CTA of the cluster is reported.

The record of a CTA, behind that of the race check: for each thread the moment up to which fences cover its stores,
u32; then a word of 8 bytes for each 4 bytes of shared memory, the moment and the thread of its last store, or 0.
"""

from __future__ import annotations

from kernelforge.devices.emulated import layout as lay
from kernelforge.devices.emulated.codegen.numba_intrinsics import (
    exported,
    fill_bytes,
    load_i32,
    load_i64,
    load_u32,
    native,
    store_i64,
    store_u32,
    trailing_zeros,
)
from kernelforge.devices.emulated.runtime.faults import (
    behind_cells,
    latest_met,
    next_moment,
    ordered_up_to,
    record_fault,
)

_COVERED_BYTES = 4 * lay.LANES * lay.LANES
_SPARE_WORDS = 4
"""Behind the end of shared memory, for the last store."""


def proxy_bytes(shared_bytes: int) -> int:
    """Size of the record of one CTA."""
    return _COVERED_BYTES + 8 * (shared_bytes // 4 + _SPARE_WORDS)


@native
def record(ctx: int) -> int:
    """Address of the record of the CTA's shared memory."""
    return behind_cells(ctx, load_i64(ctx + lay.CTX_SHADOW))


@native
def watches(ctx: int) -> bool:
    """Whether the launch has such records."""
    return load_i64(ctx + lay.CTX_MODE) & lay.MODE_PROXIES != 0


@native
def begin_records(ctx: int, shadow: int) -> None:
    """Clear the record of a CTA that starts, whose record of races is at ``shadow``."""
    words = load_i64(ctx + lay.CTX_SHARED_BYTES) // 4 + _SPARE_WORDS
    fill_bytes(behind_cells(ctx, shadow), 0, _COVERED_BYTES + 8 * words)


@native
def note_stores(ctx: int, addresses: int, mask: int, size: int) -> None:
    """Remember a store by each lane of ``mask``, at the present moment."""
    words = record(ctx) + _COVERED_BYTES
    stamp = load_i64(ctx + lay.CTX_MOMENT) << 10 | load_i32(ctx + lay.CTX_WARP) << 5
    while mask != 0:
        lane_id = trailing_zeros(mask)
        mask &= mask - 1
        address = load_i64(addresses + 8 * lane_id)
        for word in range(address >> 2, (address + size + 3) >> 2):
            store_i64(words + 8 * word, stamp | lane_id)


@native
def forget_stores(ctx: int, rank: int, offset: int, size: int) -> None:
    """Other bytes than a thread's stores are in shared memory of a CTA of the cluster from now on."""
    distance = (rank - load_i32(ctx + lay.CTX_CLUSTER_CTARANK)) * load_i64(ctx + lay.CTX_SHADOW_STRIDE)
    words = record(ctx) + distance + _COVERED_BYTES
    fill_bytes(words + 8 * (offset >> 2), 0, 8 * ((offset + size + 3 >> 2) - (offset >> 2)))


@native
def check_read(ctx: int, site: int, lane_id: int, offset: int, size: int) -> None:
    """Record a fault if bytes that the async proxy reads were stored, and no fence covers the store."""
    covered = record(ctx)
    for word in range(offset >> 2, (offset + size + 3) >> 2):
        stored = load_i64(covered + _COVERED_BYTES + 8 * word)
        if stored != 0 and stored >> 10 >= load_u32(covered + 4 * (stored & 1023)):
            record_fault(ctx, lay.FAULT_PROXY, site, lane_id, 4 * word, size, lay.SHARED)
            return


@exported
def proxy_fence(ctx: int, mask: int) -> None:
    """``fence.proxy.async`` by some lanes: it covers their stores, and those that they come after."""
    if not watches(ctx):
        return
    moment = next_moment(ctx)
    covered = record(ctx)
    before = load_i64(ctx + lay.CTX_EPOCH_MOMENT)
    for other_warp in range(lay.LANES):
        bound = ordered_up_to(ctx, other_warp)
        for lane_id in range(lay.LANES):
            cell = covered + 4 * (lay.LANES * other_warp + lane_id)
            store_u32(cell, max(load_u32(cell), bound))
    warp = load_i32(ctx + lay.CTX_WARP)
    together = load_i64(load_i64(ctx + lay.CTX_STATE) + lay.W_TOGETHER)
    met = load_i64(ctx + lay.CTX_MET) + lay.MET_BYTES * warp
    for other in range(lay.LANES):
        bound = max(max(together, before), latest_met(met, mask, other))
        if mask >> other & 1:
            bound = moment
        cell = covered + 4 * (lay.LANES * warp + other)
        store_u32(cell, max(load_u32(cell), bound))
