"""Elementwise operators as C++ expressions. CUDA overloads ``exp``, ``sqrt`` and friends for float and double.

Each entry takes operands (text of an element, or a Python number where the graph has one) and gives an expression.
Comparisons are written so that NaN passes through as in PyTorch.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from kernelforge.agents.builtin.codegen.cpp_emitter import INFINITY, NOT_A_NUMBER

Operand = str | int | float | bool


def number(value: Operand) -> str:
    """A Python number as a C++ literal; text stays as it is."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if math.isinf(value):
        return INFINITY if value > 0 else f"-{INFINITY}"
    if math.isnan(value):
        return NOT_A_NUMBER
    text = repr(float(value))
    return f"{text}f"


def _add(a: Operand, b: Operand, alpha: Operand = 1) -> str:
    return f"{number(a)} + {number(b)}" if alpha == 1 else f"{number(a)} + {number(alpha)} * {number(b)}"


def _sub(a: Operand, b: Operand, alpha: Operand = 1) -> str:
    return f"{number(a)} - {number(b)}" if alpha == 1 else f"{number(a)} - {number(alpha)} * {number(b)}"


def _div(a: Operand, b: Operand, rounding_mode: str | None = None) -> str:
    quotient = f"{number(a)} / {number(float(b) if isinstance(b, int) else b)}"
    return {"floor": f"floor({quotient})", "trunc": f"trunc({quotient})"}.get(rounding_mode or "", quotient)


def _pow(a: Operand, b: Operand) -> str:
    x = number(a)
    exact = {2: f"{x} * {x}", 3: f"{x} * {x} * {x}", 1: x, 0.5: f"sqrt({x})", -0.5: f"rsqrt({x})", -1: f"1.0f / {x}"}
    if not isinstance(b, str) and float(b) in exact:
        return exact[float(b)]
    return f"pow({x}, {number(float(b) if isinstance(b, int) else b)})"


def _gelu(x: Operand, approximate: str = "none") -> str:
    if approximate == "tanh":
        return f"0.5f * {x} * (1.0f + tanh(0.7978845608028654f * ({x} + 0.044715f * {x} * {x} * {x})))"
    return f"0.5f * {x} * (1.0f + erf({x} * 0.7071067811865476f))"


def _clamp(x: Operand, low: Operand | None = None, high: Operand | None = None) -> str:
    text = number(x)
    if low is not None:
        text = f"({text} < {number(low)} ? {number(low)} : {text})"
    if high is not None:
        text = f"({text} > {number(high)} ? {number(high)} : {text})"
    return text


def _binary(operator: str) -> Callable[..., str]:
    return lambda a, b: f"{number(a)} {operator} {number(b)}"


def _function(name: str) -> Callable[..., str]:
    return lambda *xs: f"{name}({', '.join(number(x) for x in xs)})"


def _leaky(x: Operand, slope: Operand = 0.01) -> str:
    return f"{x} > 0.0f ? {x} : {number(slope)} * {x}"


def _elu(x: Operand, alpha: Operand = 1.0, scale: Operand = 1.0, input_scale: Operand = 1.0) -> str:
    grown = f"({x} > 0.0f ? {x} : {number(alpha)} * expm1({number(input_scale)} * {x}))"
    return grown if scale == 1.0 else f"{number(scale)} * {grown}"


def _softplus(x: Operand, beta: Operand = 1.0, threshold: Operand = 20.0) -> str:
    return f"{number(beta)} * {x} > {number(threshold)} ? {x} : log1p(exp({number(beta)} * {x})) / {number(beta)}"


POINTWISE: dict[str, Callable[..., str]] = {
    "add": _add, "sub": _sub, "mul": _binary("*"), "div": _div, "pow": _pow,
    "rsub": lambda a, b, alpha=1: _sub(b, a, alpha),
    "relu": lambda x: f"{x} < 0.0f ? 0.0f : {x}",
    "gelu": _gelu,
    "silu": lambda x: f"{x} / (1.0f + exp(-{x}))",
    "sigmoid": lambda x: f"1.0f / (1.0f + exp(-{x}))",
    "tanh": _function("tanh"), "exp": _function("exp"), "expm1": _function("expm1"), "log": _function("log"),
    "log1p": _function("log1p"), "log2": _function("log2"), "sqrt": _function("sqrt"), "rsqrt": _function("rsqrt"),
    "erf": _function("erf"), "sin": _function("sin"), "cos": _function("cos"), "abs": _function("abs"),
    "floor": _function("floor"), "ceil": _function("ceil"), "round": _function("rint"), "trunc": _function("trunc"),
    "neg": lambda x: f"-{x}",
    "reciprocal": lambda x: f"1.0f / {x}", "square": lambda x: f"{x} * {x}",
    "sign": lambda x: f"({x} > 0) - ({x} < 0)",
    "leaky_relu": _leaky, "elu": _elu, "softplus": _softplus,
    "softsign": lambda x: f"{x} / (1.0f + abs({x}))",
    "hardtanh": lambda x, low=-1.0, high=1.0: _clamp(x, low, high),
    "relu6": lambda x: _clamp(x, 0.0, 6.0),
    "hardsigmoid": lambda x: f"{_clamp(f'({x} + 3.0f)', 0.0, 6.0)} / 6.0f",
    "hardswish": lambda x: f"{x} * {_clamp(f'({x} + 3.0f)', 0.0, 6.0)} / 6.0f",
    "mish": lambda x: f"{x} * tanh({x} > 20.0f ? {x} : log1p(exp({x})))",
    "clamp": _clamp, "clamp_min": lambda x, low: _clamp(x, low), "clamp_max": lambda x, high: _clamp(x, None, high),
    "maximum": _function("max_of<float>"), "minimum": _function("min_of<float>"),
    "where": lambda c, a, b: f"{c} ? {number(a)} : {number(b)}",
    "masked_fill": lambda x, mask, value: f"{mask} ? {number(value)} : {x}",
    "lerp": lambda a, b, weight: f"{a} + {number(weight)} * ({b} - {a})",
    "eq": _binary("=="), "ne": _binary("!="), "lt": _binary("<"), "le": _binary("<="),
    "gt": _binary(">"), "ge": _binary(">="), "logical_and": _binary("&&"), "logical_or": _binary("||"),
    "logical_not": lambda x: f"!{x}", "bitwise_not": lambda x: f"!{x}", "logical_xor": _binary("!="),
    "bitwise_and": _binary("&"), "bitwise_or": _binary("|"), "__and__": _binary("&"), "__or__": _binary("|"),
    "__rshift__": _binary(">>"), "__lshift__": _binary("<<"), "bitwise_right_shift": _binary(">>"),
    "bitwise_left_shift": _binary("<<"),
    "selu": lambda x: _elu(x, 1.6732632423543772, 1.0507009873554805),
    "celu": lambda x, alpha=1.0: f"{x} > 0.0f ? {x} : {number(alpha)} * expm1({x} / {number(alpha)})",
    "log_sigmoid": lambda x: f"({x} < 0.0f ? {x} : 0.0f) - log1p(exp(-abs({x})))",
    "hardshrink": lambda x, edge=0.5: f"abs({x}) <= {number(edge)} ? 0.0f : {x}",
    "softshrink": lambda x, edge=0.5: (
        f"{x} > {number(edge)} ? {x} - {number(edge)} : ({x} < -{number(edge)} ? {x} + {number(edge)} : 0.0f * {x})"
    ),
    "threshold": lambda x, edge, other: f"{x} <= {number(edge)} ? {number(other)} : {x}",
    "logit": lambda x: f"log({x} / (1.0f - {x}))",
    "logaddexp": lambda a, b: f"max({a}, {b}) + log1p(exp(-abs({a} - {b})))",
    "exp2": _function("exp2"), "log10": _function("log10"), "sinh": _function("sinh"), "cosh": _function("cosh"),
    "tan": _function("tan"), "asin": _function("asin"), "acos": _function("acos"), "atan": _function("atan"),
    "erfc": _function("erfc"), "lgamma": _function("lgamma"), "atan2": _function("atan2"),
    "special_erfcx": _function("erfcx"), "special_i0": _function("cyl_bessel_i0"),
    "fmod": _function("fmod"), "hypot": _function("hypot"),
    "isnan": lambda x: f"{x} != {x}",
    "addcmul": lambda a, b, c, value=1: f"{a} + {number(value)} * {b} * {c}",
    "addcdiv": lambda a, b, c, value=1: f"{a} + {number(value)} * {b} / {c}",
    "floor_divide": lambda a, b: f"floor((float){a} / {number(b)})",
    "frac": lambda x: f"{x} - trunc({x})",
    "sgn": lambda x: f"({x} > 0) - ({x} < 0)",
}  # fmt: skip
"""Operator name without ``aten.`` and overload (and without a trailing ``_``) to its expression."""

ALIASES = {
    "absolute": "abs", "arccos": "acos", "arcsin": "asin", "arctan": "atan", "arctan2": "atan2", "divide": "div",
    "true_divide": "div", "fix": "trunc", "greater": "gt", "greater_equal": "ge", "less": "lt", "less_equal": "le",
    "multiply": "mul", "negative": "neg", "not_equal": "ne", "subtract": "sub", "special_expit": "sigmoid",
    "special_erf": "erf", "special_expm1": "expm1", "special_log1p": "log1p",
}  # fmt: skip
"""Other names of the same operators."""

POINTWISE |= {name: POINTWISE[same] for name, same in ALIASES.items()}

CHOICES = frozenset({"where", "masked_fill"})
"""Operators whose operands differ in type by nature."""

IDENTITY = frozenset(
    {"contiguous", "clone", "detach", "alias", "dropout", "lift_fresh_copy", "feature_dropout", "alpha_dropout"}
)
"""Operators that change no element of a model in inference."""

KEYWORDS: dict[str, tuple[str, ...]] = {
    "add": ("alpha",), "sub": ("alpha",), "rsub": ("alpha",), "div": ("rounding_mode",), "gelu": ("approximate",),
    "addcmul": ("value",), "addcdiv": ("value",),
}  # fmt: skip
"""Keyword arguments that a pointwise operator takes."""


def expression(op: str, operands: list[Any], kwargs: dict[str, Any]) -> str:
    """The C++ expression of one elementwise operator.

    Raises:
        TypeError: the operator was called in a form that the table does not know.
    """
    numbers = {name: kwargs[name] for name in KEYWORDS.get(ALIASES.get(op, op), ()) if name in kwargs}
    return POINTWISE[op](*operands, **numbers)
