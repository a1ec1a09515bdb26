"""Syntax that inline assembly may use and NVRTC does not emit, as ptxas reads it.

``benchmarks/fuzz.py --part ptxas`` compares more of it with ptxas itself.
"""

from __future__ import annotations

import numpy as np
import pytest

from kernelforge.devices.emulated.ptx.parser import PtxSyntaxError, parse
from tests.devices.emulated.harness import Device, ptx_module


def result(body: str, declarations: str = "") -> int:
    out = np.zeros(1, np.uint32)
    body = f"mov.u32 %r1, 6; {body} ld.param.u64 %d1, [out]; st.global.u32 [%d1], %r0;"
    Device(ptx_module(body, declarations=declarations)).run(1, 1, out)
    return int(out[0])


@pytest.mark.parametrize(
    ("text", "value"),
    [("1 + 2 * 3", 7), ("(1 + 2) * 3", 9), ("-7 / 2", -3), ("-7 % 4", -3), ("7 - 2 - 1", 4), ("1 << 4 | 3", 19),
     ("~5", -6), ("!5", 0), ("!0 + 1", 2), ("- 5", -5), ("5 == 5 && 2 > 3", 0), ("0 || 4", 1), ("6 & 3 ^ 1", 3),
     ("1 ? 2 : 3", 2), ("0 ? 2 : 0 ? 4 : 5", 5), ("(.u64)-1 >> 60", 15), ("-16 >> 2", -4), ("0x10U", 16), ("017", 15),
     ("0b101 + WARP_SZ", 37)],
)  # fmt: skip
def test_constant_expressions(text: str, value: int) -> None:
    assert result(f"mov.u32 %r0, {text};") == value % (1 << 32)


@pytest.mark.parametrize(
    "text",
    [
        "!x",
        "1 +",
        "1 / 0",
        "(1",
        "1 1",
        "2 ? 3",
        "(" * 5000 + "1" + ")" * 5000,
        "0f12",
        "1 << 1.5",
        "-" * 5000 + "1",
        "{" * 5000 + "1" + "}" * 5000,
    ],
)
def test_what_is_no_expression_is_refused(text: str) -> None:
    with pytest.raises(PtxSyntaxError):
        parse(ptx_module(f"mov.u32 %r0, {text};"))


@pytest.mark.parametrize(
    ("text", "value"),
    [("1.5", 1.5), ("-.5", -0.5), ("1e3", 1e3), ("2.", 2.0), ("1.5e-3", 1.5e-3), ("0D4010000000000000", 4)],
)
def test_decimal_floats_take_the_type_of_the_instruction(text: str, value: float) -> None:
    assert result(f"mov.f32 %f1, {text}; mov.b32 %r0, %f1;") == np.float32(value).view(np.uint32)
    assert result(f"mov.f64 %g1, {text}; mov.b64 {{_, %r0}}, %g1;") == np.float64(value).view(np.uint64) >> np.uint64(
        32
    )


def test_declarations_of_several_names() -> None:
    declarations = ".global .b32 a = 3, b[] = {4, 2 * 5, 6}, c = 1 << 3;"
    body = """{ .local .b32 v[2], w; .reg .b32 x, y<2>; st.local.u32 [v + 2 * 2], 7; st.local.u32 [w], 9;
      ld.local.u32 x, [v+(4)]; ld.local.u32 y1, [w]; mad.lo.u32 %r0, x, 10, y1; }
      ld.global.u32 %r2, [b + 4]; ld.global.u32 %r3, [c]; mad.lo.u32 %r0, %r2, 1000, %r0; add.u32 %r0, %r0, %r3;"""
    assert result(body, declarations) == 10 * 1000 + 79 + 8


def test_scopes_names_and_layout() -> None:
    body = """mov.u32 %r0, 5; { .reg .b32 %r0; mov.u32 %r0, 77; { .reg .pred %p1; setp.eq.u32 %p1, %r0, 77;
      @ ! %p1 bra L; add
      .u32 %r1 ,%r1
      , %r0 ; L: } } L: .pragma "// a"; /* " */ xor.b32 %r0, %r0, %r1;"""
    assert result(body) == 5 ^ (6 + 77)
