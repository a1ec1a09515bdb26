"""f32 and f64 arithmetic, comparison and the approximate functions.

Results equal IEEE-754 bit for bit wherever PTX says so; NaN results are some quiet NaN. ``.ftz`` flushes denormal
inputs and results to zero of the same sign by explicit selects.
"""

from __future__ import annotations

from collections.abc import Callable

from kernelforge.devices.emulated.codegen.emit.emitter import Emitter, Value
from kernelforge.devices.emulated.codegen.emit.integer import constant
from kernelforge.devices.emulated.codegen.ir_builder import (
    CURRENT_ROUNDING,
    bool_type,
    float_constant,
    float_type,
    int_type,
    nan_constant,
)
from kernelforge.devices.emulated.codegen.math_ir import approximation_of_one, directed
from kernelforge.devices.emulated.ptx.inline import unsupported
from kernelforge.devices.emulated.ptx.parser import TYPE_BITS, Instruction, Operand, Pair, Sink

_ROUNDING = ("rz", "rm", "rp")
_LEAST_NORMAL = {32: 2.0**-126, 64: 2.0**-1022}


def is_float(i: Instruction) -> bool:
    """True for f32 and f64 operations."""
    return i.type in ("f32", "f64")


def _bits(i: Instruction) -> int:
    if i.type not in ("f32", "f64"):
        raise unsupported(i)
    return TYPE_BITS[i.type]


def flush(e: Emitter, text: str, kind: str, bits: int) -> str:
    """Replace a denormal by zero of its sign."""
    if text in e.flushed:
        return text
    magnitude = e.intrinsic("fabs", kind, text)
    tiny = e.op(f"fcmp olt {kind} {magnitude}, {float_constant(_LEAST_NORMAL[bits], kind)}")
    zero = e.intrinsic("copysign", kind, "zeroinitializer" if kind[0] == "<" else "0.0", text)
    result = e.select(tiny, kind, zero, text)
    e.flushed.add(result)
    return result


def saturate(e: Emitter, text: str, kind: str) -> str:
    """Clamp to [0, 1]; NaN becomes +0."""
    zero, limit = ("zeroinitializer" if kind[0] == "<" else "0.0"), float_constant(1.0, kind)
    positive = e.op(f"fcmp ogt {kind} {text}, {zero}")
    clipped = e.select(positive, kind, text, zero)
    large = e.op(f"fcmp ogt {kind} {clipped}, {limit}")
    return e.select(large, kind, limit, clipped)


def relu(e: Emitter, text: str) -> str:
    """Replace negative f32 lanes by +0; NaN stays."""
    below = e.op(f"fcmp olt <32 x float> {text}, zeroinitializer")
    return e.select(below, "<32 x float>", "zeroinitializer", text)


def operands(e: Emitter, i: Instruction, ops: tuple[Operand, ...], bits: int) -> tuple[list[str], bool, str]:
    """Floating-point sources, flushed when the instruction says ``.ftz``: (values, vec, LLVM type)."""
    values, vec = e.float_sources(i, ops, bits)
    kind = float_type(bits, vec)
    if "ftz" in i.modifiers and bits == 32:
        values = [flush(e, v, kind, bits) for v in values]
    return values, vec, kind


def finish(e: Emitter, i: Instruction, text: str, vec: bool, bits: int) -> None:
    """Apply ``.sat`` and ``.ftz`` to a result and write it."""
    kind = float_type(bits, vec)
    if "sat" in i.modifiers:
        text = saturate(e, text, kind)
    if "ftz" in i.modifiers and bits == 32:
        text = flush(e, text, kind, bits)
    e.write_float(i, i.operands[0], text, vec, bits)


def rounded(
    e: Emitter, operation: str, mode: str, values: list[str], vec: bool, bits: int, source_bits: int | None = None
) -> str:
    """An operation with directed rounding; scalars go in and out through a splat."""
    element = float_type(source_bits or bits, False)
    result = directed(e, operation, bits, mode, values if vec else [e.splat(v, element) for v in values])
    return result if vec else e.op(f"extractelement {float_type(bits, True)} {result}, i64 0")


def approximate(e: Emitter, name: str, values: list[str], vec: bool) -> str:
    """Call an approximate f32 function, which the run's variation moves."""
    variation = ("i32", e.variation())
    if vec:
        vector = float_type(32, True)
        return e.call(f"kf_{name}_f32", vector, *((vector, v) for v in values), variation)
    return e.call(f"kf_{approximation_of_one(f'{name}_f32')}", "float", *(("float", v) for v in values), variation)


def _arithmetic(name: str, count: int) -> Callable[[Emitter, Instruction], None]:
    def handle(e: Emitter, i: Instruction) -> None:
        bits = _bits(i)
        values, vec, kind = operands(e, i, i.operands[1 : 1 + count], bits)
        mode = next((m for m in i.modifiers if m in _ROUNDING), None)
        if mode:
            result = rounded(e, name, mode, values, vec, bits)
        elif name in ("fma", "sqrt"):
            result = e.intrinsic(name, kind, *values)
        else:
            result = e.op(f"f{name} {kind} {values[0]}, {values[1]}")
        finish(e, i, result, vec, bits)

    return handle


def _of_pairs(name: str, count: int) -> Callable[[Emitter, Instruction], None]:
    """Arithmetic on two f32 that share a 64-bit register."""

    def handle(e: Emitter, i: Instruction) -> None:
        both, vec = e.sources(i, i.operands[1 : 1 + count], 64)
        word, wide, kind = int_type(32, vec), int_type(64, vec), float_type(32, vec)
        mode = next((m for m in i.modifiers if m in _ROUNDING), None)
        parts = []
        for k in range(2):
            values = []
            for text in both:
                moved = e.op(f"lshr {wide} {text}, {constant(32 * k, 64, vec)}")
                values.append(e.as_float(e.op(f"trunc {wide} {moved} to {word}"), 32, vec))
            if "ftz" in i.modifiers:
                values = [flush(e, v, kind, 32) for v in values]
            if mode:
                result = rounded(e, name, mode, values, vec, 32)
            elif name == "fma":
                result = e.intrinsic(name, kind, *values)
            else:
                result = e.op(f"f{name} {kind} {values[0]}, {values[1]}")
            if "ftz" in i.modifiers:
                result = flush(e, result, kind, 32)
            parts.append(e.op(f"zext {word} {e.op(f'bitcast {kind} {result} to {word}')} to {wide}"))
        joined = e.op(f"or {wide} {parts[0]}, {e.op(f'shl {wide} {parts[1]}, {constant(32, 64, vec)}')}")
        e.write(i, i.operands[0], Value(joined, vec), 64)

    return handle


def _divide(e: Emitter, i: Instruction) -> None:
    bits = _bits(i)
    if not {"approx", "full"} & set(i.modifiers):
        _arithmetic("div", 2)(e, i)
        return
    values, vec, _ = operands(e, i, i.operands[1:3], bits)
    finish(e, i, approximate(e, "div_full" if "full" in i.modifiers else "div", values, vec), vec, bits)


def _reciprocal(e: Emitter, i: Instruction) -> None:
    bits = _bits(i)
    (a,), vec, kind = operands(e, i, i.operands[1:2], bits)
    unit = float_constant(1.0, kind)
    if bits == 64 and "approx" in i.modifiers:
        a = _upper_half(e, a, vec)
    mode = next((m for m in i.modifiers if m in _ROUNDING), None)
    if bits == 32 and "approx" in i.modifiers:
        result = approximate(e, "rcp", [a], vec)
    elif mode:
        result = rounded(e, "div", mode, [unit, a], vec, bits)
    else:
        result = e.op(f"fdiv {kind} {unit}, {a}")
    if bits == 64 and "approx" in i.modifiers:
        result = _coarse(e, result, vec)
    finish(e, i, result, vec, bits)


def _upper_half(e: Emitter, text: str, vec: bool) -> str:
    """The operand that approximate f64 instructions see: the upper 32 bits, and zero for a subnormal number."""
    wide, kind = int_type(64, vec), float_type(64, vec)
    bits = e.op(f"and {wide} {e.op(f'bitcast {kind} {text} to {wide}')}, {constant(-1 << 32, 64, vec)}")
    return flush(e, e.op(f"bitcast {wide} {bits} to {kind}"), kind, 64)


def _coarse(e: Emitter, text: str, vec: bool) -> str:
    """Keep the upper 32 bits of a double, as the approximate f64 instructions do, and flush a subnormal number.

    The PTX ISA documents no error of theirs; the run's variation may add a unit to the last bit that is kept, where the
    result is no power of two.
    """
    wide, word, kind = int_type(64, vec), int_type(32, vec), float_type(64, vec)
    bits = e.op(f"bitcast {kind} {text} to {wide}")
    upper = e.op(f"trunc {wide} {e.op(f'lshr {wide} {bits}, {constant(32, 64, vec)}')} to {word}")
    seed = e.op(f"mul i32 {e.variation()}, {0x9E3779B1 - (1 << 32)}")
    mixed = e.op(f"xor {word} {upper}, {e.spread(Value(seed, False), 32) if vec else seed}")
    mixed = e.op(f"mul {word} {mixed}, {constant(0x85EBCA77 - (1 << 32), 32, vec)}")
    step = e.op(f"lshr {word} {mixed}, {constant(31, 32, vec)}")
    varied = e.op(f"icmp ne i32 {e.variation()}, 0")
    step = e.op(f"select i1 {varied}, {word} {step}, {word} {constant(0, 32, vec)}")
    mantissa = e.op(f"and {word} {upper}, {constant(0xFFFFF, 32, vec)}")
    exponent = e.op(f"and {word} {upper}, {constant(0x7FF00000, 32, vec)}")
    fixed = [e.op(f"icmp eq {word} {v}, {constant(at, 32, vec)}")
             for v, at in ((mantissa, 0), (exponent, 0), (exponent, 0x7FF00000))]  # fmt: skip
    flag = bool_type(word)
    stays = e.op(f"or {flag} {e.op(f'or {flag} {fixed[0]}, {fixed[1]}')}, {fixed[2]}")
    upper = e.op(f"add {word} {upper}, {e.select(stays, word, constant(0, 32, vec), step)}")
    nan = e.op(f"fcmp uno {kind} {text}, {text}")
    upper = e.select(nan, word, constant(0x7FFFFFFF, 32, vec), upper)
    bits = e.op(f"shl {wide} {e.op(f'zext {word} {upper} to {wide}')}, {constant(32, 64, vec)}")
    return flush(e, e.op(f"bitcast {wide} {bits} to {kind}"), kind, 64)


def _rsqrt(e: Emitter, i: Instruction) -> None:
    bits = _bits(i)
    (a,), vec, kind = operands(e, i, i.operands[1:2], bits)
    if bits == 32:
        finish(e, i, approximate(e, "rsqrt", [a], vec), vec, 32)
        return
    if "ftz" in i.modifiers:
        a = _upper_half(e, a, vec)
    result = e.op(f"fdiv {kind} {float_constant(1.0, kind)}, {e.intrinsic('sqrt', kind, a)}")
    finish(e, i, _coarse(e, result, vec) if "ftz" in i.modifiers else result, vec, bits)


def _sqrt(e: Emitter, i: Instruction) -> None:
    (_function("sqrt") if "approx" in i.modifiers else _arithmetic("sqrt", 1))(e, i)


def _function(name: str) -> Callable[[Emitter, Instruction], None]:
    def handle(e: Emitter, i: Instruction) -> None:
        if i.type != "f32":
            raise unsupported(i)
        (a,), vec, _ = operands(e, i, i.operands[1:2], 32)
        finish(e, i, approximate(e, name, [a], vec), vec, 32)

    return handle


def _neg(e: Emitter, i: Instruction) -> None:
    bits = _bits(i)
    (a,), vec, kind = operands(e, i, i.operands[1:2], bits)
    e.write_float(i, i.operands[0], e.op(f"fneg {kind} {a}"), vec, bits)


def _abs(e: Emitter, i: Instruction) -> None:
    bits = _bits(i)
    (a,), vec, kind = operands(e, i, i.operands[1:2], bits)
    e.write_float(i, i.operands[0], e.intrinsic("fabs", kind, a), vec, bits)


def extremum(e: Emitter, name: str, kind: str, a: str, b: str, nan: bool, sign: bool) -> str:
    """IEEE minimum or maximum: a NaN loses unless ``nan``; -0 is below +0; ``sign``: ``.xorsign.abs``.

    A NaN of f32 is 0x7FFFFFFF, as on an H100.
    """
    signed = ""
    element = kind[1:-1].split(" x ")[1] if kind[0] == "<" else kind
    if sign:
        bits = {"float": 32, "half": 16, "double": 64}[element]
        integer = int_type(bits, kind[0] == "<")
        x, y = (e.op(f"bitcast {kind} {v} to {integer}") for v in (a, b))
        signed = e.op(f"bitcast {integer} {e.op(f'xor {integer} {x}, {y}')} to {kind}")
        a, b = e.intrinsic("fabs", kind, a), e.intrinsic("fabs", kind, b)
    if e.avx512 and kind == "<32 x float>" and not (nan or sign):
        return _extremum_of_numbers(e, name, kind, a, b)
    result = e.intrinsic(f"{name}imum" if nan else f"{name}imumnum", kind, a, b)
    result = e.intrinsic("copysign", kind, result, signed) if sign else result
    if element != "float":
        return result
    unordered = e.op(f"fcmp uno {kind} {result}, {result}")
    return e.select(unordered, kind, nan_constant(kind), result)


_RANGE = {"min": 4, "max": 5}
"""Operand of AVX-512's ``range`` that selects the minimum or the maximum, with its own sign."""


def _extremum_of_numbers(e: Emitter, name: str, kind: str, a: str, b: str) -> str:
    """As ``extremum``: one instruction of AVX-512, which orders zeros, and a branch for the rare NaN."""
    unordered = e.op(f"bitcast <32 x i1> {e.op(f'fcmp uno {kind} {a}, {b}')} to i32")
    numbers, nans, end = e.label("numbers"), e.label("nans"), e.label("extremum")
    e.emit(f"br i1 {e.op(f'icmp ne i32 {unordered}, 0')}, label %{nans}, label %{numbers}, !prof !0\n{numbers}:")
    rest = (("<16 x float>", "zeroinitializer"), ("i16", "-1"), ("i32", str(CURRENT_ROUNDING)))
    order = ("i32", str(_RANGE[name]))
    usual = e.register_call("mask.range.ps", 16, [(kind, a), (kind, b)], kind, order, *rest)
    e.emit(f"br label %{end}\n{nans}:")
    rare = e.intrinsic(f"{name}imumnum", kind, a, b)
    rare = e.select(e.op(f"fcmp uno {kind} {rare}, {rare}"), kind, nan_constant(kind), rare)
    e.emit(f"br label %{end}\n{end}:")
    return e.op(f"phi {kind} [{usual}, %{numbers}], [{rare}, %{nans}]")


def _min_max(e: Emitter, i: Instruction) -> None:
    bits = _bits(i)
    values, vec, kind = operands(e, i, i.operands[1:], bits)
    result = values[0]
    for value in values[1:]:
        result = extremum(e, i.opcode, kind, result, value, "NaN" in i.modifiers, "xorsign" in i.modifiers)
    e.write_float(i, i.operands[0], result, vec, bits)


def _copysign(e: Emitter, i: Instruction) -> None:
    bits = _bits(i)
    (sign, value), vec, kind = operands(e, i, i.operands[1:3], bits)
    e.write_float(i, i.operands[0], e.intrinsic("copysign", kind, value, sign), vec, bits)


_FLOAT_COMPARE = {
    "eq": "oeq", "ne": "one", "lt": "olt", "le": "ole", "gt": "ogt", "ge": "oge", "equ": "ueq", "neu": "une",
    "ltu": "ult", "leu": "ule", "gtu": "ugt", "geu": "uge", "num": "ord", "nan": "uno",
}  # fmt: skip
_UNSIGNED_COMPARE = {"eq": "eq", "ne": "ne", "lo": "ult", "ls": "ule", "hi": "ugt", "hs": "uge"}


def float_condition(i: Instruction) -> str:
    """LLVM predicate of a floating-point comparison."""
    name = next((_FLOAT_COMPARE[m] for m in i.modifiers if m in _FLOAT_COMPARE), None)
    if name is None:
        raise unsupported(i)
    return name


def compare(e: Emitter, i: Instruction, kind: str, a: Operand, b: Operand) -> Value:
    """Compare two operands of PTX type ``kind``."""
    bits = TYPE_BITS.get(kind, 0)
    if kind in ("f32", "f64"):
        (x, y), vec, llvm = operands(e, i, (a, b), bits)
        text = e.op(f"fcmp {float_condition(i)} {llvm} {x}, {y}")
    elif bits in (16, 32, 64) and kind[0] in "bus" and not kind.startswith("bf"):
        (x, y), vec = e.sources(i, (a, b), bits)
        test = i.modifiers[0]
        if test in ("lt", "le", "gt", "ge"):
            test = ("s" if kind[0] == "s" else "u") + test
        elif test in _UNSIGNED_COMPARE:
            test = _UNSIGNED_COMPARE[test]
        else:
            raise unsupported(i)
        text = e.op(f"icmp {test} {int_type(bits, vec)} {x}, {y}")
    else:
        raise unsupported(i)
    return e.flag(text, vec)


def combine(e: Emitter, i: Instruction, p: Value) -> Value:
    """Apply ``.and``/``.or``/``.xor`` with a third predicate operand, when there is one."""
    if len(i.operands) < 4:
        return p
    verb = next((m for m in i.modifiers if m in ("and", "or", "xor")), None)
    if verb is None:
        raise unsupported(i)
    q = e.predicate(i.operands[3])
    vec = p.vec or q.vec
    x, y = (e.spread(v, 1) if vec else v.text for v in (p, q))
    return Value(e.op(f"{verb} {'i32' if vec else 'i1'} {x}, {y}"), vec)


def write_predicates(e: Emitter, i: Instruction, p: Value) -> None:
    """Write a comparison's one or two predicate destinations."""
    target = i.operands[0]
    if isinstance(target, Pair):
        e.write(i, target.first, combine(e, i, p), 1)
        if not isinstance(target.second, Sink):
            e.write(i, target.second, combine(e, i, e.invert(p)), 1)
    else:
        e.write(i, target, combine(e, i, p), 1)


def _setp(e: Emitter, i: Instruction) -> None:
    write_predicates(e, i, compare(e, i, i.type, i.operands[1], i.operands[2]))


def _set(e: Emitter, i: Instruction) -> None:
    target = i.modifiers[-2]
    if target not in ("u32", "s32", "f32"):
        raise unsupported(i)
    p = combine(e, i, compare(e, i, i.type, i.operands[1], i.operands[2]))
    condition, _ = e.condition(p)
    kind = int_type(32, p.vec)
    yes = constant(0x3F800000 if target == "f32" else -1, 32, p.vec)
    e.write(i, i.operands[0], Value(e.select(condition, kind, yes, constant(0, 32, p.vec)), p.vec), 32)


def _testp(e: Emitter, i: Instruction) -> None:
    bits = _bits(i)
    (a,), vec = e.float_sources(i, i.operands[1:2], bits)
    kind = float_type(bits, vec)
    classes = {"finite": 504, "infinite": 516, "number": 1020, "notanumber": 3, "normal": 264, "subnormal": 144}
    code = next((classes[m] for m in i.modifiers if m in classes), None)
    if code is None:
        raise unsupported(i)
    short = f"{'v32' if vec else ''}f{bits}"
    text = e.call(f"llvm.is.fpclass.{short}", bool_type(kind), (kind, a), ("i32 immarg", str(code)))
    e.write(i, i.operands[0], e.flag(text, vec), 1)


PAIRS: dict[str, Callable[[Emitter, Instruction], None]] = {
    "add": _of_pairs("add", 2),
    "sub": _of_pairs("sub", 2),
    "mul": _of_pairs("mul", 2),
    "fma": _of_pairs("fma", 3),
}
"""Operations of type ``f32x2``."""
HANDLERS: dict[str, Callable[[Emitter, Instruction], None]] = {
    "add": _arithmetic("add", 2),
    "sub": _arithmetic("sub", 2),
    "mul": _arithmetic("mul", 2),
    "fma": _arithmetic("fma", 3),
    "mad": _arithmetic("fma", 3),
    "sqrt": _sqrt,
    "div": _divide,
    "rcp": _reciprocal,
    "rsqrt": _rsqrt,
    "ex2": _function("ex2"),
    "lg2": _function("lg2"),
    "sin": _function("sin"),
    "cos": _function("cos"),
    "tanh": _function("tanh"),
    "neg": _neg,
    "abs": _abs,
    "min": _min_max,
    "max": _min_max,
    "copysign": _copysign,
    "setp": _setp,
    "set": _set,
    "testp": _testp,
}
