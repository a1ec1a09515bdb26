"""Answers that need no computation, which every task and input family has to tell from right ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from kernelforge.evaluation.oracle.worker.comparison import Got
from kernelforge.evaluation.oracle.worker.reference import Value
from kernelforge.evaluation.oracle.worker.tolerance import Expected


def trivial_answers(
    inputs: Sequence[Value], expected: Sequence[Expected], earlier: Sequence[torch.Tensor]
) -> Iterator[tuple[str, list[Got]]]:
    """Name and outputs of each trivial answer to one draw, for all outputs together.

    Args:
        inputs: the draw's inputs.
        expected: what its outputs must be.
        earlier: torch's outputs on another draw of the same family.
    """
    yield from blind_answers(expected, earlier)
    outputs = [output.reference for output in expected]
    if all(output.numel() == 0 for output in outputs):
        return
    for position, value in enumerate(inputs):
        if isinstance(value, torch.Tensor) and all(
            value.numel() == output.numel() and value.dtype == output.dtype for output in outputs
        ):
            yield f"input {position} returned", [Got.of(value.reshape(output.shape)) for output in outputs]


def blind_answers(expected: Sequence[Expected], earlier: Sequence[torch.Tensor]) -> Iterator[tuple[str, list[Got]]]:
    """Trivial answers that do not look at the inputs. Where one passes, the outputs are saturated."""
    outputs = [output.reference for output in expected]
    if all(output.numel() == 0 for output in outputs):
        return
    yield "zeros", [Got.of(torch.zeros_like(output)) for output in outputs]
    constants = [
        torch.full_like(output, _typical(earlier_output))
        for output, earlier_output in zip(outputs, earlier, strict=True)
    ]
    yield "a constant", [Got.of(constant) for constant in constants]
    if all(output.dim() > 1 and output.shape[0] > 1 for output in outputs):
        yield "one batch row repeated", [Got.of(output[:1].expand_as(output)) for output in outputs]
    yield "the previous draw's answer", [Got.of(output) for output in earlier]


def _typical(output: torch.Tensor) -> float:
    """The middle value: for integers the median, else the mean of the finite values."""
    if output.dtype == torch.bool:
        return float(output.double().mean().round())
    if not output.is_floating_point():
        return float(output.double().median().round())
    finite = output[torch.isfinite(output)]
    return float(finite.double().mean()) if finite.numel() else 0.0
