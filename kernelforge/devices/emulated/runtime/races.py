"""Races in shared memory between the warps of a CTA."""

from __future__ import annotations

from kernelforge.devices.emulated import layout as lay
from kernelforge.devices.emulated.native import load_i32, load_i64, native, store_i64, trailing_zeros
from kernelforge.devices.emulated.runtime.faults import record_fault

_ATOMIC_MARK = 0x40
_MANY_READERS = 0x80


@native
def check_race(ctx: int, op: int, site: int, addresses: int, mask: int, size: int, access: int) -> None:
    """Compare a shared access with what other warps did since the last barrier, per 4-byte word."""
    shadow = load_i64(ctx + lay.CTX_SHADOW)
    epoch = load_i64(ctx + lay.CTX_EPOCH)
    warp = load_i32(ctx + lay.CTX_WARP)
    me = (epoch << 8) | warp
    rest = mask
    while rest != 0:
        lane = trailing_zeros(rest)
        rest &= rest - 1
        address = load_i64(addresses + 8 * lane)
        word = address >> 2
        while word <= (address + size - 1) >> 2:
            cell = shadow + 16 * word
            writer = load_i64(cell)
            reader = load_i64(cell + 8)
            race = False
            if writer >> 8 == epoch and writer & 0x3F != warp:
                race = not (access == lay.ATOMIC and writer & _ATOMIC_MARK != 0)
            if access != lay.LOAD and reader >> 8 == epoch and reader != me:
                race = True
            if race:
                record_fault(ctx, lay.FAULT_SHARED_RACE, site, lane, address, size, lay.SHARED)
            if access == lay.STORE:
                store_i64(cell, me)
            elif access == lay.ATOMIC:
                store_i64(cell, me | _ATOMIC_MARK)
            elif reader >> 8 == epoch and reader != me:
                store_i64(cell + 8, me | _MANY_READERS)
            else:
                store_i64(cell + 8, me)
            word += 1
