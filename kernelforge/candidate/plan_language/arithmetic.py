"""Arithmetic of the plan language, bounded: 64-bit integers, strings and sequences of limited length."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kernelforge.candidate.plan_language.values import (
    INT_BOUND,
    NUMERIC,
    Fault,
    Named,
    equal,
    kind_of,
    number,
    sequence,
    show,
)
from kernelforge.records.task import DType

if TYPE_CHECKING:
    from kernelforge.candidate.plan_language.interpreter import Machine

COPY_PER_STEP = 16
"""Items copied for the price of one step."""

_SYMBOLS: dict[type[ast.operator], str] = {
    ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.FloorDiv: "//", ast.Mod: "%", ast.Pow: "**",
}  # fmt: skip

_FUNCTIONS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod, ast.Pow: operator.pow,
}  # fmt: skip

_ORDER: dict[type[ast.cmpop], tuple[str, Callable[[Any, Any], bool]]] = {
    ast.Lt: ("<", operator.lt), ast.LtE: ("<=", operator.le),
    ast.Gt: (">", operator.gt), ast.GtE: (">=", operator.ge),
}  # fmt: skip


def bounded(value: int) -> int:
    """An int within 64 bits, or a fault."""
    if -INT_BOUND <= value <= INT_BOUND:
        return value
    raise Fault("an integer left the range of 64 bits")


def join(a: tuple[Any, ...], b: tuple[Any, ...], machine: Machine) -> tuple[Any, ...]:
    """Concatenate two sequences."""
    length = len(a) + len(b)
    machine.check_length(length)
    machine.spend(length // COPY_PER_STEP)
    return a + b


def binary(kind: type[ast.operator], line: int) -> Callable[[Any, Any, Machine], Any]:
    """The function of a binary operator: two values and the machine to a value."""
    if kind not in _SYMBOLS:
        raise Fault("the operators of the plan language are + - * / // % **", line)
    symbol, function = _SYMBOLS[kind], _FUNCTIONS[kind]

    def apply(a: Any, b: Any, machine: Machine) -> Any:
        if type(a) not in NUMERIC or type(b) not in NUMERIC:
            if kind is ast.Add:
                return _add_other(a, b, machine)
            bad = a if type(a) not in NUMERIC else b
            raise Fault(f"{symbol} works on numbers, not on {kind_of(bad)}")
        if kind is ast.Pow:
            return _power(a, b)
        try:
            result = function(a, b)
        except ZeroDivisionError:
            raise Fault(f"division by zero: {show(a)} {symbol} {show(b)}") from None
        except OverflowError:
            raise Fault(f"{show(a)} {symbol} {show(b)} is too large") from None
        return result if isinstance(result, float) else bounded(result)

    return apply


def _add_other(a: Any, b: Any, machine: Machine) -> Any:
    if type(a) is str and type(b) is str:
        machine.check_string(len(a) + len(b))
        return a + b
    if type(a) in (tuple, range) and type(b) in (tuple, range):
        return join(tuple(a), tuple(b), machine)
    raise Fault(f"+ cannot join {kind_of(a)} and {kind_of(b)}")


def _power(a: int | float, b: int | float) -> int | float:
    if type(a) is not float and type(b) is not float and b > 63 and abs(a) > 1:
        raise Fault(f"{show(a)} ** {show(b)} leaves the range of 64 bits")
    try:
        result = a**b
    except ZeroDivisionError:
        raise Fault(f"{show(a)} ** {show(b)} divides by zero") from None
    except OverflowError:
        raise Fault(f"{show(a)} ** {show(b)} is too large") from None
    if isinstance(result, complex):
        raise Fault(f"{show(a)} ** {show(b)} is not a real number")
    return result if isinstance(result, float) else bounded(result)


def negate(value: Any) -> int | float:
    result = -number(value, "the operand of -")
    return result if type(result) is float else bounded(int(result))


def plus(value: Any) -> int | float:
    return number(value, "the operand of +")


def compare(kind: type[ast.cmpop]) -> Callable[[Any, Any, Machine], bool]:
    """The function of one comparison operator."""
    if kind in _ORDER:
        symbol, function = _ORDER[kind]

        def order(a: Any, b: Any, machine: Machine) -> bool:
            if type(a) in NUMERIC and type(b) in NUMERIC:
                return function(a, b)
            bad = a if type(a) not in NUMERIC else b
            raise Fault(f"{symbol} compares numbers, not {kind_of(bad)}")

        return order
    if kind is ast.Eq:
        return lambda a, b, machine: equal(a, b, machine.spend)
    if kind is ast.NotEq:
        return lambda a, b, machine: not equal(a, b, machine.spend)
    if kind is ast.In:
        return contains
    if kind is ast.NotIn:
        return lambda a, b, machine: not contains(a, b, machine)
    if kind is ast.Is:
        return identical
    return lambda a, b, machine: not identical(a, b, machine)


def identical(a: Any, b: Any, machine: Machine) -> bool:
    if a is None or b is None or type(a) is bool or type(b) is bool or isinstance(a, DType):
        return a is b
    raise Fault("'is' compares with None, True or False; use == for values")


def contains(item: Any, container: Any, machine: Machine) -> bool:
    if isinstance(container, Named):
        return machine.has(container, item)
    for other in sequence(container, "the right side of 'in'"):
        machine.spend(1)
        if equal(item, other, machine.spend):
            return True
    return False
