"""Sums of products whose operands have a scale for each block of a row (``.block_scale``), in integers.

As MMA-Sim (Xie and others, 2025) found on a B200: of ``.kind::mxf8f6f4`` every product has the exponent of its factors
and scales, and all of them and D are cut off 25 bits below the largest one. Of ``.kind::mxf4`` and ``mxf4nvf4`` the
products of 16 elements are added exactly, then multiplied by their scales, and these and D are cut off 35 bits below
the largest exponent of a scale, or of D. The sum is cut off to f32.
"""

from __future__ import annotations

from kernelforge.devices.emulated import layout as lay
from kernelforge.devices.emulated.codegen.numba_intrinsics import (
    bits_to_f32,
    f32_to_bits,
    leading_zeros,
    load_i8,
    load_u8,
    load_u32,
    native,
    store_u8,
    store_u32,
)
from kernelforge.devices.emulated.runtime.tensor_memory import cell_at

MIXED = 4
"""The kind of products of 8, 6 and 4 bits, one to a byte; greater ones are of two elements of 4 bits in a byte."""
SPECIAL = 127
"""In place of an exponent: an infinity, with the sign of its significand, or NaN, whose significand is 0."""
NOTHING = -4000
"""Exponent of a zero."""
NAN = 0x7FFFFFFF


@native
def cut_shift(value: int, distance: int) -> int:
    """``value`` times 2 to the power of ``distance``, cut off toward zero."""
    if distance >= 0:
        return value << distance
    if distance < -60:
        return 0
    return value >> -distance if value >= 0 else -(-value >> -distance)


@native
def f32_toward_zero(total: int, exponent: int) -> int:
    """Bits of the f32 next to ``total`` times 2 to the power of ``exponent``, toward zero."""
    if total == 0:
        return 0
    sign = 0x80000000 if total < 0 else 0
    size = abs(total)
    width = 64 - leading_zeros(size)
    power = exponent + width - 1
    if power > 127:
        return sign | 0x7F800000
    if power < -126:
        return sign | cut_shift(size, exponent + 149)
    return sign | (power + 127) << 23 | (cut_shift(size, 24 - width) & 0x7FFFFF)


@native
def decode(
    raw: int, significands: int, exponents: int, count: int, fraction: int, width: int, specials: int, negative: bool
) -> None:
    """Elements in bytes as significands of 3 bits after the point, and exponents.

    ``specials``: the greatest exponent is of 1 infinities and NaN, or 2 a NaN where all bits of the fraction are set.
    """
    bias = (1 << width - 1) - 1
    most = (1 << width) - 1
    for k in range(count):
        byte = load_u8(raw + k)
        field = byte >> fraction & most
        part = byte & (1 << fraction) - 1
        value = part << 3 - fraction
        if field != 0:
            value |= 8
        exponent = max(field, 1) - bias
        if specials == 1 and field == most:
            exponent = SPECIAL
            value = 1 if part == 0 else 0
        if specials == 2 and field == most and part == (1 << fraction) - 1:
            exponent = SPECIAL
            value = 0
        if (byte >> fraction + width & 1 != 0) != negative:
            value = -value
        store_u8(significands + k, value)
        store_u8(exponents + k, exponent)


@native
def decode_mixed(raw: int, significands: int, exponents: int, count: int, code: int, negative: bool) -> None:
    """Elements of the type that an instruction descriptor encodes."""
    if code == 0:
        decode(raw, significands, exponents, count, 3, 4, 2, negative)
    elif code == 1:
        decode(raw, significands, exponents, count, 2, 5, 1, negative)
    elif code == 3:
        decode(raw, significands, exponents, count, 3, 2, 0, negative)
    elif code == 4:
        decode(raw, significands, exponents, count, 2, 3, 0, negative)
    else:
        decode(raw, significands, exponents, count, 1, 2, 0, negative)


@native
def decode_pairs(raw: int, significands: int, nbytes: int, negative: bool) -> None:
    """Two elements of e2m1 from each byte, the low one first: twice their values."""
    for k in range(2 * nbytes):
        bits = load_u8(raw + (k >> 1)) >> 4 * (k & 1) & 15
        power = bits >> 1 & 3
        value = (bits & 1) if power == 0 else (2 | bits & 1) << power - 1
        if (bits >> 3 != 0) != negative:
            value = -value
        store_u8(significands + k, value)


@native
def exponent_of(bits: int) -> int:
    """Exponent of an f32 that is no zero."""
    return max(bits >> 23 & 255, 1) - 127


@native
def significand_of(bits: int) -> int:
    """Significand of an f32, with 23 bits after the point, and its sign."""
    value = bits & 0x7FFFFF
    if bits & 0x7F800000 != 0:
        value |= 0x800000
    return -value if bits >> 31 else value


@native
def plain_sum(d: int, a_values: int, a_powers: int, b_values: int, b_powers: int) -> int:
    """Bits of the sum of products with an infinity or NaN among the terms; every finite term counts as nothing."""
    total = bits_to_f32(d) - bits_to_f32(d) if d & 0x7F800000 != 0x7F800000 else bits_to_f32(d)
    for k in range(32):
        a = load_i8(a_values + k)
        b = load_i8(b_values + k)
        a_special = load_i8(a_powers + k) == SPECIAL
        b_special = load_i8(b_powers + k) == SPECIAL
        if not a_special and not b_special:
            continue
        if a == 0 or b == 0:
            return NAN
        infinite = bits_to_f32(0x7F800000)
        total += infinite if (a > 0) == (b > 0) else -infinite
    bits = f32_to_bits(total)
    return NAN if bits & 0x7FFFFFFF > 0x7F800000 else bits


@native
def mixed_sum(d: int, a_values: int, a_powers: int, b_values: int, b_powers: int, scale: int) -> int:
    """Bits of D after 32 products of one scale, an exponent."""
    special = d & 0x7F800000 == 0x7F800000
    largest = NOTHING
    for k in range(32):
        a_power = load_i8(a_powers + k)
        b_power = load_i8(b_powers + k)
        special = special or a_power == SPECIAL or b_power == SPECIAL
        if load_i8(a_values + k) != 0 and load_i8(b_values + k) != 0:
            largest = max(largest, a_power + b_power + scale)
    if special:
        return plain_sum(d, a_values, a_powers, b_values, b_powers)
    if d & 0x7FFFFFFF != 0:
        largest = max(largest, exponent_of(d))
    if largest == NOTHING:
        return 0
    total = cut_shift(significand_of(d), 2 + exponent_of(d) - largest)
    for k in range(32):
        product = load_i8(a_values + k) * load_i8(b_values + k)
        power = load_i8(a_powers + k) + load_i8(b_powers + k) + scale
        if product != 0:
            total += cut_shift(product, 19 + power - largest)
    return f32_toward_zero(total, largest - 25)


@native
def scale_significand(byte: int, small: bool) -> int:
    """Significand of a scale, with 3 bits after the point: ue4m3, if ``small``, or ue8m0."""
    if not small:
        return 8
    return byte & 7 | (8 if byte & 0x78 != 0 else 0)


@native
def scale_exponent(byte: int, small: bool) -> int:
    """Exponent of a scale."""
    if not small:
        return byte - 127
    return max(byte >> 3 & 15, 1) - 7 if byte & 0x7F != 0 else -126


@native
def is_nan_scale(byte: int, small: bool) -> bool:
    """Whether a scale is NaN."""
    return byte & 0x7F == 0x7F if small else byte == 255


@native
def paired_sum(d: int, a_values: int, b_values: int, a_scales: int, b_scales: int, vector: int, small: bool) -> int:
    """Bits of D after 64 products, of which each 16 have ``vector`` scales of A and B in the bytes of words."""
    largest = exponent_of(d) if d & 0x7FFFFFFF != 0 else -126
    if d & 0x7F800000 == 0x7F800000:
        largest = NOTHING
    for group in range(4):
        at = 8 * (group * vector // 4)
        a = a_scales >> at & 255
        b = b_scales >> at & 255
        if is_nan_scale(a, small) or is_nan_scale(b, small):
            return NAN
        largest = max(largest, scale_exponent(a, small) + scale_exponent(b, small))
    if d & 0x7F800000 == 0x7F800000:
        return NAN if d & 0x7FFFFF != 0 else d
    total = cut_shift(significand_of(d), 12 + exponent_of(d) - largest)
    for group in range(4):
        product = 0
        for k in range(16 * group, 16 * group + 16):
            product += load_i8(a_values + k) * load_i8(b_values + k)
        at = 8 * (group * vector // 4)
        a = a_scales >> at & 255
        b = b_scales >> at & 255
        product *= scale_significand(a, small) * scale_significand(b, small)
        total += cut_shift(product, 27 + scale_exponent(a, small) + scale_exponent(b, small) - largest)
    return f32_toward_zero(total, largest - 35)


@native
def scaled_rows(
    tensor: int, scratch: int, kind: int, descriptor: int, vector: int, rows: int, columns: int, parts: int,
    column: int, a_column: int, b_column: int, keep: bool,
) -> None:  # fmt: skip
    """Add the products of A's rows and B's columns, which are in memory as gathered, to D in tensor memory.

    Each 32 lanes have the scales of their own rows, and those of all columns that they compute.
    """
    depth = 32 if kind == MIXED else 64
    negative = (descriptor >> 13 ^ descriptor >> 14) & 1 != 0
    a_values = scratch + lay.PRODUCT_LEFT
    a_powers = a_values + 128 * 64
    b_values = scratch + lay.PRODUCT_RIGHT
    b_powers = b_values + 256 * 64
    if kind == MIXED:
        decode_mixed(scratch + lay.PRODUCT_A, a_values, a_powers, 32 * rows, descriptor >> 7 & 7, negative)
        count = 32 * columns * parts
        decode_mixed(scratch + lay.PRODUCT_B, b_values, b_powers, count, descriptor >> 10 & 7, False)
    else:
        decode_pairs(scratch + lay.PRODUCT_A, a_values, 32 * rows, negative)
        decode_pairs(scratch + lay.PRODUCT_B, b_values, 32 * columns * parts, False)
    a_shift = 8 * (descriptor >> 29 & 3)
    b_shift = 8 * (descriptor >> 4 & 3)
    small = descriptor >> 23 & 1 == 0
    for row in range(rows):
        for part in range(parts):
            cells = cell_at(tensor, row + 128 // parts * part, column)
            partition = (row + 128 // parts * part) // 32 * 32
            a_scales = load_u32(cell_at(tensor, partition + row % 32, a_column + row // 32)) >> a_shift
            a = a_values + depth * row
            for n in range(columns):
                b_scales = load_u32(cell_at(tensor, partition + n % 32, b_column + n // 32)) >> b_shift
                b = b_values + depth * (columns * part + n)
                d = load_u32(cells + 4 * n) if keep else 0
                result = NAN
                if kind > MIXED:
                    result = paired_sum(d, a, b, a_scales, b_scales, vector, small)
                elif a_scales & 255 != 255 and b_scales & 255 != 255:
                    scale = (a_scales & 255) + (b_scales & 255) - 254
                    result = mixed_sum(d, a, a_powers + 32 * row, b, b_powers + 32 * (columns * part + n), scale)
                store_u32(cells + 4 * n, result)
