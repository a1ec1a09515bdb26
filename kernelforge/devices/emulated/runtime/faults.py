"""Faults that a launch records: invalid accesses, races and divergent barriers."""

from __future__ import annotations

from kernelforge.devices.emulated import layout as lay
from kernelforge.devices.emulated.codegen.numba_intrinsics import (
    exported,
    load_i32,
    load_i64,
    native,
    store_i64,
    store_u32,
    trailing_zeros,
)

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


@exported("void(int64, int64, int64, int64)")
def fault_here(ctx: int, kind: int, site: int, mask: int) -> None:
    """Record a fault that is not a memory access, for the lowest lane of ``mask``."""
    lane = trailing_zeros(mask) if mask != 0 else 0
    record_fault(ctx, kind, -1 - site, lane, 0, 0, lay.GENERIC)
