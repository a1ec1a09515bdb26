"""Boxes of tensor maps: their elements in global memory, inside the tensor or not, and in swizzled shared memory.

A box lies in shared memory row by row, innermost dimension first. In im2col mode a row is the channels of one pixel: of
positions in a box of pixels, which the offsets of an instruction shift, one image after another. In the wide modes the
positions lie along the width alone, and pixels that follow come after the column, or after each 32 of its pixels. In
gather and scatter mode four rows have a coordinate each. A swizzle exchanges chunks of 16 bytes: bits 4 to 6 of an
address (4 and 5 for 64 bytes, 4 for 32) are combined by exclusive or with the bits three places above them.
"""

from __future__ import annotations

from kernelforge.devices.emulated import layout as lay
from kernelforge.devices.emulated.codegen.numba_intrinsics import (
    copy_bytes,
    load_i32,
    load_i64,
    load_u8,
    native,
    store_i64,
)
from kernelforge.devices.emulated.runtime.access import find_allocation, read_element, write_element
from kernelforge.devices.emulated.runtime.atomics import combine
from kernelforge.devices.emulated.runtime.cache import CACHE_HOST_COUNTERS, count_host, is_host, l2_read, l2_write
from kernelforge.devices.emulated.runtime.faults import record_fault
from kernelforge.devices.emulated.runtime.warp import half_to_f32

COUNT = 0
LOAD = 1
STORE = 2
REDUCE = 3
"""What is done with a box: check and count its bytes in global memory, fill shared memory, or write global memory."""

CHUNK = 16
OFFSETS = lay.TRANSFER_OFFSETS - lay.TRANSFER_AT
"""Distance of the offsets of a column from its coordinates."""
GROUP = 32
"""Pixels of a column in im2col::w::128 mode that have a halo of their own; the column has four times as many."""
_MAX, _MIN = 3, 4
"""Positions in the list of atomic operations."""
_F16, _BF16 = 6, 7
"""Positions in the list of their types."""


@native
def is_tensor_map(at: int) -> bool:
    """Whether a tensor map that can be used is at a host address: a kernel may have written it."""
    rank = load_u8(at + lay.MAP_RANK)
    element = load_u8(at + lay.MAP_ELEMENT)
    if load_i64(at + lay.MAP_MAGIC) != lay.MAP_MAGIC_NUMBER or rank < 1 or rank > 5:
        return False
    if element not in (1, 2, 4, 8) or load_u8(at + lay.MAP_SWIZZLE) > 3 or load_u8(at + lay.MAP_TYPE) > 9:
        return False
    mode = load_u8(at + lay.MAP_MODE)
    images = mode != lay.MAP_TILES
    wide = mode in (lay.MAP_WIDE, lay.MAP_WIDE_128)
    pixels = load_i32(at + lay.MAP_BOX + 4)
    if mode > lay.MAP_WIDE_128 or (images and (rank < 3 or pixels < 1 or pixels > 1024)):
        return False
    if wide and load_u8(at + lay.MAP_SWIZZLE) < 2:
        return False
    for axis in range(rank):
        extent = load_i64(at + lay.MAP_EXTENTS + 8 * axis)
        step = load_u8(at + lay.MAP_STEPS + axis)
        box = load_i32(at + lay.MAP_BOX + 4 * axis)
        if extent < 1 or extent > 1 << 32 or step < 1 or step > 8:
            return False
        if (axis == 0 or not images) and (box < 1 or box > 256):
            return False
    if images:
        for axis in range(1, 2 if wide else rank - 1):
            if lower_corner(at, axis) > upper_corner(at, axis):
                return False
    return row_bytes(at) % CHUNK == 0


@native
def lower_corner(at: int, axis: int) -> int:
    """First position of a box of pixels along a dimension."""
    return (load_i32(at + lay.MAP_BOX + 4 * (axis + 1)) << 48) >> 48


@native
def upper_corner(at: int, axis: int) -> int:
    """Last position of a box of pixels along a dimension."""
    return load_i64(at + lay.MAP_EXTENTS + 8 * axis) - 1 + (load_i32(at + lay.MAP_BOX + 4 * (axis + 1)) >> 16)


@native
def next_pixel(at: int, pixel: int) -> None:
    """Move the five coordinates at ``pixel``, i64 each, to the position after theirs."""
    last = load_u8(at + lay.MAP_RANK) - 1
    for axis in range(1, last):
        value = load_i64(pixel + 8 * axis) + load_u8(at + lay.MAP_STEPS + axis)
        if value <= upper_corner(at, axis):
            store_i64(pixel + 8 * axis, value)
            return
        store_i64(pixel + 8 * axis, lower_corner(at, axis))
    store_i64(pixel + 8 * last, load_i64(pixel + 8 * last) + 1)


@native
def place_in_wide_mode(at: int, coordinates: int, row: int, position: int) -> None:
    """Put the width and the image of a pixel in shared memory to the coordinates at ``position``, i64 each.

    Positions go along the width of an image, then of the next one; the other dimensions stay. A halo has the pixels
    that come next (PTX ISA, *im2col::w and im2col::w::128 modes*).
    """
    last = load_u8(at + lay.MAP_RANK) - 1
    if load_u8(at + lay.MAP_MODE) == lay.MAP_WIDE_128:
        group = GROUP + load_i32(at + lay.MAP_HALO)
        row = row // group * GROUP + row % group
    step = load_u8(at + lay.MAP_STEPS + 1)
    first = load_i32(coordinates + 4)
    lower = lower_corner(at, 1)
    upper = upper_corner(at, 1)
    # The first pixel is moved wherever it is.
    here = max((upper - first) // step + 1, 1)
    image = load_i32(coordinates + 4 * last)
    width = first + row * step
    if row >= here:
        each = (upper - lower) // step + 1
        image += 1 + (row - here) // each
        width = lower + (row - here) % each * step
    store_i64(position + 8, width)
    store_i64(position + 8 * last, image)


@native
def place_row(at: int, coordinates: int, pixel: int, row: int, position: int) -> None:
    """Put the coordinates of a row of a box to ``position``, i64 each, without the innermost.

    Rows are asked for in order: ``pixel`` keeps the position in im2col mode.
    """
    rank = load_u8(at + lay.MAP_RANK)
    mode = load_u8(at + lay.MAP_MODE)
    if mode == lay.MAP_ROWS:
        store_i64(position + 8, load_i32(coordinates + 4 * (1 + row)))
        return
    if row == 0 or mode == lay.MAP_WIDE or mode == lay.MAP_WIDE_128:
        for axis in range(1, rank):
            store_i64(pixel + 8 * axis, load_i32(coordinates + 4 * axis))
    if mode == lay.MAP_TILES:
        for axis in range(1, rank):
            count = moved(at, axis)
            index = load_i64(pixel + 8 * axis) + row % count * load_u8(at + lay.MAP_STEPS + axis)
            store_i64(position + 8 * axis, index)
            row = row // count
        return
    if mode != lay.MAP_IMAGES:
        place_in_wide_mode(at, coordinates, row, pixel)
    elif row > 0:
        next_pixel(at, pixel)
    for axis in range(1, rank - 1):
        store_i64(position + 8 * axis, load_i64(pixel + 8 * axis) + load_i32(coordinates + OFFSETS + 4 * (axis - 1)))
    store_i64(position + 8 * (rank - 1), load_i64(pixel + 8 * (rank - 1)))


@native
def moved(at: int, axis: int) -> int:
    """Elements of a box along one dimension."""
    step = load_u8(at + lay.MAP_STEPS + axis)
    return (load_i32(at + lay.MAP_BOX + 4 * axis) + step - 1) // step


@native
def row_bytes(at: int) -> int:
    """Bytes of a box's row."""
    return moved(at, 0) * load_u8(at + lay.MAP_ELEMENT)


@native
def box_bytes(at: int) -> int:
    """Bytes of a box in shared memory."""
    size = row_bytes(at)
    mode = load_u8(at + lay.MAP_MODE)
    if mode == lay.MAP_ROWS:
        return size * 4
    if mode == lay.MAP_IMAGES:
        return size * load_i32(at + lay.MAP_BOX + 4)
    if mode == lay.MAP_WIDE:
        return size * (load_i32(at + lay.MAP_BOX + 4) + load_i32(at + lay.MAP_HALO))
    if mode == lay.MAP_WIDE_128:
        return size * 4 * (GROUP + load_i32(at + lay.MAP_HALO))
    for axis in range(1, load_u8(at + lay.MAP_RANK)):
        size *= moved(at, axis)
    return size


@native
def swizzled(offset: int, swizzle: int) -> int:
    """Offset in shared memory of a chunk that lies at ``offset`` without swizzle."""
    return offset ^ ((offset >> 3) & (((1 << swizzle) - 1) << 4))


@native
def fill_word(at: int) -> int:
    """Eight bytes of elements outside the tensor."""
    if load_u8(at + lay.MAP_FILL) == 0:
        return 0
    element = load_u8(at + lay.MAP_ELEMENT)
    if element == 2:
        return 0x7FFF7FFF7FFF7FFF
    return 0x7FFFFFFF7FFFFFFF if element == 4 else 0x7FFFFFFFFFFFFFFF


@native
def count_range(ctx: int, op: int, address: int, size: int, access: int, last: int) -> int:
    """Count the sectors of adjacent bytes beyond ``last``, which is counted; returns the last sector.

    Bulk copies pass no L1. Of host memory they read each line by one request on the link.
    """
    first = address >> 5
    end = (address + size - 1) >> 5
    if first == last:
        first += 1
    store_i64(op + lay.OP_TRANSACTIONS, load_i64(op + lay.OP_TRANSACTIONS) + max(end - first + 1, 0))
    if load_i64(ctx + lay.CTX_MODE) & lay.MODE_CACHE:
        cache = load_i64(ctx + lay.CTX_CACHE)
        line = last >> 2
        for sector in range(first, end + 1):
            if is_host(cache, sector):
                count_host(cache + CACHE_HOST_COUNTERS, 1, sector >> 2 != line)
                line = sector >> 2
                continue
            if access != lay.STORE:
                l2_read(cache, sector, False)
            if access != lay.LOAD:
                l2_write(cache, sector, lay.COMPLETE_SECTOR)
    return end


@native
def count_request(op: int, size: int) -> None:
    """Count one request for ``size`` bytes."""
    store_i64(op + lay.OP_REQUESTS, load_i64(op + lay.OP_REQUESTS) + 1)
    store_i64(op + lay.OP_THREADS, load_i64(op + lay.OP_THREADS) + (size + CHUNK - 1) // CHUNK)
    store_i64(op + lay.OP_IDEAL_TOTAL, load_i64(op + lay.OP_IDEAL_TOTAL) + ((size + 31) >> 5))


@native
def reduce_bytes(target: int, source: int, size: int, operation: int, kind: int, width: int) -> None:
    """Combine elements of ``width`` bytes at ``source`` into those at ``target``."""
    for k in range(0, size, width):
        old = read_element(target + k, 4, 0, width)
        new = read_element(source + k, 4, 0, width)
        if kind in (_F16, _BF16) and operation in (_MAX, _MIN):
            a = half_to_f32(old, kind == _BF16)
            b = half_to_f32(new, kind == _BF16)
            # Of a number and a NaN the number is taken.
            result = old if b != b or (a == a and (a > b) == (operation == _MAX)) else new
        else:
            result = combine(operation, kind, old, new, 0)
        write_element(target + k, 4, 0, width, result)


@native
def visit_box(
    ctx: int, op: int, at: int, coordinates: int, shared: int, offset: int, mode: int, code: int, lane_id: int
) -> int:
    """Do something with the rows of a box, ``mode``; returns the bytes inside the tensor, or -1 after a fault.

    ``shared`` is the host address of the box's place in shared memory, and ``offset`` its offset there. ``code`` is an
    access to count, or the operation and type of a reduction, as atomics are encoded. Offsets in im2col mode are behind
    the coordinates.
    """
    rank = load_u8(at + lay.MAP_RANK)
    element = load_u8(at + lay.MAP_ELEMENT)
    swizzle = load_u8(at + lay.MAP_SWIZZLE)
    step = load_u8(at + lay.MAP_STEPS)
    delta = load_i64(ctx + lay.CTX_ARENA_DELTA)
    fill = fill_word(at)
    width = row_bytes(at)
    rows = box_bytes(at) // width
    start = load_i32(coordinates)
    extent = load_i64(at + lay.MAP_EXTENTS)
    inside = 0
    last = -1
    pixel = load_i64(ctx + lay.CTX_SCRATCH) + lay.SCRATCH_AREA
    position = pixel + 40
    for row in range(rows):
        address = load_i64(at + lay.MAP_ADDRESS) + start * element
        there = True
        place_row(at, coordinates, pixel, row, position)
        for axis in range(1, rank):
            index = load_i64(position + 8 * axis)
            if index < 0 or index >= load_i64(at + lay.MAP_EXTENTS + 8 * axis):
                there = False
            address += index * load_i64(at + lay.MAP_STRIDES + 8 * (axis - 1))
        # Elements of the row that are in the tensor, as bytes of the row.
        low = min(max((-start + step - 1) // step, 0), moved(at, 0)) * element
        high = min(max((extent - start + step - 1) // step, 0), moved(at, 0)) * element
        if not there or high < low:
            high = low
        span = (high - low - element) * step + element if high > low else 0
        if mode == COUNT:
            if span == 0:
                continue
            table = find_allocation(ctx, address + low * step, span)
            if table == 0:
                record_fault(
                    ctx, lay.FAULT_OUT_OF_BOUNDS, (op - load_i64(ctx + lay.CTX_OPS)) // lay.OP_RECORD, lane_id,
                    address + low * step, span, lay.GLOBAL,
                )  # fmt: skip
                return -1
            flags = load_i64(table + lay.ALLOC_FLAGS)
            if code != lay.LOAD and flags != 0:
                kind = lay.FAULT_MODULE_WRITE if flags & lay.FLAG_MODULE else lay.FAULT_READ_ONLY_WRITE
                record_fault(
                    ctx, kind, (op - load_i64(ctx + lay.CTX_OPS)) // lay.OP_RECORD, lane_id, address + low * step, span,
                    lay.GLOBAL,
                )  # fmt: skip
                return -1
            last = count_range(ctx, op, address + low * step, span, code, last)
            inside += high - low
            continue
        inside += high - low
        for chunk in range(0, width, CHUNK):
            chunk_at = shared + swizzled(offset + row * width + chunk, swizzle) - offset
            first = min(max(low - chunk, 0), CHUNK)
            end = min(max(high - chunk, 0), CHUNK)
            if mode == LOAD and end - first < CHUNK:
                store_i64(chunk_at, fill)
                store_i64(chunk_at + 8, fill)
            if end <= first:
                continue
            if step == 1 and mode != REDUCE:
                host = address + chunk + first + delta
                if mode == LOAD:
                    copy_bytes(chunk_at + first, host, end - first)
                else:
                    copy_bytes(host, chunk_at + first, end - first)
                continue
            for k in range(first, end, element):
                host = address + (chunk + k) * step + delta
                if mode == LOAD:
                    copy_bytes(chunk_at + k, host, element)
                elif mode == STORE:
                    copy_bytes(host, chunk_at + k, element)
                else:
                    reduce_bytes(host, chunk_at + k, element, code >> 4, code & 15, element)
    return inside
