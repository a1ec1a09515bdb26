"""Atomic read-modify-write operations, lane by lane."""

from __future__ import annotations

from kernelforge.devices.emulated import layout as lay
from kernelforge.devices.emulated.codegen.numba_intrinsics import (
    bits_to_f32,
    bits_to_f64,
    exported,
    f32_to_bits,
    f64_to_bits,
    load_i32,
    load_i64,
    load_u32,
    native,
    store_i64,
    store_u32,
    trailing_zeros,
)
from kernelforge.devices.emulated.layout import EFFECTIVE, HOST, STRIDE
from kernelforge.devices.emulated.runtime.access import read_element, resolve, write_element
from kernelforge.devices.emulated.runtime.warp import f32_to_half, half_to_f32, signed

# Operations and types of atomics, as generated code encodes them: operation * 16 + type.
ATOMIC_OPERATIONS = ("add", "exch", "cas", "max", "min", "and", "or", "xor", "inc", "dec")
ATOMIC_TYPES = ("u32", "s32", "f32", "u64", "s64", "f64", "f16", "bf16", "f16x2", "bf16x2", "u16", "b128")
_FIRST_HALF_TYPE = 6
ADD_F32 = 2
"""A sum of f32, as encoded."""
FLUSHED_F32 = 12
"""Beyond the types: f32 in global memory, where the PTX ISA says that sums flush subnormal inputs and results."""
_NAN = 0x7FFFFFFF
"""The NaN of an f32 sum on an H100."""


@native
def flushed(bits: int) -> int:
    """Bits of an f32, without those of a subnormal number but its sign."""
    return bits if bits & 0x7F800000 else bits & 0x80000000


@native
def add_f32(old: int, b: int, flush: bool) -> int:
    """Bits of the sum of two f32."""
    if flush:
        old = flushed(old)
        b = flushed(b)
    total = f32_to_bits(bits_to_f32(old) + bits_to_f32(b))
    if total & 0x7FFFFFFF > 0x7F800000:
        return _NAN
    return flushed(total) if flush else total


@native
def combine_half(operation: int, brain: bool, old: int, b: int) -> int:
    """Sum, minimum or maximum of two 16-bit floats. f32 has enough bits that rounding twice is rounding once."""
    x, y = half_to_f32(old, brain), half_to_f32(b, brain)
    if operation == 0:
        return f32_to_half(f32_to_bits(x + y), brain)
    if x != x:
        return b if y == y else 0x7FFF
    if y != y:
        return old
    # Zeros are equal as numbers, and ordered by their signs.
    smaller = x < y or (x == y and old >= 0x8000)
    return old if smaller == (operation == 4) else b


@native
def combine_halves(operation: int, kind: int, old: int, b: int) -> int:
    """Result for one 16-bit float or two packed ones."""
    brain = kind % 2 == 1
    low = combine_half(operation, brain, old & 0xFFFF, b & 0xFFFF)
    if kind < _FIRST_HALF_TYPE + 2:
        return low
    return low | (combine_half(operation, brain, old >> 16, b >> 16) << 16)


@native
def combine(operation: int, kind: int, old: int, b: int, c: int) -> int:
    """New value of one atomic; 32-bit values are non-negative integers."""
    if operation == 1:
        return b
    if operation == 2:
        return c if old == b else old
    if operation == 5:
        return old & b
    if operation == 6:
        return old | b
    if operation == 7:
        return old ^ b
    if operation == 8:
        return 0 if old >= b else old + 1
    if operation == 9:
        return b if old == 0 or old > b else old - 1
    if kind == FLUSHED_F32:
        return add_f32(old, b, True)
    if kind >= _FIRST_HALF_TYPE:
        return combine_halves(operation, kind, old, b)
    if operation == 0:
        if kind == ADD_F32:
            return add_f32(old, b, False)
        if kind == 5:
            return f64_to_bits(bits_to_f64(old) + bits_to_f64(b))
        if kind < 3:
            return (old + b) & 0xFFFFFFFF
        return old + b
    greater = False
    if kind == 0 or kind == 4:
        greater = old > b
    elif kind == 1:
        greater = signed(old) > signed(b)
    elif kind == 3:
        greater = (old ^ (-0x7FFFFFFFFFFFFFFF - 1)) > (b ^ (-0x7FFFFFFFFFFFFFFF - 1))
    if operation == 3:
        return old if greater else b
    return b if greater else old


@native
def count_leader(keys: int, counts: int, number: int) -> None:
    """Count an update of a word or line among those that share its counter: the majority of Boyer and Moore (1981)."""
    offset = 4 * (number % lay.UPDATE_COUNTERS)
    count = load_u32(counts + offset)
    key = number & 0xFFFFFFFF
    if load_u32(keys + offset) == key:
        count += 1
    elif count == 0:
        store_u32(keys + offset, key)
        count = 1
    else:
        count -= 1
    store_u32(counts + offset, count)


@native
def count_update(ctx: int, op: int, address: int, sectors: int) -> int:
    """Count an atomic's update of a word; returns the request's ``sectors``, a bit for each by its number modulo 61.

    A sketch counts the different words. Where a profile is made, in one order, leaders count the updates of words, and
    of the sectors of lines.
    """
    # Mixed twice: one multiplication spreads neighbours more evenly than the random hash that the estimate assumes.
    mixed = (address >> 2) * 0x1E3779B97F4A7C15
    mixed = (mixed ^ ((mixed >> 31) & 0xFFFFFFFF)) * 0x3F58476D1CE4E5B9
    bit = ((mixed ^ ((mixed >> 29) & 0x7FFFFFFF)) >> 40) & 0x3FF
    word = op + lay.OP_SKETCH + 8 * (bit >> 6)
    store_i64(word, load_i64(word) | (1 << (bit & 63)))
    sector = 1 << (address >> 5) % 61
    if load_i64(ctx + lay.CTX_MODE) & lay.MODE_CACHE:
        count_leader(op + lay.OP_WORD_KEYS, op + lay.OP_WORD_UPDATES, address >> 2)
        if sectors & sector == 0:
            count_leader(op + lay.OP_LINE_KEYS, op + lay.OP_LINE_UPDATES, address >> 7)
    return sectors | sector


@native
def update_wide(address: int, step: int, operation: int, b: int, c: int, out: int) -> None:
    """Exchange, or compare and exchange, 16 bytes: ``b``, ``c`` and ``out`` are addresses of the lane's values."""
    low, high = read_element(address, step, 0, 8), read_element(address, step, 8, 8)
    if operation == 1:
        write_element(address, step, 0, 8, load_i64(b))
        write_element(address, step, 8, 8, load_i64(b + 8))
    elif low == load_i64(b) and high == load_i64(b + 8):
        write_element(address, step, 0, 8, load_i64(c))
        write_element(address, step, 8, 8, load_i64(c + 8))
    store_i64(out, low)
    store_i64(out + 8, high)


@exported
def atomic(ctx: int, op: int, addresses: int, mask: int, b: int, c: int, out: int, code: int, width: int) -> None:
    """Read-modify-writes in lane order, one for each element of ``width`` bytes. The old values go to ``out``."""
    good = resolve(ctx, op, addresses, mask, 0, 4)
    scratch = load_i64(ctx + lay.CTX_SCRATCH)
    kind = code & 15
    operation = code >> 4
    elements = load_i32(op + lay.OP_BYTES) // width
    flushes = code == ADD_F32
    sectors = 0
    rest = mask
    while rest != 0:
        lane_id = trailing_zeros(rest)
        rest &= rest - 1
        if good >> lane_id & 1:
            sectors = count_update(ctx, op, load_i64(scratch + EFFECTIVE + 8 * lane_id), sectors)
        address = load_i64(scratch + HOST + 8 * lane_id)
        step = load_i64(scratch + STRIDE + 8 * lane_id)
        if flushes:
            in_global = load_i64(scratch + EFFECTIVE + 8 * lane_id) >= lay.GLOBAL_BASE
            kind = FLUSHED_F32 if in_global else ADD_F32
        for k in range(elements):
            at = (k * lay.LANES + lane_id) * width
            if good >> lane_id & 1 == 0:
                for part in range(0, width, 2):
                    write_element(out, 4, at + part, 2, 0)
            elif width == 16:
                update_wide(address, step, operation, b + at, c + at, out + at)
            else:
                old = read_element(address, step, k * width, width)
                first = read_element(b, 4, at, width)
                second = read_element(c, 4, at, width)
                write_element(address, step, k * width, width, combine(operation, kind, old, first, second))
                write_element(out, 4, at, width, old)
