"""A launch plan resolved at one size: a flat list of buffers and steps that any device can run."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal

from pydantic import TypeAdapter

from kernelforge.records.task import DType


@dataclass(frozen=True, slots=True)
class Buffer:
    """One allocation. Inputs and weights are filled by the harness; workspace and outputs are poisoned."""

    id: int
    kind: Literal["input", "weight", "prepared", "workspace"]
    """``prepared``: returned by ``setup``. Filled once, kept between executions, never written by ``forward``."""
    nbytes: int
    label: str
    """Name in errors: ``x`` (the parameter's name), ``w['fc.weight']``, ``out`` (its first variable)."""
    source: int | str | None = None
    """Input: position in ``forward``. Weight: its name. Others: None."""

    @property
    def provided(self) -> bool:
        """Whether the harness fills it: an input or a weight."""
        return self.kind in ("input", "weight")


@dataclass(frozen=True, slots=True)
class TensorArg:
    """A pointer argument."""

    buffer: int
    offset_bytes: int
    dtype: DType


@dataclass(frozen=True, slots=True)
class ScalarArg:
    """A value argument; the type is one of ``i32 i64 f32 f64 f16 bf16``."""

    type: Literal["i32", "i64", "f32", "f64", "f16", "bf16"]
    value: int | float


@dataclass(frozen=True, slots=True)
class TensorMapArg:
    """A tiled tensor map (TMA descriptor) over a contiguous tensor, passed by value."""

    buffer: int
    offset_bytes: int
    dtype: DType
    shape: tuple[int, ...]
    """Outermost first, as in the plan."""
    box: tuple[int, ...]
    """Extents of the tile that one copy moves, outermost first."""
    swizzle_bytes: int = 0
    """0, 32, 64 or 128."""


@dataclass(frozen=True, slots=True)
class TensorView:
    """A contiguous tensor within a buffer, or an input or weight with its strides, for a ``library`` call."""

    buffer: int
    offset_bytes: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    """In elements."""
    dtype: DType


LibraryValue = TensorView | int | float | bool | str | None | tuple[int, ...]
"""An argument of a ``library`` call."""


@dataclass(frozen=True, slots=True)
class Library:
    """One timed call of a torch operator by the harness. Its result is put into ``out``."""

    operator: str
    """``torch`` or ``torch.nn.functional`` function by its name: ``matmul``, ``conv2d``."""
    args: tuple[LibraryValue, ...]
    kwargs: dict[str, LibraryValue] = field(hash=False)
    out: tuple[TensorView, ...]
    """One per tensor that the operator returns."""
    line: int


@dataclass(frozen=True, slots=True)
class Launch:
    """One kernel launch. ``expression`` is the plan's name of the kernel: ``f`` or ``f<float, 256>``."""

    expression: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    dynamic_shared_bytes: int
    args: tuple[TensorArg | ScalarArg | TensorMapArg, ...]
    line: int
    """1-based line in the plan."""
    cluster: tuple[int, int, int] | None = None
    cooperative: bool = False


@dataclass(frozen=True, slots=True)
class Fill:
    """A timed memset to zero, from ``zeros``."""

    buffer: int
    offset_bytes: int
    nbytes: int
    line: int


@dataclass(frozen=True, slots=True)
class Output:
    """One tensor that ``forward`` returned: contiguous, inside a workspace buffer."""

    buffer: int
    offset_bytes: int
    shape: tuple[int, ...]
    dtype: DType

    @property
    def nbytes(self) -> int:
        count = self.dtype.itemsize
        for extent in self.shape:
            count *= extent
        return count


Step = Launch | Fill | Library


@dataclass(frozen=True, slots=True)
class ResolvedPlan:
    """Buffers by id, steps in order, outputs as returned; serial semantics."""

    buffers: tuple[Buffer, ...]
    steps: tuple[Step, ...]
    outputs: tuple[Output, ...]
    constants: dict[str, int] = field(default_factory=dict)
    """``constexpr int`` values of the source: tune choices and the plan's top-level integers."""
    setup: tuple[Step, ...] = ()
    """Steps of ``setup``: run once per set of weights, timed separately. They write ``prepared`` and workspace."""

    @property
    def launches(self) -> tuple[Launch, ...]:
        """Launches of ``forward``."""
        return tuple(step for step in self.steps if isinstance(step, Launch))

    @property
    def expressions(self) -> tuple[str, ...]:
        """Kernels launched, each once, in order of first launch; those of ``setup`` first."""
        both = (*self.setup, *self.steps)
        return tuple(dict.fromkeys(step.expression for step in both if isinstance(step, Launch)))

    @property
    def libraries(self) -> tuple[Library, ...]:
        """Calls of torch operators, those of ``setup`` first."""
        return tuple(step for step in (*self.setup, *self.steps) if isinstance(step, Library))

    def to_wire(self) -> dict[str, Any]:
        """Plain JSON for the runner's channel."""
        wire: dict[str, Any] = _wire_format().dump_python(self, mode="json")
        return wire

    @classmethod
    def from_wire(cls, wire: dict[str, Any]) -> ResolvedPlan:
        """Inverse of :meth:`to_wire`."""
        return _wire_format().validate_python(wire)


@cache
def _wire_format() -> TypeAdapter[ResolvedPlan]:
    return TypeAdapter(ResolvedPlan)
