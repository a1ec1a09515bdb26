"""Transfers under way: what completes at an mbarrier, or by groups of bulk copies, and the waits that complete it.

A transfer may complete at any time between its issue and the wait that covers it. Here it does so at that wait, and not
before: a thread that does not wait reads poison, and one that changes the source too early changes what is copied.
"""

from __future__ import annotations

from kernelforge.devices.emulated import layout as lay
from kernelforge.devices.emulated.codegen.numba_intrinsics import (
    copy_bytes,
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
from kernelforge.devices.emulated.layout import HOST
from kernelforge.devices.emulated.runtime.atomics import ADD_F32, FLUSHED_F32
from kernelforge.devices.emulated.runtime.boxes import LOAD, REDUCE, STORE, reduce_bytes, visit_box
from kernelforge.devices.emulated.runtime.copies import arrive, drop_arrived, entry_of
from kernelforge.devices.emulated.runtime.faults import record_fault
from kernelforge.devices.emulated.runtime.mbarrier import (
    ARRIVE,
    COMPLETE_BYTES,
    barrier_lanes,
    change_barrier,
    check_barrier,
    holds_barrier,
    mark_barrier,
    offset_of,
    parity,
    rank_of,
    record_of,
    site_of,
)

ARRIVAL = 1
COPY = 2
BOX_LOAD = 3
BOX_STORE = 4
TENSOR_ARRIVAL = 5
"""Kinds of transfer: an arrival when the thread's earlier ``cp.async`` are complete, adjacent bytes, a box of a tensor
map to shared memory, one to global memory, and an arrival when the thread's operations on tensor memory are complete:
of those it has their number as its size, and where that is written as its target."""


@native
def transfer_at(record: int, first: int, position: int) -> int:
    """Address of an entry of one of a record's rings, which ``first`` selects."""
    entries = lay.ASYNC_ARRIVALS if first == lay.ASYNC_ARRIVALS_FIRST else lay.ASYNC_GROUPED
    return record + entries + position % lay.ASYNC_CAPACITY * lay.TRANSFER_ENTRY


@native
def drop_complete(record: int, first: int) -> None:
    """Drop the oldest transfers of a ring that are complete."""
    for position in range(load_i32(record + first), load_i32(record + first + 4)):
        if load_i32(transfer_at(record, first, position)) != 0:
            store_u32(record + first, position)
            return
    store_u32(record + first, 0)
    store_u32(record + first + 4, 0)


@native
def new_transfer(ctx: int, record: int, first: int, kind: int, site: int, lane_id: int) -> int:
    """Address of a new entry of a ring; a full ring completes its oldest one."""
    if load_i32(record + first + 4) - load_i32(record + first) == lay.ASYNC_CAPACITY:
        complete(ctx, transfer_at(record, first, load_i32(record + first)))
        drop_complete(record, first)
    end = load_i32(record + first + 4)
    entry = transfer_at(record, first, end)
    store_u32(record + first + 4, end + 1)
    fill_bytes(entry, 0, lay.TRANSFER_ENTRY)
    store_u32(entry + lay.TRANSFER_KIND, kind)
    store_u32(entry + lay.TRANSFER_SITE, site)
    store_u32(entry + lay.TRANSFER_WARP, load_i32(ctx + lay.CTX_WARP))
    store_u32(entry + lay.TRANSFER_LANE, lane_id)
    return entry


@native
def complete(ctx: int, entry: int) -> None:
    """Do what a transfer does, and tell its mbarrier."""
    kind = load_i32(entry + lay.TRANSFER_KIND)
    store_u32(entry + lay.TRANSFER_KIND, 0)
    lane_id = load_i32(entry + lay.TRANSFER_LANE)
    size = load_i64(entry + lay.TRANSFER_SIZE)
    target = load_i64(entry + lay.TRANSFER_TARGET)
    if kind in (ARRIVAL, TENSOR_ARRIVAL):
        if kind == ARRIVAL:
            complete_copies(ctx, load_i32(entry + lay.TRANSFER_WARP), lane_id)
        else:
            store_i64(target, max(load_i64(target), size))
        site = load_i32(entry + lay.TRANSFER_SITE)
        change_barrier(ctx, site, lane_id, load_i64(entry + lay.TRANSFER_BARRIER), 1, 0, ARRIVE)
        return
    code = load_i32(entry + lay.TRANSFER_OPERATION)
    source = load_i64(entry + lay.TRANSFER_SOURCE)
    if kind == COPY:
        if code < 0:
            copy_bytes(target, source, size)
        else:
            kind = code & 15
            width = element_bytes(kind)
            if code == ADD_F32:
                kind = FLUSHED_F32
            reduce_bytes(target, source, size, code >> 4, kind, width)
    else:
        at = entry + lay.TRANSFER_AT
        offset = load_i64(entry + lay.TRANSFER_OFFSET)
        shared = target if kind == BOX_LOAD else source
        mode = LOAD if kind == BOX_LOAD else STORE if code < 0 else REDUCE
        visit_box(ctx, 0, entry + lay.TRANSFER_MAP, at, shared, offset, mode, code, lane_id)
    barrier = load_i64(entry + lay.TRANSFER_BARRIER)
    if barrier != 0 and holds_barrier(ctx, barrier):
        change_barrier(ctx, load_i32(entry + lay.TRANSFER_SITE), lane_id, barrier, 0, size, COMPLETE_BYTES)


@native
def element_bytes(kind: int) -> int:
    """Size of a type of atomics, by its position in their list."""
    if kind >= 6:
        return 2
    return 4 if kind < 3 else 8


@native
def complete_copies(ctx: int, warp: int, lane_id: int) -> None:
    """Let all ``cp.async`` of one thread of the CTA arrive.

    The race check leaves them out: they are ordered by the barrier whose phase they belong to.
    """
    copies = load_i64(ctx + lay.CTX_COPIES)
    if copies == 0:
        return
    copies += (warp - load_i32(ctx + lay.CTX_WARP)) * load_i64(ctx + lay.CTX_COPIES_STRIDE)
    mode = load_i64(ctx + lay.CTX_MODE)
    store_i64(ctx + lay.CTX_MODE, mode & ~lay.MODE_RACECHECK)
    for position in range(load_i32(copies + lay.COPIES_FIRST), load_i32(copies + lay.COPIES_END)):
        entry = entry_of(copies, position)
        due = load_u32(entry + lay.COPY_MASK) & (1 << lane_id)
        if due != 0:
            arrive(ctx, entry, due)
    store_i64(ctx + lay.CTX_MODE, mode)
    drop_arrived(copies)


@native
def complete_arrivals(ctx: int, host: int, phase: int) -> None:
    """Complete the transfers that a barrier waits for, the oldest first, until its phase of one parity is complete."""
    record = record_of(ctx, rank_of(ctx, host))
    first = load_i32(record + lay.ASYNC_ARRIVALS_FIRST)
    for position in range(first, load_i32(record + lay.ASYNC_ARRIVALS_END)):
        if parity(load_i64(host)) != phase:
            break
        entry = transfer_at(record, lay.ASYNC_ARRIVALS_FIRST, position)
        if load_i32(entry + lay.TRANSFER_KIND) != 0 and load_i64(entry + lay.TRANSFER_BARRIER) == host:
            complete(ctx, entry)
    drop_complete(record, lay.ASYNC_ARRIVALS_FIRST)


@exported
def mbarrier_wait(ctx: int, op: int, addresses: int, mask: int, phases: int) -> int:
    """``mbarrier.test_wait`` and ``try_wait`` for the phases of some parities, i64 per lane.

    Both stop the warp until the phases are complete: a thread may be as late as it likes. Returns -1 then, and
    otherwise the lanes whose phase is complete. Where nothing else can continue, the wait ends without that.
    """
    good = barrier_lanes(ctx, op, addresses, mask)
    scratch = load_i64(ctx + lay.CTX_SCRATCH)
    state = load_i64(ctx + lay.CTX_STATE)
    site = site_of(ctx, op)
    passed = mask & ~good
    while good != 0:
        lane_id = trailing_zeros(good)
        good &= good - 1
        host = load_i64(scratch + HOST + 8 * lane_id)
        if not check_barrier(ctx, site, lane_id, host):
            passed |= 1 << lane_id
            continue
        phase = load_i64(phases + 8 * lane_id)
        if parity(load_i64(host)) == phase:
            complete_arrivals(ctx, host, phase)
        if parity(load_i64(host)) != phase:
            passed |= 1 << lane_id
    if passed == mask:
        store_u32(state + lay.W_WAIT_SITE, 0)
        store_i64(ctx + lay.CTX_PROGRESS, 1)
        return passed
    store_u32(state + lay.W_WAIT_SITE, site + 1)
    store_u32(state + lay.W_WAIT_FAULT, lay.FAULT_MBARRIER_DEADLOCK)
    if load_i64(ctx + lay.CTX_IMPATIENCE) < 2:
        store_i64(ctx + lay.CTX_WAITS, 1)
        return -1
    return passed


@exported
def mbarrier_inval(ctx: int, op: int, addresses: int, mask: int) -> None:
    """``mbarrier.inval``: the memory holds no barrier any longer."""
    good = barrier_lanes(ctx, op, addresses, mask)
    scratch = load_i64(ctx + lay.CTX_SCRATCH)
    site = site_of(ctx, op)
    while good != 0:
        lane_id = trailing_zeros(good)
        good &= good - 1
        host = load_i64(scratch + HOST + 8 * lane_id)
        if not check_barrier(ctx, site, lane_id, host):
            continue
        record = record_of(ctx, rank_of(ctx, host))
        for position in range(load_i32(record + lay.ASYNC_ARRIVALS_FIRST), load_i32(record + lay.ASYNC_ARRIVALS_END)):
            entry = transfer_at(record, lay.ASYNC_ARRIVALS_FIRST, position)
            if load_i32(entry + lay.TRANSFER_KIND) != 0 and load_i64(entry + lay.TRANSFER_BARRIER) == host:
                record_fault(ctx, lay.FAULT_MBARRIER_BUSY, site, lane_id, offset_of(ctx, host), 8, lay.SHARED)
                store_u32(entry + lay.TRANSFER_KIND, 0)
        mark_barrier(ctx, host, False)


@exported
def copy_arrive(ctx: int, op: int, addresses: int, mask: int, expected: int) -> None:
    """``cp.async.mbarrier.arrive``: each thread arrives when its copies have; not ``expected``: one arrival more."""
    good = barrier_lanes(ctx, op, addresses, mask)
    scratch = load_i64(ctx + lay.CTX_SCRATCH)
    site = site_of(ctx, op)
    while good != 0:
        lane_id = trailing_zeros(good)
        good &= good - 1
        host = load_i64(scratch + HOST + 8 * lane_id)
        if not check_barrier(ctx, site, lane_id, host):
            continue
        if expected == 0:
            word = load_i64(host)
            if word & lay.MBARRIER_MOST == lay.MBARRIER_MOST:
                record_fault(ctx, lay.FAULT_MBARRIER_COUNT, site, lane_id, offset_of(ctx, host), 8, lay.SHARED)
                continue
            store_i64(host, word + 1)
        record = record_of(ctx, load_i32(ctx + lay.CTX_CLUSTER_CTARANK))
        entry = new_transfer(ctx, record, lay.ASYNC_ARRIVALS_FIRST, ARRIVAL, site, lane_id)
        store_i64(entry + lay.TRANSFER_BARRIER, host)


@native
def group_cell(ctx: int, record: int, lane_id: int) -> int:
    """Address of the number of groups of bulk copies that a thread of the running warp has committed."""
    return record + lay.ASYNC_GROUPS + 4 * (lay.LANES * load_i32(ctx + lay.CTX_WARP) + lane_id)


@exported
def bulk_commit(ctx: int, mask: int) -> None:
    """``cp.async.bulk.commit_group``: make a group of the copies that each lane has issued since its last group."""
    record = record_of(ctx, load_i32(ctx + lay.CTX_CLUSTER_CTARANK))
    while mask != 0:
        lane_id = trailing_zeros(mask)
        mask &= mask - 1
        cell = group_cell(ctx, record, lane_id)
        store_u32(cell, load_i32(cell) + 1)


@exported
def bulk_wait(ctx: int, mask: int, pending: int) -> None:
    """``cp.async.bulk.wait_group``: every lane's groups but its last ``pending`` complete, the oldest copies first.

    With ``.read`` too: a copy is complete at the latest when its source has been read.
    """
    record = record_of(ctx, load_i32(ctx + lay.CTX_CLUSTER_CTARANK))
    warp = load_i32(ctx + lay.CTX_WARP)
    for position in range(load_i32(record + lay.ASYNC_GROUPED_FIRST), load_i32(record + lay.ASYNC_GROUPED_END)):
        entry = transfer_at(record, lay.ASYNC_GROUPED_FIRST, position)
        lane_id = load_i32(entry + lay.TRANSFER_LANE)
        if load_i32(entry) == 0 or load_i32(entry + lay.TRANSFER_WARP) != warp or not mask >> lane_id & 1:
            continue
        if load_i32(entry + lay.TRANSFER_GROUP) < load_i32(group_cell(ctx, record, lane_id)) - pending:
            complete(ctx, entry)
    drop_complete(record, lay.ASYNC_GROUPED_FIRST)


@native
def complete_grouped(ctx: int, record: int) -> None:
    """Complete the copies of a CTA that ends: what they write is there after the kernel."""
    for position in range(load_i32(record + lay.ASYNC_GROUPED_FIRST), load_i32(record + lay.ASYNC_GROUPED_END)):
        entry = transfer_at(record, lay.ASYNC_GROUPED_FIRST, position)
        if load_i32(entry) != 0:
            complete(ctx, entry)
    drop_complete(record, lay.ASYNC_GROUPED_FIRST)
