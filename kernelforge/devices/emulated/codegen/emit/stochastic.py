"""Stochastic rounding: ``cvt.rs`` of two f32 to f16 and bf16, and of four to floats of 8, 6 and 4 bits.

Random bits are added to those that are cut off, at their upper end; a carry rounds away from zero (PTX ISA, *cvt*).
Which bits of the operand each value takes the PTX ISA shows in pictures alone. This is from measurements of ``sm_100a``
that others have published, FlashInfer's ``include/flashinfer/mamba/conversion.cuh`` (f16, E4M3, the latter bit for bit
on 22,528 inputs) and a probe named ``nvidia_rs_bit_probe`` (bf16, E4M3, E5M2, E2M1):

- f16: 13 bits each, from bit 16 and from bit 0; bf16: 16 each;
- FP8: the first two values share the upper 16 bits, the others the lower ones, the first of each pair in reverse order;
- FP4: the same, of 16 bits of which the upper byte is two bytes above the lower one.

FP6 is as FP8 here, by analogy, and so are subnormal results of other formats than E4M3.
"""

from __future__ import annotations

from kernelforge.devices.emulated.codegen.emit import half
from kernelforge.devices.emulated.codegen.emit.emitter import Emitter, Value, vector_items
from kernelforge.devices.emulated.codegen.emit.floating import relu
from kernelforge.devices.emulated.codegen.emit.half import F32, I16, I32
from kernelforge.devices.emulated.codegen.emit.small_floats import SMALL_FLOATS, SmallFloat
from kernelforge.devices.emulated.ptx.inline import unsupported
from kernelforge.devices.emulated.ptx.parser import Instruction

HALVES = {
    "f16x2": SmallFloat(10, 15, 0x7BFF, nan=0x7FFF, infinity=0x7C00, bits=16),
    "bf16x2": SmallFloat(7, 127, 0x7F7F, nan=0x7FFF, infinity=0x7F80, bits=16),
}
FOURS = {f"{name[:-1]}4": form for name, form in SMALL_FLOATS.items()}
"""The formats by their names in PTX: two, or four, of them in a register."""


def _round(e: Emitter, value: str, random: str, form: SmallFloat, count: int, saturates: bool) -> str:
    """Codes, as i32, of f32 lanes, with ``count`` random bits of each."""
    bits = e.op(f"bitcast {F32} {value} to {I32}")
    magnitude = e.op(f"and {I32} {bits}, splat (i32 {0x7FFFFFFF})")
    least = 128 - form.bias  # biased exponent of the smallest normal value
    exponent = e.op(f"lshr {I32} {magnitude}, splat (i32 23)")
    normal = e.op(f"icmp ne {I32} {exponent}, zeroinitializer")
    exponent = e.intrinsic("umax", I32, exponent, "splat (i32 1)")
    hidden = e.select(normal, I32, f"splat (i32 {1 << 23})", "zeroinitializer")
    mantissa = e.op(f"or {I32} {e.op(f'and {I32} {magnitude}, splat (i32 {(1 << 23) - 1})')}, {hidden}")
    clamped = e.intrinsic("umax", I32, exponent, f"splat (i32 {least})")
    # Of the bits that are cut off the upper ``count`` decide; a value below the least exponent loses more.
    lost = e.op(f"add {I32} {e.op(f'sub {I32} {clamped}, {exponent}')}, splat (i32 {23 - form.mantissa - count})")
    kept = e.op(f"lshr {I32} {mantissa}, {e.intrinsic('umin', I32, lost, 'splat (i32 31)')}")
    steps = e.op(f"lshr {I32} {e.op(f'add {I32} {kept}, {random}')}, splat (i32 {count})")
    above = e.op(f"shl {I32} {e.op(f'sub {I32} {clamped}, splat (i32 {least})')}, splat (i32 {form.mantissa})")
    most = form.largest if saturates or form.infinity is None else form.infinity
    code = e.intrinsic("umin", I32, e.op(f"add {I32} {above}, {steps}"), f"splat (i32 {most})")
    sign_bit = 1 << form.largest.bit_length()
    sign = e.op(f"lshr {I32} {bits}, splat (i32 {32 - sign_bit.bit_length()})")
    code = e.op(f"or {I32} {code}, {e.op(f'and {I32} {sign}, splat (i32 {sign_bit})')}")
    nan = e.op(f"fcmp uno {F32} {value}, {value}")
    return e.select(nan, I32, f"splat (i32 {form.largest if form.nan is None else form.nan})", code)


def _field(e: Emitter, word: str, first: int, bits: int) -> str:
    moved = e.op(f"lshr {I32} {word}, splat (i32 {first})") if first else word
    return e.op(f"and {I32} {moved}, splat (i32 {(1 << bits) - 1})")


def _random_bits(e: Emitter, word: str, target: str) -> list[str]:
    """The random bits of each value, that in the lowest place first."""
    if target in HALVES:
        return [_field(e, word, first, 13 if target == "f16x2" else 16) for first in (0, 16)]
    parts = []
    for pair in (0, 1):
        if target == "e2m1x4":
            low, high = (_field(e, word, first + 8 * pair, 8) for first in (0, 16))
            shared = e.op(f"or {I32} {low}, {e.op(f'shl {I32} {high}, splat (i32 8)')}")
        else:
            shared = _field(e, word, 16 * pair, 16)
        reverse = e.op(f"lshr {I32} {e.intrinsic('bitreverse', I32, shared)}, splat (i32 16)")
        parts += [shared, reverse]
    return parts


def round_stochastically(e: Emitter, i: Instruction, target: str) -> None:
    """``cvt.rs``: the last operand has the random bits, the first value goes to the highest place."""
    form = HALVES.get(target) or FOURS.get(target)
    rest = set(i.modifiers[:-2]) - {"rs", "relu", "satfinite"}
    saturates = "satfinite" in i.modifiers
    if form is None or rest or i.modifiers[-1] != "f32" or not (saturates or target in HALVES):
        raise unsupported(i)
    items = vector_items(i.operands[1]) if target in FOURS else i.operands[1:3]
    if len(items) != (4 if target in FOURS else 2) or len(i.operands) != (3 if target in FOURS else 4):
        raise unsupported(i)
    word = e.spread(e.source(i, i.operands[-1], 32), 32)
    codes = []
    for item, random in zip(reversed(items), _random_bits(e, word, target), strict=True):
        (text,), vec = e.float_sources(i, (item,), 32)
        value = text if vec else e.splat(text, "float")
        if "relu" in i.modifiers:
            value = relu(e, value)
        codes.append(_round(e, value, random, form, 13 if target == "f16x2" else 16, saturates))
    if target in HALVES:
        half.write_pair(e, i, [e.op(f"trunc {I32} {code} to {I16}") for code in codes])
        return
    joined = codes[0]
    for number, code in enumerate(codes[1:], 1):
        joined = e.op(f"or {I32} {joined}, {e.op(f'shl {I32} {code}, splat (i32 {form.bits * number})')}")
    width = 4 * form.bits
    e.write(i, i.operands[0], e.resize(Value(joined, True), 32, width), width)
