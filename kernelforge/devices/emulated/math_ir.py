"""LLVM IR of functions on 32 lanes that PTX has as one instruction, compiled once per process.

``.approx`` functions are computed more accurately than PTX promises (PTX ISA 8.x, section 9.7.3), so each is one
legal rounding; hardware bits may differ. Directed rounding switches the processor's rounding mode around the
operation, inside a function of its own so that nothing can move across the switch.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from kernelforge.devices.emulated.code import Code, float_constant
from kernelforge.devices.emulated.memory_ir import ATTRIBUTES

F32 = "<32 x float>"
F64 = "<32 x double>"
I32 = "<32 x i32>"
I64 = "<32 x i64>"
B = "<32 x i1>"


def _poly(c: Code, kind: str, x: str, coefficients: list[float]) -> str:
    """Horner's scheme with fused multiply-add; coefficients from the highest degree down."""
    value = float_constant(coefficients[0], kind)
    for k in coefficients[1:]:
        value = c.intrinsic("fma", kind, value, x, float_constant(k, kind))
    return value


def _ex2(c: Code) -> str:
    """2**x: round to an integer plus a fraction in [-1/2, 1/2], Taylor to degree 7, two-step scaling."""
    x = "%x"
    low = c.op(f"fcmp olt {F32} {x}, {float_constant(-152.0, F32)}")
    clipped = c.select(low, F32, float_constant(-152.0, F32), x)
    high = c.op(f"fcmp ogt {F32} {clipped}, {float_constant(129.0, F32)}")
    clipped = c.select(high, F32, float_constant(129.0, F32), clipped)
    n = c.intrinsic("roundeven", F32, clipped)
    f = c.op(f"fsub {F32} {clipped}, {n}")
    p = _poly(c, F32, f, [math.log(2) ** k / math.factorial(k) for k in range(7, -1, -1)])
    i = c.call("llvm.fptosi.sat.v32i32.v32f32", I32, (F32, n))
    half = c.op(f"ashr {I32} {i}, splat (i32 1)")
    rest = c.op(f"sub {I32} {i}, {half}")
    for part in (half, rest):
        biased = c.op(f"add {I32} {part}, splat (i32 127)")
        bits = c.op(f"shl {I32} {biased}, splat (i32 23)")
        scale = c.op(f"bitcast {I32} {bits} to {F32}")
        p = c.op(f"fmul {F32} {p}, {scale}")
    nan = c.op(f"fcmp uno {F32} {x}, {x}")
    return c.select(nan, F32, x, p)


def _lg2(c: Code) -> str:
    """log2(x) in double: exponent plus an odd series in (m - 1) / (m + 1), m in [sqrt(1/2), sqrt(2))."""
    d = c.op(f"fpext {F32} %x to {F64}")
    bits = c.op(f"bitcast {F64} {d} to {I64}")
    # Adding before the shift moves mantissas above sqrt(2) to the next exponent.
    moved = c.op(f"add {I64} {bits}, splat (i64 {0x3FF0000000000000 - 0x3FE6A09E667F3BCD})")
    exponent = c.op(f"ashr {I64} {moved}, splat (i64 52)")
    exponent = c.op(f"sub {I64} {exponent}, splat (i64 1023)")
    shifted = c.op(f"shl {I64} {exponent}, splat (i64 52)")
    mantissa = c.op(f"sub {I64} {bits}, {shifted}")
    m = c.op(f"bitcast {I64} {mantissa} to {F64}")
    one = float_constant(1.0, F64)
    s = c.op(f"fdiv {F64} {c.op(f'fsub {F64} {m}, {one}')}, {c.op(f'fadd {F64} {m}, {one}')}")
    z = c.op(f"fmul {F64} {s}, {s}")
    series = _poly(c, F64, z, [2 / math.log(2) / k for k in range(15, 0, -2)])
    log = c.op(f"fmul {F64} {series}, {s}")
    e32 = c.op(f"trunc {I64} {exponent} to {I32}")
    total = c.op(f"fadd {F64} {log}, {c.op(f'sitofp {I32} {e32} to {F64}')}")
    result = c.op(f"fptrunc {F64} {total} to {F32}")
    inf = float_constant(math.inf, F32)
    is_inf = c.op(f"fcmp oeq {F32} %x, {inf}")
    result = c.select(is_inf, F32, inf, result)
    zero = c.op(f"fcmp oeq {F32} %x, zeroinitializer")
    result = c.select(zero, F32, float_constant(-math.inf, F32), result)
    bad = c.op(f"fcmp ult {F32} %x, zeroinitializer")
    return c.select(bad, F32, "splat (float 0x7FFFFFFFE0000000)", result)


def _sincos(c: Code, quadrant: int) -> str:
    """sin (quadrant 0) or cos (quadrant 1) in double after reduction by multiples of pi/2 in two parts."""
    d = c.op(f"fpext {F32} %x to {F64}")
    k = c.intrinsic("roundeven", F64, c.op(f"fmul {F64} {d}, {float_constant(2 / math.pi, F64)}"))
    minus = c.op(f"fneg {F64} {k}")
    r = c.intrinsic("fma", F64, minus, float_constant(math.pi / 2, F64), d)
    r = c.intrinsic("fma", F64, minus, float_constant(6.123233995736766e-17, F64), r)
    z = c.op(f"fmul {F64} {r}, {r}")
    s = _poly(c, F64, z, [(-1) ** (n // 2) / math.factorial(n) for n in range(15, 0, -2)])
    s = c.op(f"fmul {F64} {s}, {r}")
    co = _poly(c, F64, z, [(-1) ** (n // 2) / math.factorial(n) for n in range(16, -1, -2)])
    q = c.call("llvm.fptosi.sat.v32i64.v32f64", I64, (F64, k))
    q = c.op(f"add {I64} {q}, splat (i64 {quadrant})")
    odd = c.op(f"trunc {I64} {q} to {B}")
    value = c.select(odd, F64, co, s)
    second = c.op(f"trunc {I64} {c.op(f'lshr {I64} {q}, splat (i64 1)')} to {B}")
    value = c.select(second, F64, c.op(f"fneg {F64} {value}"), value)
    finite = c.op(f"fsub {F32} %x, %x")  # NaN for infinities and NaN
    bad = c.op(f"fcmp uno {F32} {finite}, {finite}")
    result = c.op(f"fptrunc {F64} {value} to {F32}")
    return c.select(bad, F32, "splat (float 0x7FFFFFFFE0000000)", result)


def _tanh(c: Code) -> str:
    """1 - 2 / (exp(2|x|) + 1) in double, x itself where tiny."""
    magnitude = c.intrinsic("fabs", F32, "%x")
    big = c.op(f"fcmp ogt {F32} {magnitude}, {float_constant(20.0, F32)}")
    clipped = c.select(big, F32, float_constant(20.0, F32), magnitude)
    d = c.op(f"fpext {F32} {clipped} to {F64}")
    y = c.op(f"fmul {F64} {d}, {float_constant(2 / math.log(2), F64)}")
    n = c.intrinsic("roundeven", F64, y)
    f = c.op(f"fsub {F64} {y}, {n}")
    p = _poly(c, F64, f, [math.log(2) ** k / math.factorial(k) for k in range(12, -1, -1)])
    i = c.call("llvm.fptosi.sat.v32i64.v32f64", I64, (F64, n))
    bits = c.op(f"shl {I64} {c.op(f'add {I64} {i}, splat (i64 1023)')}, splat (i64 52)")
    e = c.op(f"fmul {F64} {p}, {c.op(f'bitcast {I64} {bits} to {F64}')}")
    one = float_constant(1.0, F64)
    quotient = c.op(f"fdiv {F64} {float_constant(2.0, F64)}, {c.op(f'fadd {F64} {e}, {one}')}")
    value = c.op(f"fptrunc {F64} {c.op(f'fsub {F64} {one}, {quotient}')} to {F32}")
    tiny = c.op(f"fcmp olt {F32} {magnitude}, {float_constant(2.0**-13, F32)}")
    value = c.select(tiny, F32, magnitude, value)
    value = c.intrinsic("copysign", F32, value, "%x")
    nan = c.op(f"fcmp uno {F32} %x, %x")
    return c.select(nan, F32, "%x", value)


def _rsqrt(c: Code) -> str:
    """1 / sqrt(x): two correct roundings, within 2**-23 relative."""
    return c.op(f"fdiv {F32} {float_constant(1.0, F32)}, {c.intrinsic('sqrt', F32, '%x')}")


UNARY: dict[str, Callable[[Code], str]] = {
    "ex2": _ex2,
    "lg2": _lg2,
    "sin": lambda c: _sincos(c, 0),
    "cos": lambda c: _sincos(c, 1),
    "tanh": _tanh,
    "rsqrt": _rsqrt,
}
"""``kf_<name>_f32`` takes and returns 32 floats."""

# Rounding modes as llvm.set.rounding takes them.
ROUNDING = {"rz": 0, "rp": 2, "rm": 3}
_NEAREST = 1
DIRECTED = {"add": 2, "sub": 2, "mul": 2, "fma": 3, "div": 2, "sqrt": 1, "fptrunc": 1}
"""Operations with directed rounding and their operand counts."""


def _directed(operation: str, bits: int, mode: str) -> tuple[str, str]:
    """``kf_<operation>_<mode>_f<bits>``; fptrunc goes from 64 to 32 bits (also int to float conversions, exactly)."""
    name = f"kf_{operation}_{mode}_f{bits}"
    element = "float" if bits == 32 else "double"
    kind = f"<32 x {element}>"
    short = f"v32f{bits}"
    intrinsic = {"add": "fadd", "sub": "fsub", "mul": "fmul", "div": "fdiv"}.get(operation, operation)
    count = DIRECTED[operation]
    source = F64 if operation == "fptrunc" else kind
    arguments = ", ".join(f"{source} %a{k}" for k in range(count))
    mangled = f"llvm.experimental.constrained.{intrinsic}.{short}" + (".v32f64" if operation == "fptrunc" else "")
    text = f"""
declare {kind} @{mangled}({", ".join([source] * count)}, metadata, metadata)
define {kind} @{name}({arguments}) noinline strictfp {ATTRIBUTES} {{
call void @llvm.set.rounding(i32 {ROUNDING[mode]}) strictfp
%r = call {kind} @{mangled}({arguments}, metadata !"round.dynamic", metadata !"fpexcept.strict") strictfp
call void @llvm.set.rounding(i32 {_NEAREST}) strictfp
ret {kind} %r
}}"""
    return name, text


def library() -> tuple[str, list[str]]:
    """Return the IR of every math function and the functions' names."""
    parts = ["declare void @llvm.set.rounding(i32)"]
    names: list[str] = []
    declarations: set[str] = set()
    for name, build in UNARY.items():
        c = Code()
        result = build(c)
        declarations |= c.declarations
        names.append(f"kf_{name}_f32")
        parts.append(f"define {F32} @kf_{name}_f32({F32} %x) noinline {ATTRIBUTES} {{")
        parts += [*c.lines, f"ret {F32} {result}", "}"]
    seen: set[str] = set()
    for operation in DIRECTED:
        for bits in (32,) if operation == "fptrunc" else (32, 64):
            for mode in ROUNDING:
                name, text = _directed(operation, bits, mode)
                names.append(name)
                for line in text.splitlines():
                    if line.startswith("declare"):
                        if line not in seen:
                            parts.append(line)
                        seen.add(line)
                    else:
                        parts.append(line)
    return "\n".join([*sorted(declarations), *parts]), names
