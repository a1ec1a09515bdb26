"""Stores and reductions in shared memory that complete at an mbarrier: ``st.async`` and ``red.async``."""

from __future__ import annotations

from kernelforge.devices.emulated import layout as lay
from kernelforge.devices.emulated.codegen.numba_intrinsics import (
    exported,
    load_i32,
    load_i64,
    native,
    store_i64,
    trailing_zeros,
)
from kernelforge.devices.emulated.layout import EFFECTIVE, HOST
from kernelforge.devices.emulated.runtime.access import read_element, resolve, write_element
from kernelforge.devices.emulated.runtime.bulk_copies import is_in_cluster, issue
from kernelforge.devices.emulated.runtime.faults import record_fault
from kernelforge.devices.emulated.runtime.mbarrier import barrier_lanes, rank_of, site_of
from kernelforge.devices.emulated.runtime.transfers import COPY


@exported
def store_async(
    ctx: int, op: int, addresses: int, mask: int, barriers: int, values: int, width: int, code: int
) -> None:
    """Store elements of ``width`` bytes, or combine them by the operation and type of ``code``, where that is no -1.

    The record of the target is ``op``, the mbarrier's comes after it. ``addresses`` is overwritten.
    """
    good = resolve(ctx, op, addresses, mask, 0, 4)
    scratch = load_i64(ctx + lay.CTX_SCRATCH)
    rest = good
    while rest != 0:
        lane_id = trailing_zeros(rest)
        rest &= rest - 1
        host = load_i64(scratch + HOST + 8 * lane_id)
        if not is_in_cluster(ctx, host):
            outside(ctx, op, lane_id)
            good &= ~(1 << lane_id)
        store_i64(addresses + 8 * lane_id, host)
    good = barrier_lanes(ctx, op + lay.OP_RECORD, barriers, good)
    size = load_i32(op + lay.OP_BYTES)
    while good != 0:
        lane_id = trailing_zeros(good)
        good &= good - 1
        target = load_i64(addresses + 8 * lane_id)
        barrier = load_i64(scratch + HOST + 8 * lane_id)
        if rank_of(ctx, target) != rank_of(ctx, barrier):
            outside(ctx, op + lay.OP_RECORD, lane_id)
            continue
        entry = issue(ctx, op, lane_id, COPY, target, 0, size, barrier, code)
        if entry == 0:
            continue
        data = entry + lay.TRANSFER_MAP
        store_i64(entry + lay.TRANSFER_SOURCE, data)
        for k in range(size // width):
            element = read_element(values, 4, (k * lay.LANES + lane_id) * width, width)
            write_element(data, 4, k * width, width, element)


@native
def outside(ctx: int, op: int, lane_id: int) -> None:
    """Record that an operand is in memory where this instruction has none."""
    address = load_i64(load_i64(ctx + lay.CTX_SCRATCH) + EFFECTIVE + 8 * lane_id)
    size = load_i32(op + lay.OP_BYTES)
    record_fault(ctx, lay.FAULT_OUT_OF_BOUNDS, site_of(ctx, op), lane_id, address, size, lay.SHARED_CLUSTER)
