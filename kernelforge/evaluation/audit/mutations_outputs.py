"""Mutations of how outputs are written, and of how inputs and weights are read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch

from kernelforge.evaluation.audit.injection import MutationNotApplicable
from kernelforge.evaluation.audit.mutants import (
    InputChange,
    OutputChange,
    WeightChange,
    input_fault,
    output_fault,
    weight_fault,
)

_BLOCK = 256
"""Threads of the usual block."""

Outputs = Sequence[torch.Tensor]


def _written(outputs: Outputs, position: int, start: int, stop: int, other: torch.Tensor) -> torch.Tensor:
    """One output with the elements from ``start`` to ``stop`` taken from ``other``."""
    flat = outputs[position].reshape(-1).clone()
    if not 0 <= start < stop <= flat.numel():
        raise MutationNotApplicable("no such elements")
    flat[start:stop] = other.reshape(-1)[start:stop]
    return flat.reshape(outputs[position].shape)


def _stale_values(outputs: Outputs, stale: Outputs, position: int, how: str) -> torch.Tensor:
    """Values of memory that was not written: zeros, or an earlier answer."""
    return torch.zeros_like(outputs[position]) if how == "zeros" else stale[position]


def _tail(multiple: int, how: str, outputs: Outputs, stale: Outputs, position: int) -> torch.Tensor:
    count = outputs[position].numel()
    return _written(outputs, position, count - count % multiple, count, _stale_values(outputs, stale, position, how))


@output_fault("tail", "the grid covers whole blocks (or whole vectors) only, so the last elements are never written")
def tail(outputs: Outputs, position: int) -> Iterator[tuple[str, OutputChange]]:
    for multiple, how in ((4, "stale"), (32, "zeros"), (_BLOCK, "stale")):
        yield f"{multiple}-{how}", partial(_tail, multiple, how)


@output_fault("last-element", "an off-by-one bound: the very last element is not written")
def last_element(outputs: Outputs, position: int) -> Iterator[tuple[str, OutputChange]]:
    def change(outputs: Outputs, stale: Outputs, position: int) -> torch.Tensor:
        count = outputs[position].numel()
        return _written(outputs, position, count - 1, count, stale[position])

    yield "stale", change


def _block(how: str, outputs: Outputs, stale: Outputs, position: int) -> torch.Tensor:
    count = outputs[position].numel()
    if count < 2 * _BLOCK:
        raise MutationNotApplicable("fewer than two blocks")
    start = count // 2 // _BLOCK * _BLOCK
    return _written(outputs, position, start, start + _BLOCK, _stale_values(outputs, stale, position, how))


@output_fault("block", "one thread block leaves early, so that 256 elements in the middle are not written")
def block(outputs: Outputs, position: int) -> Iterator[tuple[str, OutputChange]]:
    for how in ("zeros", "stale"):
        yield how, partial(_block, how)


@output_fault("stale", "nothing is written: the answer to an earlier call is still there")
def stale_output(outputs: Outputs, position: int) -> Iterator[tuple[str, OutputChange]]:
    yield "", lambda outputs, stale, position: stale[position]


def _row(shift: int | None, outputs: Outputs, stale: Outputs, position: int) -> torch.Tensor:
    result = outputs[position].clone()
    if result.dim() < 2 or result.shape[0] < 2 or result.numel() == 0:
        raise MutationNotApplicable("there is one row")
    row = result.shape[0] // 2
    result[row] = stale[position][row] if shift is None else outputs[position][row + shift]
    return result


@output_fault("row", "a row index goes wrong: one row is not written, or has its neighbour's values")
def row(outputs: Outputs, position: int) -> Iterator[tuple[str, OutputChange]]:
    if outputs[position].dim() >= 2:
        yield "stale", partial(_row, None)
        yield "neighbour", partial(_row, -1)


def _column_major(value: torch.Tensor) -> torch.Tensor:
    if value.dim() < 2 or min(value.shape[-2:]) < 2:
        raise MutationNotApplicable("nothing to transpose")
    return value.transpose(-1, -2).reshape(value.shape)


@output_fault("column-major", "the two last axes change places in an index, so elements lie where others belong")
def column_major_output(outputs: Outputs, position: int) -> Iterator[tuple[str, OutputChange]]:
    if outputs[position].dim() >= 2:
        yield "", lambda outputs, stale, position: _column_major(outputs[position])


@output_fault("one-of-several", "of several outputs one is forgotten, or two change places")
def one_of_several(outputs: Outputs, position: int) -> Iterator[tuple[str, OutputChange]]:
    if len(outputs) == 1:
        return
    yield "zeros", lambda outputs, stale, position: torch.zeros_like(outputs[position])
    for other, value in enumerate(outputs):
        output = outputs[position]
        if other > position and value.shape == output.shape and value.dtype == output.dtype:
            yield f"is-{other}", partial(_other_output, other)


def _other_output(other: int, outputs: Outputs, stale: Outputs, position: int) -> torch.Tensor:
    return outputs[other]


_OTHER_DTYPE = {
    torch.float32: torch.float16,
    torch.float64: torch.float32,
    torch.float16: torch.float32,
    torch.bfloat16: torch.float32,
    torch.int64: torch.int32,
    torch.int32: torch.int64,
    torch.bool: torch.uint8,
    torch.uint8: torch.int32,
    torch.int8: torch.int32,
}


@output_fault("dtype", "the output has the dtype of an intermediate value")
def dtype(outputs: Outputs, position: int) -> Iterator[tuple[str, OutputChange]]:
    other = _OTHER_DTYPE.get(outputs[position].dtype)
    if other is not None:
        yield str(other).removeprefix("torch."), lambda outputs, stale, position: outputs[position].to(other)


_NARROWER = {torch.float64: (torch.float32,), torch.float32: (torch.float16, torch.bfloat16)}


@output_fault("narrow-store", "results pass through a narrower type on their way out")
def narrow_store(outputs: Outputs, position: int) -> Iterator[tuple[str, OutputChange]]:
    for narrow in _NARROWER.get(outputs[position].dtype, ()):
        yield str(narrow).removeprefix("torch."), partial(_stored_as, narrow)


def _stored_as(narrow: torch.dtype, outputs: Outputs, stale: Outputs, position: int) -> torch.Tensor:
    return outputs[position].to(narrow).to(outputs[position].dtype)


@output_fault("off-by-one", "integer results are one too large, all of them or one")
def off_by_one(outputs: Outputs, position: int) -> Iterator[tuple[str, OutputChange]]:
    if outputs[position].dtype == torch.bool:
        yield "inverted", lambda outputs, stale, position: ~outputs[position]
    elif not outputs[position].is_floating_point():
        yield "all", lambda outputs, stale, position: outputs[position] + 1
        yield "one", _one_more


def _one_more(outputs: Outputs, stale: Outputs, position: int) -> torch.Tensor:
    count = outputs[position].numel()
    return _written(outputs, position, count // 2, count // 2 + 1, outputs[position] + 1)


def _first_row(value: torch.Tensor) -> torch.Tensor:
    if value.dim() == 0 or value.shape[0] < 2:
        raise MutationNotApplicable("there is one row")
    return value[:1].expand_as(value).clone()


def _reads(value: torch.Tensor) -> Iterator[tuple[str, Callable[[torch.Tensor], torch.Tensor]]]:
    if value.dim() >= 1:
        yield "first-row", _first_row
    if value.dim() >= 2:
        yield "column-major", _column_major


@input_fault("misread-input", "an index into an input lacks the batch's offset, or has two axes the wrong way round")
def misread_input(value: torch.Tensor) -> Iterator[tuple[str, InputChange]]:
    yield from _reads(value)


@input_fault("ignored-input", "an input is never read")
def ignored_input(value: torch.Tensor) -> Iterator[tuple[str, InputChange]]:
    yield "zeros", torch.zeros_like


@weight_fault("misread-weight", "an index into a weight lacks the row's offset, or has two axes the wrong way round")
def misread_weight(name: str, weight: torch.Tensor) -> Iterator[tuple[str, WeightChange]]:
    for detail, read in _reads(weight):
        yield detail, partial(_changed_weight, read)
    if weight.dim() >= 3:
        yield "flipped", partial(_changed_weight, _flipped)


def _flipped(value: torch.Tensor) -> torch.Tensor:
    if value.shape[-1] < 2:
        raise MutationNotApplicable("the filter has one tap")
    return value.flip(-1)


def _changed_weight(
    read: Callable[[torch.Tensor], torch.Tensor], weight: torch.Tensor, constructed: torch.Tensor
) -> torch.Tensor:
    return read(weight)


@weight_fault("dropped-weight", "a bias or a norm's weight is left out, as if it were 0 or 1")
def dropped_weight(name: str, weight: torch.Tensor) -> Iterator[tuple[str, WeightChange]]:
    if "bias" in name.rpartition(".")[2]:
        yield "zeros", partial(_changed_weight, torch.zeros_like)
    elif weight.dim() <= 1 and weight.is_floating_point():
        yield "ones", partial(_changed_weight, torch.ones_like)


@weight_fault("initial-weight", "a weight is taken as it is right after construction, not as it is given")
def initial_weight(name: str, weight: torch.Tensor) -> Iterator[tuple[str, WeightChange]]:
    if weight.is_floating_point():
        yield "", lambda weight, constructed: constructed
