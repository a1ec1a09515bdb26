"""Tensor memory (``tcgen05``): its allocation, what is under way in it, and loads and stores of its cells.

A cell has 32 bits; cells of one lane are adjacent here. Products, copies, loads and stores are asynchronous. Here each
of them has its effect when it is issued, and leaves a mark on every part of a column, of 16 lanes, that it touches. An
access that nothing orders after it finds the mark and is a fault: after a product or a copy a thread must have waited
for the mbarrier of a ``tcgen05.commit`` of its thread, after a store or before a change of what a load reads the warp
must have waited by ``tcgen05.wait``.
"""

from __future__ import annotations

from kernelforge.devices.emulated import layout as lay
from kernelforge.devices.emulated.codegen.numba_intrinsics import (
    exported,
    fill_bytes,
    load_i32,
    load_i64,
    load_u16,
    load_u32,
    native,
    store_i64,
    store_u16,
    store_u32,
)
from kernelforge.devices.emulated.layout import HOST
from kernelforge.devices.emulated.runtime.access import resolve
from kernelforge.devices.emulated.runtime.faults import record_fault
from kernelforge.devices.emulated.runtime.mbarrier import site_of

SHAPES = ("32x32b", "16x64b", "16x128b", "16x256b", "16x32bx2")
"""Shapes of loads and stores, as generated code encodes them in the lowest bits of a code."""
NUMBER = 4
PACKED = 16
SPLIT = 17
"""Bits of that code: of the logarithm of the number of repetitions, of ``.pack`` or ``.unpack``, and from here on of
the distance between the two parts of ``.16x32bx2``."""

PRODUCT = 0
COPY = 1
"""What a mark of a write is of."""
READING = 1
WRITING = 2
MULTIPLYING = 3
OPERAND = 4
"""An access by a warp's load, by its store, one of a product or copy that writes, and one of a product that reads."""
WRITTEN = 0
STORED = 1
LOADED = 2
"""What an access that comes too early meets: a product or copy, a store, or a load."""


@native
def tensor_of(ctx: int, rank: int) -> int:
    """Tensor memory of a CTA of the cluster."""
    return load_i64(ctx + lay.CTX_TENSOR) + rank * load_i64(ctx + lay.CTX_TENSOR_STRIDE)


@native
def own_tensor(ctx: int) -> int:
    """Tensor memory of the running CTA."""
    return tensor_of(ctx, load_i32(ctx + lay.CTX_CLUSTER_CTARANK))


@native
def cell_at(tensor: int, tensor_lane: int, column: int) -> int:
    """Host address of a cell."""
    return tensor + lay.TENSOR_CELLS + tensor_lane * lay.TENSOR_ROW + 4 * column


@native
def mark_at(tensor: int, column: int, part: int) -> int:
    """Address of the marks of 16 lanes of a column."""
    return tensor + lay.TENSOR_MARKS + lay.MARK_BYTES * (column * (lay.TENSOR_LANES // 16) + part)


@native
def issue_mark(ctx: int, lane_id: int, kind: int) -> int:
    """The mark of a new operation of a thread of the running warp: its CTA and thread, kind and number."""
    rank = load_i32(ctx + lay.CTX_CLUSTER_CTARANK)
    tensor = tensor_of(ctx, rank)
    number = load_i64(tensor + lay.TENSOR_ISSUED) + 1
    store_i64(tensor + lay.TENSOR_ISSUED, number)
    thread = lay.LANES * load_i32(ctx + lay.CTX_WARP) + lane_id
    return ((rank * 1024 + thread + 1) << 40) | (kind << 38) | number


@native
def is_pending(ctx: int, mark: int) -> bool:
    """Whether nothing shows that the operation of a mark is complete."""
    if mark == 0:
        return False
    issuer = (mark >> 40) - 1
    done = tensor_of(ctx, issuer >> 10) + lay.TENSOR_DONE + 8 * (issuer & 1023)
    return mark & ((1 << 38) - 1) > load_i64(done)


@native
def warp_pending(tensor: int, mark: int, waited: int) -> bool:
    """Whether a warp has not waited for its load or store of a mark; ``waited``: where those waited for begin."""
    return mark != 0 and mark & 0xFFFFFFFF > load_i64(tensor + waited + 8 * ((mark >> 32) - 1))


@native
def record_early(ctx: int, site: int, lane_id: int, tensor_lane: int, column: int, met: int) -> None:
    """Record an access to a cell that is under way."""
    record_fault(ctx, lay.FAULT_TENSOR_PENDING, site, lane_id, (tensor_lane << 16) | column, met, lay.TENSOR)


@native
def has_columns(tensor: int, column: int, count: int) -> bool:
    """Whether some columns are allocated."""
    if column < 0 or count < 1 or column + count > lay.TENSOR_COLUMNS:
        return False
    for unit in range(column // lay.TENSOR_UNIT, (column + count - 1) // lay.TENSOR_UNIT + 1):
        if load_i32(tensor + lay.TENSOR_UNITS + 4 * unit) == 0:
            return False
    return True


@native
def check_columns(ctx: int, site: int, lane_id: int, tensor: int, address: int, column: int, count: int) -> bool:
    """Whether some columns are allocated; it is a fault otherwise."""
    if has_columns(tensor, column, count):
        return True
    record_fault(ctx, lay.FAULT_TENSOR_UNALLOCATED, site, lane_id, address, count, lay.TENSOR)
    return False


@native
def check_marks(
    ctx: int,
    site: int,
    lane_id: int,
    tensor: int,
    column: int,
    count: int,
    first: int,
    end: int,
    step: int,
    access: int,
) -> bool:
    """Whether columns of the parts ``first`` to ``end`` may be accessed now; the first that may not is a fault.

    A product may write over what products wrote, and read what copies wrote: these are in order. A warp's store comes
    after its own loads, whose values it needs.
    """
    warp = load_i32(ctx + lay.CTX_WARP)
    for at in range(column, column + count):
        for part in range(first, end, step):
            mark = mark_at(tensor, at, part)
            write = load_i64(mark + lay.MARK_WRITE)
            ordered = access == MULTIPLYING or (access == OPERAND and write >> 38 & 3 == COPY)
            if not ordered and is_pending(ctx, write):
                record_early(ctx, site, lane_id, 16 * part, at, WRITTEN)
                return False
            store = load_i64(mark + lay.MARK_STORE)
            if access != WRITING and warp_pending(tensor, store, lay.TENSOR_WAITED_STORES):
                record_early(ctx, site, lane_id, 16 * part, at, STORED)
                return False
            load = load_i64(mark + lay.MARK_LOAD)
            others = access == MULTIPLYING or (access == WRITING and (load >> 32) - 1 != warp)
            if others and warp_pending(tensor, load, lay.TENSOR_WAITED_LOADS):
                record_early(ctx, site, lane_id, 16 * part, at, LOADED)
                return False
    return True


@native
def set_marks(tensor: int, column: int, count: int, first: int, end: int, step: int, kind: int, mark: int) -> None:
    """Leave marks of one ``kind``, an offset, on columns of the parts ``first`` to ``end``."""
    for at in range(column, column + count):
        for part in range(first, end, step):
            store_i64(mark_at(tensor, at, part) + kind, mark)


@native
def find_columns(ctx: int, tensor: int, units: int) -> int:
    """First of so many units that are free, or -1. The run's variation chooses where the search begins."""
    places = lay.TENSOR_COLUMNS // lay.TENSOR_UNIT // units
    begin = load_u32(ctx + lay.CTX_VARIATION) * 40503 >> 8
    for k in range(places):
        first = (begin + k) % places * units
        free = True
        for unit in range(first, first + units):
            free = free and load_i32(tensor + lay.TENSOR_UNITS + 4 * unit) == 0
        if free:
            return first
    return -1


@native
def is_size(columns: int) -> bool:
    """Whether so many columns can be allocated."""
    return columns >= lay.TENSOR_UNIT and columns <= lay.TENSOR_COLUMNS and columns & (columns - 1) == 0


@exported
def tensor_alloc(ctx: int, op: int, addresses: int, lane_id: int, columns: int) -> int:
    """``tcgen05.alloc``: write the address of free columns to shared memory; -1 while too few are free."""
    tensor = own_tensor(ctx)
    state = load_i64(ctx + lay.CTX_STATE)
    site = site_of(ctx, op)
    store_u32(state + lay.W_WAIT_SITE, 0)
    if not is_size(columns):
        record_fault(ctx, lay.FAULT_TENSOR_COLUMNS, site, lane_id, columns, 4, lay.TENSOR)
        return 0
    if load_i64(tensor + lay.TENSOR_RELINQUISHED) != 0:
        record_fault(ctx, lay.FAULT_TENSOR_PERMIT, site, lane_id, 0, 4, lay.TENSOR)
        return 0
    units = columns // lay.TENSOR_UNIT
    first = find_columns(ctx, tensor, units)
    if first < 0:
        if load_i64(ctx + lay.CTX_IMPATIENCE) < 2:
            store_u32(state + lay.W_WAIT_SITE, site + 1)
            store_u32(state + lay.W_WAIT_FAULT, lay.FAULT_TENSOR_FULL)
            store_i64(ctx + lay.CTX_WAITS, 1)
            return -1
        record_fault(ctx, lay.FAULT_TENSOR_FULL, site, lane_id, columns, 4, lay.TENSOR)
        return 0
    store_i64(ctx + lay.CTX_PROGRESS, 1)
    for unit in range(first, first + units):
        store_u32(tensor + lay.TENSOR_UNITS + 4 * unit, columns if unit == first else -1)
        store_u32(tensor + lay.TENSOR_SITES + 4 * unit, site)
        store_u32(tensor + lay.TENSOR_WARPS + 4 * unit, load_i32(ctx + lay.CTX_WARP))
    column = first * lay.TENSOR_UNIT
    for tensor_lane in range(lay.TENSOR_LANES):
        fill_bytes(cell_at(tensor, tensor_lane, column), load_i64(ctx + lay.CTX_POISON), 4 * columns)
    fill_bytes(mark_at(tensor, column, 0), 0, mark_at(tensor, column + columns, 0) - mark_at(tensor, column, 0))
    if resolve(ctx, op, addresses, 1 << lane_id, 0, 4) != 0:
        store_u32(load_i64(load_i64(ctx + lay.CTX_SCRATCH) + HOST + 8 * lane_id), column)
    return 0


@exported
def tensor_dealloc(ctx: int, op: int, lane_id: int, address: int, columns: int) -> None:
    """``tcgen05.dealloc``: free the columns of one allocation, of which nothing may be under way."""
    tensor = own_tensor(ctx)
    site = site_of(ctx, op)
    if not is_size(columns):
        record_fault(ctx, lay.FAULT_TENSOR_COLUMNS, site, lane_id, columns, 4, lay.TENSOR)
        return
    unit = address // lay.TENSOR_UNIT
    if (
        address >= lay.TENSOR_COLUMNS
        or address % lay.TENSOR_UNIT != 0
        or load_i32(tensor + lay.TENSOR_UNITS + 4 * unit) != columns
    ):
        record_fault(ctx, lay.FAULT_TENSOR_DEALLOC, site, lane_id, address, columns, lay.TENSOR)
        return
    early = False
    for column in range(address, address + columns):
        for part in range(lay.TENSOR_LANES // 16):
            if not early and is_pending(ctx, load_i64(mark_at(tensor, column, part) + lay.MARK_WRITE)):
                record_early(ctx, site, lane_id, 16 * part, column, WRITTEN)
                early = True
    for k in range(unit, unit + columns // lay.TENSOR_UNIT):
        store_u32(tensor + lay.TENSOR_UNITS + 4 * k, 0)
    store_i64(ctx + lay.CTX_PROGRESS, 1)


@exported
def tensor_relinquish(ctx: int) -> None:
    """``tcgen05.relinquish_alloc_permit``."""
    store_i64(own_tensor(ctx) + lay.TENSOR_RELINQUISHED, 1)


@exported
def tensor_wait(ctx: int, stores: int) -> None:
    """``tcgen05.wait``: the warp's loads so far, or its stores, are complete."""
    tensor = own_tensor(ctx)
    warp = load_i32(ctx + lay.CTX_WARP)
    if stores != 0:
        store_i64(tensor + lay.TENSOR_WAITED_STORES + 8 * warp, load_i64(tensor + lay.TENSOR_STORES))
    else:
        store_i64(tensor + lay.TENSOR_WAITED_LOADS + 8 * warp, load_i64(tensor + lay.TENSOR_LOADS))


@native
def check_leaks(ctx: int, tensor: int) -> None:
    """Record a fault if a CTA ends and has columns that are allocated; not after another fault."""
    if load_i64(ctx + lay.CTX_FAULT_COUNT) != 0:
        return
    for unit in range(lay.TENSOR_COLUMNS // lay.TENSOR_UNIT):
        columns = load_i32(tensor + lay.TENSOR_UNITS + 4 * unit)
        if columns > 0:
            store_u32(ctx + lay.CTX_WARP, load_i32(tensor + lay.TENSOR_WARPS + 4 * unit))
            site = load_i32(tensor + lay.TENSOR_SITES + 4 * unit)
            record_fault(ctx, lay.FAULT_TENSOR_LEAK, site, 0, columns, 4, lay.TENSOR)


@native
def moved_columns(code: int) -> int:
    """Columns that each part of a load or store touches."""
    shape = code & 15
    count = 1 << (code >> NUMBER & 15)
    if shape == 1:
        count *= 2
    elif shape == 2:
        count *= 4
    elif shape == 3:
        count *= 8
    return count << (code >> PACKED & 1)


@native
def moved_registers(code: int) -> int:
    """Registers of a load or store."""
    shape = code & 15
    count = 1 << (code >> NUMBER & 15)
    if shape == 2:
        return 2 * count
    return 4 * count if shape == 3 else count


@native
def moved_cell(shape: int, register: int, thread: int) -> int:
    """Lane, above 16 bits, and column of a thread's register, without packing."""
    if shape == 0:
        return (thread << 16) | register
    if shape == 1:
        return ((thread >> 2) + 8 * (thread & 1)) << 16 | (2 * register + (thread >> 1 & 1))
    if shape == 2:
        return ((thread >> 2) + 8 * (register & 1)) << 16 | (4 * (register >> 1) + (thread & 3))
    if shape == 3:
        column = 8 * (register >> 2) + 2 * (thread & 3) + (register & 1)
        return ((thread >> 2) + 8 * (register >> 1 & 1)) << 16 | column
    return (thread & 15) << 16 | register


@native
def register_cell(base: int, code: int, register: int, thread: int) -> int:
    """Host address of the cell of a thread's register; ``base`` is that of the address of the load or store."""
    shape = code & 15
    at = moved_cell(shape, register, thread)
    start = base + (4 * (code >> SPLIT) if shape == 4 and thread >= 16 else 0)
    return start + (at >> 16) * lay.TENSOR_ROW + (4 << (code >> PACKED & 1)) * (at & 0xFFFF)


@native
def begin_move(ctx: int, op: int, lane_id: int, address: int, code: int, access: int) -> bool:
    """Check the address of a warp's load or store, and what is under way there; leave marks."""
    tensor = own_tensor(ctx)
    site = site_of(ctx, op)
    shape = code & 15
    warp = load_i32(ctx + lay.CTX_WARP)
    tensor_lane = address >> 16
    column = address & 0xFFFF
    lanes = 32 if shape == 0 else 16
    if tensor_lane >> 5 != warp & 3 or tensor_lane % lanes != 0:
        record_fault(ctx, lay.FAULT_TENSOR_LANES, site, lane_id, address, warp & 3, lay.TENSOR)
        return False
    count = moved_columns(code)
    first = tensor_lane // 16
    end = first + lanes // 16
    counter = lay.TENSOR_LOADS if access == READING else lay.TENSOR_STORES
    number = load_i64(tensor + counter) + 1
    store_i64(tensor + counter, number)
    kind = lay.MARK_LOAD if access == READING else lay.MARK_STORE
    for part in range(2 if shape == 4 else 1):
        at = column + part * (code >> SPLIT)
        if not check_columns(ctx, site, lane_id, tensor, address, at, count):
            return False
        if not check_marks(ctx, site, lane_id, tensor, at, count, first, end, 1, access):
            return False
        set_marks(tensor, at, count, first, end, 1, kind, ((warp + 1) << 32) | number)
    return True


@exported
def tensor_load(ctx: int, op: int, lane_id: int, address: int, out: int, code: int) -> None:
    """``tcgen05.ld``: registers one after another, each of 32 lanes."""
    registers = moved_registers(code)
    if not begin_move(ctx, op, lane_id, address, code, READING):
        fill_bytes(out, 0, 128 * registers)
        return
    base = cell_at(own_tensor(ctx), address >> 16, address & 0xFFFF)
    for thread in range(lay.LANES):
        for register in range(registers):
            cell = register_cell(base, code, register, thread)
            value = load_u32(cell)
            if code >> PACKED & 1:
                value = (value & 0xFFFF) | (load_u16(cell + 4) << 16)
            store_u32(out + 128 * register + 4 * thread, value)


@exported
def tensor_store(ctx: int, op: int, lane_id: int, address: int, values: int, code: int) -> None:
    """``tcgen05.st``: registers one after another, each of 32 lanes."""
    if not begin_move(ctx, op, lane_id, address, code, WRITING):
        return
    base = cell_at(own_tensor(ctx), address >> 16, address & 0xFFFF)
    for thread in range(lay.LANES):
        for register in range(moved_registers(code)):
            cell = register_cell(base, code, register, thread)
            value = load_u32(values + 128 * register + 4 * thread)
            if code >> PACKED & 1:
                store_u16(cell, value)
                store_u16(cell + 4, value >> 16)
            else:
                store_u32(cell, value)


@native
def remember_range(tensor: int, low: int, high: int, mark: int) -> None:
    """Remember shared memory that a product or copy reads."""
    count = load_i64(tensor + lay.TENSOR_RANGE_COUNT)
    entry = tensor + lay.TENSOR_RANGES + 16 * (count % lay.TENSOR_RANGE_CAPACITY)
    store_i64(tensor + lay.TENSOR_RANGE_COUNT, count + 1)
    store_u32(entry, low)
    store_u32(entry + 4, high)
    store_i64(entry + 8, mark)


@native
def check_sources(ctx: int, site: int, lane_id: int, rank: int, offset: int, size: int) -> None:
    """Record a fault if a bulk copy to a CTA's shared memory overlaps what a product or copy may still read."""
    if load_i64(ctx + lay.CTX_TENSOR_STRIDE) == 0:
        return
    tensor = tensor_of(ctx, rank)
    count = load_i64(tensor + lay.TENSOR_RANGE_COUNT)
    for position in range(max(count - lay.TENSOR_RANGE_CAPACITY, 0), count):
        entry = tensor + lay.TENSOR_RANGES + 16 * (position % lay.TENSOR_RANGE_CAPACITY)
        if load_i32(entry) < offset + size and load_i32(entry + 4) > offset and is_pending(ctx, load_i64(entry + 8)):
            record_fault(ctx, lay.FAULT_TENSOR_SOURCE, site, lane_id, offset, size, lay.SHARED)
            return
