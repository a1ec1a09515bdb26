"""Data that a parent and its runner exchange, the same for every device. Replies are validated as hostile input."""

from __future__ import annotations

import struct
import sys
from collections.abc import Sequence
from typing import get_args

from kernelforge.candidate.resolved import ScalarArg
from kernelforge.compile.cache import Artifact
from kernelforge.devices.base import FaultKind, OutputPart, PartResult, RunFailure, RunRequest
from kernelforge.errors import SandboxError
from kernelforge.sandbox import Frame
from kernelforge.sandbox.shared_memory import Blob

MAX_MESSAGE = 4000
_SPARE_BYTES = 64 << 20


def check_tensors(request: RunRequest) -> None:
    """Check that a request holds the tensors that its plan takes.

    Raises:
        ValueError: a tensor is missing or has another size.
    """
    for buffer in request.plan.buffers:
        if buffer.provided and tensor_bytes(request, buffer.id) != buffer.nbytes:
            raise ValueError(f"buffer {buffer.label!r} takes {buffer.nbytes} bytes; the request has others")


def tensor_bytes(request: RunRequest, buffer: int) -> int:
    """Size of the tensor in a request that fills a buffer."""
    return request.tiled.get(buffer) or len(request.tensors.get(buffer, b""))


def read_faults(reply: Frame) -> tuple[RunFailure, ...]:
    """The faults in a reply.

    Raises:
        SandboxError: they cannot be read.
    """
    raw = reply.data.get("faults")
    try:
        entries = [(kind, message, line[0] if line else None) for kind, message, *line in raw or []]
    except (TypeError, ValueError) as error:
        raise SandboxError("the runner sent faults that cannot be read") from error
    for kind, message, line in entries:
        if kind not in get_args(FaultKind) or not isinstance(message, str):
            raise SandboxError("the runner sent a fault of an unknown kind")
        if line is not None and (isinstance(line, bool) or not isinstance(line, int)):
            raise SandboxError("the runner sent a fault in no line of the PTX")
    return tuple(RunFailure(kind, message[:MAX_MESSAGE], line) for kind, message, line in entries)


def reply_bytes(request: RunRequest) -> int:
    """Largest sum of blobs that a reply may have: this process holds them before it refuses them."""
    return _SPARE_BYTES + sum(_output_bytes(request))


def _output_bytes(request: RunRequest) -> list[int]:
    sizes = {buffer.id: buffer.nbytes for buffer in request.plan.buffers}
    return [output.nbytes for output in request.plan.outputs] + [sizes[b] for b in sorted(request.mutable)]


def check_outputs(request: RunRequest, outputs: Sequence[Blob]) -> None:
    """Check the lengths of outputs, and of the mutated inputs after them.

    Raises:
        SandboxError: one differs from the plan's.
    """
    if [len(blob) for blob in outputs] != _output_bytes(request):
        raise SandboxError("the runner sent outputs of other lengths than the plan's")


def read_part(request: RunRequest, reply: Frame) -> PartResult:
    """The result of a run of some blocks.

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
    return PartResult(parts, reason[:MAX_MESSAGE], read_faults(reply), read_count(reply, "thread_instructions"))


def read_count(reply: Frame, name: str) -> int | None:
    """A count in a reply; None if it is missing or malformed."""
    value = reply.data.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 63 else None


def read_seconds(reply: Frame) -> float:
    """Wall time inside the runner; 0 if it is missing or malformed."""
    value = reply.data.get("seconds")
    return float(value) if isinstance(value, int | float) and 0 <= value < 1e9 else 0.0


def read_time(value: object) -> float:
    """One time in µs.

    Raises:
        SandboxError: it is not a finite, non-negative number.
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= sys.float_info.max:
        raise SandboxError(f"the runner sent {value!r:.40} for a time")
    return float(value)


def kernel_limits(artifact: Artifact) -> dict[str, tuple[str, int, int, int | None]]:
    """Fields of :class:`~kernelforge.devices.cuda.worker.launch_binding.KernelLimits` of each kernel, by expression."""
    return {
        kernel.expression: (
            kernel.symbol,
            kernel.registers_per_thread,
            kernel.static_shared_bytes,
            kernel.max_threads_per_block,
        )
        for kernel in artifact.build.kernels
    }


def pack_scalar(arg: ScalarArg) -> bytes:
    """Bytes of a scalar as the kernel's parameter block holds it; integers wrap, as a cast in C++ does."""
    import numpy as np

    if arg.type in ("i32", "i64"):
        size = 4 if arg.type == "i32" else 8
        return (int(arg.value) & ((1 << 8 * size) - 1)).to_bytes(size, "little")
    if arg.type == "bf16":
        return struct.pack("<H", _bfloat16(float(arg.value)))
    if arg.type == "f16":
        with np.errstate(over="ignore"):
            return np.float16(arg.value).tobytes()
    if arg.type == "f32":
        with np.errstate(over="ignore"):
            return np.float32(arg.value).tobytes()
    return struct.pack("<d", float(arg.value))


def _bfloat16(value: float) -> int:
    """Bits of the nearest bfloat16, ties to even."""
    import numpy as np

    with np.errstate(over="ignore"):
        bits = int(np.float32(value).view(np.uint32))
    if bits & 0x7FFFFFFF > 0x7F800000:  # NaN stays one
        return bits >> 16 | 0x40
    return (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
