"""f16 and bf16 arithmetic, scalar and packed in pairs.

Each result is rounded once: sums, products and quotients of two halves are exact enough in f32 (24 bits are at least
2p + 2), and fused multiply-add goes through f64 rounded to odd.
"""

from __future__ import annotations

from collections.abc import Callable

from kernelforge.devices.emulated.codegen.emit.emitter import Emitter, Value
from kernelforge.devices.emulated.codegen.emit.floating import extremum, float_condition, relu, write_predicates
from kernelforge.devices.emulated.codegen.ir_builder import float_constant
from kernelforge.devices.emulated.codegen.llvm_jit import host_features
from kernelforge.devices.emulated.ptx.inline import unsupported
from kernelforge.devices.emulated.ptx.parser import Instruction, Operand, Pair

_TYPES = ("f16", "f16x2", "bf16", "bf16x2")
F32, F64 = "<32 x float>", "<32 x double>"
I16, I32, I64 = "<32 x i16>", "<32 x i32>", "<32 x i64>"


def is_half(i: Instruction) -> bool:
    """True when the operation's type is f16 or bf16, single or packed."""
    return i.type in _TYPES


def widen(e: Emitter, bits: str, brain: bool) -> str:
    """16-bit lanes as f32, exactly."""
    if brain:
        wide = e.op(f"shl {I32} {e.op(f'zext {I16} {bits} to {I32}')}, splat (i32 16)")
        return e.op(f"bitcast {I32} {wide} to {F32}")
    if not host_features().get("f16c"):
        return _widen_by_integers(e, bits)
    half = e.op(f"bitcast {I16} {bits} to <32 x half>")
    return e.op(f"fpext <32 x half> {half} to {F32}")


def _widen_by_integers(e: Emitter, bits: str) -> str:
    """f16 to f32 where the processor has no instruction for it: scaling by 2**112 rebiases the exponent exactly."""
    wide = e.op(f"zext {I16} {bits} to {I32}")
    moved = e.op(f"shl {I32} {e.op(f'and {I32} {wide}, splat (i32 32767)')}, splat (i32 13)")
    scaled = e.op(f"fmul {F32} {e.op(f'bitcast {I32} {moved} to {F32}')}, {float_constant(2.0**112, F32)}")
    special = e.op(f"icmp uge {I32} {moved}, splat (i32 {0x7C00 << 13})")
    nan = e.op(f"icmp ugt {I32} {moved}, splat (i32 {0x7C00 << 13})")
    quiet = e.select(nan, I32, f"splat (i32 {0x7FC00000})", f"splat (i32 {0x7F800000})")
    high = e.op(f"or {I32} {moved}, {quiet}")
    magnitude = e.select(special, I32, high, e.op(f"bitcast {F32} {scaled} to {I32}"))
    sign = e.op(f"shl {I32} {e.op(f'and {I32} {wide}, splat (i32 32768)')}, splat (i32 16)")
    return e.op(f"bitcast {I32} {e.op(f'or {I32} {magnitude}, {sign}')} to {F32}")


def _narrow_by_integers(e: Emitter, value: str) -> str:
    """f32 to f16, to nearest even, where the processor has no instruction for it; NaN is left to the caller."""
    bits = e.op(f"bitcast {F32} {value} to {I32}")
    magnitude = e.op(f"and {I32} {bits}, splat (i32 {0x7FFFFFFF})")
    odd = e.op(f"and {I32} {e.op(f'lshr {I32} {magnitude}, splat (i32 13)')}, splat (i32 1)")
    normal = e.op(f"add {I32} {e.op(f'add {I32} {magnitude}, {odd}')}, splat (i32 {0xFFF - 0x38000000})")
    normal = e.op(f"lshr {I32} {normal}, splat (i32 13)")
    # The last bit of a sum near 1/2 is 2**-24, the smallest half.
    total = e.op(f"fadd {F32} {e.op(f'bitcast {I32} {magnitude} to {F32}')}, {float_constant(0.5, F32)}")
    tiny = e.op(f"sub {I32} {e.op(f'bitcast {F32} {total} to {I32}')}, splat (i32 {0x3F000000})")
    below = e.op(f"icmp ult {I32} {magnitude}, splat (i32 {0x38800000})")
    above = e.op(f"icmp uge {I32} {magnitude}, splat (i32 {0x477FF000})")
    result = e.select(above, I32, f"splat (i32 {0x7C00})", e.select(below, I32, tiny, normal))
    sign = e.op(f"and {I32} {e.op(f'lshr {I32} {bits}, splat (i32 16)')}, splat (i32 32768)")
    return e.op(f"trunc {I32} {e.op(f'or {I32} {result}, {sign}')} to {I16}")


def narrow(e: Emitter, value: str, brain: bool) -> str:
    """f32 lanes rounded to nearest even in 16 bits; NaN becomes 0x7FFF."""
    nan = e.op(f"fcmp uno {F32} {value}, {value}")
    if brain:
        bits = e.op(f"bitcast {F32} {value} to {I32}")
        odd = e.op(f"and {I32} {e.op(f'lshr {I32} {bits}, splat (i32 16)')}, splat (i32 1)")
        moved = e.op(f"add {I32} {e.op(f'add {I32} {bits}, splat (i32 32767)')}, {odd}")
        result = e.op(f"trunc {I32} {e.op(f'lshr {I32} {moved}, splat (i32 16)')} to {I16}")
    elif not host_features().get("f16c"):
        result = _narrow_by_integers(e, value)
    else:
        half = e.op(f"fptrunc {F32} {value} to <32 x half>")
        result = e.op(f"bitcast <32 x half> {half} to {I16}")
    return e.select(nan, I16, "splat (i16 32767)", result)


def narrow_directed(e: Emitter, value: str, brain: bool, mode: str) -> str:
    """f32 lanes rounded in a directed mode: the nearest half, or its neighbour on the other side of the value."""
    near = narrow(e, value, brain)
    back = widen(e, near, brain)
    signs = e.op(f"icmp slt {I32} {e.op(f'bitcast {F32} {value} to {I32}')}, zeroinitializer")
    wrong = {
        "rp": e.op(f"fcmp olt {F32} {back}, {value}"),
        "rm": e.op(f"fcmp ogt {F32} {back}, {value}"),
        "rz": e.op(f"fcmp ogt {F32} {e.intrinsic('fabs', F32, back)}, {e.intrinsic('fabs', F32, value)}"),
    }[mode]
    outward = {"rp": e.select(signs, I16, "splat (i16 -1)", "splat (i16 1)"),
               "rm": e.select(signs, I16, "splat (i16 1)", "splat (i16 -1)"), "rz": "splat (i16 -1)"}[mode]  # fmt: skip
    return e.select(wrong, I16, e.op(f"add {I16} {near}, {outward}"), near)


def finite(e: Emitter, bits: str, brain: bool) -> str:
    """Halves with the largest finite value in place of infinity."""
    infinity = 0x7F80 if brain else 0x7C00
    magnitude = e.op(f"and {I16} {bits}, splat (i16 32767)")
    infinite = e.op(f"icmp eq {I16} {magnitude}, splat (i16 {infinity})")
    return e.select(infinite, I16, e.op(f"sub {I16} {bits}, splat (i16 1)"), bits)


def round_to_odd(e: Emitter, value: str) -> str:
    """f64 to f32 so that rounding once more, to fewer bits, is as good as rounding once."""
    near = e.op(f"fptrunc {F64} {value} to {F32}")
    back = e.op(f"fpext {F32} {near} to {F64}")
    inexact = e.op(f"fcmp one {F64} {back}, {value}")
    bits = e.op(f"bitcast {F32} {near} to {I32}")
    even = e.op(f"icmp eq {I32} {e.op(f'and {I32} {bits}, splat (i32 1)')}, zeroinitializer")
    above = e.op(f"fcmp ogt {F64} {e.intrinsic('fabs', F64, back)}, {e.intrinsic('fabs', F64, value)}")
    step = e.select(above, I32, "splat (i32 -1)", "splat (i32 1)")
    change = e.op(f"and <32 x i1> {inexact}, {even}")
    moved = e.select(change, I32, e.op(f"add {I32} {bits}, {step}"), bits)
    return e.op(f"bitcast {I32} {moved} to {F32}")


def _fused(e: Emitter, a: str, b: str, c: str) -> str:
    """a * b + c as f32 rounded to odd: the product is exact in f64 and the sum's error is folded into its last bit."""
    x, y, z = (e.op(f"fpext {F32} {v} to {F64}") for v in (a, b, c))
    p = e.op(f"fmul {F64} {x}, {y}")
    s = e.op(f"fadd {F64} {p}, {z}")
    bb = e.op(f"fsub {F64} {s}, {p}")
    first = e.op(f"fsub {F64} {p}, {e.op(f'fsub {F64} {s}, {bb}')}")
    error = e.op(f"fadd {F64} {first}, {e.op(f'fsub {F64} {z}, {bb}')}")
    bits = e.op(f"bitcast {F64} {s} to {I64}")
    even = e.op(f"icmp eq {I64} {e.op(f'and {I64} {bits}, splat (i64 1)')}, zeroinitializer")
    some = e.op(f"fcmp one {F64} {error}, zeroinitializer")
    negative = e.op(f"icmp slt {I64} {bits}, zeroinitializer")
    below = e.op(f"fcmp olt {F64} {error}, zeroinitializer")
    inward = e.op(f"xor <32 x i1> {negative}, {below}")
    step = e.select(inward, I64, "splat (i64 -1)", "splat (i64 1)")
    change = e.op(f"and <32 x i1> {some}, {even}")
    moved = e.select(change, I64, e.op(f"add {I64} {bits}, {step}"), bits)
    return round_to_odd(e, e.op(f"bitcast {I64} {moved} to {F64}"))


def _flush16(e: Emitter, value: str, brain: bool) -> str:
    """Flush denormals of f16 (below 2**-14) or of bf16, held as f32."""
    magnitude = e.intrinsic("fabs", F32, value)
    tiny = e.op(f"fcmp olt {F32} {magnitude}, {float_constant(2.0**-126 if brain else 2.0**-14, F32)}")
    return e.select(tiny, F32, e.intrinsic("copysign", F32, "zeroinitializer", value), value)


def _parts(e: Emitter, i: Instruction, operand: Operand) -> list[str]:
    """The 16-bit lanes of an operand: one vector, or two for packed types."""
    packed = i.type.endswith("x2")
    bits = 32 if packed else 16
    text = e.spread(e.source(i, operand, bits), bits)
    if not packed:
        return [text]
    high = e.op(f"lshr {I32} {text}, splat (i32 16)")
    return [e.op(f"trunc {I32} {v} to {I16}") for v in (text, high)]


def _write(e: Emitter, i: Instruction, parts: list[str]) -> None:
    if len(parts) == 1:
        e.write(i, i.operands[0], Value(parts[0], True), 16)
        return
    write_pair(e, i, parts)


def write_pair(e: Emitter, i: Instruction, parts: list[str]) -> None:
    """Write two halves, the lower one first."""
    low, high = (e.op(f"zext {I16} {v} to {I32}") for v in parts)
    joined = e.op(f"or {I32} {low}, {e.op(f'shl {I32} {high}, splat (i32 16)')}")
    e.write(i, i.operands[0], Value(joined, True), 32)


def _map(
    count: int, function: Callable[[Emitter, Instruction, list[str]], str]
) -> Callable[[Emitter, Instruction], None]:
    def handle(e: Emitter, i: Instruction) -> None:
        brain = i.type.startswith("bf")
        if any(m in ("rz", "rm", "rp") for m in i.modifiers):
            raise unsupported(i)
        columns = [_parts(e, i, op) for op in i.operands[1 : 1 + count]]
        results = []
        for parts in zip(*columns, strict=True):
            values = [widen(e, p, brain) for p in parts]
            if "ftz" in i.modifiers:
                values = [_flush16(e, v, brain) for v in values]
            result = function(e, i, values)
            if "sat" in i.modifiers:
                result = extremum(e, "max", F32, result, "zeroinitializer", False, False)
                result = extremum(e, "min", F32, result, float_constant(1.0, F32), False, False)
            if "relu" in i.modifiers:
                result = relu(e, result)
            out = narrow(e, result, brain)
            if "ftz" in i.modifiers:
                out = narrow(e, _flush16(e, widen(e, out, brain), brain), brain)
            results.append(out)
        _write(e, i, results)

    return handle


def _plain(verb: str) -> Callable[[Emitter, Instruction, list[str]], str]:
    return lambda e, i, v: e.op(f"{verb} {F32} {v[0]}, {v[1]}")


def _extremum(name: str) -> Callable[[Emitter, Instruction, list[str]], str]:
    return lambda e, i, v: extremum(e, name, F32, v[0], v[1], "NaN" in i.modifiers, "xorsign" in i.modifiers)


def _approximate(e: Emitter, i: Instruction, values: list[str]) -> str:
    kind = "bf16" if i.type.startswith("bf") else "f16"
    return e.call(f"kf_{i.opcode}_{kind}", F32, (F32, values[0]), ("i32", e.variation()))


def _bits_only(verb: str, mask: int) -> Callable[[Emitter, Instruction], None]:
    def handle(e: Emitter, i: Instruction) -> None:
        parts = _parts(e, i, i.operands[1])
        if "ftz" in i.modifiers:
            exponent = 0x7F80 if i.type.startswith("bf") else 0x7C00
            some = [e.op(f"and {I16} {p}, splat (i16 {exponent})") for p in parts]
            zeros = [e.op(f"and {I16} {p}, splat (i16 -32768)") for p in parts]
            tiny = [e.op(f"icmp eq {I16} {s}, zeroinitializer") for s in some]
            parts = [e.select(f, I16, z, p) for f, z, p in zip(tiny, zeros, parts, strict=True)]
        _write(e, i, [e.op(f"{verb} {I16} {p}, splat (i16 {mask})") for p in parts])

    return handle


def _compare(e: Emitter, i: Instruction) -> list[str]:
    brain = i.type.startswith("bf")
    test = float_condition(i)
    columns = [_parts(e, i, op) for op in i.operands[1:3]]
    results = []
    for a, b in zip(*columns, strict=True):
        x, y = widen(e, a, brain), widen(e, b, brain)
        if "ftz" in i.modifiers:
            x, y = _flush16(e, x, brain), _flush16(e, y, brain)
        results.append(e.op(f"fcmp {test} {F32} {x}, {y}"))
    return results


def _setp(e: Emitter, i: Instruction) -> None:
    flags = [e.flag(f, True) for f in _compare(e, i)]
    if len(flags) == 1:
        write_predicates(e, i, flags[0])
        return
    target = i.operands[0]
    if len(i.operands) > 3 or not isinstance(target, Pair):
        raise unsupported(i)
    e.write(i, target.first, flags[0], 1)
    e.write(i, target.second, flags[1], 1)


def _set(e: Emitter, i: Instruction) -> None:
    target = i.modifiers[-2]
    if len(i.operands) > 3:
        raise unsupported(i)
    flags = _compare(e, i)
    if target in ("f16", "f16x2", "bf16", "bf16x2"):
        true_bits = 0x3F80 if target.startswith("bf") else 0x3C00
        _write(e, i, [e.select(f, I16, f"splat (i16 {true_bits})", "zeroinitializer") for f in flags])
    elif target in ("u16", "s16") and len(flags) == 1:
        e.write(i, i.operands[0], Value(e.op(f"sext <32 x i1> {flags[0]} to {I16}"), True), 16)
    elif target in ("u32", "s32"):
        if len(flags) == 1:
            e.write(i, i.operands[0], Value(e.op(f"sext <32 x i1> {flags[0]} to {I32}"), True), 32)
        else:
            _write(e, i, [e.op(f"sext <32 x i1> {f} to {I16}") for f in flags])
    else:
        raise unsupported(i)


HANDLERS: dict[str, Callable[[Emitter, Instruction], None]] = {
    "add": _map(2, _plain("fadd")),
    "sub": _map(2, _plain("fsub")),
    "mul": _map(2, _plain("fmul")),
    "fma": _map(3, lambda e, i, v: _fused(e, v[0], v[1], v[2])),
    "min": _map(2, _extremum("min")),
    "max": _map(2, _extremum("max")),
    "ex2": _map(1, _approximate),
    "tanh": _map(1, _approximate),
    "neg": _bits_only("xor", -32768),
    "abs": _bits_only("and", 32767),
    "setp": _setp,
    "set": _set,
}
