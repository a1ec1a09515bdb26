"""Replies of a runner's child, validated as hostile input; the same for every device."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Literal, get_args

from kernelforge.devices.base import OutputPart, PartResult, RunFailure, RunRequest
from kernelforge.errors import SandboxError
from kernelforge.sandbox import Frame
from kernelforge.sandbox.shared_memory import Blob

FaultKind = Literal["sanitizer", "timeout", "crash", "memory", "unsupported"]
MAX_MESSAGE = 4000
_SPARE_BYTES = 64 << 20


def check_tensors(request: RunRequest) -> None:
    """Whether a request brings what its plan takes.

    Raises:
        ValueError: a tensor is missing or has another size.
    """
    for buffer in request.plan.buffers:
        if buffer.given and len(request.tensors.get(buffer.id, b"")) != buffer.nbytes:
            raise ValueError(f"buffer {buffer.label!r} takes {buffer.nbytes} bytes; the request has others")


def faults_in(reply: Frame) -> tuple[RunFailure, ...]:
    """The faults that a reply tells of.

    Raises:
        SandboxError: they cannot be read.
    """
    raw = reply.data.get("faults")
    try:
        told = [(kind, message, line[0] if line else None) for kind, message, *line in raw or []]
    except (TypeError, ValueError) as error:
        raise SandboxError("the runner sent faults that cannot be read") from error
    for kind, message, line in told:
        if kind not in get_args(FaultKind) or not isinstance(message, str):
            raise SandboxError("the runner sent a fault of an unknown kind")
        if line is not None and (isinstance(line, bool) or not isinstance(line, int)):
            raise SandboxError("the runner sent a fault in no line of the PTX")
    return tuple(RunFailure(kind, message[:MAX_MESSAGE], line) for kind, message, line in told)


def reply_bytes(request: RunRequest) -> int:
    """Blobs of the largest reply that is worth reading: what is larger is kept in this process before it is refused."""
    return _SPARE_BYTES + sum(_expected(request))


def _expected(request: RunRequest) -> list[int]:
    sizes = {buffer.id: buffer.nbytes for buffer in request.plan.buffers}
    return [output.nbytes for output in request.plan.outputs] + [sizes[b] for b in sorted(request.mutable)]


def check_outputs(request: RunRequest, outputs: Sequence[Blob]) -> None:
    """Whether outputs, and mutated inputs after them, have the plan's lengths.

    Raises:
        SandboxError: they do not.
    """
    if [len(blob) for blob in outputs] != _expected(request):
        raise SandboxError("the runner sent outputs of other lengths than the plan's")


def part_in(request: RunRequest, reply: Frame) -> PartResult:
    """What a run of some blocks gave.

    Raises:
        SandboxError: it cannot be read.
    """
    reason, unwritten, blobs = reply.data.get("reason"), reply.data.get("unwritten"), reply.blobs
    if not isinstance(reason, str) or not isinstance(unwritten, list) or len(blobs) != 2 * len(unwritten):
        raise SandboxError("the runner sent a part of a run that cannot be read")
    outputs = request.plan.outputs if unwritten else ()
    if len(unwritten) != len(outputs) or not all(isinstance(n, int) and n >= 0 for n in unwritten):
        raise SandboxError("the runner sent parts of other outputs than the plan's")
    parts = tuple(map(OutputPart, blobs[::2], blobs[1::2], unwritten))
    for output, part in zip(outputs, parts, strict=True):
        if len(part.elements) % 8 or len(part.data) != len(part.elements) // 8 * output.dtype.itemsize:
            raise SandboxError("the runner sent elements of an output of another length than their indices")
    return PartResult(parts, reason[:MAX_MESSAGE], faults_in(reply), count_in(reply, "thread_instructions"))


def count_in(reply: Frame, name: str) -> int | None:
    """A count; None where it says none."""
    value = reply.data.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 63 else None


def seconds_in(reply: Frame) -> float:
    """Wall time inside the runner; 0 where it says none."""
    value = reply.data.get("seconds")
    return float(value) if isinstance(value, int | float) and 0 <= value < 1e9 else 0.0


def time_in(value: object) -> float:
    """One time in µs.

    Raises:
        SandboxError: it is none.
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= sys.float_info.max:
        raise SandboxError(f"the runner sent {value!r:.40} for a time")
    return float(value)
