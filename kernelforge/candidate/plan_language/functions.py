"""Operators and built-in functions of the plan language, bounded: 64-bit integers, sequences of limited length.

Functions take the interpreter first, to charge their cost.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from kernelforge.candidate.plan_language import tensors
from kernelforge.candidate.plan_language.interpreter import Machine
from kernelforge.candidate.plan_language.launches import kernel, typed
from kernelforge.candidate.plan_language.values import (
    INT_BOUND,
    NUMERIC,
    Fault,
    Named,
    as_int,
    equal,
    kind_of,
    number,
    sequence,
    show,
    truth,
)
from kernelforge.records.task import DType

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


def binary_operator(kind: type[ast.operator], line: int) -> Callable[[Any, Any, Machine], Any]:
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


def comparison(kind: type[ast.cmpop]) -> Callable[[Any, Any, Machine], bool]:
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


class Function(NamedTuple):
    """A function with the least and the most positional arguments, and the keywords it takes."""

    call: Callable[..., Any]
    least: int
    most: int
    keywords: frozenset[str] = frozenset()


MANY = 1 << 30


def _numbers(machine: Machine, args: tuple[Any, ...], name: str) -> list[int | float]:
    values = sequence(args[0], name) if len(args) == 1 else args
    machine.spend(len(values))
    return [number(value, f"each value of {name}") for value in values]


def _extreme(choose: Callable[[list[int | float]], int | float], name: str, machine: Machine, *args: Any) -> Any:
    values = _numbers(machine, args, name)
    if not values:
        raise Fault(f"{name} of an empty sequence")
    return choose(values)


def _ceil_div(machine: Machine, a: Any, b: Any) -> int:
    dividend, divisor = as_int(a, "ceil_div"), as_int(b, "ceil_div")
    if divisor == 0:
        raise Fault(f"division by zero: ceil_div({dividend}, 0)")
    return bounded(-(-dividend // divisor))


def _sqrt(machine: Machine, value: Any) -> float:
    real = number(value, "sqrt")
    if not real >= 0:
        raise Fault(f"sqrt of {real}")
    return math.sqrt(real)


def _log2(machine: Machine, value: Any) -> float:
    real = number(value, "log2")
    if not real > 0:
        raise Fault(f"log2 of {real}")
    return math.log2(real)


def _next_pow2(machine: Machine, value: Any) -> int:
    return bounded(1 << max(0, as_int(value, "next_pow2") - 1).bit_length())


def _len(machine: Machine, value: Any) -> int:
    return len(sequence(value, "len"))


def _abs(machine: Machine, value: Any) -> int | float:
    return abs(number(value, "abs"))


def _range(machine: Machine, *args: Any) -> range:
    bounds = [as_int(value, "range") for value in args]
    if len(bounds) == 3 and bounds[2] == 0:
        raise Fault("range with a step of 0")
    made = range(*bounds)
    # len() of a range fails beyond the machine's word; its ends do not.
    step = made.step
    machine.check_length(max(0, (made.stop - made.start + step - (1 if step > 0 else -1)) // step))
    return made


def _tuple(machine: Machine, *args: Any) -> tuple[Any, ...]:
    values = sequence(args[0], "tuple") if args else ()
    machine.spend(len(values) // COPY_PER_STEP)
    return tuple(values)


def _reversed(machine: Machine, value: Any) -> tuple[Any, ...]:
    return _tuple(machine, value)[::-1]


def _enumerate(machine: Machine, value: Any, start: Any = 0) -> tuple[Any, ...]:
    values = sequence(value, "enumerate")
    machine.spend(len(values))
    first = as_int(start, "the start of enumerate")
    return tuple((bounded(first + i), item) for i, item in enumerate(values))


def _zip(machine: Machine, *args: Any) -> tuple[Any, ...]:
    columns = [sequence(value, "zip") for value in args]
    lengths = {len(column) for column in columns}
    if len(lengths) > 1:
        raise Fault(f"zip of sequences of different lengths: {', '.join(str(len(column)) for column in columns)}")
    machine.spend(sum(len(column) for column in columns))
    return tuple(zip(*columns, strict=True))


def _fold(kind: Any, start: int, name: str) -> Callable[..., Any]:
    apply = binary_operator(kind, 0)

    def fold(machine: Machine, value: Any) -> Any:
        total: Any = start
        for item in _numbers(machine, (value,), name):
            total = apply(total, item, machine)
        return total

    return fold


def _int(machine: Machine, value: Any) -> int:
    if type(value) is str:
        raise Fault("int takes a number, not a string")
    real = number(value, "int")
    if not math.isfinite(real):
        raise Fault(f"int of {real}")
    return bounded(int(real))


def _float(machine: Machine, value: Any) -> float:
    return float(number(value, "float"))


FUNCTIONS: dict[str, Function] = {
    "min": Function(partial(_extreme, min, "min"), 1, MANY),
    "max": Function(partial(_extreme, max, "max"), 1, MANY),
    "ceil_div": Function(_ceil_div, 2, 2),
    "sqrt": Function(_sqrt, 1, 1),
    "log2": Function(_log2, 1, 1),
    "next_pow2": Function(_next_pow2, 1, 1),
    "len": Function(_len, 1, 1),
    "abs": Function(_abs, 1, 1),
    "prod": Function(_fold(ast.Mult, 1, "prod"), 1, 1),
    "sum": Function(_fold(ast.Add, 0, "sum"), 1, 1),
    "int": Function(_int, 1, 1),
    "float": Function(_float, 1, 1),
    "bool": Function(lambda machine, value: truth(value), 1, 1),
    "range": Function(_range, 1, 3),
    "tuple": Function(_tuple, 0, 1),
    "list": Function(_tuple, 0, 1),
    "reversed": Function(_reversed, 1, 1),
    "enumerate": Function(_enumerate, 1, 2, frozenset({"start"})),
    "zip": Function(_zip, 1, MANY),
    "empty": Function(tensors.empty, 1, MANY, frozenset({"dtype"})),
    "zeros": Function(tensors.zeros, 1, MANY, frozenset({"dtype"})),
    "empty_like": Function(tensors.empty_like, 1, 1, frozenset({"dtype"})),
    "zeros_like": Function(tensors.zeros_like, 1, 1, frozenset({"dtype"})),
    "tensor_map": Function(tensors.tensor_map, 1, 1, frozenset({"box", "swizzle", "lower", "upper", "stride", "mode"})),
    "kernel": Function(lambda machine, name: kernel(name), 1, 1),
    **{
        name: Function(lambda machine, value, name=name: typed(name, value), 1, 1)
        for name in ("i32", "i64", "f32", "f64", "f16", "bf16")
    },
}

CONSTANTS: dict[str, Any] = {"inf": math.inf, **{dtype.value: dtype for dtype in DType}}
"""Names that stand for a value; ``bool`` is a dtype, and a function where it is called."""

PROVIDED = frozenset({"w", "attrs", "prepared"})
"""Names that a plan is provided with; a parameter may shadow one of them."""

RESERVED = frozenset(FUNCTIONS) | frozenset(CONSTANTS) | PROVIDED | {"library"}
