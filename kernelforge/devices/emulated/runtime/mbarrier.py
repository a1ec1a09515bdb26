"""Barriers in shared memory (``mbarrier``): counts of arrivals and bytes, phases, and their misuse.

A phase is complete when no arrival and no byte is missing; the next one begins at once. A thread that sees that a phase
is complete comes after everything that its arrivals came after. So each phase raises the epoch of its CTA, and the race
check reports no accesses that an mbarrier may order.
"""

from __future__ import annotations

from kernelforge.devices.emulated import layout as lay
from kernelforge.devices.emulated.codegen.numba_intrinsics import (
    exported,
    fill_bytes,
    load_i32,
    load_i64,
    load_u8,
    native,
    store_i64,
    store_u8,
    trailing_zeros,
)
from kernelforge.devices.emulated.layout import EFFECTIVE, HOST
from kernelforge.devices.emulated.runtime.access import resolve
from kernelforge.devices.emulated.runtime.faults import raise_epoch, raise_epoch_of, record_fault

EXPECT_BYTES = 1
COMPLETE_BYTES = 2
ARRIVE = 4
DROP = 8
NO_COMPLETE = 16
"""What one instruction does to a barrier, as generated code encodes it: flags."""


@native
def rank_of(ctx: int, host: int) -> int:
    """Rank in the cluster of the CTA that has a host address in its shared memory."""
    return (host - load_i64(ctx + lay.CTX_PEER_SHARED)) // load_i64(ctx + lay.CTX_PEER_STRIDE)


@native
def offset_of(ctx: int, host: int) -> int:
    """Offset of a host address in the shared memory of its CTA."""
    return (host - load_i64(ctx + lay.CTX_PEER_SHARED)) % load_i64(ctx + lay.CTX_PEER_STRIDE)


@native
def record_of(ctx: int, rank: int) -> int:
    """Record of the mbarriers and bulk copies of a CTA of the cluster."""
    return load_i64(ctx + lay.CTX_ASYNC) + rank * load_i64(ctx + lay.CTX_ASYNC_STRIDE)


@native
def mark_barrier(ctx: int, host: int, there: bool) -> None:
    """Remember that an mbarrier begins, or ends, to be at a host address."""
    number = offset_of(ctx, host) >> 3
    byte = record_of(ctx, rank_of(ctx, host)) + lay.ASYNC_BARRIERS + (number >> 3)
    bit = 1 << (number & 7)
    store_u8(byte, load_u8(byte) | bit if there else load_u8(byte) & ~bit)


@native
def holds_barrier(ctx: int, host: int) -> bool:
    """Whether an mbarrier is at a host address."""
    number = offset_of(ctx, host) >> 3
    byte = record_of(ctx, rank_of(ctx, host)) + lay.ASYNC_BARRIERS + (number >> 3)
    return load_u8(byte) >> (number & 7) & 1 != 0


@native
def parity(word: int) -> int:
    """Parity of a barrier's phase."""
    return word >> lay.MBARRIER_PHASE & 1


@native
def barrier_word(expected: int, pending: int, missing: int, phase: int) -> int:
    """A barrier's word; ``missing`` bytes may be negative."""
    return (
        pending
        | (expected << lay.MBARRIER_EXPECTED)
        | ((missing + lay.MBARRIER_BIAS) << lay.MBARRIER_BYTES)
        | (phase << lay.MBARRIER_PHASE)
    )


@native
def change_barrier(ctx: int, site: int, lane_id: int, host: int, count: int, nbytes: int, code: int) -> None:
    """Change a barrier as the flags of ``code`` say, and begin the next phase if this one is complete."""
    word = load_i64(host)
    most = lay.MBARRIER_MOST
    pending = word & most
    expected = word >> lay.MBARRIER_EXPECTED & most
    missing = (word >> lay.MBARRIER_BYTES & (2 * most + 1)) - lay.MBARRIER_BIAS
    phase = parity(word)
    where = offset_of(ctx, host)
    if code & EXPECT_BYTES:
        missing += nbytes
    if code & COMPLETE_BYTES:
        missing -= nbytes
    if missing > most or missing < -most or nbytes < 0 or nbytes > most:
        record_fault(ctx, lay.FAULT_MBARRIER_BYTES, site, lane_id, where, 8, lay.SHARED)
        return
    if code & ARRIVE:
        if count < 1 or count > pending or (code & NO_COMPLETE and count == pending and missing == 0):
            record_fault(ctx, lay.FAULT_MBARRIER_COUNT, site, lane_id, where, 8, lay.SHARED)
            return
        pending -= count
        if code & DROP:
            expected -= count
    if pending == 0 and missing == 0:
        phase ^= 1
        pending = expected
        rank = rank_of(ctx, host)
        if rank == load_i32(ctx + lay.CTX_CLUSTER_CTARANK):
            raise_epoch(ctx)
        else:
            raise_epoch_of(ctx, load_i64(ctx + lay.CTX_PEERS) + rank * lay.SLOT_BYTES)
    store_i64(ctx + lay.CTX_PROGRESS, 1)
    store_i64(host, barrier_word(expected, pending, missing, phase))


@native
def check_barrier(ctx: int, site: int, lane_id: int, host: int) -> bool:
    """Whether there is an mbarrier; it is a fault otherwise."""
    if holds_barrier(ctx, host):
        return True
    record_fault(ctx, lay.FAULT_NO_MBARRIER, site, lane_id, offset_of(ctx, host), 8, lay.SHARED)
    return False


@native
def site_of(ctx: int, op: int) -> int:
    """Number of a memory record."""
    return (op - load_i64(ctx + lay.CTX_OPS)) // lay.OP_RECORD


@native
def barrier_lanes(ctx: int, op: int, addresses: int, mask: int) -> int:
    """Lanes whose address is one in the shared memory of the cluster; their host addresses are left in scratch."""
    good = resolve(ctx, op, addresses, mask, 0, 4)
    scratch = load_i64(ctx + lay.CTX_SCRATCH)
    rest = good
    while rest != 0:
        lane_id = trailing_zeros(rest)
        rest &= rest - 1
        rank = rank_of(ctx, load_i64(scratch + HOST + 8 * lane_id))
        if rank < 0 or rank >= load_i32(ctx + lay.CTX_CLUSTER_NCTARANK):
            good &= ~(1 << lane_id)
            address = load_i64(scratch + EFFECTIVE + 8 * lane_id)
            record_fault(ctx, lay.FAULT_OUT_OF_BOUNDS, site_of(ctx, op), lane_id, address, 8, lay.SHARED)
    return good


@exported
def mbarrier_init(ctx: int, op: int, addresses: int, mask: int, counts: int) -> None:
    """``mbarrier.init``: the counts are i32 per lane."""
    good = barrier_lanes(ctx, op, addresses, mask)
    scratch = load_i64(ctx + lay.CTX_SCRATCH)
    while good != 0:
        lane_id = trailing_zeros(good)
        good &= good - 1
        host = load_i64(scratch + HOST + 8 * lane_id)
        count = load_i32(counts + 4 * lane_id)
        if count < 1 or count > lay.MBARRIER_MOST:
            where = offset_of(ctx, host)
            record_fault(ctx, lay.FAULT_MBARRIER_COUNT, site_of(ctx, op), lane_id, where, 8, lay.SHARED)
            continue
        mark_barrier(ctx, host, True)
        store_i64(host, barrier_word(count, count, 0, 0))


@exported
def mbarrier_change(
    ctx: int, op: int, addresses: int, mask: int, counts: int, sizes: int, states: int, code: int
) -> None:
    """Arrivals, expected bytes and completed bytes, lane by lane; counts and bytes are i32 per lane.

    The barrier's word before each lane's change is left in ``states``, i64 per lane.
    """
    good = barrier_lanes(ctx, op, addresses, mask)
    scratch = load_i64(ctx + lay.CTX_SCRATCH)
    site = site_of(ctx, op)
    fill_bytes(states, 0, 8 * lay.LANES)
    while good != 0:
        lane_id = trailing_zeros(good)
        good &= good - 1
        host = load_i64(scratch + HOST + 8 * lane_id)
        if check_barrier(ctx, site, lane_id, host):
            store_i64(states + 8 * lane_id, load_i64(host))
            count = load_i32(counts + 4 * lane_id)
            change_barrier(ctx, site, lane_id, host, count, load_i32(sizes + 4 * lane_id), code)
