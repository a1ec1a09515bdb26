"""Asynchronous copies (``cp.async``): their data arrives in shared memory when the thread waits for it.

Until then the target holds the run's poison, for the copy may arrive at any time between its issue and the wait that
covers its group. Copies that no thread waits for never arrive (PTX ISA, section on cp.async.wait_group: writes become
visible to the executing thread only after such a wait).
"""

from __future__ import annotations

from kernelforge.devices.emulated import layout as lay
from kernelforge.devices.emulated.codegen.numba_intrinsics import (
    exported,
    fill_bytes,
    load_i32,
    load_i64,
    load_u8,
    load_u32,
    native,
    store_i64,
    store_u8,
    store_u32,
    trailing_zeros,
)
from kernelforge.devices.emulated.layout import EFFECTIVE, HOST
from kernelforge.devices.emulated.runtime.access import resolve
from kernelforge.devices.emulated.runtime.faults import check_race
from kernelforge.devices.emulated.runtime.proxies import forget_stores, watches
from kernelforge.devices.emulated.runtime.sanitize import mark_shared


@native
def move(target: int, source: int, size: int) -> None:
    """Copy 4, 8 or 16 bytes."""
    if size == 4:
        store_u32(target, load_u32(source))
        return
    store_i64(target, load_i64(source))
    if size == 16:
        store_i64(target + 8, load_i64(source + 8))


@native
def entry_of(copies: int, position: int) -> int:
    """Address of a copy in the ring."""
    return copies + lay.COPIES_HEADER + (position % lay.COPIES_CAPACITY) * lay.COPY_ENTRY


@native
def arrive(ctx: int, entry: int, lanes: int) -> None:
    """Write the data of some lanes of a copy; the race check counts it as a write at this moment."""
    size = load_i32(entry + lay.COPY_SIZE)
    addresses = load_i64(ctx + lay.CTX_SCRATCH) + EFFECTIVE
    base = load_i64(ctx + lay.CTX_SHARED)
    rest = lanes
    while rest != 0:
        lane_id = trailing_zeros(rest)
        rest &= rest - 1
        target = load_i64(entry + lay.COPY_TARGETS + 8 * lane_id)
        move(target, entry + lay.COPY_DATA + 16 * lane_id, size)
        if load_i64(ctx + lay.CTX_MODE) & lay.MODE_SANITIZE_SHARED:
            mark_shared(ctx, target - base, size, True)
        store_i64(addresses + 8 * lane_id, target - base)
    if load_i64(ctx + lay.CTX_MODE) & lay.MODE_RACECHECK:
        op = load_i64(entry + lay.COPY_OP)
        site = (op - load_i64(ctx + lay.CTX_OPS)) // lay.OP_RECORD
        check_race(ctx, op, site, addresses, lanes, size, lay.STORE, 0, 1)
    store_u32(entry + lay.COPY_MASK, load_u32(entry + lay.COPY_MASK) & ~lanes)


@native
def drop_arrived(copies: int) -> None:
    """Drop the oldest copies that have arrived in every lane."""
    first = load_i32(copies + lay.COPIES_FIRST)
    end = load_i32(copies + lay.COPIES_END)
    while first < end and load_u32(entry_of(copies, first) + lay.COPY_MASK) == 0:
        first += 1
    if first == end:
        first = 0
        end = 0
    store_u32(copies + lay.COPIES_FIRST, first)
    store_u32(copies + lay.COPIES_END, end)


@exported
def copy_async(ctx: int, read: int, write: int, target: int, source: int, mask: int, source_bytes: int) -> None:
    """``cp.async``: read now, leave poison at the target; bytes beyond ``source_bytes`` (i32 per lane) become zero."""
    scratch = load_i64(ctx + lay.CTX_SCRATCH)
    copies = load_i64(ctx + lay.CTX_COPIES)
    if load_i32(copies + lay.COPIES_END) - load_i32(copies + lay.COPIES_FIRST) == lay.COPIES_CAPACITY:
        # A copy may arrive before a thread waits for it.
        oldest = entry_of(copies, load_i32(copies + lay.COPIES_FIRST))
        arrive(ctx, oldest, load_u32(oldest + lay.COPY_MASK))
        drop_arrived(copies)
    entry = entry_of(copies, load_i32(copies + lay.COPIES_END))
    size = load_i32(write + lay.OP_BYTES)
    reading = 0
    rest = mask
    while rest != 0:
        lane_id = trailing_zeros(rest)
        rest &= rest - 1
        data = entry + lay.COPY_DATA + 16 * lane_id
        store_i64(data, 0)
        store_i64(data + 8, 0)
        if load_i32(source_bytes + 4 * lane_id) > 0:
            reading |= 1 << lane_id
    store_u32(read + lay.OP_BYTES, size)
    rest = resolve(ctx, read, source, reading, 0, 4)
    while rest != 0:
        lane_id = trailing_zeros(rest)
        rest &= rest - 1
        data = entry + lay.COPY_DATA + 16 * lane_id
        host = load_i64(scratch + HOST + 8 * lane_id)
        limit = load_i32(source_bytes + 4 * lane_id)
        if limit >= size:
            move(data, host, size)
        else:
            for k in range(limit):
                store_u8(data + k, load_u8(host + k))
    good = resolve(ctx, write, target, mask, 0, 4)
    if good == 0:
        return
    poison = load_i64(ctx + lay.CTX_POISON)
    rest = good
    while rest != 0:
        lane_id = trailing_zeros(rest)
        rest &= rest - 1
        host = load_i64(scratch + HOST + 8 * lane_id)
        fill_bytes(host, poison, size)
        if load_i64(ctx + lay.CTX_MODE) & lay.MODE_SANITIZE_SHARED:
            mark_shared(ctx, host - load_i64(ctx + lay.CTX_SHARED), size, False)
        if watches(ctx):
            forget_stores(ctx, load_i32(ctx + lay.CTX_CLUSTER_CTARANK), host - load_i64(ctx + lay.CTX_SHARED), size)
        store_i64(entry + lay.COPY_TARGETS + 8 * lane_id, host)
        store_u32(entry + lay.COPY_GROUPS + 4 * lane_id, load_i32(copies + lay.COPIES_GROUPS + 4 * lane_id))
    store_u32(entry + lay.COPY_MASK, good)
    store_u32(entry + lay.COPY_SIZE, size)
    store_i64(entry + lay.COPY_OP, write)
    store_u32(copies + lay.COPIES_END, load_i32(copies + lay.COPIES_END) + 1)


@exported
def copy_commit(ctx: int, mask: int) -> None:
    """``cp.async.commit_group``: make a group of the copies that each lane has issued since its last group."""
    copies = load_i64(ctx + lay.CTX_COPIES)
    while copies != 0 and mask != 0:
        lane_id = trailing_zeros(mask)
        mask &= mask - 1
        groups = copies + lay.COPIES_GROUPS + 4 * lane_id
        store_u32(groups, load_i32(groups) + 1)


@exported
def copy_wait(ctx: int, mask: int, pending: int) -> None:
    """``cp.async.wait_group``: every lane's groups but its last ``pending`` arrive, the oldest copies first."""
    copies = load_i64(ctx + lay.CTX_COPIES)
    if copies == 0:
        return
    for position in range(load_i32(copies + lay.COPIES_FIRST), load_i32(copies + lay.COPIES_END)):
        entry = entry_of(copies, position)
        rest = load_u32(entry + lay.COPY_MASK) & mask
        due = 0
        while rest != 0:
            lane_id = trailing_zeros(rest)
            rest &= rest - 1
            committed = load_i32(copies + lay.COPIES_GROUPS + 4 * lane_id)
            if load_i32(entry + lay.COPY_GROUPS + 4 * lane_id) < committed - pending:
                due |= 1 << lane_id
        if due != 0:
            arrive(ctx, entry, due)
    drop_arrived(copies)
