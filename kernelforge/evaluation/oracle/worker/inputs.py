"""Input distributions that a task is checked on.

``task``: the task's own ``get_inputs``. ``normal``: signed unit normal. ``large``: normal of large magnitude, the
extremes often at the end of an axis. ``edge``: zeros of both signs, subnormals, the smallest normal, repeated maxima,
rows of zeros and of tiny numbers. ``sparse``: normal, but of all tensors save one at most three elements of each row
and column are not zero. Integers, booleans and scalars always come from the task's own generator: their range means
something (class numbers).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import torch

from kernelforge.errors import TaskError
from kernelforge.evaluation.generators.recipe import MAX_WORK, Recipe, Step
from kernelforge.evaluation.oracle.worker.reference import Value, storage_span
from kernelforge.evaluation.oracle.worker.torch_device import HOST, generator

FAMILIES: Final = ("task", "normal", "large", "edge", "sparse")

_OF_HALF_SUMS: Final = ("sparse",)
"""Families for tasks that allow a float16 accumulator alone. What such a sum may err grows with its length, until it
covers operands rounded to 8 bits. Where a few products make an output no sum errs by much: the rounding shows."""

SCALES: Final[Mapping[str, tuple[float, ...]]] = {
    "task": (1.0,),
    "normal": (1.0, 0.1),
    "large": (1e4, 1e3, 1e2, 10.0),
    "edge": (1.0,),
    "sparse": (1.0,),
}
"""Factors tried for each family, largest first; the first at which torch itself passes is used."""


def families_of(accumulator: str) -> tuple[str, ...]:
    """Families to be tried for a task whose candidates may accumulate in that type; the task's own first."""
    return tuple(family for family in FAMILIES if accumulator == "float16" or family not in _OF_HALF_SUMS)


def derived_seed(seed: int, label: str) -> int:
    """A seed of its own for each purpose, so that weights and inputs of one draw are independent."""
    digest = hashlib.sha256(f"{seed}:{label}".encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1


def draw_inputs(own: Sequence[Value], family: str, seed: int, scale: float = 1.0) -> tuple[Value, ...]:
    """Inputs of one family, with the shapes, dtypes and strides of the task's ``own``.

    Raises:
        KeyError: there is no such family.
    """
    if family not in SCALES:
        raise KeyError(family)
    if family == "task":
        return tuple(own)
    device = next((value.device for value in own if isinstance(value, torch.Tensor)), HOST)
    draws = generator(device, seed)
    inputs = tuple(
        _redrawn(value, family, draws, scale)
        if isinstance(value, torch.Tensor) and value.is_floating_point()
        else value
        for value in own
    )
    if family == "sparse":
        matrices = [v for v in inputs if isinstance(v, torch.Tensor) and v.is_floating_point() and v.dim() >= 2]
        dense = derived_seed(seed, "dense") % len(matrices) if len(matrices) > 1 else -1
        for position, matrix in enumerate(matrices):
            if position != dense:
                _thin_out(matrix, draws)
    return inputs


def _redrawn(own: torch.Tensor, family: str, draws: torch.Generator, scale: float) -> torch.Tensor:
    if family == "edge":
        values = _edge_values(own.shape, own.dtype, draws)
    else:
        values = torch.randn(own.shape, generator=draws, dtype=torch.float32, device=draws.device).mul_(scale)
        if family == "large":
            _move_extremes_last(values, draws)
    return with_strides(values, own)


_TERMS = 3
"""One alone would be exact in 8 bits that are scaled by the largest element of a row."""


def _thin_out(values: torch.Tensor, draws: torch.Generator) -> None:
    """Leave at most :data:`_TERMS` elements of each row and column, the same in each matrix of the last two axes, and
    set all others to zero: the same number of terms remains, over either of the two axes that a product may sum."""
    rows, columns = values.shape[-2:]
    kept = torch.zeros(rows, columns, dtype=torch.bool, device=values.device)
    for _ in range(_TERMS):
        order = [torch.randperm(extent, generator=draws, device=draws.device) for extent in (rows, columns)]
        kept[order[0][: min(rows, columns)], order[1][: min(rows, columns)]] = True
    values.masked_fill_(~kept, 0.0)


def _move_extremes_last(values: torch.Tensor, draws: torch.Generator) -> None:
    """Swap the largest element of a third of all lines with the last one, and the smallest of another third.

    A tail that is left out of a maximum shows where the maximum is in the tail: by chance that is rare in long lines.
    """
    for axis in range(values.dim() if values.numel() else 0):
        end = values.narrow(axis, values.shape[axis] - 1, 1)
        kind = torch.randint(3, tuple(end.shape), generator=draws, device=draws.device)
        for selected, extreme in ((kind == 1, values.argmax(axis, True)), (kind == 2, values.argmin(axis, True))):
            last, other = end.clone(), values.gather(axis, extreme)
            values.scatter_(axis, extreme, torch.where(selected, last, other))
            end.copy_(torch.where(selected, other, end))


def with_strides(values: torch.Tensor, own: torch.Tensor) -> torch.Tensor:
    """``values`` with the dtype and the strides of ``own``, whose shape they have."""
    if own.is_contiguous():
        return torch.empty_like(own).copy_(values)
    strided = storage_span(own).clone().as_strided(own.shape, own.stride(), 0)
    if any(stride == 0 and extent > 1 for extent, stride in zip(own.shape, own.stride(), strict=True)):
        # Expanded tensors share elements: fill the storage, not the view.
        span = storage_span(strided)
        span.copy_(values.reshape(-1)[: span.numel()])
    else:
        strided.copy_(values)
    return strided


def _edge_values(shape: torch.Size, dtype: torch.dtype, draws: torch.Generator) -> torch.Tensor:
    limits, device = torch.finfo(dtype), draws.device
    subnormal = max(limits.tiny * 2.0**-6, limits.smallest_normal * 2.0**-6)
    pool = torch.tensor(
        [0.0, -0.0, 1.0, -1.0, 0.5, -2.5, subnormal, -subnormal, limits.tiny, -limits.tiny, 1e-4, 8.0, 8.0, -8.0],
        dtype=torch.float64,
        device=device,
    ).to(dtype)
    values = pool[torch.randint(len(pool), tuple(shape), generator=draws, device=device)]
    if values.dim() >= 2:
        rows = values.view(-1, values.shape[-1])
        kind = torch.randint(16, (rows.shape[0], 1), generator=draws, device=device)
        signs = pool.new_tensor([8.0, -8.0])[torch.randint(2, tuple(rows.shape), generator=draws, device=device)]
        # No row of one value but zero: rounding its mean is a matter of luck, and norms amplify it.
        rows.copy_(torch.where(kind // 2 == 1, signs, rows)).masked_fill_(kind // 2 == 0, 0.0)
        # Small and tiny ones: next to a norm's epsilon, and far below it; of some the last element is all there is.
        tiny = _SMALL if dtype == torch.float16 else _TINY
        shrunk = torch.where((kind >= 5) & (kind < 8), tiny, 1.0)
        rows.mul_(torch.where(kind == 4, _SMALL, shrunk).to(dtype))
        rows[:, -1:].masked_fill_(kind // 2 == 3, 8.0)
    return values


_SMALL, _TINY = 2.0**-10, 2.0**-60
"""Factors of rows, powers of two: nothing is rounded."""


PROBES: Final = 16
"""Own draws that show what integer inputs have in common."""


@dataclass(frozen=True)
class IntegerProfile:
    """Properties that one integer input has in every own draw."""

    low: int
    high: int
    sorted_axes: tuple[int, ...]
    """Axes along which values never fall."""
    distinct_axes: tuple[int, ...]
    """Axes along which no value repeats."""
    distinct: bool
    """No value repeats anywhere."""


def integer_profile(draws: Sequence[torch.Tensor]) -> IntegerProfile:
    """Properties that all ``draws`` of one integer or boolean input share."""
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
    recipe: Recipe, own: Sequence[Value], profiles: Mapping[int, IntegerProfile], seed: int
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
        value if result is None else _draw_one(recipe, result, own, position, profiles, seed)
        for position, (value, result) in enumerate(zip(own, recipe.results, strict=True))
    )
    if all(_same(before, after) for before, after in zip(own, drawn, strict=True)):
        raise TaskError("the generator gives what the task draws itself: nothing new is tested")
    return drawn


def _draw_one(
    recipe: Recipe, result: int, own: Sequence[Value], position: int, profiles: Mapping[int, IntegerProfile], seed: int
) -> torch.Tensor:
    target = own[position]
    if not isinstance(target, torch.Tensor):
        raise TaskError(f"input {position} is no tensor, so it cannot be drawn again")
    values = _Drawing(recipe, own, target, seed).at(result)
    if bool(values.isnan().any()):
        raise TaskError(f"input {position} would hold NaN")
    if target.is_floating_point():
        return with_strides(values, target)
    profile = profiles[position]
    if target.dtype == torch.bool:
        values = (values != 0).double()
    integers = values.clamp(profile.low, profile.high).trunc().long()
    broken = _broken(integers, profile)
    if broken:
        raise TaskError(f"integer input {position} is {broken} in every draw of the task's own, and would not be")
    return with_strides(integers, target)


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
        operands = [self._done[operand] for operand in step.of]
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
            return self._full(self._checked_values(int(step.value or 0)))
        if step.op in ("low", "high"):
            values = self._checked_values(int(step.value or 0))
            if values.numel() == 0:
                return _scalar(0.0)
            return values.min() if step.op == "low" else values.max()
        if step.op == "extent":
            count = self._target.numel() if step.value is None else self._target.shape[self._axis(step.value)]
            return _scalar(float(count))
        if step.op == "index":
            return self._index(step)
        return _scalar(self._limit(step.op))

    def _checked_values(self, position: int) -> torch.Tensor:
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


def _broken(values: torch.Tensor, profile: IntegerProfile) -> str:
    """The property of every own draw that the values lack; empty if they have all."""
    if not all(_sorted(values, axis) for axis in profile.sorted_axes):
        return "sorted"
    distinct = all(_distinct(values, axis) for axis in profile.distinct_axes)
    if not distinct or (profile.distinct and not _distinct(values.reshape(-1), 0)):
        return "without repeats"
    return ""


def _sorted(values: torch.Tensor, axis: int) -> bool:
    return bool((values.diff(dim=axis) >= 0).all())


def _distinct(values: torch.Tensor, axis: int) -> bool:
    return bool((values.sort(dim=axis).values.diff(dim=axis) != 0).all())
