"""Operations between the lanes of a warp, and the choice of the block that a warp runs next."""

from __future__ import annotations

from kernelforge.devices.emulated import layout as lay
from kernelforge.devices.emulated.codegen.numba_intrinsics import (
    exported,
    load_i32,
    load_u32,
    popcount,
    store_u32,
    trailing_zeros,
)
from kernelforge.devices.emulated.runtime.access import read_element
from kernelforge.devices.emulated.runtime.faults import record_fault
from kernelforge.devices.emulated.runtime.matrix import signed


@exported("int64(int64, int64, int64, int64)")
def shuffle(ctx: int, values: int, mask: int, mode: int) -> int:
    """``shfl.sync`` with lane-dependent operands in areas 1 (b) and 2 (c); values in place; returns the predicates."""
    b = values + lay.SCRATCH_AREA
    c = values + 2 * lay.SCRATCH_AREA
    out = values + 3 * lay.SCRATCH_AREA
    valid = 0
    for lane in range(lay.LANES):
        bv = load_u32(b + 4 * lane)
        cv = load_u32(c + 4 * lane)
        segment = cv >> 8 & 31
        clamp = cv & 31
        bound = (lane & segment) | (clamp & ~segment)
        first = lane & segment
        delta = bv & 31
        source = lane
        ok = False
        if mode == 0:
            source = lane - delta
            ok = source >= bound
        elif mode == 1:
            source = lane + delta
            ok = source <= bound
        elif mode == 2:
            source = lane ^ delta
            ok = source <= bound
        else:
            source = first | (delta & ~segment)
            ok = source <= bound
        if not ok:
            source = lane
        else:
            valid |= 1 << lane
        store_u32(out + 4 * lane, load_u32(values + 4 * (source & 31)))
    for lane in range(lay.LANES):
        store_u32(values + 4 * lane, load_u32(out + 4 * lane))
    return valid


@exported("void(int64, int64, int64, int64, int64)")
def match(values: int, members: int, out: int, mask: int, code: int) -> None:
    """``match.sync``: per lane, the lanes of its member mask with the same value; ``.all``: all of them or none.

    ``code`` is the value's bytes, plus 16 for ``.all``.
    """
    width = code & 15
    rest = mask
    while rest != 0:
        lane = trailing_zeros(rest)
        rest &= rest - 1
        value = read_element(values, 4, lane * width, width)
        group = load_u32(members + 4 * lane) & mask
        peers = 0
        others = group
        while others != 0:
            other = trailing_zeros(others)
            others &= others - 1
            if read_element(values, 4, other * width, width) == value:
                peers |= 1 << other
        if code & 16 and peers != group:
            peers = 0
        store_u32(out + 4 * lane, peers)


# Reductions over the lanes that a lane's member mask names, as generated code encodes them.
GROUP_OPERATIONS = ("add", "umin", "umax", "smin", "smax", "and", "or", "xor", "ballot", "all", "any", "uni")


@exported("void(int64, int64, int64, int64, int64)")
def group_reduce(values: int, members: int, out: int, mask: int, operation: int) -> None:
    """``redux.sync`` and ``vote.sync`` (values 0 or 1) where member masks differ between lanes."""
    rest = mask
    while rest != 0:
        lane = trailing_zeros(rest)
        rest &= rest - 1
        others = load_u32(members + 4 * lane) & mask
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
        store_u32(out + 4 * lane, result)


@exported("int64(int64, int64, int64, int64)")
def pick(ctx: int, state: int, blocks: int, held: int) -> int:
    """Take the lowest block with waiting lanes: its index, -1 when the warp is done, -2 when it waits at a barrier.

    Lanes held at barriers become waiting lanes of the blocks after them once no lane can run.
    """
    block = load_i32(state + lay.W_WAITING)
    waiting = state + lay.W_HEADER
    if block != lay.NOBODY:
        store_u32(state + lay.W_MASK, load_u32(waiting + 4 * block))
        store_u32(waiting + 4 * block, 0)
        block_after = block + 1
        while block_after < blocks and load_u32(waiting + 4 * block_after) == 0:
            block_after += 1
        store_u32(state + lay.W_WAITING, block_after if block_after < blocks else lay.NOBODY)
        return block
    if load_i32(state + lay.W_HELD) == 0:
        return -1
    store_u32(state + lay.W_HELD, 0)
    lowest = lay.NOBODY
    distinct = 0
    for k in range(blocks):
        mask = load_u32(state + held + 4 * k)
        if mask != 0:
            distinct += 1
            lowest = min(lowest, k)
            store_u32(waiting + 4 * k, mask)
            store_u32(state + held + 4 * k, 0)
    store_u32(state + lay.W_WAITING, lowest)
    store_u32(state + lay.W_RESUME, blocks)
    if distinct > 1:
        site = load_i32(state + lay.W_BARRIER_SITE)
        mask = load_u32(waiting + 4 * lowest)
        record_fault(ctx, lay.FAULT_DIVERGENT_BARRIER, -1 - site, trailing_zeros(mask), 0, 0, lay.GENERIC)
    return -2
