"""Random PTX programs with arbitrary control flow give what a plain interpreter, one thread at a time, gives.

Lanes of a warp diverge, wait and meet again in ways that no compiler would emit; blocks jump into loops, leave them
from inside and fall through. Every thread counts its blocks and leaves after a fixed number, so every program ends.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pytest

from tests.devices.emulated.harness import Device, compiled_at, ptx_module

REGISTERS = 8
PREDICATES = 4
FUEL = 40
THREADS = 48
MASK = 0xFFFFFFFF


def signed(value: int) -> int:
    return value - (1 << 32) if value >> 31 else value


def divide(a: int, b: int) -> int:
    return a // (b | 1)


def remainder(a: int, b: int) -> int:
    x, y = signed(a), signed(b | 1)
    return (abs(x) % abs(y)) * (-1 if x < 0 else 1)


BINARY: dict[str, Callable[[int, int], int]] = {
    "add.u32": lambda a, b: a + b,
    "sub.u32": lambda a, b: a - b,
    "mul.lo.u32": lambda a, b: a * b,
    "mul.hi.u32": lambda a, b: a * b >> 32,
    "and.b32": lambda a, b: a & b,
    "or.b32": lambda a, b: a | b,
    "xor.b32": lambda a, b: a ^ b,
    "shl.b32": lambda a, b: a << b if b < 32 else 0,
    "shr.u32": lambda a, b: a >> b if b < 32 else 0,
    "shr.s32": lambda a, b: signed(a) >> min(b, 31),
    "min.s32": lambda a, b: min(signed(a), signed(b)),
    "max.u32": lambda a, b: max(a, b),
    "div.u32": divide,
    "rem.s32": remainder,
}
COMPARE: dict[str, Callable[[int, int], bool]] = {
    "lt.u32": lambda a, b: a < b,
    "ge.s32": lambda a, b: signed(a) >= signed(b),
    "eq.u32": lambda a, b: a == b,
    "ne.u32": lambda a, b: a != b,
}


class Step(NamedTuple):
    """One instruction: registers by number; ``guard`` is (predicate, negated)."""

    kind: str
    operation: str
    target: int
    a: int
    b: int | tuple[str, int]
    guard: tuple[int, bool] | None


class Block(NamedTuple):
    steps: list[Step]
    kind: str
    """``next``, ``bra``, ``if``, ``table`` or ``ret``."""
    targets: list[int]
    guard: tuple[int, bool]
    key: int


def generate(rng: random.Random) -> list[Block]:
    count = rng.randint(3, 9)

    def guard() -> tuple[int, bool]:
        return rng.randrange(PREDICATES), rng.random() < 0.5

    def step() -> Step:
        kind = rng.choices(
            ["binary", "compare", "select", "load", "local store", "local load", "shared store", "shared load"],
            [6, 3, 1, 1, 1, 1, 1, 1],
        )[0]
        operation = {"binary": list(BINARY), "compare": list(COMPARE)}.get(kind, [""])
        second: int | tuple[str, int] = rng.randrange(REGISTERS)
        if rng.random() < 0.3:
            second = ("constant", rng.choice([0, 1, 2, 3, 5, 31, 32, 33, 255, 0x7FFFFFFF, 0x80000000, MASK]))
        target = rng.randrange(PREDICATES if kind == "compare" else REGISTERS)
        return Step(
            kind,
            rng.choice(operation),
            target,
            rng.randrange(REGISTERS),
            second,
            guard() if rng.random() < 0.25 else None,
        )

    return [
        Block(
            [step() for _ in range(rng.randint(0, 5))],
            rng.choices(["next", "bra", "if", "table", "ret"], [2, 2, 8, 2, 1])[0],
            [rng.randrange(count) for _ in range(rng.randint(2, 4))],
            guard(),
            rng.randrange(REGISTERS),
        )
        for _ in range(count)
    ]


def text(program: list[Block]) -> str:
    lines = [
        ".local .align 16 .b8 depot[32]; .shared .align 16 .b8 tile[256];",
        "mov.u32 %r0, %tid.x; mov.u32 %r1, %ctaid.x; ld.param.u32 %r2, [n]; mov.u32 %r3, 0x1234567;",
        f"mov.u32 %r20, {FUEL}; ld.param.u64 %d1, [table]; mov.b64 %d2, depot; mov.b64 %d3, tile;",
        "mov.u32 %r21, %tid.x; mul.wide.u32 %d4, %r21, 4; add.u64 %d3, %d3, %d4; mov.u32 %r22, 0;",
        "st.shared.u32 [%d3], %r22;",
        *(f"st.local.u32 [depot+{4 * k}], %r22;" for k in range(8)),
    ]
    for index, block in enumerate(program):
        lines.append(f"B{index}: sub.u32 %r20, %r20, 1; setp.eq.u32 %p20, %r20, 0; @%p20 bra DONE;")
        for s in block.steps:
            at = "" if s.guard is None else f"@{'!' if s.guard[1] else ''}%p{s.guard[0]} "
            b = f"%r{s.b}" if isinstance(s.b, int) else str(s.b[1])
            if s.operation in ("div.u32", "rem.s32"):
                lines.append(f"or.b32 %r25, {b}, 1; {at}{s.operation} %r{s.target}, %r{s.a}, %r25;")
            elif s.kind == "binary":
                lines.append(f"{at}{s.operation} %r{s.target}, %r{s.a}, {b};")
            elif s.kind == "compare":
                lines.append(f"{at}setp.{s.operation} %p{s.target}, %r{s.a}, {b};")
            elif s.kind == "select":
                lines.append(f"{at}selp.b32 %r{s.target}, %r{s.a}, {b}, %p{s.target % PREDICATES};")
            elif s.kind.startswith("shared"):
                move = f"st.shared.u32 [%d3], %r{s.a}" if "store" in s.kind else f"ld.shared.u32 %r{s.target}, [%d3]"
                lines.append(f"{at}{move};")
            else:
                base, items = ("%d1", 64) if s.kind == "load" else ("%d2", 8)
                lines.append(
                    f"and.b32 %r23, %r{s.a}, {items - 1}; mul.wide.u32 %d5, %r23, 4; add.u64 %d5, %d5, {base};"
                )
                move = {
                    "load": f"ld.global.u32 %r{s.target}, [%d5]",
                    "local load": f"ld.local.u32 %r{s.target}, [%d5]",
                    "local store": f"st.local.u32 [%d5], %r{s.target}",
                }[s.kind]
                lines.append(f"{at}{move};")
        negated = "!" if block.guard[1] else ""
        if block.kind == "bra":
            lines.append(f"bra B{block.targets[0]};")
        elif block.kind == "if":
            lines.append(f"@{negated}%p{block.guard[0]} bra B{block.targets[0]};")
        elif block.kind == "table":
            names = ", ".join(f"B{t}" for t in block.targets)
            lines.append(f"T{index}: .branchtargets {names};")
            lines.append(f"rem.u32 %r24, %r{block.key}, {len(block.targets)}; brx.idx %r24, T{index};")
        elif block.kind == "ret":
            lines.append(f"@{negated}%p{block.guard[0]} bra DONE;")
    lines.append("DONE: mov.u32 %r25, %tid.x; mov.u32 %r26, %ctaid.x; mad.lo.u32 %r25, %r26, 48, %r25;")
    lines.append(f"ld.param.u64 %d6, [out]; mul.wide.u32 %d7, %r25, {4 * (REGISTERS + 1)}; add.u64 %d6, %d6, %d7;")
    lines += [f"st.global.u32 [%d6+{4 * k}], %r{k};" for k in range(REGISTERS)]
    lines.append(f"st.global.u32 [%d6+{4 * REGISTERS}], %r20;")
    return "\n".join(lines)


def interpret(program: list[Block], thread: int, cta: int, n: int, table: np.ndarray) -> list[int]:
    r = [thread, cta, n, 0x1234567, *[0] * (REGISTERS - 4)]
    p = [False] * PREDICATES
    local, shared = [0] * 8, 0
    fuel, at = FUEL, 0
    while at < len(program):
        fuel -= 1
        if fuel == 0:
            break
        block = program[at]
        for s in block.steps:
            if s.guard is not None and p[s.guard[0]] == s.guard[1]:
                continue
            b = r[s.b] if isinstance(s.b, int) else s.b[1]
            if s.kind == "binary":
                r[s.target] = BINARY[s.operation](r[s.a], b) & MASK
            elif s.kind == "compare":
                p[s.target] = COMPARE[s.operation](r[s.a], b)
            elif s.kind == "select":
                r[s.target] = r[s.a] if p[s.target % PREDICATES] else b
            elif s.kind == "load":
                r[s.target] = int(table[r[s.a] & 63])
            elif s.kind == "local load":
                r[s.target] = local[r[s.a] & 7]
            elif s.kind == "local store":
                local[r[s.a] & 7] = r[s.target]
            elif s.kind == "shared store":
                shared = r[s.a]
            else:
                r[s.target] = shared
        holds = p[block.guard[0]] != block.guard[1]
        if block.kind == "bra":
            at = block.targets[0]
        elif block.kind == "table":
            at = block.targets[r[block.key] % len(block.targets)]
        elif holds and block.kind == "if":
            at = block.targets[0]
        elif holds and block.kind == "ret":
            break
        else:
            at += 1
    return [*r, fuel]


PARAMETERS = ".param .u64 out, .param .u64 table, .param .u32 n"


def check(seed: int) -> None:
    rng = random.Random(seed)
    program = generate(rng)
    table = np.array([rng.getrandbits(32) for _ in range(64)], np.uint32)
    n = rng.randrange(4)
    device = Device(ptx_module(text(program), PARAMETERS))
    want = [[interpret(program, t, c, n, table) for t in range(THREADS)] for c in range(2)]
    for level in (0, 1):
        out = np.zeros((2, THREADS, REGISTERS + 1), np.uint32)
        with compiled_at(level):
            device.run(2, THREADS, out, table, n, max_warp_work=1_000_000)
        assert out.tolist() == want, f"seed {seed}, level {level}"


@pytest.mark.slow
@pytest.mark.one_in(3)
@pytest.mark.parametrize("group", range(8))
def test_random_programs_agree_with_an_interpreter(group: int) -> None:
    for seed in range(10 * group, 10 * group + 10):
        check(seed)
