"""Properties of exact instructions: IEEE's rounding of the exact result in every mode, by rational arithmetic.

The reference shares nothing with the device: it takes fractions and knows a format only by three numbers.
"""

from __future__ import annotations

import math
import operator
import random
from collections.abc import Callable
from fractions import Fraction
from typing import NamedTuple

import numpy as np
import pytest

from tests.devices.emulated.harness import apply_each


class Format(NamedTuple):
    """A binary floating-point format: precision, least and greatest exponent of a normal number, bits."""

    precision: int
    least: int
    greatest: int
    bits: int


FORMATS = {"f16": Format(11, -14, 15, 16), "bf16": Format(8, -126, 127, 16), "f32": Format(24, -126, 127, 32),
           "f64": Format(53, -1022, 1023, 64)}  # fmt: skip
MODES = ("rn", "rz", "rm", "rp")


def rounded(x: Fraction, form: Format, mode: str) -> float:
    """The number of the format that IEEE-754 prescribes for ``x``; the sign of a zero is left out."""
    size = abs(x)
    if size == 0:
        return 0.0
    exponent = size.numerator.bit_length() - size.denominator.bit_length()
    exponent -= Fraction(2) ** exponent > size
    unit = Fraction(2) ** (max(exponent, form.least) - form.precision + 1)
    count, rest = divmod(size, unit)
    away = {"rn": 2 * rest > unit or (2 * rest == unit and count % 2 == 1), "rz": False, "rp": x > 0, "rm": x < 0}[mode]
    size = (count + (rest > 0 and away)) * unit
    largest = (2 - Fraction(2) ** (1 - form.precision)) * Fraction(2) ** form.greatest
    if size > largest:
        infinite = mode == "rn" or (mode, x > 0) in (("rp", True), ("rm", False))
        return math.copysign(math.inf if infinite else float(largest), 1 if x > 0 else -1)
    return math.copysign(float(size), 1 if x > 0 else -1)


def decoded(raw: np.ndarray, kind: str) -> np.ndarray:
    """Numbers of a format's bits, as f64."""
    if kind == "bf16":
        return (raw.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return raw.astype(f"u{FORMATS[kind].bits // 8}").view(f"f{FORMATS[kind].bits // 8}").astype(np.float64)


def drawn(kind: str, count: int, rows: int = 300) -> list[tuple[int, ...]]:
    """Bits of finite numbers: every exponent and those near 1, mantissas at random, with long runs, of one bit."""
    draw = random.Random(f"{kind} {count}")
    form = FORMATS[kind]
    fraction, top = form.precision - 1, (1 << form.bits - form.precision) - 2

    def number() -> int:
        bit = draw.randrange(fraction)
        mantissa = draw.choice((draw.getrandbits(fraction), (1 << bit) - 1, 1 << bit))
        middle = min(max(top // 2 + draw.randint(-30, 30), 0), top)
        exponent = draw.choice((middle, middle, draw.randint(0, top), draw.choice((0, 1, top))))
        return draw.getrandbits(1) << form.bits - 1 | exponent << fraction | mantissa

    return [tuple(number() for _ in range(count)) for _ in range(rows)]


def check(
    kind: str,
    instructions: dict[tuple[str, str], Callable[..., Fraction | None]],
    rows: list[tuple[int, ...]],
    target: str | None = None,
) -> None:
    """Compare instructions, each with the mode in its key, with the exact results of ``rows`` of operands' bits."""
    out = target or kind
    width = FORMATS[kind].bits
    raw = [np.array(column, dtype=f"u{width // 8}") for column in zip(*rows, strict=True)]
    values = [[Fraction(v) for v in decoded(column, kind).tolist()] for column in raw]
    register = {"f16": "b16", "bf16": "b16"}
    results = apply_each(
        [(text, register.get(out, out)) for text, _ in instructions], *((register.get(kind, kind), c) for c in raw)
    )
    for ((text, mode), exact), result in zip(instructions.items(), results, strict=True):
        got = decoded(result, out)
        for row, number in zip(zip(*values, strict=True), got.tolist(), strict=True):
            true = exact(*row)
            if true is not None:
                assert number == rounded(true, FORMATS[out], mode), (text, [float(v) for v in row])


def quotient(a: Fraction, b: Fraction, *_: Fraction) -> Fraction | None:
    return a / b if b else None


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["f32", "f64"])
def test_every_rounding_mode(kind: str) -> None:
    rows = drawn(kind, 3)
    instructions: dict[tuple[str, str], Callable[..., Fraction | None]] = {}
    for mode in MODES:
        for name, function in (("add", operator.add), ("sub", operator.sub), ("mul", operator.mul)):
            instructions[f"{name}.{mode}.{kind} {{d}}, {{a}}, {{b}};", mode] = lambda a, b, c, f=function: f(a, b)
        instructions[f"fma.{mode}.{kind} {{d}}, {{a}}, {{b}}, {{c}};", mode] = lambda a, b, c: a * b + c
        instructions[f"div.{mode}.{kind} {{d}}, {{a}}, {{b}};", mode] = quotient
        instructions[f"rcp.{mode}.{kind} {{d}}, {{b}};", mode] = lambda a, b, c: quotient(Fraction(1), b)
    check(kind, instructions, rows)


@pytest.mark.parametrize("kind", ["f16", "bf16"])
def test_halves_are_rounded_once(kind: str) -> None:
    rows = drawn(kind, 3)
    check(
        kind,
        {
            (f"add.rn.{kind} {{d}}, {{a}}, {{b}};", "rn"): lambda a, b, c: a + b,
            (f"mul.rn.{kind} {{d}}, {{a}}, {{b}};", "rn"): lambda a, b, c: a * b,
            (f"fma.rn.{kind} {{d}}, {{a}}, {{b}}, {{c}};", "rn"): lambda a, b, c: a * b + c,
        },
        rows,
    )


@pytest.mark.parametrize(
    ("kind", "target", "modes"),
    [("f64", "f32", MODES), ("f32", "f16", ("rn", "rz")), ("f32", "bf16", ("rn", "rz")), ("f64", "f16", ("rn",)),
     ("f64", "bf16", ("rn",))],
)  # fmt: skip
def test_conversions_round_once(kind: str, target: str, modes: tuple[str, ...]) -> None:
    rows = drawn(kind, 1)
    check(kind, {(f"cvt.{mode}.{target}.{kind} {{d}}, {{a}};", mode): lambda a: a for mode in modes}, rows, target)
