"""Conversions to and from floats of 8, 6 and 4 bits, and to integers of few bits that one register packs."""

from __future__ import annotations

import math
from dataclasses import dataclass

from kernelforge.devices.emulated.codegen.emit import half
from kernelforge.devices.emulated.codegen.emit.emitter import Emitter, Value
from kernelforge.devices.emulated.codegen.emit.floating import relu
from kernelforge.devices.emulated.codegen.emit.half import F32, I16, I32
from kernelforge.devices.emulated.codegen.emit.integer import clamp_integer, constant
from kernelforge.devices.emulated.codegen.ir_builder import float_constant, int_type
from kernelforge.devices.emulated.ptx.inline import unsupported
from kernelforge.devices.emulated.ptx.parser import Instruction, Operand


@dataclass(frozen=True)
class SmallFloat:
    """A format of which two values fill a register of 16 bits, or of 8."""

    mantissa: int
    bias: int
    largest: int
    """Code of the largest finite value."""
    nan: int | None = None
    """Code of NaN; None: the format has none, and NaN becomes the largest value."""
    infinity: int | None = None
    bits: int = 8
    """Distance of the two values."""


SMALL_FLOATS = {
    "e4m3x2": SmallFloat(3, 7, 0x7E, nan=0x7F),
    "e5m2x2": SmallFloat(2, 15, 0x7B, nan=0x7F, infinity=0x7C),
    "e2m3x2": SmallFloat(3, 1, 0x1F),
    "e3m2x2": SmallFloat(2, 3, 0x1F),
    "e2m1x2": SmallFloat(1, 1, 0x07, bits=4),
}
"""The pairs of floats by their names in PTX. Their sign is the bit above those of the largest code."""
SCALES = "ue8m0x2"
"""A pair of powers of two, without a sign."""


def _sign_bit(form: SmallFloat) -> int:
    return 1 << (form.largest.bit_length())


def _encode(e: Emitter, value: str, form: SmallFloat) -> str:
    """Codes, as i32, of f32 lanes: to nearest even, and to the largest value where that is less."""
    bits = e.op(f"bitcast {F32} {value} to {I32}")
    magnitude = e.op(f"and {I32} {bits}, splat (i32 {0x7FFFFFFF})")
    least = 128 - form.bias  # biased exponent of the smallest normal value
    exponent = e.intrinsic("umax", I32, e.op(f"lshr {I32} {magnitude}, splat (i32 23)"), f"splat (i32 {least})")
    # Infinity, too, is more than every format holds.
    exponent = e.intrinsic("umin", I32, exponent, "splat (i32 200)")
    # The last place of the result is 2**(exponent - 127 - mantissa): dividing by it is exact, and then one rounds.
    inverse = e.op(f"sub {I32} splat (i32 {254 + form.mantissa}), {exponent}")
    scale = e.op(f"bitcast {I32} {e.op(f'shl {I32} {inverse}, splat (i32 23)')} to {F32}")
    steps = e.op(f"fmul {F32} {e.op(f'bitcast {I32} {magnitude} to {F32}')}, {scale}")
    count = e.to_integer(e.intrinsic("roundeven", F32, steps), F32, I32, signed=False)
    above = e.op(f"shl {I32} {e.op(f'sub {I32} {exponent}, splat (i32 {least})')}, splat (i32 {form.mantissa})")
    code = e.intrinsic("uadd.sat", I32, above, count)
    code = e.intrinsic("umin", I32, code, f"splat (i32 {form.largest})")
    sign = e.op(f"lshr {I32} {bits}, splat (i32 {32 - _sign_bit(form).bit_length()})")
    code = e.op(f"or {I32} {code}, {e.op(f'and {I32} {sign}, splat (i32 {_sign_bit(form)})')}")
    nan = e.op(f"fcmp uno {F32} {value}, {value}")
    return e.select(nan, I32, f"splat (i32 {form.largest if form.nan is None else form.nan})", code)


def _decode(e: Emitter, code: str, form: SmallFloat) -> str:
    """The f32 values of codes, exactly; bits beyond the sign are ignored."""
    sign = _sign_bit(form)
    magnitude = e.op(f"and {I32} {code}, splat (i32 {sign - 1})")
    moved = e.op(f"bitcast {I32} {e.op(f'shl {I32} {magnitude}, splat (i32 {23 - form.mantissa})')} to {F32}")
    value = e.op(f"fmul {F32} {moved}, {float_constant(2.0 ** (127 - form.bias), F32)}")
    if form.infinity is not None:
        special = e.op(f"icmp eq {I32} {magnitude}, splat (i32 {form.infinity})")
        value = e.select(special, F32, float_constant(math.inf, F32), value)
    if form.nan is not None:
        # All codes above infinity are NaN.
        special = e.op(f"icmp ugt {I32} {magnitude}, splat (i32 {form.infinity or form.largest})")
        value = e.select(special, F32, float_constant(math.nan, F32), value)
    signs = e.op(f"shl {I32} {code}, splat (i32 {32 - sign.bit_length()})")
    negative = e.op(f"bitcast {I32} {e.op(f'and {I32} {signs}, splat (i32 {-1 << 31})')} to {F32}")
    return e.intrinsic("copysign", F32, value, negative)


def _encode_scale(e: Emitter, value: str, i: Instruction) -> str:
    """The exponent alone, as i32; the sign is dropped. A mantissa rounds up under ``.rp``."""
    magnitude = e.op(f"and {I32} {e.op(f'bitcast {F32} {value} to {I32}')}, splat (i32 {0x7FFFFFFF})")
    code = e.op(f"lshr {I32} {magnitude}, splat (i32 23)")
    if "rp" in i.modifiers:
        # 2**-127, the least code, is a denormal of f32.
        more = e.op(f"and {I32} {magnitude}, splat (i32 {0x7FFFFF})")
        up = [e.op(f"icmp {test} {I32} {v}, splat (i32 {at})") for test, v, at in
              (("ne", more, 0), ("ugt", magnitude, 0x400000), ("ult", magnitude, 0x7F800000))]  # fmt: skip
        grows = e.op(f"and <32 x i1> {e.op(f'and <32 x i1> {up[0]}, {up[1]}')}, {up[2]}")
        code = e.op(f"add {I32} {code}, {e.op(f'zext <32 x i1> {grows} to {I32}')}")
    elif "rz" not in i.modifiers:
        raise unsupported(i)
    if "satfinite" in i.modifiers:
        code = e.intrinsic("umin", I32, code, "splat (i32 254)")
    nan = e.op(f"icmp ugt {I32} {magnitude}, splat (i32 {0x7F800000})")
    return e.select(nan, I32, "splat (i32 255)", code)


def _decode_scale(e: Emitter, code: str) -> str:
    """2**(code - 127); 255 is NaN."""
    normal = e.op(f"shl {I32} {code}, splat (i32 23)")
    least = e.select(e.op(f"icmp eq {I32} {code}, zeroinitializer"), I32, "splat (i32 4194304)", normal)
    nan = e.op(f"icmp eq {I32} {code}, splat (i32 255)")
    return e.op(f"bitcast {I32} {e.select(nan, I32, 'splat (i32 2143289344)', least)} to {F32}")


def _pair(e: Emitter, i: Instruction, operands: tuple[Operand, ...], source: str) -> list[str]:
    """The lower and the upper value as f32 lanes: of two registers, of which the first is the upper, or of one."""
    if source == "f32":
        values = []
        for operand in reversed(operands):
            (text,), vec = e.float_sources(i, (operand,), 32)
            values.append(text if vec else e.splat(text, "float"))
    else:
        both = e.spread(e.source(i, operands[0], 32), 32)
        high = e.op(f"lshr {I32} {both}, splat (i32 16)")
        values = [half.widen(e, e.op(f"trunc {I32} {v} to {I16}"), source == "bf16x2") for v in (both, high)]
    return [relu(e, v) for v in values] if "relu" in i.modifiers else values


def to_small_floats(e: Emitter, i: Instruction, target: str, source: str) -> None:
    """``cvt`` of two values to a pair of small floats."""
    count = 2 if source == "f32" else 1
    if source not in ("f32", "f16x2", "bf16x2") or len(i.operands) != 1 + count:
        raise unsupported(i)
    values = _pair(e, i, i.operands[1:], source)
    if target == SCALES:
        codes, distance = [_encode_scale(e, v, i) for v in values], 8
    elif {"rn", "satfinite"} <= set(i.modifiers):
        form = SMALL_FLOATS[target]
        codes, distance = [_encode(e, v, form) for v in values], form.bits
    else:
        raise unsupported(i)
    joined = e.op(f"or {I32} {codes[0]}, {e.op(f'shl {I32} {codes[1]}, splat (i32 {distance})')}")
    width = 2 * distance
    e.write(i, i.operands[0], e.resize(Value(joined, True), 32, width), width)


def from_small_floats(e: Emitter, i: Instruction, target: str, source: str) -> None:
    """``cvt`` of a pair of small floats to two halves, exactly."""
    brain = target == "bf16x2"
    if "rn" not in i.modifiers or brain != (source == SCALES):
        raise unsupported(i)
    distance = 8 if source == SCALES else SMALL_FLOATS[source].bits
    both = e.resize(Value(e.spread(e.source(i, i.operands[1], 2 * distance), 2 * distance), True), 2 * distance, 32)
    parts = []
    for code in (both.text, e.op(f"lshr {I32} {both.text}, splat (i32 {distance})")):
        code = e.op(f"and {I32} {code}, splat (i32 {(1 << distance) - 1})")
        value = _decode_scale(e, code) if source == SCALES else _decode(e, code, SMALL_FLOATS[source])
        parts.append(half.narrow(e, relu(e, value) if "relu" in i.modifiers else value, brain))
    half.write_pair(e, i, parts)


def pack_integers(e: Emitter, i: Instruction) -> None:
    """``cvt.pack``: two saturated integers, the first above the second, below the low bits of a third operand."""
    _, _, target, source = i.modifiers[:4]
    size = int(target[1:])
    if i.modifiers[:2] != ("pack", "sat") or source != "s32" or (size == 16) != (len(i.operands) == 3):
        raise unsupported(i)
    texts, vec = e.sources(i, i.operands[1:], 32)
    kind = int_type(32, vec)
    parts = []
    for text in texts[:2]:
        value = clamp_integer(e, Value(text, vec), 32, "s32", target[0], size).text
        parts.append(e.op(f"and {kind} {value}, {constant((1 << size) - 1, 32, vec)}"))
    result = e.op(f"or {kind} {parts[1]}, {e.op(f'shl {kind} {parts[0]}, {constant(size, 32, vec)}')}")
    if size < 16:
        result = e.op(f"or {kind} {result}, {e.op(f'shl {kind} {texts[2]}, {constant(2 * size, 32, vec)}')}")
    e.write(i, i.operands[0], Value(result, vec), 32)
