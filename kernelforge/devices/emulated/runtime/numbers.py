"""Conversions of single values: signed integers and 16-bit floats."""

from __future__ import annotations

from kernelforge.devices.emulated.native import bits_to_f32, f32_to_bits, native


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
        # 2**-14 in front of the mantissa, and off again.
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
