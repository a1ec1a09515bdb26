"""Operations of a warp: shuffles, votes, reductions, matrix instructions, and the choice of the next block."""

from __future__ import annotations

from kernelforge.devices.emulated import layout as lay
from kernelforge.devices.emulated.codegen.numba_intrinsics import (
    bits_to_f32,
    exported,
    f32_to_bits,
    load_i32,
    load_i64,
    load_u32,
    native,
    popcount,
    store_u32,
    trailing_zeros,
)
from kernelforge.devices.emulated.layout import HOST, STRIDE
from kernelforge.devices.emulated.runtime.access import read_element, resolve, write_element
from kernelforge.devices.emulated.runtime.faults import record_fault


@native
def signed(value: int) -> int:
    return value - 0x100000000 if value >= 0x80000000 else value


@native
def half_to_f32(bits: int, brain: bool) -> float:
    """Value of a 16-bit float, exactly."""
    if brain:
        return bits_to_f32(bits << 16)
    sign = (bits & 0x8000) << 16
    exponent = bits >> 10 & 31
    mantissa = bits & 0x3FF
    if exponent == 31:
        return bits_to_f32(sign | 0x7F800000 | (mantissa << 13))
    if exponent == 0:
        # Adds 2**-14 in front of the mantissa, then subtracts it.
        return bits_to_f32(sign | f32_to_bits(bits_to_f32(0x38800000 | (mantissa << 13)) - bits_to_f32(0x38800000)))
    return bits_to_f32(sign | ((exponent + 112) << 23) | (mantissa << 13))


@native
def f32_to_half(bits: int, brain: bool) -> int:
    """Bit pattern of an f32 rounded to nearest even in 16 bits; NaN becomes 0x7FFF."""
    magnitude = bits & 0x7FFFFFFF
    sign = bits >> 16 & 0x8000
    if magnitude > 0x7F800000:
        return 0x7FFF
    if brain:
        return sign | ((magnitude + 0x7FFF + (magnitude >> 16 & 1)) >> 16)
    if magnitude >= 0x477FF000:
        return sign | 0x7C00
    if magnitude < 0x38800000:
        # The last bit of a sum near 1/2 is 2**-24, the smallest half.
        half = bits_to_f32(0x3F000000)
        return sign | (f32_to_bits(bits_to_f32(magnitude) + half) - 0x3F000000)
    return sign | ((magnitude - 0x38000000 + 0xFFF + (magnitude >> 13 & 1)) >> 13)


@exported
def ldmatrix(ctx: int, op: int, addresses: int, mask: int, out: int, count: int, transposed: int) -> None:
    """``ldmatrix``: lane 8m + r points at row r of matrix m; every lane gets two elements of each matrix."""
    good = resolve(ctx, op, addresses, mask & ((1 << 8 * count) - 1), 0, 4)
    scratch = load_i64(ctx + lay.CTX_SCRATCH)
    for k in range(count):
        for lane_id in range(lay.LANES):
            value = 0
            for half in range(2):
                row = lane_id >> 2
                column = 2 * (lane_id & 3) + half
                if transposed:
                    row, column = column, row
                source = 8 * k + row
                if good >> source & 1:
                    where = load_i64(scratch + HOST + 8 * source)
                    step = load_i64(scratch + STRIDE + 8 * source)
                    value |= read_element(where, step, 2 * column, 2) << 16 * half
            store_u32(out + 128 * k + 4 * lane_id, value)


@exported
def stmatrix(ctx: int, op: int, addresses: int, mask: int, values: int, count: int, transposed: int) -> None:
    """``stmatrix``: lane 8m + r points at row r of matrix m; every lane has two elements of each matrix."""
    good = resolve(ctx, op, addresses, mask & ((1 << 8 * count) - 1), 0, 4)
    scratch = load_i64(ctx + lay.CTX_SCRATCH)
    for k in range(count):
        for lane_id in range(lay.LANES):
            value = load_u32(values + 128 * k + 4 * lane_id)
            for half in range(2):
                row = lane_id >> 2
                column = 2 * (lane_id & 3) + half
                if transposed:
                    row, column = column, row
                target = 8 * k + row
                if good >> target & 1:
                    where = load_i64(scratch + HOST + 8 * target)
                    step = load_i64(scratch + STRIDE + 8 * target)
                    write_element(where, step, 2 * column, 2, value >> 16 * half & 0xFFFF)


@exported
def shuffle(ctx: int, values: int, mask: int, mode: int) -> int:
    """``shfl.sync`` with lane-dependent operands in areas 1 (b) and 2 (c); values in place; returns the predicates."""
    b = values + lay.SCRATCH_AREA
    c = values + 2 * lay.SCRATCH_AREA
    out = values + 3 * lay.SCRATCH_AREA
    valid = 0
    for lane_id in range(lay.LANES):
        bv = load_u32(b + 4 * lane_id)
        cv = load_u32(c + 4 * lane_id)
        segment = cv >> 8 & 31
        clamp = cv & 31
        bound = (lane_id & segment) | (clamp & ~segment)
        first = lane_id & segment
        delta = bv & 31
        source = lane_id
        ok = False
        if mode == 0:
            source = lane_id - delta
            ok = source >= bound
        elif mode == 1:
            source = lane_id + delta
            ok = source <= bound
        elif mode == 2:
            source = lane_id ^ delta
            ok = source <= bound
        else:
            source = first | (delta & ~segment)
            ok = source <= bound
        if not ok:
            source = lane_id
        else:
            valid |= 1 << lane_id
        store_u32(out + 4 * lane_id, load_u32(values + 4 * (source & 31)))
    for lane_id in range(lay.LANES):
        store_u32(values + 4 * lane_id, load_u32(out + 4 * lane_id))
    return valid


@exported
def match(values: int, members: int, out: int, mask: int, code: int) -> None:
    """``match.sync``: per lane, the lanes of its member mask with the same value; ``.all``: all of them or none.

    ``code`` is the value's bytes, plus 16 for ``.all``.
    """
    width = code & 15
    rest = mask
    while rest != 0:
        lane_id = trailing_zeros(rest)
        rest &= rest - 1
        value = read_element(values, 4, lane_id * width, width)
        group = load_u32(members + 4 * lane_id) & mask
        peers = 0
        others = group
        while others != 0:
            other = trailing_zeros(others)
            others &= others - 1
            if read_element(values, 4, other * width, width) == value:
                peers |= 1 << other
        if code & 16 and peers != group:
            peers = 0
        store_u32(out + 4 * lane_id, peers)


# Reductions over the lanes that a lane's member mask names, as generated code encodes them.
GROUP_OPERATIONS = ("add", "umin", "umax", "smin", "smax", "and", "or", "xor", "ballot", "all", "any", "uni")


@exported
def group_reduce(values: int, members: int, out: int, mask: int, operation: int) -> None:
    """``redux.sync`` and ``vote.sync`` (values 0 or 1) where member masks differ between lanes."""
    rest = mask
    while rest != 0:
        lane_id = trailing_zeros(rest)
        rest &= rest - 1
        others = load_u32(members + 4 * lane_id) & mask
        count = popcount(others)
        result = 0
        first = True
        while others != 0:
            other = trailing_zeros(others)
            others &= others - 1
            value = load_u32(values + 4 * other)
            if operation == 8:
                value = value << other
            if first:
                result = value
            elif operation == 0 or operation >= 9:
                result += value
            elif operation == 1:
                result = min(result, value)
            elif operation == 2:
                result = max(result, value)
            elif operation == 3:
                result = value if signed(value) < signed(result) else result
            elif operation == 4:
                result = value if signed(value) > signed(result) else result
            elif operation == 5:
                result &= value
            elif operation == 7:
                result ^= value
            else:
                result |= value
            first = False
        if operation == 9:
            result = 1 if result == count else 0
        elif operation == 10:
            result = 1 if result != 0 else 0
        elif operation == 11:
            result = 1 if result == 0 or result == count else 0
        store_u32(out + 4 * lane_id, result)


@exported
def find_set(words: int, bases: int, counts: int) -> None:
    """``fns``: in each lane the position of the n-th set bit at or above a base (below it where n is negative).

    The result, all ones where there is none, replaces the lane's word.
    """
    for lane_id in range(lay.LANES):
        word = load_u32(words + 4 * lane_id)
        position = load_i32(bases + 4 * lane_id)
        count = load_i32(counts + 4 * lane_id)
        step = -1 if count < 0 else 1
        last = position if count == 0 else (0 if count < 0 else 31)
        remaining = max(abs(count), 1)
        result = 0xFFFFFFFF
        if position < 0 or position > 31:
            last = position - step
        while position - step != last:
            if word >> position & 1:
                remaining -= 1
                if remaining == 0:
                    result = position
                    break
            position += step
        store_u32(words + 4 * lane_id, result)


@exported
def pick(ctx: int, state: int, blocks: int, held_offset: int) -> int:
    """Take the lowest block with waiting lanes: its index, -1 when the warp is done, -2 when it waits at a barrier.

    When no lane can run, lanes held at barriers become waiting lanes of the blocks after those.
    """
    block = load_i32(state + lay.W_WAITING)
    waiting = state + lay.W_HEADER
    if block != lay.NO_BLOCK:
        store_u32(state + lay.W_MASK, load_u32(waiting + 4 * block))
        store_u32(waiting + 4 * block, 0)
        block_after = block + 1
        while block_after < blocks and load_u32(waiting + 4 * block_after) == 0:
            block_after += 1
        store_u32(state + lay.W_WAITING, block_after if block_after < blocks else lay.NO_BLOCK)
        return block
    barriers = load_i32(state + lay.W_HELD)
    if barriers == 0:
        return -1
    store_u32(state + lay.W_HELD, 0)
    lowest = lay.NO_BLOCK
    distinct = 0
    for k in range(blocks):
        mask = load_u32(state + held_offset + 4 * k)
        if mask != 0:
            distinct += 1
            lowest = min(lowest, k)
            store_u32(waiting + 4 * k, mask)
            store_u32(state + held_offset + 4 * k, 0)
    store_u32(state + lay.W_WAITING, lowest)
    store_u32(state + lay.W_RESUME, blocks)
    if distinct > 1 and barriers != 2:
        site = load_i32(state + lay.W_BARRIER_SITE)
        mask = load_u32(waiting + 4 * lowest)
        record_fault(ctx, lay.FAULT_DIVERGENT_BARRIER, -1 - site, trailing_zeros(mask), 0, 0, lay.GENERIC)
    return -2
