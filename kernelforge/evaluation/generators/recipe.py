"""Recipes: input generators as plain data.

A recipe is a list of steps over whole tensors, each naming an operation of ours and earlier steps. The parent makes it
from a model's text (:mod:`kernelforge.evaluation.generators.parser`); the oracle's child checks it once more and
executes it (:mod:`kernelforge.evaluation.oracle.worker.inputs`). Neither process executes text of a model.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final, Literal, NamedTuple

from pydantic import model_validator

from kernelforge.records.base import Record

TEST_PREFIX: Final = "tester:"
"""An input family that a generator draws is named by this and the generator's name."""

MAX_STEPS: Final = 120
"""Steps of one recipe. Each costs one pass over a tensor of the task."""

MAX_WORK: Final = 1 << 25
"""Elements that all steps of one draw may work on together: some tenths of a second, a few with sorts."""

MAX_INPUTS: Final = 64

MAX_AXES: Final = 16


class Operation(NamedTuple):
    """Number of earlier steps that an operation takes, and the kind of its literal."""

    least: int
    most: int
    literal: Literal["none", "number", "input", "axis", "some axis"] = "none"
    """``axis`` may be left out: all elements in C order."""


_NULLARY, _UNARY, _BINARY = Operation(0, 0), Operation(1, 1), Operation(2, 2)

OPERATIONS: Final[Mapping[str, Operation]] = {
    "number": Operation(0, 0, "number"),
    "own": Operation(0, 0, "input"),
    "low": Operation(0, 0, "input"),
    "high": Operation(0, 0, "input"),
    "inf": _NULLARY, "eps": _NULLARY, "tiny": _NULLARY, "subnormal": _NULLARY, "largest": _NULLARY,
    "index": Operation(0, 0, "axis"),
    "extent": Operation(0, 0, "axis"),
    "uniform": _BINARY, "normal": _BINARY, "chance": _UNARY, "pick": Operation(1, 16),
    "ascending": _UNARY, "descending": _UNARY, "repeat": Operation(1, 1, "some axis"),
    "negative": _UNARY, "abs": _UNARY, "floor": _UNARY, "sqrt": _UNARY, "exp": _UNARY, "sign": _UNARY,
    "add": _BINARY, "subtract": _BINARY, "multiply": _BINARY, "divide": _BINARY, "floor_divide": _BINARY,
    "remainder": _BINARY, "power": _BINARY, "minimum": _BINARY, "maximum": _BINARY,
    "less": _BINARY, "less_equal": _BINARY, "equal": _BINARY, "not_equal": _BINARY,
    "where": Operation(3, 3),
}  # fmt: skip
"""Everything that a recipe can do."""

RANDOM: Final = frozenset({"uniform", "normal", "chance", "pick"})
"""Operations that draw new values each time they occur."""


class Step(Record):
    """One operation."""

    op: str
    of: tuple[int, ...] = ()
    """Positions of earlier steps."""
    value: int | float | None = None
    """A number, the position of an input, or an axis."""


class Recipe(Record):
    """The steps, and for each argument of ``forward`` the step that gives it; None leaves it as the task draws it."""

    steps: tuple[Step, ...]
    results: tuple[int | None, ...]

    @model_validator(mode="after")
    def _well_formed(self) -> Recipe:
        if len(self.steps) > MAX_STEPS:
            raise ValueError(f"{len(self.steps)} steps; the limit is {MAX_STEPS}")
        if not 0 < len(self.results) <= MAX_INPUTS:
            raise ValueError(f"a recipe is for 1 to {MAX_INPUTS} inputs, not {len(self.results)}")
        for position, step in enumerate(self.steps):
            self._check(position, step)
        for result in self.results:
            if result is not None and not 0 <= result < len(self.steps):
                raise ValueError(f"there is no step {result} to give an input")
        return self

    def needed(self, result: int) -> list[int]:
        """The steps that one result takes, in order."""
        needed, waiting = set[int](), [result]
        while waiting:
            step = waiting.pop()
            if step not in needed:
                needed.add(step)
                waiting += self.steps[step].of
        return sorted(needed)

    def _check(self, position: int, step: Step) -> None:
        operation = OPERATIONS.get(step.op)
        if operation is None:
            raise ValueError(f"step {position}: there is no operation {step.op!r}")
        if not operation.least <= len(step.of) <= operation.most:
            raise ValueError(f"step {position}: {step.op} does not take {len(step.of)} operands")
        if not all(0 <= operand < position for operand in step.of):
            raise ValueError(f"step {position}: operands are earlier steps")
        value, literal = step.value, operation.literal
        if literal == "number":
            fine = isinstance(value, int | float) and math.isfinite(value)
        elif literal == "input":
            fine = isinstance(value, int) and 0 <= value < len(self.results)
        elif literal == "none" or value is None:
            fine = value is None and literal != "some axis"
        else:
            fine = isinstance(value, int) and -MAX_AXES <= value < MAX_AXES
        if not fine:
            raise ValueError(f"step {position}: {step.op} does not take the literal {value!r}")
