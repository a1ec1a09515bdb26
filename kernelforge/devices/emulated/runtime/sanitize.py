"""Checks that a run may ask for: memory that is read before anything wrote it, and races on global memory.

They are no part of an evaluation. A kernel may read what it then discards, and PTX does not tell such reads; there, two
runs with different poison show whether a result depends on it.

Shared memory has a word of 8 bytes for each of its 4-byte words: the CTA that wrote it last, and which of its bytes.
Global memory has a byte for each byte, whether the run wrote it, a byte for each granule, whether its content was
undefined when the run began, and 32 bytes for each 4-byte word: the last writer and the last reader in this launch, as
the CTA and its epoch and warp; here any barrier raises the epoch. An access conflicts with another CTA's, or with
another warp's of the same epoch, where one of them writes and the stored value is another one. Kernels that order their
CTAs by atomics, waits or grid barriers are not checked for races.
"""

from __future__ import annotations

from kernelforge.devices.emulated import layout as lay
from kernelforge.devices.emulated.codegen.numba_intrinsics import (
    load_i32,
    load_i64,
    load_u8,
    native,
    store_i64,
    store_u8,
    trailing_zeros,
)
from kernelforge.devices.emulated.runtime.faults import behind_cells, record_fault

OWNER_BYTES = 32
_WRITER = 0  # launch and CTA, then epoch and warp, i64 each
_READER = 16
_MANY = 0xFFFFFFFF
"""In place of a CTA: several have read the word."""
_MANY_WARPS = 0xFF


@native
def written_shared(ctx: int) -> int:
    """Address of the record of the CTA's shared memory."""
    return behind_cells(ctx, load_i64(ctx + lay.CTX_SHADOW))


@native
def mark_shared(ctx: int, offset: int, size: int, written: bool) -> None:
    """Note that bytes of the CTA's shared memory were written, or that they are undefined again."""
    words = written_shared(ctx)
    me = (load_i64(ctx + lay.CTX_CTA) + 1) << 4
    for byte in range(offset, offset + size):
        cell = words + 8 * (byte >> 2)
        value = load_i64(cell)
        if value & ~15 != me:
            value = me
        bit = 1 << (byte & 3)
        store_i64(cell, value | bit if written else value & ~bit)


@native
def check_shared(ctx: int, site: int, addresses: int, mask: int, size: int, access: int) -> None:
    """Report lanes that read bytes of shared memory that their CTA has not written; note what is written."""
    words = written_shared(ctx)
    me = (load_i64(ctx + lay.CTX_CTA) + 1) << 4
    rest = mask
    while rest != 0:
        lane_id = trailing_zeros(rest)
        rest &= rest - 1
        address = load_i64(addresses + 8 * lane_id)
        if access != lay.STORE:
            for byte in range(address, address + size):
                value = load_i64(words + 8 * (byte >> 2))
                if value & ~15 != me or value >> (byte & 3) & 1 == 0:
                    record_fault(ctx, lay.FAULT_UNINITIALISED, site, lane_id, address, size, lay.SHARED)
                    break
        if access != lay.LOAD:
            mark_shared(ctx, address, size, True)


@native
def check_global(
    ctx: int, site: int, addresses: int, hosts: int, mask: int, size: int, access: int, values: int, width: int
) -> None:
    """Report lanes that read bytes of global memory that nothing wrote, or that race with another CTA or warp."""
    base = load_i64(ctx + lay.CTX_SANITIZED_BASE)
    written = load_i64(ctx + lay.CTX_WRITTEN_GLOBAL)
    undefined = load_i64(ctx + lay.CTX_UNDEFINED_GLOBAL)
    owners = load_i64(ctx + lay.CTX_OWNERS)
    rest = mask
    while rest != 0:
        lane_id = trailing_zeros(rest)
        rest &= rest - 1
        address = load_i64(addresses + 8 * lane_id)
        start = address - base
        if access != lay.STORE:
            for byte in range(start, start + size):
                if load_u8(written + byte) == 0 and load_u8(undefined + byte // lay.GRANULE) != 0:
                    record_fault(ctx, lay.FAULT_UNINITIALISED, site, lane_id, address, size, lay.GLOBAL)
                    break
        if access != lay.LOAD:
            for byte in range(start, start + size):
                store_u8(written + byte, 1)
        if owners == 0 or access == lay.ATOMIC:
            continue
        same = access == lay.STORE and values != 0 and repeats(hosts, lane_id, size, values, width)
        race = False
        for word in range(start >> 2, (start + size + 3) >> 2):
            race |= visit_word(ctx, owners + OWNER_BYTES * word, access, same)
        if race:
            record_fault(ctx, lay.FAULT_GLOBAL_RACE, site, lane_id, address, size, lay.GLOBAL)


@native
def repeats(hosts: int, lane_id: int, size: int, values: int, width: int) -> bool:
    """Whether a lane stores the bytes that are there already."""
    host = load_i64(hosts + 8 * lane_id)
    for k in range(size):
        if load_u8(host + k) != load_u8(values + (k // width * lay.LANES + lane_id) * width + k % width):
            return False
    return True


@native
def visit_word(ctx: int, cell: int, access: int, same: bool) -> bool:
    """Compare an access with the last ones to a word, and record it; whether they race."""
    launch = load_i64(ctx + lay.CTX_LAUNCH) << 32
    me = launch | load_i64(ctx + lay.CTX_CTA)
    warp = load_i32(ctx + lay.CTX_WARP) & 0x7F
    stamp = (load_i64(ctx + lay.CTX_EPOCH) + load_i64(ctx + lay.CTX_ROUNDS) << 8) | warp
    writer, writer_stamp = load_i64(cell + _WRITER), load_i64(cell + _WRITER + 8)
    reader, reader_stamp = load_i64(cell + _READER), load_i64(cell + _READER + 8)
    race = False
    if writer & ~_MANY == launch and not same:
        race = writer != me or (writer_stamp != stamp and writer_stamp >> 8 == stamp >> 8)
    if access == lay.STORE and not same and reader & ~_MANY == launch:
        race |= reader != me or (reader_stamp != stamp and reader_stamp >> 8 == stamp >> 8)
    if access == lay.STORE:
        store_i64(cell + _WRITER, me)
        store_i64(cell + _WRITER + 8, stamp)
    elif reader & ~_MANY == launch and reader != me:
        store_i64(cell + _READER, launch | _MANY)
    else:
        if reader == me and reader_stamp >> 8 == stamp >> 8 and reader_stamp != stamp:
            stamp |= _MANY_WARPS
        store_i64(cell + _READER, me)
        store_i64(cell + _READER + 8, stamp)
    return race


def written_shared_bytes(shared_bytes: int) -> int:
    """Size of the record of one CTA's shared memory, which lies behind the race check's."""
    return 8 * (shared_bytes // 4 + 4)
