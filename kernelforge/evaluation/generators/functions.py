"""Functions of the generator language: their parameters, and the recipe steps that they produce."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

from kernelforge.candidate.plan_language.values import Fault

CONSTANTS: Final = ("inf", "eps", "tiny", "subnormal", "largest")
"""Values that follow the dtype of the input they end up in."""


class Emit(Protocol):
    """Adds one step to a recipe and answers its position."""

    def __call__(self, op: str, *of: int, value: int | float | None = None) -> int: ...


Build = Callable[[Emit, list[int], int | None], int]
"""From the steps of the arguments, and an axis, to the step that is the function's value."""


@dataclass(frozen=True)
class Function:
    """One function. A parameter called ``axis`` takes a literal, all others a value."""

    parameters: tuple[str, ...]
    build: Build
    defaults: Mapping[str, float | None] = field(default_factory=dict)
    most: int = 0
    """How many values it takes where it takes any number; 0: one per parameter."""

    def bind(
        self, name: str, args: list[ast.expr], keywords: list[ast.keyword]
    ) -> list[tuple[str, ast.expr | float | None]]:
        """Parameters with what was given for them, as Python binds them.

        Raises:
            Fault: too few, too many, or given twice.
        """
        if any(isinstance(argument, ast.Starred) for argument in args) or any(
            argument.arg is None for argument in keywords
        ):
            raise Fault(f"{name} takes no * and no **")
        if self.most:
            if keywords or not len(self.parameters) <= len(args) <= self.most:
                raise Fault(f"{name} takes {len(self.parameters)} to {self.most} values")
            return [("value", argument) for argument in args]
        if len(args) > len(self.parameters):
            raise Fault(f"{name} takes {self._signature}")
        bound: dict[str, ast.expr] = dict(zip(self.parameters, args, strict=False))
        for keyword in keywords:
            if keyword.arg not in self.parameters or keyword.arg in bound:
                raise Fault(f"{name} has no argument {keyword.arg!r}, or it is given twice; it takes {self._signature}")
            bound[str(keyword.arg)] = keyword.value
        if any(argument not in bound and argument not in self.defaults for argument in self.parameters):
            raise Fault(f"{name} takes {self._signature}")
        return [
            (argument, bound[argument] if argument in bound else self.defaults[argument])
            for argument in self.parameters
        ]

    @property
    def _signature(self) -> str:
        parts = (f"{name}={self.defaults[name]}" if name in self.defaults else name for name in self.parameters)
        return f"({', '.join(parts)})"


def _plain(op: str) -> Build:
    return lambda emit, values, axis: emit(op, *values)


def _along(op: str) -> Build:
    return lambda emit, values, axis: emit(op, *values, value=axis)


def _fold(op: str) -> Build:
    def build(emit: Emit, values: list[int], axis: int | None) -> int:
        register = values[0]
        for value in values[1:]:
            register = emit(op, register, value)
        return register

    return build


def _constant(emit: Emit, values: list[int], axis: int | None) -> int:
    return values[0]


def _arange(emit: Emit, values: list[int], axis: int | None) -> int:
    start, step = values
    return emit("add", start, emit("multiply", step, emit("index", value=axis)))


def _alternate(emit: Emit, values: list[int], axis: int | None) -> int:
    first, second, period = values
    group = emit("floor_divide", emit("index", value=-1), period)
    return emit("where", emit("remainder", group, emit("number", value=2.0)), second, first)


def _sparse(emit: Emit, values: list[int], axis: int | None) -> int:
    share, base, rest = values
    return emit("where", emit("chance", share), base, rest)


def _outliers(emit: Emit, values: list[int], axis: int | None) -> int:
    base, value, every = values
    return emit("where", emit("remainder", emit("index"), every), base, value)


def _near(emit: Emit, values: list[int], axis: int | None) -> int:
    value, ulps = values
    unit = emit("number", value=1.0)
    steps = emit("floor", emit("uniform", emit("negative", ulps), emit("add", ulps, unit)))
    return emit("multiply", value, emit("add", unit, emit("multiply", steps, emit("eps"))))


def _quantise(emit: Emit, values: list[int], axis: int | None) -> int:
    base, step = values
    return emit("multiply", emit("floor_divide", base, step), step)


FUNCTIONS: Final[Mapping[str, Function]] = {
    "uniform": Function(("lo", "hi"), _plain("uniform"), {"lo": 0.0, "hi": 1.0}),
    "normal": Function(("mean", "std"), _plain("normal"), {"mean": 0.0, "std": 1.0}),
    "constant": Function(("value",), _constant),
    "chance": Function(("p",), _plain("chance")),
    "pick": Function(("value",), _plain("pick"), most=16),
    "index": Function(("axis",), _along("index"), {"axis": None}),
    "extent": Function(("axis",), _along("extent"), {"axis": None}),
    "arange": Function(("start", "step"), _arange, {"start": 0.0, "step": 1.0}),
    "alternate": Function(("a", "b", "period"), _alternate, {"period": 1.0}),
    "sparse": Function(("p", "base", "rest"), _sparse, {"rest": 0.0}),
    "outliers": Function(("base", "value", "every"), _outliers),
    "near": Function(("value", "ulps"), _near, {"ulps": 1.0}),
    "quantise": Function(("base", "step"), _quantise),
    "ascending": Function(("value",), _plain("ascending")),
    "descending": Function(("value",), _plain("descending")),
    "repeat": Function(("value", "axis"), _along("repeat")),
    "where": Function(("condition", "a", "b"), _plain("where")),
    "min": Function(("a", "b"), _fold("minimum"), most=16),
    "max": Function(("a", "b"), _fold("maximum"), most=16),
    "abs": Function(("value",), _plain("abs")),
    "floor": Function(("value",), _plain("floor")),
    "sqrt": Function(("value",), _plain("sqrt")),
    "exp": Function(("value",), _plain("exp")),
    "sign": Function(("value",), _plain("sign")),
}
