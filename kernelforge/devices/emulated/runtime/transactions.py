"""What a request costs: sectors of global and local memory, wavefronts of shared memory."""

from __future__ import annotations

from kernelforge.devices.emulated import layout as lay
from kernelforge.devices.emulated.codegen.numba_intrinsics import load_i64, native, store_i64, trailing_zeros
from kernelforge.devices.emulated.layout import TABLE, UNITS


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
def bank_wavefronts(ctx: int, addresses: int, mask: int, size: int) -> int:
    """Wavefronts of a shared access: 32 lanes at once up to 4 bytes, half-warps for 8, quarter-warps for 16.

    A wavefront serves one distinct word per bank, to any number of lanes; one address for all lanes is one wavefront.
    """
    if distinct_addresses(addresses, mask) == 1:
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
def local_sectors(ctx: int, addresses: int, mask: int, size: int) -> int:
    """Sectors of a local access: the frame is interleaved by 4-byte words, so eight lanes share a sector."""
    scratch = load_i64(ctx + lay.CTX_SCRATCH)
    keys = scratch + TABLE + lay.SCRATCH_AREA
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
