"""What came back from a candidate's process, before the oracle sees it."""

from __future__ import annotations

from collections.abc import Sequence

from kernelforge.evaluate.oracle import Draw
from kernelforge.modelnew.client import LaneOutput
from kernelforge.records import DType, SizeFacts, TensorSpec
from kernelforge.sandbox.memory import Blob, same_bytes


def unchanged(draw: Draw, got: LaneOutput, facts: SizeFacts, mutates: Sequence[int]) -> str:
    """Why an input counts as changed; empty where every input that the task does not mutate came back as it was."""
    for position, sent in draw.tensors.items():
        if position in mutates:
            continue
        back = got.inputs.get(position)
        if back is None or not same_bytes(back, sent):
            return (
                f"input {position} was changed: the reference leaves its inputs as they are, "
                "and so must a candidate (write to a new tensor)"
            )
    return ""


def with_mutated(
    got: LaneOutput, facts: SizeFacts, mutates: Sequence[int]
) -> tuple[list[Blob], list[tuple[int, ...]], list[DType]]:
    """Outputs, shapes and dtypes as the oracle compares them: then the inputs that the task changes in place."""
    outputs, shapes, dtypes = list(got.outputs), list(got.shapes), list(got.dtypes)
    for position in mutates:
        spec = facts.inputs[position]
        if isinstance(spec, TensorSpec):
            outputs.append(got.inputs.get(position, b""))
            shapes.append(spec.shape)
            dtypes.append(spec.dtype)
    return outputs, shapes, dtypes
