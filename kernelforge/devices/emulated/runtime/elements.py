"""Elements of one lane's access, whose words may lie apart (local memory is interleaved by lane)."""

from __future__ import annotations

from kernelforge.devices.emulated.native import (
    load_i64,
    load_u8,
    load_u16,
    load_u32,
    native,
    store_i64,
    store_u8,
    store_u16,
    store_u32,
)


@native
def read_element(address: int, step: int, offset: int, width: int) -> int:
    """Load ``width`` bytes that lie ``offset`` bytes into an access whose words are ``step`` bytes apart."""
    where = address + (offset >> 2) * step + (offset & 3)
    if width == 4:
        return load_u32(where)
    if width == 8:
        if step == 4:
            return load_i64(where)
        return load_u32(where) | (load_u32(where + step) << 32)
    if width == 2:
        return load_u16(where)
    return load_u8(where)


@native
def write_element(address: int, step: int, offset: int, width: int, value: int) -> None:
    """Store ``width`` bytes; see :func:`read_element`."""
    where = address + (offset >> 2) * step + (offset & 3)
    if width == 4:
        store_u32(where, value)
    elif width == 8:
        if step == 4:
            store_i64(where, value)
        else:
            store_u32(where, value)
            store_u32(where + step, value >> 32)
    elif width == 2:
        store_u16(where, value)
    else:
        store_u8(where, value)
