"""Expected values of some output elements, where the whole reference is too expensive.

Most references treat the slices of some axis by themselves: the rows of a softmax, the images of a batch, the rows of a
product. Which axis that is, is found by experiment at the small size, where one slice of an input is moved and the
outputs that follow are looked at, and confirmed at every hidden size, where some slices alone must give what they give
among all. At the full size the reference then runs on a few slices, whole in every other axis. Where one slice would be
too much, it is cut along a further such axis: the channels of a pooling, the columns of a product. Weights have such
axes too: the filters of a convolution, the features of a linear layer and its batch norm.

A loss has no such axis: all inputs go into one number. But many are the mean, or the sum, of those of parts of a batch,
which is found and confirmed in the same way.
"""

from __future__ import annotations

import contextlib
import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from types import MappingProxyType
from typing import Final

import numpy as np
import torch

from kernelforge.errors import TaskError
from kernelforge.evaluation.oracle.worker.comparison import Got, Selection, compare_outputs
from kernelforge.evaluation.oracle.worker.inputs import derived_seed, draw_inputs
from kernelforge.evaluation.oracle.worker.reference import Reference, Value
from kernelforge.evaluation.oracle.worker.reference_facts import facts_at
from kernelforge.evaluation.oracle.worker.reference_runner import InputDraw, ReferenceRunner
from kernelforge.evaluation.oracle.worker.tiles import TiledTensor
from kernelforge.evaluation.oracle.worker.tolerance import Expected
from kernelforge.evaluation.oracle.worker.torch_device import HOST, generator
from kernelforge.records import Comparison, DType, SizeFacts, TensorSpec
from kernelforge.sandbox.shared_memory import Blob

PART_FLOPS: Final = 4_000_000_000
"""Operations of the reference on the slices that are compared; it runs about four times, twice in float64."""

PART_BYTES: Final = 256 << 20
"""Bytes of inputs and outputs of the slices that are compared."""

SLICE_FLOPS: Final = PART_FLOPS // 16
SLICE_BYTES: Final = PART_BYTES // 16
"""A slice that takes more is cut along a further axis, so that the part has some slices from different places."""

SLICES_OF_WHOLE: Final = 64
"""Slices that are compared of outputs that are there whole."""

MEAN_BYTES: Final = PART_BYTES // 4
"""Bytes of inputs of each part whose mean is taken."""

WHOLE_FLOPS: Final = 40_000_000_000
WHOLE_BYTES: Final = 768 << 20
"""Up to these the whole reference is run where no axis has slices of their own."""

WEIGHT_BYTES: Final = 7 << 30
"""Up to these a reference's weights are held on the host, each also in float64, and once more while it is nudged: of
the 8 GiB that the oracle's process may take there."""

_AGREE: Final = 1e-9
"""Relative difference of float64 results that another order of summation may make."""

MOST_WEIGHTS: Final = 64
"""Parameters and buffers of a model whose axes are searched, too: each takes some runs at the small size."""

_FACTORS: Final = (-1.5, 60.0, -60.0)
"""Changes of a slice that are tried until the outputs move. By the first the largest becomes the smallest, so that an
argmax moves too; the others show where a ReLU or a clamp lets nothing through."""

_PROBE_SEED: Final = 0x511CE


@dataclass(frozen=True)
class Slicing:
    """An axis whose slices do not depend on one another."""

    inputs: Mapping[int, int]
    """By position of the inputs that have it: the axis. Other inputs are taken whole."""
    outputs: tuple[int, ...]
    """The axis in each output."""
    weights: Mapping[str, int] = field(default_factory=dict)
    """By name of the parameters and buffers that have it: the axis. Others are taken whole."""

    def overlaps(self, other: Slicing) -> bool:
        """Whether an axis of an input or an output is one of the other's too."""
        return (
            any(axis == theirs for axis, theirs in zip(self.outputs, other.outputs, strict=True))
            or any(other.inputs.get(position) == axis for position, axis in self.inputs.items())
            or any(other.weights.get(name) == axis for name, axis in self.weights.items())
        )


@dataclass(frozen=True)
class Mean:
    """Parts of inputs, along their first axis, of which a reference gives numbers whose mean or sum is its result."""

    inputs: tuple[int, ...]
    """Positions of the inputs that are taken in parts. Others are taken whole."""
    weighted: bool
    """The result is the mean, each part weighted by its slices; else the sum."""

    def rows(self, first: int, end: int) -> Rows:
        """Some slices of the inputs."""
        return [(Slicing(dict.fromkeys(self.inputs, 0), ()), torch.arange(first, end))]

    def share(self, slices: int, extent: int) -> float:
        """Factor of a part of some slices."""
        return slices / extent if self.weighted else 1.0


Rows = Sequence[tuple[Slicing, torch.Tensor]]
"""Axes, and the slices that are taken along each, ascending."""


@dataclass(frozen=True)
class Elements:
    """Some elements of one output, as a candidate left them."""

    indices: torch.Tensor | None
    """Flat, int64; None for all of them."""
    data: Blob


class Slices:
    """Expected values of parts of a task's outputs. Works on the references and draws of a :class:`ReferenceRunner`."""

    def __init__(self, reckoner: ReferenceRunner) -> None:
        self._reckoner = reckoner
        self._facts: dict[str, SizeFacts] = {}
        self._found: tuple[Slicing, ...] | None = None
        self._mean: tuple[Mean | None] | None = None

    def choose(self, size: str, seed: int, count: int) -> dict[int, list[int]]:
        """Flat indices of about ``count`` elements of each output, that can be worked out here.

        The last element is the first; the others lie anywhere, by the secret ``seed``.

        Raises:
            TaskError: no part of the outputs can be had by itself, and the whole is too dear.
        """
        facts = self._facts_of(size)
        shapes = [spec.shape for spec in facts.outputs]
        weights = [weight.spec.nbytes for weight in facts.weights]
        needed = 3 * sum(weights) + 2 * max(weights, default=0)
        if self._reckoner.device == HOST and needed > WEIGHT_BYTES:
            raise TaskError(f"the weights take {sum(weights):.2g} bytes, and {needed:.2g} while the reference runs")
        draws = np.random.default_rng(derived_seed(seed, "elements"))
        axes = self._axes(size)
        if not axes and (facts.flops > WHOLE_FLOPS or facts.moved_bytes > WHOLE_BYTES):
            raise TaskError(
                "the reference has no axis whose slices can be worked out by themselves, and the whole of it takes "
                f"{facts.flops:.2g} operations on {facts.moved_bytes:.2g} bytes, of {WHOLE_FLOPS:.2g} and "
                f"{WHOLE_BYTES:.2g} that are run"
            )
        rows = [
            np.unique(np.append(draws.choice(extent, most, replace=False)[: most - 1], extent - 1))
            for extent, most in zip(self._extents(size, axes), self._affordable(size, axes, count), strict=True)
        ]
        elements: dict[int, list[int]] = {}
        for position, shape in enumerate(shapes):
            total = int(np.prod(shape, dtype=np.int64))
            if not total:
                continue
            places = np.append(draws.integers(0, total, count - 1), total - 1)
            if axes:
                index = list(np.unravel_index(places, shape))
                for number, (slicing, numbers) in enumerate(zip(axes, rows, strict=True)):
                    axis = slicing.outputs[position]
                    # Each combination of slices comes before one comes again.
                    turns = np.arange(len(places))[::-1] // math.prod(map(len, rows[:number]))
                    index[axis] = numbers[turns % len(numbers)]
                    index[axis][-1] = shape[axis] - 1
                places = np.ravel_multi_index(tuple(index), shape)
            elements[position] = list(dict.fromkeys(places[::-1].tolist()))
        return elements

    def _facts_of(self, size: str) -> SizeFacts:
        if size not in self._facts:
            policy = self._reckoner.task.policy
            described = self._reckoner.described(size)
            self._facts[size] = facts_at(described, size, policy.mutates, policy.host_inputs, fake=True)
        return self._facts[size]

    def _axes(self, size: str) -> tuple[Slicing, ...]:
        """As few of the axes as make what one slice along each has in common small at a size; all where none do.

        Raises:
            TaskError: one slice along each is too much.
        """
        for count in range(1, len(self.slicings) + 1):
            axes = self.slicings[:count]
            work, nbytes = self._cost(size, axes, [1] * count)
            if work <= SLICE_FLOPS and nbytes <= SLICE_BYTES:
                return axes
        if self.slicings and nbytes > WHOLE_BYTES:
            raise TaskError(f"the smallest part of the reference that stands by itself takes {nbytes:.2g} bytes")
        return self.slicings

    def _cost(self, size: str, axes: Sequence[Slicing], counts: Sequence[int]) -> tuple[float, float]:
        """Operations of the reference, and bytes of its inputs and outputs, on some slices along each of some axes."""
        facts = self._facts_of(size)
        shares = [count / extent for count, extent in zip(counts, self._extents(size, axes), strict=True)]
        nbytes = math.prod(shares) * sum(output.nbytes for output in facts.outputs)
        for position, spec in enumerate(facts.inputs):
            if isinstance(spec, TensorSpec):
                cut = (share for slicing, share in zip(axes, shares, strict=True) if position in slicing.inputs)
                nbytes += math.prod(cut) * spec.nbytes
        return math.prod(shares) * facts.flops, nbytes

    def _extents(self, size: str, axes: Sequence[Slicing]) -> list[int]:
        """Slices that there are along each of some axes."""
        return [self._facts_of(size).outputs[0].shape[slicing.outputs[0]] for slicing in axes]

    def _most(self, size: str, axes: Sequence[Slicing], counts: Sequence[int], at: int) -> int:
        """Slices along one of some axes that may be computed with those along the others; at least 1."""
        without, single = (self._cost(size, axes, [*counts[:at], n, *counts[at + 1 :]]) for n in (0, 1))
        rooms = [
            (limit - fixed) / (cost - fixed)
            for limit, fixed, cost in zip((PART_FLOPS, PART_BYTES), without, single, strict=True)
            if cost > fixed
        ]
        return max(min(int(min(rooms, default=math.inf)), self._extents(size, axes)[at]), 1)

    def _affordable(self, size: str, axes: Sequence[Slicing], most: int) -> list[int]:
        """Numbers of slices along each of some axes, about equal, of which about ``most`` parts in common can be
        computed."""
        counts = [1] * len(axes)
        while math.prod(counts) < most:
            more = [at for at, n in enumerate(counts) if n < self._most(size, axes, counts, at)]
            if not more:
                break
            counts[min(more, key=counts.__getitem__)] += 1
        return counts

    def compare(
        self, drawn: InputDraw, required: Mapping[int, Sequence[int]], got: Mapping[int, Elements]
    ) -> Comparison:
        """Compare elements of the outputs, those in the slices of the ``required`` ones and in as many more as may be.

        ``total`` of the result is how many were compared.

        Raises:
            TaskError: the reference fails on the slices.
        """
        facts = self._facts_of(drawn.size)
        shapes = [spec.shape for spec in facts.outputs]
        if drawn.expected is not None:
            return _compared([], shapes, drawn.expected, drawn.selections, got)
        axes = self._axes(drawn.size)
        if not axes:
            return self._compare_slices(drawn, [], got)
        rows: list[torch.Tensor] = []
        for slicing in axes:
            must = [_rows_of(torch.tensor(list(at)), shapes[o], slicing.outputs[o]) for o, at in required.items() if at]
            rows.append(_sorted(torch.cat(must)))
        for at, (slicing, extent) in enumerate(zip(axes, self._extents(drawn.size, axes), strict=True)):
            came = torch.zeros(extent, dtype=torch.bool)
            for output, elements in got.items():
                if elements.indices is not None:
                    came[_rows_of(elements.indices, shapes[output], slicing.outputs[output])] = True
            came[rows[at]] = False
            others = came.nonzero().flatten()
            room = max(self._most(drawn.size, axes, list(map(len, rows)), at) - len(rows[at]), 0)
            if len(others) > room:
                draws = generator(torch.device("cpu"), derived_seed(drawn.seed, f"slices {at}" if at else "slices"))
                others = others[torch.randperm(len(others), generator=draws)[:room]]
            rows[at] = _sorted(torch.cat([rows[at], others]))
        return self._compare_slices(drawn, list(zip(axes, rows, strict=True)), got)

    def compare_whole(self, drawn: InputDraw, got: Mapping[int, Elements]) -> Comparison:
        """Compare some slices, by the draw's secret seed, of outputs that are there whole; or the one number.

        Raises:
            TaskError: no slices stand by themselves, or the reference fails on them.
        """
        axes = self.slicings[:1]
        if not axes and self.mean is not None:
            return self._compare_mean(drawn, self.mean, got)
        if not axes:
            raise TaskError("the reference has no axis whose slices can be worked out by themselves")
        (extent,) = self._extents(drawn.size, axes)
        most = min(self._most(drawn.size, axes, [1], 0), SLICES_OF_WHOLE)
        draws = np.random.default_rng(derived_seed(drawn.seed, "slices"))
        rows = np.append(draws.integers(0, extent, most - 1), extent - 1)
        return self._compare_slices(drawn, [(axes[0], torch.from_numpy(np.unique(rows)))], got)

    def _compare_mean(self, drawn: InputDraw, mean: Mean, got: Mapping[int, Elements]) -> Comparison:
        facts, reckoner = self._facts_of(drawn.size), self._reckoner
        specs = [spec for at in mean.inputs if isinstance(spec := facts.inputs[at], TensorSpec)]
        extent = specs[0].shape[0]
        others = sum(
            s.nbytes for at, s in enumerate(facts.inputs) if isinstance(s, TensorSpec) and at not in mean.inputs
        )
        if others > WHOLE_BYTES:
            raise TaskError(f"inputs of {others:.2g} bytes are needed for each part of the reference")
        length = max(MEAN_BYTES * extent // max(sum(spec.nbytes for spec in specs), 1), 1)
        reference = reckoner.reference(drawn.size)
        reference.redraw_weights(derived_seed(drawn.seed, "weights"))
        total: Expected | None = None
        for first in range(0, extent, length):
            end = min(first + length, extent)
            inputs = sliced(drawn.inputs, mean.rows(first, end), drawn.tiles)
            (part,), _ = reckoner.expected_at(drawn.size, reference, inputs)
            total = _plus(total, part, mean.share(end - first, extent))
        assert total is not None, "an input that is sliced has slices"
        return _compared([], [facts.outputs[0].shape], [total], [None], got)

    def _compare_slices(self, drawn: InputDraw, rows: Rows, got: Mapping[int, Elements]) -> Comparison:
        reckoner = self._reckoner
        reference = reckoner.reference(drawn.size)
        reference.redraw_weights(derived_seed(drawn.seed, "weights"))
        inputs = sliced(drawn.inputs, rows, drawn.tiles)
        outputs, selections = reckoner.expected_at(drawn.size, _cut(reference, rows), inputs)
        shapes = [spec.shape for spec in self._facts_of(drawn.size).outputs]
        return _compared(rows, shapes, outputs, selections, got)

    def _reference(self, size: str) -> Reference:
        self._reckoner.make_room(size)
        return self._reckoner.reference(size)

    @property
    def slicings(self) -> tuple[Slicing, ...]:
        """Axes whose slices stand by themselves, together too; empty where there is none."""
        if self._found is None:
            self._found = ()
            with contextlib.suppress(TaskError):
                self._search()
        return self._found

    @property
    def mean(self) -> Mean | None:
        """The parts whose mean, or sum, the reference gives as its one number; None where it does not."""
        if self._mean is None:
            self._mean = (None,)
            with contextlib.suppress(TaskError):
                self._mean = (self._search_mean(),)
        return self._mean[0]

    def _search_mean(self) -> Mean | None:
        task = self._reckoner.task
        names = ["small", *(size.name for size in task.sizes if size.is_hidden)]
        values = self._reckoner.reference("small").inputs(_PROBE_SEED)
        sliceable = [
            at for at, value in enumerate(values) if isinstance(value, torch.Tensor) and value.dim() and len(value) > 3
        ]
        if task.policy.mutates or task.policy.ties or task.policy.oracle == "task-precision":
            return None
        for positions in [sliceable, *([at] for at in sliceable if len(sliceable) > 1)]:
            for weighted in (True, False):
                mean = Mean(tuple(positions), weighted)
                if positions and all(_is_mean(self._reference(name), mean) for name in names):
                    return mean
        return None

    def stand_on(self, family: str) -> bool:
        """Whether the slices stand by themselves on inputs of another family too, along the first axis.

        Those of ``torch.triu(x @ y)`` do only where both are triangular, as the task draws them.
        """
        axes = self.slicings[:1]
        scale = self._reckoner.scales("full").get(family, 1.0)
        sizes = (size.name for size in self._reckoner.task.sizes if size.name == "small" or size.is_hidden)
        return bool(axes) and all(_confirmed(self._reference(size), axes, family, scale) for size in sizes)

    def _search(self) -> None:
        task = self._reckoner.task
        if task.policy.mutates:
            return
        small = self._reckoner.reference("small")
        inputs = small.inputs(_PROBE_SEED)
        base = small.run_double(inputs)
        moved = _Moved(small, inputs, base)
        sizes = ["small", *(size.name for size in task.sizes if size.is_hidden)]
        for axis in range(base[0].dim()):
            slicing = moved.along(axis)
            if slicing is None or any(slicing.overlaps(other) for other in self.slicings):
                continue
            axes = (*self.slicings, slicing)
            scales = [1.0, *(moved.factors - {_FACTORS[0]})]
            if all(_confirmed(self._reference(size), axes, scale=scale) for size in sizes for scale in scales):
                self._found = axes


class _Moved:
    """Finds the output slices that change when one slice of an input is moved."""

    def __init__(self, reference: Reference, inputs: tuple[Value, ...], base: tuple[torch.Tensor, ...]) -> None:
        self._reference = reference
        self._inputs = inputs
        self._base = base
        weights = reference.sliceable_weights()
        self._weights = weights if len(weights) <= MOST_WEIGHTS else {}
        self._effects: dict[tuple[int | str, int], tuple[frozenset[int], ...] | None] = {}
        self._idle: set[tuple[int | str, int]] = set()
        """Those that move no output, or not all of them."""
        self.factors: set[float] = set()
        """Those of :data:`_FACTORS` that moved outputs."""

    def along(self, axis: int) -> Slicing | None:
        """The slicing by an axis of the first output, where every input is either sliced by it or shared."""
        extent = self._base[0].shape[axis]
        inputs: dict[int, int] = {}
        weights: dict[str, int] = {}
        outputs: list[int] | None = None
        values: dict[int | str, torch.Tensor] = {
            at: value for at, value in enumerate(self._inputs) if isinstance(value, torch.Tensor)
        }
        for key, value in (values | dict[int | str, torch.Tensor](self._weights)).items():
            for dim in range(value.dim()):
                if value.shape[dim] != extent or extent < 2:
                    continue
                effect = self._effect(key, dim)
                if effect is None or axis not in effect[0] or not all(effect):
                    continue
                axes = [axis, *(min(dims) for dims in effect[1:])]
                if outputs is None or axes == outputs:
                    outputs = axes
                    if isinstance(key, str):
                        weights[key] = dim
                    else:
                        inputs[key] = dim
                    break
        if outputs is None:
            return None
        # What changes no output, as the running statistics of a batch norm in training, goes with its module's others.
        modules = {name.rpartition(".")[0] for name in weights}
        for name in self._weights.keys() - weights.keys():
            if name.rpartition(".")[0] in modules and (name, 0) in self._idle:
                weights[name] = 0
        return Slicing(inputs, tuple(outputs), weights)

    def _effect(self, position: int | str, dim: int) -> tuple[frozenset[int], ...] | None:
        """For each output, the axes along which a slice of an input moves the same slice and no other."""
        key = (position, dim)
        if key not in self._effects:
            self._effects[key] = self._find_effect(position, dim)
        return self._effects[key]

    def _find_effect(self, position: int | str, dim: int) -> tuple[frozenset[int], ...] | None:
        for factor in _FACTORS:
            effect = self._effect_of(position, dim, factor)
            if effect is None:
                return None
            if all(axes is not None for axes in effect):
                self.factors.add(factor)
                return tuple(axes for axes in effect if axes is not None)
        self._idle.add((position, dim))
        return None

    def _effect_of(self, position: int | str, dim: int, factor: float) -> tuple[frozenset[int] | None, ...] | None:
        """The effect of one change of the slice, None for an output that it does not move; None for other shapes."""
        value = self._weights[position] if isinstance(position, str) else self._inputs[position]
        assert isinstance(value, torch.Tensor)
        extent = value.shape[dim]
        slice_, other = extent // 2, 0
        if isinstance(position, str):
            reference = self._reference.with_slice_changed(
                position, dim, slice_, lambda part: part.mul_(factor).add_(0.25)
            )
            after = reference.run_double(self._inputs)
        else:
            changed = value.clone()
            if value.is_floating_point():
                changed.select(dim, slice_).mul_(factor).add_(0.25)
            else:
                changed.select(dim, slice_).copy_(value.select(dim, other))
            after = self._reference.run_double((*self._inputs[:position], changed, *self._inputs[position + 1 :]))
        effects: list[frozenset[int] | None] = []
        for before, now in zip(self._base, after, strict=True):
            if before.shape != now.shape:
                return None
            places = (before != now).nonzero()
            axes = (
                axis
                for axis in range(before.dim())
                if before.shape[axis] == extent and bool((places[:, axis] == slice_).all())
            )
            effects.append(frozenset(axes) if len(places) else None)
        return tuple(effects)


def _confirmed(reference: Reference, axes: Sequence[Slicing], family: str = "task", scale: float = 1.0) -> bool:
    """Whether some slices along each of some axes alone give what they give among all, on inputs of a family."""
    inputs = draw_inputs(reference.inputs(_PROBE_SEED + 1), family, _PROBE_SEED + 1, scale)
    if family == "task" and scale != 1.0:
        inputs = tuple(
            value * scale if isinstance(value, torch.Tensor) and value.is_floating_point() else value
            for value in inputs
        )
    complete = reference.run_double(inputs)
    rows: list[tuple[Slicing, torch.Tensor]] = []
    for slicing in axes:
        extents = {
            value.shape[dim] for p, dim in slicing.inputs.items() if isinstance(value := inputs[p], torch.Tensor)
        } | {reference.sliceable_weights()[name].shape[dim] for name, dim in slicing.weights.items()}
        if len(extents) > 1 or extents != {
            output.shape[axis] for output, axis in zip(complete, slicing.outputs, strict=True)
        }:
            return False
        extent = extents.pop()
        order = torch.randperm(extent, generator=generator(torch.device("cpu"), _PROBE_SEED + len(rows)))
        rows.append((slicing, order[: max(extent // 2, 1)].sort().values))
    part = _cut(reference, rows).run_double(sliced(inputs, rows))
    for position, (output, partial) in enumerate(zip(complete, part, strict=True)):
        expected = output
        for slicing, numbers in rows:
            expected = expected.index_select(slicing.outputs[position], numbers.to(output.device))
        if partial.shape != expected.shape or partial.dtype != expected.dtype:
            return False
        if not torch.allclose(partial.double(), expected.double(), rtol=_AGREE, atol=_AGREE, equal_nan=True):
            return False
    return True


def _is_mean(reference: Reference, mean: Mean) -> bool:
    """Whether a reference gives one number, that of up to three parts of unequal length together."""
    for family in ("task", "normal"):
        inputs = draw_inputs(reference.inputs(_PROBE_SEED + 2), family, _PROBE_SEED + 2, 1.0)
        extents = {value.shape[0] for at in mean.inputs if isinstance(value := inputs[at], torch.Tensor)}
        extent = extents.pop()
        try:
            complete = reference.run_double(inputs)
            if extents or len(complete) != 1 or complete[0].numel() != 1:
                return False
            total = torch.zeros_like(complete[0], dtype=torch.float64)
            for first, end in pairwise(sorted({0, 1, extent // 2, extent})):
                (part,) = reference.run_double(sliced(inputs, mean.rows(first, end)))
                if part.shape != total.shape:
                    return False
                total += part * mean.share(end - first, extent)
        except TaskError:
            return False
        if not torch.allclose(total, complete[0].double(), rtol=_AGREE, atol=0.0):
            return False
    return True


def _plus(total: Expected | None, part: Expected, share: float) -> Expected:
    """Expected value of a sum, or a mean, with a further part: errors that are allowed add up, too."""
    assert part.exact is not None, "a mean is no integer"
    assert part.tolerance is not None, "a mean is no integer"
    if total is None:
        nothing = torch.zeros_like(part.exact)
        total = replace(part, reference=nothing.to(part.reference.dtype), exact=nothing, tolerance=nothing)
    assert total.exact is not None, "it began with a part"
    assert total.tolerance is not None, "it began with a part"
    return replace(
        part,
        reference=total.reference + (part.reference.double() * share).to(part.reference.dtype),
        exact=total.exact + part.exact * share,
        tolerance=total.tolerance + part.tolerance * share,
        finite=total.finite and part.finite,
        capped=total.capped or part.capped,
        ill_conditioned=total.ill_conditioned or part.ill_conditioned,
    )


def _sorted(rows: torch.Tensor) -> torch.Tensor:
    """Ascending, each once."""
    return torch.from_numpy(np.unique(rows.numpy()))


def sliced(
    inputs: tuple[Value, ...], rows: Rows, tiles: Mapping[int | str, TiledTensor] = MappingProxyType({})
) -> tuple[Value, ...]:
    """Inputs with some of their slices along each of some axes, the others whole; of those that are tiles too."""
    values = list(inputs)
    for position, value in enumerate(inputs):
        cuts = {slicing.inputs[position]: numbers for slicing, numbers in rows if position in slicing.inputs}
        if position in tiles:
            value = tiles[position].select(cuts)
        elif isinstance(value, torch.Tensor):
            for dim, numbers in cuts.items():
                value = value.index_select(dim, numbers.to(value.device))
        values[position] = value
    return tuple(values)


def _cut(reference: Reference, rows: Rows) -> Reference:
    """A reference with some slices of its weights along each of some axes."""
    cuts: dict[str, dict[int, torch.Tensor]] = {}
    for slicing, numbers in rows:
        for name, axis in slicing.weights.items():
            cuts.setdefault(name, {})[axis] = numbers
    return reference.with_slices(cuts) if cuts else reference


def _rows_of(indices: torch.Tensor, shape: tuple[int, ...], axis: int) -> torch.Tensor:
    """The place of flat indices along an axis."""
    below = 1
    for extent in shape[axis + 1 :]:
        below *= extent
    return indices // below % shape[axis]


def _compared(
    rows: Rows,
    shapes: Sequence[tuple[int, ...]],
    outputs: Sequence[Expected],
    selections: Sequence[Selection | None],
    got: Mapping[int, Elements],
) -> Comparison:
    """Put the candidate's elements among torch's own, and compare those."""
    values: list[Got] = []
    count = 0
    for position, want in enumerate(outputs):
        value = want.reference.clone().contiguous()
        elements = got.get(position)
        if elements is not None and len(elements.data):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # the bytes are read only, and so is what is made of them
                data = torch.frombuffer(elements.data, dtype=want.reference.dtype)
            if elements.indices is None:
                data = data.view(shapes[position])
                for slicing, numbers in rows:
                    data = data.index_select(slicing.outputs[position], numbers.cpu())
                value.copy_(data)
                count += data.numel()
            else:
                indices, keep = _within(elements.indices, shapes[position], position, rows)
                value.view(-1)[indices.to(value.device)] = data[keep].to(value.device)
                count += len(indices)
        values.append(Got.of(value))
    comparison = compare_outputs(outputs, values, selections, hidden=True)
    return comparison.model_copy(update={"total": max(count, comparison.mismatched)})


def _within(
    indices: torch.Tensor, shape: tuple[int, ...], output: int, rows: Rows
) -> tuple[torch.Tensor, torch.Tensor]:
    """Flat indices of the elements among the slices, and which of the elements are in all of them."""
    numbers_along = {slicing.outputs[output]: numbers.cpu() for slicing, numbers in rows}
    keep = torch.ones(len(indices), dtype=torch.bool)
    moved = torch.zeros(len(indices), dtype=torch.int64)
    below = 1
    for axis in reversed(range(len(shape))):
        row = _rows_of(indices, shape, axis)
        extent = shape[axis]
        if axis in numbers_along:
            row_of = torch.full((extent,), -1, dtype=torch.int64)
            extent = len(numbers_along[axis])
            row_of[numbers_along[axis]] = torch.arange(extent)
            row = row_of[row]
            keep &= row >= 0
        moved += row * below
        below *= extent
    return moved[keep], keep


def elements_of(indices: Blob | None, data: Blob, shape: tuple[int, ...], dtype: DType) -> Elements:
    """Elements as they came from a runner, checked: they must be inside the output, ascending, and as many as bytes.

    Without ``indices`` they must be all elements of the output.

    Raises:
        TaskError: they are not.
    """
    if indices is None:
        if len(data) != int(np.prod(shape, dtype=np.int64)) * dtype.itemsize:
            raise TaskError("an output came back with another length than its shape and dtype have")
        return Elements(None, data)
    array = np.frombuffer(indices, dtype=np.int64)
    total = int(np.prod(shape, dtype=np.int64))
    if len(data) != array.size * dtype.itemsize or (array.size and (array[0] < 0 or array[-1] >= total)):
        raise TaskError("elements of an output lie outside it, or are not as many as their indices")
    if array.size > 1 and not bool((np.diff(array) > 0).all()):
        raise TaskError("elements of an output are not in order")
    return Elements(torch.from_numpy(array.copy()), data)
