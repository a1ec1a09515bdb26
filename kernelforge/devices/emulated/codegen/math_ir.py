"""LLVM IR of functions on 32 lanes that PTX has as one instruction, compiled once per process.

A run's *variation* moves the results of ``.approx`` functions within the error that PTX promises, by a hash of the
variation and the operands: a kernel whose result depends on the last bits of an approximation gives another one with
another variation, as it would on another GPU. ``APPROXIMATIONS`` has the errors and their sources.
``layout.WORST_ERRORS`` moves each as far as the error allows, up or down as the hash says. Variation 0 gives accurate
results, but follows an H100 where its results obey a rule: how it reduces angles, rounds logarithms and 16-bit results,
and treats arguments near zero. Every NaN is 0x7FFFFFFF, as on an H100.

Directed rounding is named by the instruction where AVX-512 is available. Elsewhere the processor's rounding mode is
switched around the operation, in a separate function so that no instruction can move across the switch.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from kernelforge.devices.emulated import layout as lay
from kernelforge.devices.emulated.codegen.ir_builder import (
    CURRENT_ROUNDING,
    IRBuilder,
    float_constant,
    nan_constant,
    suffix,
)
from kernelforge.devices.emulated.codegen.memory_ir import ATTRIBUTES

F32 = "<32 x float>"
F64 = "<32 x double>"
I32 = "<32 x i32>"
I64 = "<32 x i64>"
B = "<32 x i1>"


def _poly(c: IRBuilder, kind: str, x: str, coefficients: list[float]) -> str:
    """Horner's scheme with fused multiply-add; coefficients from the highest degree down."""
    value = float_constant(coefficients[0], kind)
    for k in coefficients[1:]:
        value = c.intrinsic("fma", kind, value, x, float_constant(k, kind))
    return value


NAN = nan_constant(F32)
TURN = 2 * math.pi
SIGN = 0x80000000 - (1 << 32)


def _scaled(c: IRBuilder, p: str, n: str) -> str:
    """p * 2**n, of p from 1/2 to 2 and a whole number n from -152 to 129, or NaN if n is."""
    if c.avx512:
        rest = (("<16 x float>", "zeroinitializer"), ("i16", "-1"), ("i32", str(CURRENT_ROUNDING)))
        return c.register_call("mask.scalef.ps", 16, [(F32, p), (F32, n)], F32, *rest)
    i = c.op(f"fptosi {F32} {n} to {I32}")  # not used where n is NaN
    half = c.op(f"ashr {I32} {i}, splat (i32 1)")
    for part in (half, c.op(f"sub {I32} {i}, {half}")):
        biased = c.op(f"add {I32} {part}, splat (i32 127)")
        bits = c.op(f"shl {I32} {biased}, splat (i32 23)")
        p = c.op(f"fmul {F32} {p}, {c.op(f'bitcast {I32} {bits} to {F32}')}")
    return p


def _ex2(c: IRBuilder) -> str:
    """2**x: round to an integer plus a fraction in [-1/2, 1/2], Taylor to degree 7, scaling that rounds once.

    The polynomial is 1 + f * (pairs of its terms, added up as a tree): half as long a chain as Horner's scheme.
    """
    x = "%x"
    low = c.op(f"fcmp olt {F32} {x}, {float_constant(-152.0, F32)}")
    clipped = c.select(low, F32, float_constant(-152.0, F32), x)
    high = c.op(f"fcmp ogt {F32} {clipped}, {float_constant(129.0, F32)}")
    clipped = c.select(high, F32, float_constant(129.0, F32), clipped)
    n = c.intrinsic("roundeven", F32, clipped)
    f = c.op(f"fsub {F32} {clipped}, {n}")
    terms = [float_constant(math.log(2) ** k / math.factorial(k), F32) for k in range(8)]
    squared = c.op(f"fmul {F32} {f}, {f}")
    first, middle, last = (c.intrinsic("fma", F32, terms[k + 1], f, terms[k]) for k in (1, 3, 5))
    last = c.intrinsic("fma", F32, squared, terms[7], last)
    first = c.intrinsic("fma", F32, middle, squared, first)
    p = c.intrinsic("fma", F32, last, c.op(f"fmul {F32} {squared}, {squared}"), first)
    p = c.intrinsic("fma", F32, p, f, terms[0])
    p = _scaled(c, p, n)
    nan = c.op(f"fcmp uno {F32} {x}, {x}")
    tiny = c.op(f"fcmp olt {F32} {c.intrinsic('fabs', F32, x)}, {float_constant(2.0**-23, F32)}")
    return c.select(tiny, F32, float_constant(1.0, F32), c.select(nan, F32, x, p))


def _ex2_and_rest(c: IRBuilder) -> tuple[str, str]:
    """As ``_ex2``, with the sum's rounding errors in a second f32; within a tenth of a unit."""
    x = "%x"
    clipped = c.intrinsic("maxnum", F32, x, float_constant(-152.0, F32))
    clipped = c.intrinsic("minnum", F32, clipped, float_constant(129.0, F32))
    n = c.intrinsic("roundeven", F32, clipped)
    f = c.op(f"fsub {F32} {clipped}, {n}")
    high = math.log(2) // 2.0**-24 * 2.0**-24
    tail = [math.log(2) ** k / math.factorial(k) for k in range(8, 1, -1)]
    small = c.op(f"fmul {F32} {f}, {_poly(c, F32, f, [*tail, math.log(2) - high])}")
    linear = c.op(f"fmul {F32} {f}, {float_constant(high, F32)}")
    lost = c.intrinsic("fma", F32, f, float_constant(high, F32), c.op(f"fneg {F32} {linear}"))
    unit = float_constant(1.0, F32)
    total = c.op(f"fadd {F32} {linear}, {unit}")
    beyond = c.op(f"fsub {F32} {linear}, {c.op(f'fsub {F32} {total}, {unit}')}")
    small = c.op(f"fadd {F32} {small}, {c.op(f'fadd {F32} {lost}, {beyond}')}")
    p = c.op(f"fadd {F32} {total}, {small}")
    rest = c.op(f"fadd {F32} {c.op(f'fsub {F32} {total}, {p}')}, {small}")
    i = c.to_integer(n, F32, I32)
    half = c.op(f"ashr {I32} {i}, splat (i32 1)")
    for part in (half, c.op(f"sub {I32} {i}, {half}")):
        bits = c.op(f"shl {I32} {c.op(f'add {I32} {part}, splat (i32 127)')}, splat (i32 23)")
        scale = c.op(f"bitcast {I32} {bits} to {F32}")
        p = c.op(f"fmul {F32} {p}, {scale}")
        rest = c.op(f"fmul {F32} {rest}, {scale}")
    return c.select(c.op(f"fcmp uno {F32} {x}, {x}"), F32, x, p), rest


def _power(c: IRBuilder, y: str, degree: int) -> str:
    """2**y in double, of moderate operands."""
    n = c.intrinsic("roundeven", F64, y)
    f = c.op(f"fsub {F64} {y}, {n}")
    p = _poly(c, F64, f, [math.log(2) ** k / math.factorial(k) for k in range(degree, -1, -1)])
    i = c.to_integer(n, F64, I64)
    bits = c.op(f"shl {I64} {c.op(f'add {I64} {i}, splat (i64 1023)')}, splat (i64 52)")
    return c.op(f"fmul {F64} {p}, {c.op(f'bitcast {I64} {bits} to {F64}')}")


def _logarithm(c: IRBuilder) -> str:
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
    unit = float_constant(1.0, F64)
    s = c.op(f"fdiv {F64} {c.op(f'fsub {F64} {m}, {unit}')}, {c.op(f'fadd {F64} {m}, {unit}')}")
    z = c.op(f"fmul {F64} {s}, {s}")
    series = _poly(c, F64, z, [2 / math.log(2) / k for k in range(15, 0, -2)])
    log = c.op(f"fmul {F64} {series}, {s}")
    e32 = c.op(f"trunc {I64} {exponent} to {I32}")
    return c.op(f"fadd {F64} {log}, {c.op(f'sitofp {I32} {e32} to {F64}')}")


def _of_corners(c: IRBuilder, result: str) -> str:
    """Logarithms of numbers, and of the operands that have none."""
    inf = float_constant(math.inf, F32)
    result = c.select(c.op(f"fcmp oeq {F32} %x, {inf}"), F32, inf, result)
    zero = c.op(f"fcmp oeq {F32} %x, zeroinitializer")
    result = c.select(zero, F32, float_constant(-math.inf, F32), result)
    return c.select(c.op(f"fcmp ult {F32} %x, zeroinitializer"), F32, NAN, result)


def _lg2(c: IRBuilder) -> str:
    """Rounded towards zero; of 1 / 2**n one unit less, as if the result were complemented and not negated."""
    total = _logarithm(c)
    below = c.op(f"fcmp olt {F32} %x, {float_constant(1.0, F32)}")
    less = c.op(f"fadd {F64} {total}, {float_constant(2.0**-40, F64)}")
    return _of_corners(c, _towards_zero(c, c.select(below, F64, less, total)))


def _lg2_and_rest(c: IRBuilder) -> tuple[str, str]:
    rounded, rest = _rounded(c, _logarithm(c))
    return _of_corners(c, rounded), rest


def _rounded(c: IRBuilder, value: str) -> tuple[str, str]:
    """A double as f32, and what it lacks."""
    near = c.op(f"fptrunc {F64} {value} to {F32}")
    rest = c.op(f"fsub {F64} {value}, {c.op(f'fpext {F32} {near} to {F64}')}")
    return near, c.op(f"fptrunc {F64} {rest} to {F32}")


def _towards_zero(c: IRBuilder, value: str) -> str:
    """A double as f32, rounded towards zero; as an f32 it is normal or zero."""
    near = c.op(f"fptrunc {F64} {value} to {F32}")
    back = c.intrinsic("fabs", F64, c.op(f"fpext {F32} {near} to {F64}"))
    above = c.op(f"fcmp ogt {F64} {back}, {c.intrinsic('fabs', F64, value)}")
    return _shift_bits(c, near, c.op(f"sext {B} {above} to {I32}"))


def _quadrants(c: IRBuilder, q: str, r: str, quadrant: int) -> str:
    """sin (quadrant 0) or cos (quadrant 1) of r radians beyond q quarters of a turn, as f32."""
    z = c.op(f"fmul {F64} {r}, {r}")
    s = _poly(c, F64, z, [(-1) ** (n // 2) / math.factorial(n) for n in range(15, 0, -2)])
    s = c.op(f"fmul {F64} {s}, {r}")
    co = _poly(c, F64, z, [(-1) ** (n // 2) / math.factorial(n) for n in range(16, -1, -2)])
    q = c.op(f"add {I64} {q}, splat (i64 {quadrant})")
    odd = c.op(f"trunc {I64} {q} to {B}")
    value = c.select(odd, F64, co, s)
    second = c.op(f"trunc {I64} {c.op(f'lshr {I64} {q}, splat (i64 1)')} to {B}")
    return c.select(second, F64, c.op(f"fneg {F64} {value}"), value)


def _only_finite(c: IRBuilder, result: str) -> str:
    finite = c.op(f"fsub {F32} %x, %x")  # NaN for infinities and NaN
    return c.select(c.op(f"fcmp uno {F32} {finite}, {finite}"), F32, NAN, result)


def _sincos(c: IRBuilder, quadrant: int) -> str:
    """sin (quadrant 0) or cos (quadrant 1) of the angle that an H100 makes of x.

    It multiplies by 1 / (2 pi) as an f32, rounds the turns towards zero to f32, and drops what is less than 2**-25
    turns: sines of small arguments are zero, and those of large ones are of whole turns.
    """
    x = c.intrinsic("fabs", F32, "%x")
    product = c.op(f"fmul {F64} {c.op(f'fpext {F32} {x} to {F64}')}, {float_constant(0.15915493667125702, F64)}")
    bits = c.op(f"bitcast {F64} {product} to {I64}")
    turns = c.op(f"bitcast {I64} {c.op(f'and {I64} {bits}, splat (i64 {-1 << 29})')} to {F64}")
    units = c.intrinsic("trunc", F64, c.op(f"fmul {F64} {turns}, {float_constant(2.0**25, F64)}"))
    cycles = c.intrinsic("floor", F64, c.op(f"fmul {F64} {units}, {float_constant(2.0**-25, F64)}"))
    units = c.intrinsic("fma", F64, cycles, float_constant(-(2.0**25), F64), units)
    k = c.intrinsic("roundeven", F64, c.op(f"fmul {F64} {units}, {float_constant(2.0**-23, F64)}"))
    rest = c.intrinsic("fma", F64, k, float_constant(-(2.0**23), F64), units)
    r = c.op(f"fmul {F64} {rest}, {float_constant(TURN * 2.0**-25, F64)}")
    q = c.op(f"fptosi {F64} {k} to {I64}")  # not used where k is no number
    result = c.op(f"fptrunc {F64} {_quadrants(c, q, r, quadrant)} to {F32}")
    if quadrant == 0:
        sign = c.op(f"and {I32} {c.op(f'bitcast {F32} %x to {I32}')}, splat (i32 {SIGN})")
        flipped = c.op(f"xor {I32} {c.op(f'bitcast {F32} {result} to {I32}')}, {sign}")
        result = c.op(f"bitcast {I32} {flipped} to {F32}")
    return _only_finite(c, result)


def _sincos_and_rest(c: IRBuilder, quadrant: int) -> tuple[str, str]:
    """sin (quadrant 0) or cos (quadrant 1) after reduction by multiples of pi/2 in two parts."""
    d = c.op(f"fpext {F32} %x to {F64}")
    k = c.intrinsic("roundeven", F64, c.op(f"fmul {F64} {d}, {float_constant(2 / math.pi, F64)}"))
    minus = c.op(f"fneg {F64} {k}")
    r = c.intrinsic("fma", F64, minus, float_constant(math.pi / 2, F64), d)
    r = c.intrinsic("fma", F64, minus, float_constant(6.123233995736766e-17, F64), r)
    q = c.to_integer(k, F64, I64)
    result, rest = _rounded(c, _quadrants(c, q, r, quadrant))
    if quadrant == 0:
        result = c.select(c.op(f"fcmp oeq {F32} %x, zeroinitializer"), F32, "%x", result)
    return _only_finite(c, result), rest


def _tanh_and_rest(c: IRBuilder) -> tuple[str, str]:
    """1 - 2 / (exp(2|x|) + 1); as on an H100 x itself up to 2**-8, and 1 from 8 on."""
    magnitude = c.intrinsic("fabs", F32, "%x")
    clipped = c.intrinsic("minnum", F32, magnitude, float_constant(20.0, F32))
    d = c.op(f"fpext {F32} {clipped} to {F64}")
    e = _power(c, c.op(f"fmul {F64} {d}, {float_constant(2 / math.log(2), F64)}"), 12)
    unit = float_constant(1.0, F64)
    quotient = c.op(f"fdiv {F64} {float_constant(2.0, F64)}, {c.op(f'fadd {F64} {e}, {unit}')}")
    rounded = c.op(f"fptrunc {F64} {c.op(f'fsub {F64} {unit}, {quotient}')} to {F32}")
    tiny = c.op(f"fcmp ole {F32} {magnitude}, {float_constant(2.0**-8, F32)}")
    value = c.select(tiny, F32, magnitude, rounded)
    large = c.op(f"fcmp oge {F32} {magnitude}, {float_constant(8.0, F32)}")
    value = c.intrinsic("copysign", F32, c.select(large, F32, float_constant(1.0, F32), value), "%x")
    # Up to 2**-8 the result lacks a third of the cube; elsewhere a rounding, which is nothing next to the error.
    square = c.op(f"fmul {F32} {value}, {value}")
    cube = c.op(f"fmul {F32} {c.op(f'fmul {F32} {square}, {value}')}, {float_constant(-1 / 3, F32)}")
    rest = c.select(tiny, F32, cube, "zeroinitializer")
    return c.select(c.op(f"fcmp uno {F32} %x, %x"), F32, "%x", value), rest


def _tanh(c: IRBuilder) -> str:
    return _tanh_and_rest(c)[0]


def _to_fewer_bits(compute: Callable[[IRBuilder], str], bits: int) -> Callable[[IRBuilder], str]:
    """Cut the mantissa to ``bits`` bits, 10 or 7: an H100 rounds 16-bit results towards zero."""

    def cut(c: IRBuilder) -> str:
        result = compute(c)
        value = c.op(f"bitcast {F32} {result} to {I32}")
        value = c.op(f"bitcast {I32} {c.op(f'and {I32} {value}, splat (i32 {-1 << (23 - bits)})')} to {F32}")
        if bits == 10:  # subnormal numbers of f16 are multiples of 2**-24
            units = c.intrinsic("trunc", F32, c.op(f"fmul {F32} {result}, {float_constant(2.0**24, F32)}"))
            tiny = c.op(f"fcmp olt {F32} {c.intrinsic('fabs', F32, result)}, {float_constant(2.0**-14, F32)}")
            value = c.select(tiny, F32, c.op(f"fmul {F32} {units}, {float_constant(2.0**-24, F32)}"), value)
        return value

    return cut


def _rsqrt(c: IRBuilder) -> str:
    """1 / sqrt(x): two correct roundings, within 2**-23 relative."""
    return c.op(f"fdiv {F32} {float_constant(1.0, F32)}, {c.intrinsic('sqrt', F32, '%x')}")


def _rsqrt_and_rest(c: IRBuilder) -> tuple[str, str]:
    r = _rsqrt(c)
    product = c.op(f"fmul {F32} %x, {r}")
    minus = c.op(f"fneg {F32} {product}")
    error = c.intrinsic("fma", F32, "%x", r, minus)
    rest = c.intrinsic("fma", F32, minus, r, float_constant(1.0, F32))
    rest = c.intrinsic("fma", F32, c.op(f"fneg {F32} {error}"), r, rest)
    half = c.op(f"fmul {F32} {r}, {float_constant(0.5, F32)}")
    return r, c.op(f"fmul {F32} {half}, {rest}")


# Movers shift a result within its documented error. They get the operands, the rounded result, what it lacks of the
# true one where the function tells, and a hash of operands and variation as 32-bit integers. Results that are not
# normal numbers stay. The mask ``%worst`` asks for the farthest.

Mover = Callable[[IRBuilder, list[str], str, str, str], str]
_LEAST_NORMAL = 2.0**-126


def _normal(c: IRBuilder, value: str, least: float = _LEAST_NORMAL) -> str:
    """Whether a value is normal, and its neighbours as well."""
    magnitude = c.intrinsic("fabs", F32, value)
    low = c.op(f"fcmp oge {F32} {magnitude}, {float_constant(least, F32)}")
    high = c.op(f"fcmp olt {F32} {magnitude}, {float_constant(2.0**127, F32)}")
    return c.op(f"and {B} {low}, {high}")


def _power_of_two(c: IRBuilder, value: str) -> str:
    bits = c.op(f"bitcast {F32} {value} to {I32}")
    mantissa = c.op(f"and {I32} {bits}, splat (i32 {0x7FFFFF})")
    return c.op(f"icmp eq {I32} {mantissa}, zeroinitializer")


def _shift_bits(c: IRBuilder, result: str, steps: str) -> str:
    """Move by whole units in the last place: away from zero where a step is positive."""
    bits = c.op(f"bitcast {F32} {result} to {I32}")
    return c.op(f"bitcast {I32} {c.op(f'add {I32} {bits}, {steps}')} to {F32}")


def _to_other_side(residual: Callable[[IRBuilder, str, str], str]) -> Mover:
    """The result, or its neighbour beyond the true value: both are within one unit of it, as ``residual`` tells.

    It is positive where the result's magnitude is too small, and zero where the result is exact.
    """

    def move(c: IRBuilder, operands: list[str], result: str, rest: str, mixed: str) -> str:
        rest = residual(c, operands[0], result)
        up = c.op(f"fcmp ogt {F32} {rest}, zeroinitializer")
        down = c.op(f"fcmp olt {F32} {rest}, zeroinitializer")
        step = c.op(f"sub {I32} {c.op(f'zext {B} {up} to {I32}')}, {c.op(f'zext {B} {down} to {I32}')}")
        moves = c.op(f"or {I32} {c.op(f'ashr {I32} {mixed}, splat (i32 31)')}, {c.op(f'sext {B} %worst to {I32}')}")
        steps = c.op(f"and {I32} {step}, {moves}")
        good = c.op(f"and {B} {_normal(c, result)}, {_normal(c, operands[0])}")
        return c.select(good, F32, _shift_bits(c, result, steps), result)

    return move


def _of_reciprocal(c: IRBuilder, x: str, r: str) -> str:
    return c.intrinsic("fma", F32, c.op(f"fneg {F32} {x}"), r, float_constant(1.0, F32))


def _of_root(c: IRBuilder, x: str, r: str) -> str:
    return c.intrinsic("fma", F32, c.op(f"fneg {F32} {r}"), r, x)


def _share(c: IRBuilder, mixed: str) -> str:
    """The hash as a number from -1 to 1."""
    end = c.op(f"xor {I32} {c.op(f'ashr {I32} {mixed}, splat (i32 31)')}, splat (i32 {0x7FFFFFFF})")
    mixed = c.select("%worst", I32, end, mixed)
    return c.op(f"fmul {F32} {c.op(f'sitofp {I32} {mixed} to {F32}')}, {float_constant(2.0**-31, F32)}")


Limit = Callable[[IRBuilder, list[str], str], str]
"""The largest error of a result, of the operands and the rounded result."""


def _up_to(limit: Limit, exact: Callable[[IRBuilder, list[str]], str]) -> Mover:
    """Up to ``limit`` either way, after rounding too, and short of zero; results of ``exact`` operands stay."""

    def move(c: IRBuilder, operands: list[str], result: str, rest: str, mixed: str) -> str:
        bound = limit(c, operands, result)
        half = c.op(f"fmul {F32} {c.intrinsic('fabs', F32, result)}, {float_constant(0.5, F32)}")
        offset = c.intrinsic("fma", F32, _share(c, mixed), c.intrinsic("minnum", F32, bound, half), rest)
        moved = c.op(f"fadd {F32} {result}, {offset}")
        error = c.op(f"fsub {F32} {c.op(f'fsub {F32} {moved}, {result}')}, {rest}")
        over = c.op(f"fcmp ogt {F32} {c.intrinsic('fabs', F32, error)}, {bound}")
        # One unit back: to a smaller magnitude where the error has the result's sign.
        bits = [c.op(f"bitcast {F32} {value} to {I32}") for value in (error, moved)]
        apart = c.op(f"ashr {I32} {c.op(f'xor {I32} {bits[0]}, {bits[1]}')}, splat (i32 31)")
        back = c.op(f"or {I32} {c.op(f'xor {I32} {apart}, splat (i32 -1)')}, splat (i32 1)")
        moved = _shift_bits(c, moved, c.select(over, I32, back, "zeroinitializer"))
        # What a result of less than 2**-102 lacks is subnormal.
        usual = _normal(c, result, 2.0**24 * _LEAST_NORMAL)
        good = c.op(f"and {B} {usual}, {c.op(f'xor {B} {exact(c, operands)}, splat (i1 true)')}")
        return c.select(good, F32, moved, result)

    return move


def _within_one(mover: Mover) -> Mover:
    """Clamp the result of ``mover`` to -1 and 1; results of -1 and 1 themselves stay."""

    def move(c: IRBuilder, operands: list[str], result: str, rest: str, mixed: str) -> str:
        moved = mover(c, operands, result, rest, mixed)
        unit = float_constant(1.0, F32)
        clipped = c.intrinsic("maxnum", F32, c.intrinsic("minnum", F32, moved, unit), c.op(f"fneg {F32} {unit}"))
        good = c.op(f"fcmp ord {F32} {result}, {result}")
        return c.select(good, F32, clipped, result)

    return move


def _relative(error: float) -> Limit:
    return lambda c, x, r: c.op(f"fmul {F32} {c.intrinsic('fabs', F32, r)}, {float_constant(0.999 * error, F32)}")


def _units(count: float) -> Limit:
    """Units in the last place; of a power of two the smaller ones below it."""

    def limit(c: IRBuilder, x: list[str], r: str) -> str:
        bits = c.op(f"sub {I32} {c.op(f'bitcast {F32} {r} to {I32}')}, splat (i32 1)")
        power = c.op(f"bitcast {I32} {c.op(f'and {I32} {bits}, splat (i32 {0x7F800000})')} to {F32}")
        return c.op(f"fmul {F32} {power}, {float_constant(count * 2.0**-23, F32)}")

    return limit


def _of_logarithm(c: IRBuilder, x: list[str], r: str) -> str:
    """Absolute up to 1, which are operands from 1/2 to 2, and relative beyond."""
    scale = c.intrinsic("maxnum", F32, c.intrinsic("fabs", F32, r), float_constant(1.0, F32))
    return c.op(f"fmul {F32} {scale}, {float_constant(0.999 * 2.0**-22, F32)}")


def _of_angle(c: IRBuilder, x: list[str], r: str) -> str:
    """2**-20.5 up to 2 pi and 2**-14.7 up to 100 pi, but no more than in proportion to the angle, as on an H100."""
    angle = c.intrinsic("fabs", F32, x[0])
    near, middle = (float_constant(0.999 * 2.0**power, F32) for power in (-20.5, -14.7))
    grown = c.op(f"fmul {F32} {angle}, {float_constant(1.85e-7, F32)}")
    far = c.op(f"fcmp ogt {F32} {angle}, {float_constant(100 * math.pi, F32)}")
    bound = c.select(far, F32, grown, c.intrinsic("minnum", F32, grown, middle))
    small = c.op(f"fcmp ole {F32} {angle}, {float_constant(TURN, F32)}")
    return c.select(small, F32, near, bound)


def _integer(c: IRBuilder, operands: list[str]) -> str:
    return c.op(f"fcmp oeq {F32} {c.intrinsic('roundeven', F32, operands[0])}, {operands[0]}")


def _power_above_one(c: IRBuilder, operands: list[str]) -> str:
    """Operands 2**n, n >= 0, of the logarithm: an H100's results for 1 / 2**n are inexact."""
    above = c.op(f"fcmp oge {F32} {operands[0]}, {float_constant(1.0, F32)}")
    return c.op(f"and {B} {_power_of_two(c, operands[0])}, {above}")


def _quarter_power(c: IRBuilder, operands: list[str]) -> str:
    """Operands 4**n, whose roots are powers of two."""
    bits = c.op(f"bitcast {F32} {operands[0]} to {I32}")
    rest = c.op(f"and {I32} {bits}, splat (i32 {0xFFFFFF})")
    return c.op(f"icmp eq {I32} {rest}, splat (i32 {0x800000})")


def _zero(c: IRBuilder, operands: list[str]) -> str:
    return c.op(f"fcmp oeq {F32} {operands[0]}, zeroinitializer")


def _saturated(c: IRBuilder, operands: list[str]) -> str:
    """Operands of tanh whose result is 1 in f32."""
    return c.op(f"fcmp ogt {F32} {c.intrinsic('fabs', F32, operands[0])}, {float_constant(9.0, F32)}")


def _reciprocal(c: IRBuilder) -> str:
    return c.op(f"fdiv {F32} {float_constant(1.0, F32)}, %x")


def _quotient(c: IRBuilder) -> str:
    return c.op(f"fdiv {F32} %x, %y")


def _quotient_by_reciprocal(c: IRBuilder) -> str:
    """For 2**126 < |y| < 2**128 the reciprocal underflows, so that the result is x * 0."""
    huge = c.op(f"fcmp ogt {F32} {c.intrinsic('fabs', F32, '%y')}, {float_constant(2.0**126, F32)}")
    zero = c.intrinsic("copysign", F32, "zeroinitializer", "%y")
    return c.select(huge, F32, c.op(f"fmul {F32} %x, {zero}"), _quotient(c))


def _and_rest(quotient: Callable[[IRBuilder], str]) -> Callable[[IRBuilder], tuple[str, str]]:
    def divide(c: IRBuilder) -> tuple[str, str]:
        result = quotient(c)
        residual = c.intrinsic("fma", F32, c.op(f"fneg {F32} {result}"), "%y", "%x")
        return result, c.op(f"fdiv {F32} {residual}, %y")

    return divide


def _simple_divisor(c: IRBuilder, operands: list[str]) -> str:
    """A divisor that is a power of two, or a dividend so small that the remainder of the division is not exact."""
    small = c.op(f"fcmp olt {F32} {c.intrinsic('fabs', F32, operands[0])}, {float_constant(2.0**-100, F32)}")
    return c.op(f"or {B} {_power_of_two(c, operands[1])}, {small}")


@dataclass(frozen=True)
class Approximation:
    """An approximate function on 32 floats: ``kf_<name>`` takes its operands and the variation."""

    section: str
    """Section of the PTX ISA, release 8.7."""
    error: str
    """The largest error that the section documents."""
    compute: Callable[[IRBuilder], str]
    """The result of variation 0."""
    accurate: Callable[[IRBuilder], tuple[str, str]] | None
    """The result of the others before it is moved, and what it lacks of the true one; that of variation 0 if absent."""
    move: Mover
    operands: int = 1


APPROXIMATIONS = {
    "div_f32": Approximation("9.7.3.8 div", "2 ulp for |b| from 2**-126 to 2**126", _quotient_by_reciprocal,
                             _and_rest(_quotient_by_reciprocal), _up_to(_units(1.999), _simple_divisor), 2),
    "div_full_f32": Approximation("9.7.3.8 div", "2 ulp", _quotient, _and_rest(_quotient),
                                  _up_to(_units(1.999), _simple_divisor), 2),
    "rcp_f32": Approximation("9.7.3.13 rcp", "1 ulp", _reciprocal, None, _to_other_side(_of_reciprocal)),
    "sqrt_f32": Approximation("9.7.3.15 sqrt", "2**-23 relative", lambda c: c.intrinsic("sqrt", F32, "%x"), None,
                              _to_other_side(_of_root)),
    "rsqrt_f32": Approximation("9.7.3.16 rsqrt", "2**-22.9 relative", _rsqrt, _rsqrt_and_rest,
                               _up_to(_relative(2.0**-22.9), _quarter_power)),
    "sin_f32": Approximation("9.7.3.18 sin", "2**-20.5 up to 2 pi, 2**-14.7 up to 100 pi, absolute",
                             lambda c: _sincos(c, 0), lambda c: _sincos_and_rest(c, 0),
                             _within_one(_up_to(_of_angle, _zero))),
    "cos_f32": Approximation("9.7.3.19 cos", "2**-20.5 up to 2 pi, 2**-14.7 up to 100 pi, absolute",
                             lambda c: _sincos(c, 1), lambda c: _sincos_and_rest(c, 1),
                             _within_one(_up_to(_of_angle, _zero))),
    "lg2_f32": Approximation("9.7.3.20 lg2", "2**-22 absolute in (0.5, 2), relative elsewhere", _lg2, _lg2_and_rest,
                             _up_to(_of_logarithm, _power_above_one)),
    "ex2_f32": Approximation("9.7.3.21 ex2", "2 ulp from the correctly rounded result", _ex2, _ex2_and_rest,
                             _up_to(_units(2.35), _integer)),
    "tanh_f32": Approximation("9.7.3.22 tanh", "2**-11 relative", _tanh, _tanh_and_rest,
                              _within_one(_up_to(_relative(2.0**-11), _saturated))),
    # Rounding to 16 bits takes its part of the error: half a unit of 11 bits or of 8.
    "tanh_f16": Approximation("9.7.4.9 tanh", "2**-10.987 absolute", _to_fewer_bits(_tanh, 10), _tanh_and_rest,
                              _within_one(_up_to(_relative(0.98 * 2.0**-12), _saturated))),
    "tanh_bf16": Approximation("9.7.4.9 tanh", "2**-8 absolute", _to_fewer_bits(_tanh, 7), _tanh_and_rest,
                               _within_one(_up_to(_relative(0.98 * 2.0**-9), _saturated))),
    "ex2_f16": Approximation("9.7.4.10 ex2", "2**-9.9 relative", _to_fewer_bits(_ex2, 10), _ex2_and_rest,
                             _up_to(_relative(0.98 * 2.0**-11), _integer)),
    "ex2_bf16": Approximation("9.7.4.10 ex2", "2**-7 relative", _to_fewer_bits(_ex2, 7), _ex2_and_rest,
                              _up_to(_relative(0.98 * 2.0**-8), _integer)),
}  # fmt: skip
"""The corner cases of the ISA's tables stay exact, and so do 2**n, 1 / 2**n, 1 / sqrt(4**n), x / 2**n, and log2(2**n)
from n = 0 on: an H100 gives them exactly, and kernels rely on them."""


def _mix(c: IRBuilder, operands: list[str], salt: int) -> str:
    """A hash of the operands' bits and the variation."""
    seed = c.op(f"mul i32 {c.op(f'add i32 %variation, {salt}')}, {0x9E3779B1 - (1 << 32)}")
    mixed = c.splat(seed, "i32")
    for value in operands:
        bits = c.op(f"bitcast {F32} {value} to {I32}")
        mixed = c.op(f"mul {I32} {c.op(f'xor {I32} {mixed}, {bits}')}, splat (i32 {0x85EBCA77 - (1 << 32)})")
        mixed = c.op(f"xor {I32} {mixed}, {c.op(f'lshr {I32} {mixed}, splat (i32 15)')}")
    mixed = c.op(f"mul {I32} {mixed}, splat (i32 {0xC2B2AE3D - (1 << 32)})")
    return c.op(f"xor {I32} {mixed}, {c.op(f'lshr {I32} {mixed}, splat (i32 16)')}")


def _one_nan(c: IRBuilder, result: str) -> str:
    """NaN as 0x7FFFFFFF; in integers, because LLVM may give any NaN for another."""
    bits = c.op(f"bitcast {F32} {result} to {I32}")
    magnitude = c.op(f"and {I32} {bits}, splat (i32 {0x7FFFFFFF})")
    nan = c.op(f"icmp ugt {I32} {magnitude}, splat (i32 {0x7F800000})")
    return c.op(f"bitcast {I32} {c.select(nan, I32, f'splat (i32 {0x7FFFFFFF})', bits)} to {F32}")


def _approximation(name: str, salt: int, avx512: bool) -> tuple[str, set[str]]:
    """The function's IR, and the declarations that it needs."""
    function = APPROXIMATIONS[name]
    operands = ["%x", "%y"][: function.operands]
    c = IRBuilder(avx512)
    c.emit(f"br i1 {c.op('icmp eq i32 %variation, 0')}, label %middle, label %varied\nmiddle:")
    c.emit(f"ret {F32} {_one_nan(c, function.compute(c))}\nvaried:")
    worst = c.op(f"icmp eq i32 %variation, {lay.WORST_ERRORS - (1 << 32)}")
    first = c.op(f"insertelement {B} poison, i1 {worst}, i64 0")
    c.emit(f"%worst = shufflevector {B} {first}, {B} poison, {I32} zeroinitializer")
    result, rest = function.accurate(c) if function.accurate else (function.compute(c), "")
    result = _one_nan(c, function.move(c, operands, result, rest, _mix(c, operands, salt)))
    arguments = ", ".join(f"{F32} {x}" for x in operands)
    head = f"define {F32} @kf_{name}({arguments}, i32 %variation) noinline {ATTRIBUTES} {{"
    return "\n".join([head, *c.lines, f"ret {F32} {result}", "}"]), c.declarations


# Rounding modes as llvm.set.rounding takes them.
ROUNDING = {"rz": 0, "rp": 2, "rm": 3}
_NEAREST = 1
_EMBEDDED = {"rz": 11, "rp": 10, "rm": 9}
"""Rounding modes as instructions of AVX-512 take them, which then suppress exceptions."""
DIRECTED = {"add": 2, "sub": 2, "mul": 2, "fma": 3, "div": 2, "sqrt": 1, "fptrunc": 1}
"""Operations with directed rounding and their operand counts."""


def _directed(operation: str, bits: int, mode: str) -> tuple[str, str, set[str]]:
    """``kf_<operation>_<mode>_f<bits>``, its IR, and the declarations that it needs.

    fptrunc goes from 64 to 32 bits (also int to float conversions, exactly).
    """
    name = f"kf_{operation}_{mode}_f{bits}"
    kind = F32 if bits == 32 else F64
    intrinsic = {"add": "fadd", "sub": "fsub", "mul": "fmul", "div": "fdiv"}.get(operation, operation)
    count = DIRECTED[operation]
    source = F64 if operation == "fptrunc" else kind
    arguments = ", ".join(f"{source} %a{k}" for k in range(count))
    mangled = f"llvm.experimental.constrained.{intrinsic}.{suffix(kind)}"
    mangled += f".{suffix(F64)}" if operation == "fptrunc" else ""
    text = f"""
define {kind} @{name}({arguments}) noinline strictfp {ATTRIBUTES} {{
call void @llvm.set.rounding(i32 {ROUNDING[mode]}) strictfp
%r = call {kind} @{mangled}({arguments}, metadata !"round.dynamic", metadata !"fpexcept.strict") strictfp
call void @llvm.set.rounding(i32 {_NEAREST}) strictfp
ret {kind} %r
}}"""
    declared = f"declare {kind} @{mangled}({', '.join([source] * count)}, metadata, metadata)"
    return name, text, {declared, "declare void @llvm.set.rounding(i32)"}


def directed(c: IRBuilder, operation: str, bits: int, mode: str, values: list[str]) -> str:
    """An operation of ``DIRECTED`` on 32 lanes, rounded as ``mode`` says.

    Instructions of AVX-512 name their rounding; elsewhere a function switches the processor's mode twice.
    """
    kind, wide = (F32, "ps") if bits == 32 else (F64, "pd")
    masked = operation == "fptrunc"
    source, lanes = (F64, 8) if masked else (kind, 512 // bits)
    operands = [(source, value) for value in values]
    if not c.avx512:
        return c.call(f"kf_{operation}_{mode}_f{bits}", kind, *operands)
    stem = {"fma": f"vfmadd.{wide}", "fptrunc": "mask.cvtpd2ps"}.get(operation, f"{operation}.{wide}")
    kept = (("<8 x float>", "zeroinitializer"), ("i8", "-1")) if masked else ()
    return c.register_call(stem, lanes, operands, kind, *kept, ("i32", str(_EMBEDDED[mode])))


def approximation_of_one(name: str) -> str:
    """Name of the function that computes an approximate function of a single number."""
    return f"{name}_of_one"


_LAST_OF_NAN = 0x7FFFFFFF_FFFFFFFF
"""What is kept before the first call: the result for one of the NaNs, the same for every function."""


def _of_one(name: str, salt: int) -> tuple[str, set[str]]:
    """The function of a single number, computed on 4 lanes.

    The warps of a block often compute the same number, so the last operand and its result are kept, in one word because
    two threads may call it at once. That is shorter than most of the functions, and no later work waits for the result.
    """
    few = "<4 x float>"
    text, declarations = _approximation(name, salt, False)
    operands = ["x", "y"][: APPROXIMATIONS[name].operands]
    single = approximation_of_one(name)

    def fewer(line: str) -> str:
        return line.replace("<32 x ", "<4 x ").replace(".v32", ".v4").replace(f"@kf_{name}(", f"@kf_{single}_lanes(")

    lines = [f"%{v}s = insertelement {few} zeroinitializer, float %{v}, i64 0" for v in operands]
    arguments = ", ".join(f"{few} %{v}s" for v in operands)
    lines.append(f"%rs = call {few} @kf_{single}_lanes({arguments}, i32 %variation)")
    lines.append(f"%r = extractelement {few} %rs, i64 0")
    before, after = "", ""
    if len(operands) == 1:
        before = f"""%bits = bitcast float %x to i32
%last = load atomic i64, ptr @kf_{single}_last monotonic, align 8
%key = trunc i64 %last to i32
%same = icmp eq i32 %key, %bits
%fixed = icmp eq i32 %variation, 0
%hit = and i1 %same, %fixed
br i1 %hit, label %kept, label %compute
kept:
%high = lshr i64 %last, 32
%high32 = trunc i64 %high to i32
%before = bitcast i32 %high32 to float
ret float %before
compute:
"""
        after = f"""br i1 %fixed, label %keep, label %end
keep:
%rbits = bitcast float %r to i32
%r64 = zext i32 %rbits to i64
%upper = shl i64 %r64, 32
%lower = zext i32 %bits to i64
%pair = or i64 %upper, %lower
store atomic i64 %pair, ptr @kf_{single}_last monotonic, align 8
br label %end
end:
"""
    parameters = ", ".join(f"float %{v}" for v in operands)
    function = f"""define float @kf_{single}({parameters}, i32 %variation) noinline {ATTRIBUTES} {{
{before}{chr(10).join(lines)}
{after}ret float %r
}}"""
    kept = f"@kf_{single}_last = internal global i64 {_LAST_OF_NAN}, align 64" if before else ""
    return f"{kept}\n{fewer(text)}\n{function}", {fewer(line) for line in declarations}


def library(avx512: bool) -> tuple[str, list[str]]:
    """Return the IR of every math function and the functions' names. ``avx512``: it is available."""
    parts: list[str] = []
    names: list[str] = []
    declarations: set[str] = set()
    for salt, name in enumerate(APPROXIMATIONS):
        text, needed = _approximation(name, salt, avx512)
        declarations |= needed
        names.append(f"kf_{name}")
        parts.append(text)
        if name.endswith("_f32"):
            text, needed = _of_one(name, salt)
            declarations |= needed
            names.append(f"kf_{approximation_of_one(name)}")
            parts.append(text)
    for operation in () if avx512 else DIRECTED:
        for bits in (32,) if operation == "fptrunc" else (32, 64):
            for mode in ROUNDING:
                name, text, needed = _directed(operation, bits, mode)
                declarations |= needed
                names.append(name)
                parts.append(text)
    return "\n".join([*sorted(declarations), *parts]), names
