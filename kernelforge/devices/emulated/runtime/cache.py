"""The cache model: L1 and L2 look-ups of the sectors that a request touches."""

from __future__ import annotations

from kernelforge.devices.emulated import layout as lay
from kernelforge.devices.emulated.codegen.numba_intrinsics import load_i64, native, popcount, store_i64
from kernelforge.devices.emulated.execute import memory as mem
from kernelforge.devices.emulated.layout import UNITS


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
    units = load_i64(ctx + lay.CTX_SCRATCH) + UNITS
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
