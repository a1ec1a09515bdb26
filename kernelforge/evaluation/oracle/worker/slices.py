"""Expected values of some output elements, where the whole reference is too expensive.

Most references treat the slices of some axis by themselves: the rows of a softmax, the images of a batch, the rows of a
product. Which axis that is, is found by experiment at the small size, where one slice of an input is moved and the
outputs that follow are looked at, and confirmed at every hidden size, where some slices alone must give what they give
among all. At the full size the reference then runs on a few slices, whole in every other axis.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch

from kernelforge.errors import TaskError
from kernelforge.evaluation.oracle.worker.comparison import Got, Selection, compare_outputs
from kernelforge.evaluation.oracle.worker.inputs import derived_seed, draw_inputs
from kernelforge.evaluation.oracle.worker.reference import Reference, Value
from kernelforge.evaluation.oracle.worker.reference_facts import facts_at
from kernelforge.evaluation.oracle.worker.reference_runner import InputDraw, ReferenceRunner
from kernelforge.evaluation.oracle.worker.tolerance import Expected
from kernelforge.evaluation.oracle.worker.torch_device import generator
from kernelforge.records import Comparison, DType, SizeFacts
from kernelforge.sandbox.shared_memory import Blob

PART_FLOPS: Final = 4_000_000_000
"""Operations of the reference on the slices that are compared; it runs about four times, twice in float64."""

PART_BYTES: Final = 256 << 20
"""Bytes of inputs and outputs of the slices that are compared."""

SLICES_OF_WHOLE: Final = 64
"""Slices that are compared of outputs that are there whole."""

WHOLE_FLOPS: Final = 40_000_000_000
WHOLE_BYTES: Final = 768 << 20
"""Up to these the whole reference is run where no axis has slices of their own."""

_AGREE: Final = 1e-9
"""Relative difference of float64 results that another order of summation may make."""

_PROBE_SEED: Final = 0x511CE


@dataclass(frozen=True)
class Slicing:
    """An axis whose slices do not depend on one another."""

    inputs: Mapping[int, int]
    """By position of the inputs that have it: the axis. Other inputs are taken whole."""
    outputs: tuple[int, ...]
    """The axis in each output."""


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
        self._found: Slicing | None = None
        self._searched = False

    def choose(self, size: str, seed: int, count: int) -> dict[int, list[int]]:
        """Flat indices of about ``count`` elements of each output, that can be worked out here.

        The last element is the first; the others lie anywhere, by the secret ``seed``.

        Raises:
            TaskError: no part of the outputs can be had by itself, and the whole is too dear.
        """
        facts = self._facts_of(size)
        shapes = [spec.shape for spec in facts.outputs]
        draws = np.random.default_rng(derived_seed(seed, "elements"))
        slicing = self.slicing
        if slicing is None:
            if facts.flops > WHOLE_FLOPS or facts.compulsory_bytes > WHOLE_BYTES:
                raise TaskError(
                    "the reference has no axis whose slices can be worked out by themselves, and the whole of it takes "
                    f"{facts.flops:.2g} operations on {facts.compulsory_bytes:.2g} bytes"
                )
            rows = None
        else:
            extent = shapes[0][slicing.outputs[0]]
            most = min(extent, self._affordable(facts.flops, facts.compulsory_bytes, extent), count)
            rows = np.unique(np.append(draws.choice(extent, most, replace=False)[: most - 1], extent - 1))
        elements: dict[int, list[int]] = {}
        for position, shape in enumerate(shapes):
            total = int(np.prod(shape, dtype=np.int64))
            if not total:
                continue
            places = np.append(draws.integers(0, total, count - 1), total - 1)
            if rows is not None and slicing is not None:
                axis = slicing.outputs[position]
                index = list(np.unravel_index(places, shape))
                index[axis] = rows[np.arange(len(places))[::-1] % len(rows)]
                index[axis][-1] = shape[axis] - 1
                places = np.ravel_multi_index(tuple(index), shape)
            elements[position] = list(dict.fromkeys(places[::-1].tolist()))
        return elements

    def _facts_of(self, size: str) -> SizeFacts:
        if size not in self._facts:
            mutates = self._reckoner.task.policy.mutates
            self._facts[size] = facts_at(self._reckoner.described(size), size, mutates, fake=True)
        return self._facts[size]

    def _affordable(self, flops: float, nbytes: float, extent: int) -> int:
        """Number of slices of ``extent`` that may be computed."""
        by_work = PART_FLOPS * extent / max(flops, 1)
        by_memory = PART_BYTES * extent / max(nbytes, 1)
        return max(int(min(by_work, by_memory)), 1)

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
            return _compared(None, shapes, None, drawn.expected, drawn.selections, got)
        slicing = self.slicing
        if slicing is None:
            return self._compare_slices(drawn, None, None, got)
        extent = shapes[0][slicing.outputs[0]]
        must = [_rows_of(torch.tensor(list(at)), shapes[o], slicing.outputs[o]) for o, at in required.items() if at]
        rows = _sorted(torch.cat(must))
        came = torch.zeros(extent, dtype=torch.bool)
        for output, elements in got.items():
            if elements.indices is not None:
                came[_rows_of(elements.indices, shapes[output], slicing.outputs[output])] = True
        came[rows] = False
        others = came.nonzero().flatten()
        room = max(self._affordable(facts.flops, facts.compulsory_bytes, extent) - len(rows), 0)
        if len(others) > room:
            draws = generator(torch.device("cpu"), derived_seed(drawn.seed, "slices"))
            others = others[torch.randperm(len(others), generator=draws)[:room]]
        return self._compare_slices(drawn, slicing, _sorted(torch.cat([rows, others])), got)

    def compare_whole(self, drawn: InputDraw, got: Mapping[int, Elements]) -> Comparison:
        """Compare some slices, by the draw's secret seed, of outputs that are there whole.

        Raises:
            TaskError: no slices stand by themselves, or the reference fails on them.
        """
        slicing = self.slicing
        if slicing is None:
            raise TaskError("the reference has no axis whose slices can be worked out by themselves")
        facts = self._facts_of(drawn.size)
        extent = facts.outputs[0].shape[slicing.outputs[0]]
        most = min(self._affordable(facts.flops, facts.compulsory_bytes, extent), SLICES_OF_WHOLE, extent)
        draws = np.random.default_rng(derived_seed(drawn.seed, "slices"))
        rows = np.append(draws.integers(0, extent, most - 1), extent - 1)
        return self._compare_slices(drawn, slicing, torch.from_numpy(np.unique(rows)), got)

    def _compare_slices(
        self, drawn: InputDraw, slicing: Slicing | None, rows: torch.Tensor | None, got: Mapping[int, Elements]
    ) -> Comparison:
        reckoner = self._reckoner
        reference = reckoner.reference(drawn.size)
        reference.redraw_weights(derived_seed(drawn.seed, "weights"))
        inputs = drawn.inputs if slicing is None or rows is None else sliced(drawn.inputs, slicing, rows)
        outputs, selections = reckoner.expected_at(drawn.size, reference, inputs)
        shapes = [spec.shape for spec in self._facts_of(drawn.size).outputs]
        return _compared(slicing, shapes, rows, outputs, selections, got)

    @property
    def slicing(self) -> Slicing | None:
        """The axis whose slices stand by themselves; None where there is none."""
        if not self._searched:
            self._searched = True
            with contextlib.suppress(TaskError):
                self._found = self._search()
        return self._found

    def stand_on(self, family: str) -> bool:
        """Whether the slices stand by themselves on inputs of another family too.

        Those of ``torch.triu(x @ y)`` do only where both are triangular, as the task draws them.
        """
        if self.slicing is None:
            return False
        scale = self._reckoner.scales("full").get(family, 1.0)
        sizes = (size.name for size in self._reckoner.task.sizes if size.name == "small" or size.is_hidden)
        return all(_confirmed(self._reckoner.reference(size), self.slicing, family, scale) for size in sizes)

    def _search(self) -> Slicing | None:
        task = self._reckoner.task
        if task.policy.mutates:
            return None
        small = self._reckoner.reference("small")
        inputs = small.inputs(_PROBE_SEED)
        base = small.run_double(inputs)
        moved = _Moved(small, inputs, base)
        others = [size.name for size in task.sizes if size.is_hidden]
        for axis in range(base[0].dim()):
            slicing = moved.along(axis)
            if slicing is not None and all(
                _confirmed(self._reckoner.reference(size), slicing) for size in ("small", *others)
            ):
                return slicing
        return None


class _Moved:
    """Finds the output slices that change when one slice of an input is moved."""

    def __init__(self, reference: Reference, inputs: tuple[Value, ...], base: tuple[torch.Tensor, ...]) -> None:
        self._reference = reference
        self._inputs = inputs
        self._base = base
        self._effects: dict[tuple[int, int], tuple[frozenset[int], ...] | None] = {}

    def along(self, axis: int) -> Slicing | None:
        """The slicing by an axis of the first output, where every input is either sliced by it or shared."""
        extent = self._base[0].shape[axis]
        inputs: dict[int, int] = {}
        outputs: list[int] | None = None
        for position, value in enumerate(self._inputs):
            if not isinstance(value, torch.Tensor):
                continue
            for dim in range(value.dim()):
                if value.shape[dim] != extent or extent < 2:
                    continue
                effect = self._effect(position, dim)
                if effect is None or axis not in effect[0] or not all(effect):
                    continue
                axes = [axis, *(min(dims) for dims in effect[1:])]
                if outputs is None or axes == outputs:
                    inputs[position], outputs = dim, axes
                    break
        return Slicing(inputs, tuple(outputs)) if outputs is not None else None

    def _effect(self, position: int, dim: int) -> tuple[frozenset[int], ...] | None:
        """For each output, the axes along which a slice of an input moves the same slice and no other."""
        key = (position, dim)
        if key not in self._effects:
            self._effects[key] = self._find_effect(position, dim)
        return self._effects[key]

    def _find_effect(self, position: int, dim: int) -> tuple[frozenset[int], ...] | None:
        value = self._inputs[position]
        assert isinstance(value, torch.Tensor)
        extent = value.shape[dim]
        slice_, other = extent // 2, 0
        changed = value.clone()
        if value.is_floating_point():
            target = changed.select(dim, slice_)
            target.copy_(0.25 - 1.5 * target)  # the largest becomes the smallest, so that an argmax moves too
        else:
            changed.select(dim, slice_).copy_(value.select(dim, other))
        inputs = (*self._inputs[:position], changed, *self._inputs[position + 1 :])
        after = self._reference.run_double(inputs)
        effects: list[frozenset[int]] = []
        for before, now in zip(self._base, after, strict=True):
            if before.shape != now.shape:
                return None
            places = (before != now).nonzero()
            if not len(places):
                return None
            axes = (
                axis
                for axis in range(before.dim())
                if before.shape[axis] == extent and bool((places[:, axis] == slice_).all())
            )
            effects.append(frozenset(axes))
        return tuple(effects)


def _confirmed(reference: Reference, slicing: Slicing, family: str = "task", scale: float = 1.0) -> bool:
    """Whether some slices alone give what they give among all, on inputs of a family."""
    inputs = draw_inputs(reference.inputs(_PROBE_SEED + 1), family, _PROBE_SEED + 1, scale)
    complete = reference.run_double(inputs)
    extents = {value.shape[dim] for p, dim in slicing.inputs.items() if isinstance(value := inputs[p], torch.Tensor)}
    if (
        extents != {output.shape[axis] for output, axis in zip(complete, slicing.outputs, strict=True)}
        or len(extents) > 1
    ):
        return False
    extent = extents.pop()
    order = torch.randperm(extent, generator=generator(torch.device("cpu"), _PROBE_SEED))
    rows = order[: max(extent // 2, 1)].sort().values
    part = reference.run_double(sliced(inputs, slicing, rows.to(reference.device)))
    for output, partial, axis in zip(complete, part, slicing.outputs, strict=True):
        expected = output.index_select(axis, rows.to(output.device))
        if partial.shape != expected.shape or partial.dtype != expected.dtype:
            return False
        if not torch.allclose(partial.double(), expected.double(), rtol=_AGREE, atol=_AGREE, equal_nan=True):
            return False
    return True


def _sorted(rows: torch.Tensor) -> torch.Tensor:
    """Ascending, each once."""
    return torch.from_numpy(np.unique(rows.numpy()))


def sliced(inputs: tuple[Value, ...], slicing: Slicing, rows: torch.Tensor) -> tuple[Value, ...]:
    """Inputs with some of their slices, the others whole."""
    return tuple(
        value.index_select(slicing.inputs[position], rows.to(value.device))
        if isinstance(value, torch.Tensor) and position in slicing.inputs
        else value
        for position, value in enumerate(inputs)
    )


def _rows_of(indices: torch.Tensor, shape: tuple[int, ...], axis: int) -> torch.Tensor:
    """The place of flat indices along an axis."""
    below = 1
    for extent in shape[axis + 1 :]:
        below *= extent
    return indices // below % shape[axis]


def _compared(
    slicing: Slicing | None,
    shapes: Sequence[tuple[int, ...]],
    rows: torch.Tensor | None,
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
                if rows is not None and slicing is not None:
                    data = data.index_select(slicing.outputs[position], rows.cpu())
                value.copy_(data)
                count += data.numel()
            else:
                indices, keep = elements.indices, torch.ones(len(elements.indices), dtype=torch.bool)
                if rows is not None and slicing is not None:
                    indices, keep = _within(elements.indices, shapes[position], slicing.outputs[position], rows.cpu())
                value.view(-1)[indices.to(value.device)] = data[keep].to(value.device)
                count += len(indices)
        values.append(Got.of(value))
    comparison = compare_outputs(outputs, values, selections, hidden=True)
    return comparison.model_copy(update={"total": max(count, comparison.mismatched)})


def _within(
    indices: torch.Tensor, shape: tuple[int, ...], axis: int, rows: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Flat indices of the elements among the slices, and which of the elements are in one."""
    row_of = torch.full((shape[axis],), -1, dtype=torch.int64)
    row_of[rows] = torch.arange(len(rows))
    below = 1
    for extent in shape[axis + 1 :]:
        below *= extent
    row = row_of[indices // below % shape[axis]]
    keep = row >= 0
    kept = indices[keep]
    above, inner = kept // (below * shape[axis]), kept % below
    return (above * len(rows) + row[keep]) * below + inner, keep


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
