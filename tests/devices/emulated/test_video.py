"""Scalar video instructions against the definitions of the PTX ISA, in Python's integers."""

from __future__ import annotations

import itertools
import operator
import random
from collections.abc import Callable

import numpy as np
import pytest

from kernelforge.devices.emulated.errors import UnsupportedInstruction
from tests.devices.emulated.harness import Device, apply_each, ptx_module
from tests.devices.emulated.test_integer import words

TESTS: dict[str, Callable[[int, int], bool]] = {
    "eq": operator.eq, "ne": operator.ne, "lt": operator.lt, "le": operator.le, "gt": operator.gt, "ge": operator.ge,
}  # fmt: skip
SELECTORS = ("", "b0", "b1", "b2", "b3", "h0", "h1")


def sizes(selector: str) -> tuple[int, int]:
    """Bits of a part, and its position."""
    size = {"b": 8, "h": 16}.get(selector[:1], 32)
    return size, size * int(selector[1:] or 0)


def signed(value: int, bits: int) -> int:
    value %= 1 << bits
    return value - (1 << bits) if value >> (bits - 1) else value


def part(word: int, selector: str, kind: str) -> int:
    size, at = sizes(selector)
    value = word >> at & (1 << size) - 1
    return signed(value, size) if kind == "s32" else value


def clamp(value: int, bits: int, kind: str) -> int:
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if kind == "s32" else (0, (1 << bits) - 1)
    return min(max(value, low), high)


def core(operation: str, x: int, y: int, mode: str) -> int:
    if operation == "set":
        return int(TESTS[mode](x, y))
    if operation in ("shl", "shr"):
        count = min(y, 32) if mode == "clamp" else y & 31
        return x << count if operation == "shl" else x >> count
    return {"add": x + y, "sub": x - y, "absdiff": abs(x - y), "min": min(x, y), "max": max(x, y)}[operation]


def second(name: str, value: int, c: int, kind: str) -> int:
    if name == "add":
        return value + c
    first, other = (signed(v, 32) if kind == "s32" else v % (1 << 32) for v in (value, c))
    return (min if name == "min" else max)(first, other)


def random_case(operation: str, draw: random.Random) -> tuple[str, Callable[[int, int, int], int]]:
    """One instruction, and what it computes."""
    kinds = [draw.choice(("u32", "s32")) for _ in range(3)]
    selectors = [draw.choice(SELECTORS) for _ in range(3)]
    form = draw.choice(("plain", "second", "merge"))
    name = draw.choice(("add", "min", "max"))
    mode, saturated = "", draw.random() < 0.5
    if operation == "set":
        kinds[0], saturated, mode = "u32", False, draw.choice(list(TESTS))
    elif operation in ("shl", "shr"):
        kinds[2], mode = "u32", draw.choice(("clamp", "wrap"))
    target = selectors[0] if form == "merge" and selectors[0] else ""
    form = "plain" if form == "merge" and not target else form
    dots = ["v" + operation, *(kinds[1:] if operation == "set" else kinds)]
    dots += ["sat"] * saturated + [mode] * bool(mode) + [name] * (form == "second")
    operands = [
        f"{{{letter}}}" + (f".{s}" if s else "") for letter, s in zip("dab", (target, *selectors[1:]), strict=True)
    ]
    text = f"{'.'.join(dots)} {', '.join([*operands, *(['{c}'] if form != 'plain' else [])])};"

    def result(a: int, b: int, c: int) -> int:
        value = core(operation, part(a, selectors[1], kinds[1]), part(b, selectors[2], kinds[2]), mode)
        size, at = sizes(target)
        value = clamp(value, size, kinds[0]) if saturated else value
        if form == "second":
            value = second(name, value, c, kinds[0])
        elif target:
            ones = (1 << size) - 1
            value = c & ~(ones << at) | (value & ones) << at
        return value % (1 << 32)

    return text, result


def check(cases: list[tuple[str, Callable[[int, int, int], int]]]) -> None:
    inputs = [words(32, 96) for _ in range(3)]
    inputs[1][::3] %= 40
    results = apply_each([(text, "b32") for text, _ in cases], *(("b32", x) for x in inputs))
    for (text, function), result in zip(cases, results, strict=True):
        expected = [function(*map(int, row)) for row in zip(*inputs, strict=True)]
        assert result.tolist() == expected, text


@pytest.mark.parametrize("operation", ["add", "sub", "absdiff", "min", "max", "set", "shl", "shr"])
def test_scalar_video_instructions(operation: str) -> None:
    draw = random.Random(operation)
    check([random_case(operation, draw) for _ in range(24)])


def mad_case(
    kinds: tuple[str, str], signs: tuple[str, str, str], flags: str, selectors: tuple[str, str]
) -> tuple[str, Callable[[int, int, int], int]]:
    parts = [f".{s}" if s else "" for s in selectors]
    operands = f"{signs[0]}{{a}}{parts[0]}, {signs[1]}{{b}}{parts[1]}, {signs[2]}{{c}}"
    text = f"vmad.s32.{kinds[0]}.{kinds[1]}{flags} {{d}}, {operands};"
    negative = signs[0] != signs[1]
    with_sign = "s32" in kinds or negative or bool(signs[2])

    def result(a: int, b: int, c: int) -> int:
        product = part(a, selectors[0], kinds[0]) * part(b, selectors[1], kinds[1])
        third = signed(c, 32) if with_sign else c
        total = (-product if negative else product) + (-third if signs[2] else third) + ("po" in flags)
        total >>= 15 if "shr15" in flags else 7 if "shr7" in flags else 0
        return (clamp(total, 32, "s32" if with_sign else "u32") if "sat" in flags else total) % (1 << 32)

    return text, result


@pytest.mark.slow
def test_vmad() -> None:
    draw = random.Random(1)
    cases = []
    for kinds in itertools.product(("u32", "s32"), repeat=2):
        for scale in ("", ".shr7", ".shr15"):
            for saturated in ("", ".sat"):
                selectors = draw.choice(SELECTORS), draw.choice(SELECTORS)
                signs = draw.choice((("", "", ""), ("-", "", ""), ("", "-", ""), ("", "", "-")))
                cases.append(mad_case(kinds, signs, saturated + scale, selectors))
                cases.append(mad_case(kinds, ("", "", ""), ".po" + saturated + scale, selectors))
    check(cases)


@pytest.mark.parametrize(
    "text",
    ["vadd.u32.u32.u32.min %r1, %r2, %r3", "vset.u32.u32.sat.lt %r1, %r2, %r3", "vshl.u32.u32.s32.wrap %r1, %r2, %r3"],
)
def test_forms_that_ptx_does_not_have_are_refused(text: str) -> None:
    device = Device(ptx_module(text + ";"))
    with pytest.raises(UnsupportedInstruction):
        device.run(1, 32, np.zeros(1, np.uint32))
