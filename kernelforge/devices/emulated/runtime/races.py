"""Races in shared memory between the warps of a CTA.

The record of a CTA (``CTX_SHADOW``) has a cell of 16 bytes for each 4-byte word: who wrote it and who read it last,
with the epoch, which each barrier raises. An access to a part of a word splits the word for the rest of its epoch: then
four cells after those of the words, one for each byte, say what was done to it, for two warps may well write
neighbouring bytes.
"""

from __future__ import annotations

from kernelforge.devices.emulated import layout as lay
from kernelforge.devices.emulated.native import load_i32, load_i64, native, store_i64, trailing_zeros
from kernelforge.devices.emulated.runtime.faults import record_fault

CELL_BYTES = 16

_ATOMIC_MARK = 0x40
_MANY_READERS = 0x80
_SPLIT = 0x80
"""In place of a writer: the cells of the word's bytes hold in this epoch."""


def word_cell_bytes(shared_bytes: int) -> int:
    """Size of the words' cells of one CTA, which must be zero when it starts."""
    return CELL_BYTES * (shared_bytes // 4 + 2)


def shadow_bytes(shared_bytes: int) -> int:
    """Size of the record of one CTA: the words' cells, then four for the bytes of each, which start as anything."""
    return 5 * word_cell_bytes(shared_bytes)


@native
def check_race(ctx: int, op: int, site: int, addresses: int, mask: int, size: int, access: int) -> None:
    """Compare a shared access with what other warps did to the same bytes since the last barrier."""
    shadow = load_i64(ctx + lay.CTX_SHADOW)
    byte_cells = shadow + CELL_BYTES * (load_i64(ctx + lay.CTX_SHARED_BYTES) // 4 + 2)
    epoch = load_i64(ctx + lay.CTX_EPOCH)
    warp = load_i32(ctx + lay.CTX_WARP)
    split = (epoch << 8) | _SPLIT
    rest = mask
    while rest != 0:
        lane = trailing_zeros(rest)
        rest &= rest - 1
        address = load_i64(addresses + 8 * lane)
        end = address + size
        word = address >> 2
        race = False
        while 4 * word < end:
            cell = shadow + CELL_BYTES * word
            first = max(address, 4 * word)
            last = min(end, 4 * word + 4)
            if last - first == 4 and load_i64(cell) != split:
                race |= record_access(cell, epoch, warp, access)
            else:
                if load_i64(cell) != split:
                    for byte in range(4 * word, 4 * word + 4):
                        store_i64(byte_cells + CELL_BYTES * byte, load_i64(cell))
                        store_i64(byte_cells + CELL_BYTES * byte + 8, load_i64(cell + 8))
                    store_i64(cell, split)
                for byte in range(first, last):
                    race |= record_access(byte_cells + CELL_BYTES * byte, epoch, warp, access)
            word += 1
        if race:
            record_fault(ctx, lay.FAULT_SHARED_RACE, site, lane, address, size, lay.SHARED)


@native
def record_access(cell: int, epoch: int, warp: int, access: int) -> bool:
    """Write an access into a cell; whether it races with what another warp did there in this epoch."""
    writer = load_i64(cell)
    reader = load_i64(cell + 8)
    me = (epoch << 8) | warp
    race = False
    if writer >> 8 == epoch and writer & 0x3F != warp:
        race = not (access == lay.ATOMIC and writer & _ATOMIC_MARK != 0)
    if access != lay.LOAD and reader >> 8 == epoch and reader != me:
        race = True
    if access == lay.STORE:
        store_i64(cell, me)
    elif access == lay.ATOMIC:
        store_i64(cell, me | _ATOMIC_MARK)
    elif reader >> 8 == epoch and reader != me:
        store_i64(cell + 8, me | _MANY_READERS)
    else:
        store_i64(cell + 8, me)
    return race
