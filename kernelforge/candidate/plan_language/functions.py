"""Built-in functions of the plan language; each takes the interpreter first, to charge its cost."""

from __future__ import annotations

import ast
import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from kernelforge.candidate.plan_language import tensors
from kernelforge.candidate.plan_language.arithmetic import COPY_PER_STEP, binary, bounded
from kernelforge.candidate.plan_language.interpreter import Machine
from kernelforge.candidate.plan_language.launches import kernel, typed
from kernelforge.candidate.plan_language.tensor_maps import tensor_map
from kernelforge.candidate.plan_language.values import Fault, number, sequence, truth, whole
from kernelforge.records.task import DType


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
    dividend, divisor = whole(a, "ceil_div"), whole(b, "ceil_div")
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
    return bounded(1 << max(0, whole(value, "next_pow2") - 1).bit_length())


def _len(machine: Machine, value: Any) -> int:
    return len(sequence(value, "len"))


def _abs(machine: Machine, value: Any) -> int | float:
    return abs(number(value, "abs"))


def _range(machine: Machine, *args: Any) -> range:
    bounds = [whole(value, "range") for value in args]
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
    first = whole(start, "the start of enumerate")
    return tuple((bounded(first + i), item) for i, item in enumerate(values))


def _zip(machine: Machine, *args: Any) -> tuple[Any, ...]:
    columns = [sequence(value, "zip") for value in args]
    lengths = {len(column) for column in columns}
    if len(lengths) > 1:
        raise Fault(f"zip of sequences of different lengths: {', '.join(str(len(column)) for column in columns)}")
    machine.spend(sum(len(column) for column in columns))
    return tuple(zip(*columns, strict=True))


def _fold(kind: Any, start: int, name: str) -> Callable[..., Any]:
    apply = binary(kind, 0)

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
    "tensor_map": Function(tensor_map, 1, 1, frozenset({"box", "swizzle"})),
    "kernel": Function(lambda machine, name: kernel(name), 1, 1),
    **{
        name: Function(lambda machine, value, name=name: typed(name, value), 1, 1)
        for name in ("i32", "i64", "f32", "f64", "f16", "bf16")
    },
}

CONSTANTS: dict[str, Any] = {"inf": math.inf, **{dtype.value: dtype for dtype in DType}}
"""Names that stand for a value; ``bool`` is a dtype, and a function where it is called."""

GIVEN = frozenset({"w", "attrs", "prepared"})
"""Names of what a plan is given; a parameter may take one of them."""

RESERVED = frozenset(FUNCTIONS) | frozenset(CONSTANTS) | GIVEN | {"library"}
