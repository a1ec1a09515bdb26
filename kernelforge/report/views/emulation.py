"""The data of a report on a user's own kernel that ran on the emulated device."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from kernelforge.emulation import Emulation
from kernelforge.records import Build, Performance, Profile
from kernelforge.report.views import View

if TYPE_CHECKING:
    import numpy.typing as npt

FIRST = 6
"""Elements of a tensor that a report shows."""


class TensorRow(View):
    """A tensor after the run."""

    name: str
    dtype: str
    """Of NumPy; bfloat16 is shown as float32."""
    shape: tuple[int, ...]
    minimum: float | None
    """Over the finite elements; None without one."""
    maximum: float | None
    mean: float | None
    not_finite: int
    """Number of elements that are NaN or infinite."""
    first: tuple[float, ...]
    """The first elements in C order."""


class LineRow(View):
    """Work of one source line; its fields are those of :class:`~kernelforge.emulation.LineCount`."""

    line: int
    text: str
    warp_instructions: float
    share: float
    """Of the warp instructions of all lines."""
    sectors: float
    excess_sectors: float
    wavefronts: float
    excess_wavefronts: float
    machine_instructions: float | None = None


class OpcodeRow(View):
    """Estimated executions of one opcode of a kernel's machine code."""

    kernel: str
    opcode: str
    warp_instructions: int
    share: float
    """Of the kernel's machine instructions."""


class EmulationView(View):
    """One run of a user's kernel."""

    device: str
    ok: bool
    findings: tuple[str, ...]
    """Errors of the compiler, or what the checks reported."""
    build: Build
    tensors: tuple[TensorRow, ...]
    profile: Profile | None
    performance: Performance | None
    opcodes: tuple[OpcodeRow, ...]
    """Of the machine code of every kernel; empty without an estimate."""
    lines: tuple[LineRow, ...]


def emulation_view(result: Emulation) -> EmulationView:
    """The report of a run."""
    total = sum(line.warp_instructions for line in result.lines) or 1.0
    return EmulationView.of(
        result,
        findings=tuple(result.problem.split("\n")) if result.problem else (),
        tensors=tuple(_tensor_row(name, values) for name, values in result.tensors.items()),
        opcodes=tuple(_opcode_rows(result.profile)),
        lines=tuple(LineRow.of(line, share=line.warp_instructions / total) for line in result.lines),
    )


def _opcode_rows(profile: Profile | None) -> Iterator[OpcodeRow]:
    for kernel in profile.kernels if profile else ():
        if kernel.sass is not None:
            total = kernel.sass.warp_instructions or 1
            for row in kernel.sass.opcodes:
                yield OpcodeRow.of(row, kernel=kernel.kernel, share=row.warp_instructions / total)


def _tensor_row(name: str, values: npt.NDArray[Any]) -> TensorRow:
    import numpy as np

    numbers = values.astype(np.float64).ravel()
    finite = numbers[np.isfinite(numbers)]
    return TensorRow(
        name=name,
        dtype=str(values.dtype),
        shape=values.shape,
        minimum=float(finite.min()) if finite.size else None,
        maximum=float(finite.max()) if finite.size else None,
        mean=float(finite.mean()) if finite.size else None,
        not_finite=int(numbers.size - finite.size),
        first=tuple(numbers[:FIRST].tolist()),
    )
