"""The process that calls torch operators for plans on the emulated device: on the CPU, in a confined child."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from kernelforge.candidate.resolved import Library, TensorView, step_from_wire
from kernelforge.devices.base import RunFailure
from kernelforge.devices.library_calls import LibraryCallFailed, call
from kernelforge.errors import ChildDied
from kernelforge.sandbox.channel import Channel
from kernelforge.sandbox.shared_memory import Blob

if TYPE_CHECKING:
    import torch

_LACKS = "not implemented for"
"""Torch's words for an operator that has no code for a dtype on the CPU, where a GPU may have some."""
_NO_MEMORY = "can't allocate memory"


def call_on_cpu(step: Library, operands: Sequence[Blob]) -> tuple[bytes, ...]:
    """The bytes of a call's results, from those of its operands.

    Raises:
        LibraryCallFailed: torch refuses the call, its results differ from the plan's, or it changes an operand.
    """
    import numpy as np
    import torch

    memory: dict[TensorView, torch.Tensor] = {}
    for view, content in zip(step.operands, operands, strict=True):
        memory[view] = torch.empty(view.span_bytes, dtype=torch.uint8)
        memory[view].numpy()[:] = np.frombuffer(content, np.uint8)
    for view in step.out:
        memory[view] = torch.empty(view.span_bytes, dtype=torch.uint8)
    tensors = {view: _tensor(flat, view) for view, flat in memory.items()}
    versions = {view: tensors[view]._version for view in step.operands}
    try:
        call(step, tensors.__getitem__)
    except LibraryCallFailed as error:
        raise LibraryCallFailed(RunFailure(_kind(error), error.fault.message)) from error
    for position, view in enumerate(step.operands, start=1):
        if tensors[view]._version != versions[view]:
            text = f"library({step.operator!r}) in plan line {step.line}: it changes its tensor argument {position}"
            raise LibraryCallFailed(RunFailure("crash", f"{text}; take a function that returns its result"))
    return tuple(memory[view].numpy().tobytes() for view in step.out)


def _tensor(flat: torch.Tensor, view: TensorView) -> torch.Tensor:
    import torch

    return flat.view(getattr(torch, view.dtype.value)).as_strided(view.shape, view.stride)


def _kind(error: LibraryCallFailed) -> Any:
    """The kind of a fault, where the CPU and not the plan may be to blame."""
    cause = error.__cause__
    if isinstance(cause, NotImplementedError) or _LACKS in str(cause):
        return "unsupported"
    return "memory" if _NO_MEMORY in str(cause) else error.fault.kind


def warm_up(options: dict[str, Any]) -> None:
    """Import torch, before children are forked."""
    import torch

    torch.set_num_threads(1)


def serve(channel: Channel) -> None:
    """Answer calls, each with its results or its fault, until the parent disconnects."""
    while True:
        try:
            frame = channel.receive()
        except ChildDied:
            return
        step = step_from_wire(frame.data["step"])
        assert isinstance(step, Library)
        try:
            results = call_on_cpu(step, frame.blobs)
        except LibraryCallFailed as error:
            channel.send({"faults": [[error.fault.kind, error.fault.message, None]]})
        else:
            channel.send({"faults": []}, results)
