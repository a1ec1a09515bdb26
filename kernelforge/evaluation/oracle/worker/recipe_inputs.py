"""Draw inputs by a recipe; only operations of this module run.

A recipe chooses values. Shapes, dtypes and strides are the task's own, and integers stay what all of the task's own
draws are: within their range, and sorted or free of repeats where those always are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import torch

from kernelforge.errors import TaskError
from kernelforge.evaluation.generators.recipe import MAX_WORK, Recipe, Step
from kernelforge.evaluation.oracle.worker.inputs import derived_seed, with_strides
from kernelforge.evaluation.oracle.worker.reference import Value

PROBES: Final = 16
"""Own draws that show what integer inputs have in common."""


@dataclass(frozen=True)
class IntegerProfile:
    """What one integer input is in every own draw."""

    low: int
    high: int
    sorted_axes: tuple[int, ...]
    """Axes along which values never fall."""
    distinct_axes: tuple[int, ...]
    """Axes along which no value repeats."""
    distinct: bool
    """No value repeats anywhere."""


def habit_of(draws: Sequence[torch.Tensor]) -> IntegerProfile:
    """What ``draws`` of one integer or boolean input have in common."""
    wide = [draw.long() for draw in draws]
    full = [draw for draw in wide if draw.numel()]
    axes = [axis for axis in range(wide[0].dim()) if wide[0].shape[axis] > 1]
    return IntegerProfile(
        low=min((int(draw.min()) for draw in full), default=0),
        high=max((int(draw.max()) for draw in full), default=0),
        sorted_axes=tuple(axis for axis in axes if all(_sorted(draw, axis) for draw in full)),
        distinct_axes=tuple(axis for axis in axes if all(_distinct(draw, axis) for draw in full)),
        distinct=bool(axes) and all(_distinct(draw.reshape(-1), 0) for draw in full),
    )


def draw_recipe(
    recipe: Recipe, own: Sequence[Value], habits: Mapping[int, IntegerProfile], seed: int
) -> tuple[Value, ...]:
    """Inputs by a recipe, in place of the task's ``own`` draw.

    Raises:
        TaskError: the recipe is not for such inputs, or gives values that no input may hold.
    """
    if len(recipe.results) != len(own):
        raise TaskError(f"the generator is for {len(recipe.results)} inputs, the task has {len(own)}")
    work = sum(
        len(recipe.needed(result)) * value.numel()
        for value, result in zip(own, recipe.results, strict=True)
        if result is not None and isinstance(value, torch.Tensor)
    )
    if work > MAX_WORK:
        raise TaskError(f"the generator takes {work:,} steps over elements; the limit is {MAX_WORK:,}")
    drawn = tuple(
        value if result is None else _draw_one(recipe, result, own, position, habits, seed)
        for position, (value, result) in enumerate(zip(own, recipe.results, strict=True))
    )
    if all(_same(before, after) for before, after in zip(own, drawn, strict=True)):
        raise TaskError("the generator gives what the task draws itself: nothing new is tested")
    return drawn


def _draw_one(
    recipe: Recipe, result: int, own: Sequence[Value], position: int, habits: Mapping[int, IntegerProfile], seed: int
) -> torch.Tensor:
    target = own[position]
    if not isinstance(target, torch.Tensor):
        raise TaskError(f"input {position} is no tensor, so it cannot be drawn anew")
    values = _Drawing(recipe, own, target, seed).at(result)
    if bool(values.isnan().any()):
        raise TaskError(f"input {position} would hold NaN")
    if target.is_floating_point():
        return with_strides(values, target)
    habit = habits[position]
    if target.dtype == torch.bool:
        values = (values != 0).double()
    whole = values.clamp(habit.low, habit.high).trunc().long()
    broken = _broken(whole, habit)
    if broken:
        raise TaskError(f"integer input {position} is {broken} in every draw of the task's own, and would not be")
    return with_strides(whole, target)


class _Drawing:
    """Works steps out for one input, in float64, over all its elements at once."""

    def __init__(self, recipe: Recipe, own: Sequence[Value], target: torch.Tensor, seed: int) -> None:
        self._recipe = recipe
        self._own = own
        self._target = target
        self._seed = seed
        self._done: dict[int, torch.Tensor] = {}

    def at(self, result: int) -> torch.Tensor:
        """Values of one step, in the target's shape."""
        for step in self._recipe.needed(result):
            self._done[step] = self._step(step, self._recipe.steps[step])
        return self._full(self._done[result])

    def _step(self, position: int, step: Step) -> torch.Tensor:
        operands = [self._done[one] for one in step.of]
        if step.op in _ELEMENTWISE:
            return _ELEMENTWISE[step.op](*operands)
        if step.op in _ALONG:
            return _ALONG[step.op](self._full(operands[0]), self._axis(step.value))
        if step.op in _DRAWN:
            generator = torch.Generator().manual_seed(derived_seed(self._seed, f"step {position}"))
            return _DRAWN[step.op](self._target.shape, generator, operands)
        return self._leaf(step)

    def _leaf(self, step: Step) -> torch.Tensor:
        if step.op == "number":
            assert step.value is not None
            return _scalar(float(step.value))
        if step.op == "own":
            # In the target's shape at once: two foreign shapes could broadcast to one of any size.
            return self._full(self._given(int(step.value or 0)))
        if step.op in ("low", "high"):
            values = self._given(int(step.value or 0))
            if values.numel() == 0:
                return _scalar(0.0)
            return values.min() if step.op == "low" else values.max()
        if step.op == "extent":
            count = self._target.numel() if step.value is None else self._target.shape[self._axis(step.value)]
            return _scalar(float(count))
        if step.op == "index":
            return self._index(step)
        return _scalar(self._limit(step.op))

    def _given(self, position: int) -> torch.Tensor:
        value = self._own[position]
        if value is None:
            raise TaskError(f"input {position} is None: nothing can be reckoned with it")
        if not isinstance(value, torch.Tensor):
            return _scalar(float(value))
        return value.double()

    def _index(self, step: Step) -> torch.Tensor:
        shape = self._target.shape
        if step.value is None:
            return torch.arange(self._target.numel(), dtype=torch.float64).reshape(shape)
        axis = self._axis(step.value)
        along = [1] * len(shape)
        along[axis] = shape[axis]
        return torch.arange(shape[axis], dtype=torch.float64).reshape(along)

    def _axis(self, value: int | float | None) -> int:
        axis, rank = -1 if value is None else int(value), self._target.dim()
        if not -rank <= axis < rank:
            raise TaskError(f"an input with {rank} axes has no axis {axis}")
        return axis % rank

    def _limit(self, name: str) -> float:
        if name == "inf":
            return float("inf")
        if not self._target.is_floating_point():
            raise TaskError(f"{name} is known for floating inputs only; use low(x) and high(x)")
        limits = torch.finfo(self._target.dtype)
        values = {"eps": limits.eps, "tiny": limits.tiny, "subnormal": limits.tiny * 2.0**-4, "largest": limits.max}
        return float(values[name])

    def _full(self, values: torch.Tensor) -> torch.Tensor:
        try:
            return values.expand(self._target.shape)
        except RuntimeError:
            have, want = list(values.shape), list(self._target.shape)
            raise TaskError(f"values of shape {have} do not fit an input of shape {want}") from None


def _scalar(value: float) -> torch.Tensor:
    return torch.tensor(value, dtype=torch.float64)


def _uniform(shape: torch.Size, generator: torch.Generator, operands: Sequence[torch.Tensor]) -> torch.Tensor:
    low, high = operands
    return low + (high - low) * torch.rand(shape, generator=generator, dtype=torch.float64)


def _normal(shape: torch.Size, generator: torch.Generator, operands: Sequence[torch.Tensor]) -> torch.Tensor:
    mean, deviation = operands
    return mean + deviation * torch.randn(shape, generator=generator, dtype=torch.float64)


def _chance(shape: torch.Size, generator: torch.Generator, operands: Sequence[torch.Tensor]) -> torch.Tensor:
    return (torch.rand(shape, generator=generator, dtype=torch.float64) < operands[0]).double()


def _pick(shape: torch.Size, generator: torch.Generator, operands: Sequence[torch.Tensor]) -> torch.Tensor:
    choice = torch.randint(len(operands), tuple(shape), generator=generator)
    picked = operands[0]
    for position, operand in enumerate(operands[1:], 1):
        picked = torch.where(choice == position, operand, picked)
    return picked


def _repeat(values: torch.Tensor, axis: int) -> torch.Tensor:
    return values.narrow(axis, 0, min(1, values.shape[axis])).expand(values.shape)


def _descending(values: torch.Tensor, axis: int) -> torch.Tensor:
    return values.sort(dim=axis, descending=True).values


def _ascending(values: torch.Tensor, axis: int) -> torch.Tensor:
    return values.sort(dim=axis).values


_DRAWN: Final[
    Mapping[str, Callable[[torch.Size, torch.Generator, Sequence[torch.Tensor]], torch.Tensor]]
] = {"uniform": _uniform, "normal": _normal, "chance": _chance, "pick": _pick}  # fmt: skip

_ALONG: Final[Mapping[str, Callable[[torch.Tensor, int], torch.Tensor]]] = {
    "repeat": _repeat, "ascending": _ascending, "descending": _descending,
}  # fmt: skip

_ELEMENTWISE: Final[Mapping[str, Callable[..., torch.Tensor]]] = {
    "negative": torch.neg, "abs": torch.abs, "floor": torch.floor, "sqrt": torch.sqrt, "exp": torch.exp,
    "sign": torch.sign, "add": torch.add, "subtract": torch.sub, "multiply": torch.mul, "divide": torch.div,
    "floor_divide": torch.floor_divide, "remainder": torch.remainder, "power": torch.pow, "minimum": torch.minimum,
    "maximum": torch.maximum,
    "less": lambda a, b: (a < b).double(),
    "less_equal": lambda a, b: (a <= b).double(),
    "equal": lambda a, b: (a == b).double(),
    "not_equal": lambda a, b: (a != b).double(),
    "where": lambda condition, a, b: torch.where(condition != 0, a, b),
}  # fmt: skip


def _same(before: Value, after: Value) -> bool:
    if isinstance(before, torch.Tensor) and isinstance(after, torch.Tensor):
        return before is after or torch.equal(before, after)
    return before is after


def _broken(values: torch.Tensor, habit: IntegerProfile) -> str:
    """What the values are not, though every own draw is; empty where they keep to it."""
    if not all(_sorted(values, axis) for axis in habit.sorted_axes):
        return "sorted"
    distinct = all(_distinct(values, axis) for axis in habit.distinct_axes)
    if not distinct or (habit.distinct and not _distinct(values.reshape(-1), 0)):
        return "without repeats"
    return ""


def _sorted(values: torch.Tensor, axis: int) -> bool:
    return bool((values.diff(dim=axis) >= 0).all())


def _distinct(values: torch.Tensor, axis: int) -> bool:
    return bool((values.sort(dim=axis).values.diff(dim=axis) != 0).all())
