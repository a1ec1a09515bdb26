"""State of one plan resolution: limits, cost so far, allocations, steps in order."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, NoReturn

from kernelforge.candidate.plan_language.values import (
    INT_BOUND,
    Fault,
    Named,
    Storage,
    Tensor,
    TensorMap,
    bytes_text,
    kind_of,
    show,
)
from kernelforge.candidate.resolved import ScalarArg, Specialisation
from kernelforge.records.task import DType, TensorSpec


@dataclass(frozen=True, slots=True)
class PlanLimits:
    """Bounds on one resolution of a plan. The defaults suit whole networks on one H100-class GPU.

    The limits of grid, block and cluster are those of CUDA for compute capability 9.0 (CUDA C++ Programming Guide,
    "Technical Specifications per Compute Capability").
    """

    steps: int = 400_000
    """Expression nodes and statements evaluated, of the top level, ``setup`` and ``forward``; long sequences cost
    extra."""
    launches: int = 20_000
    """Kernel launches, memsets and library calls together, of ``setup`` and ``forward``."""
    workspace_bytes: int = 64 << 30
    """All buffers that the plan allocates together, after reuse: workspace, outputs, prepared tensors."""
    sequence_length: int = 65_536
    """Elements of one tuple, list or range."""
    string_length: int = 1_000
    """Characters of one string."""
    grid: tuple[int, int, int] = (2**31 - 1, 65_535, 65_535)
    block: tuple[int, int, int] = (1_024, 1_024, 64)
    threads_per_block: int = 1_024
    dynamic_shared_bytes: int = 232_448
    cluster_blocks: int = 8
    """The portable cluster size; 16 needs an opt-in that not every device of the architecture supports."""
    parameter_bytes: int = 32_764
    """Size of one kernel's arguments."""


class PendingLaunch(NamedTuple):
    """A launch whose buffers have no ids yet."""

    expression: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    dynamic_shared_bytes: int
    args: tuple[Tensor | TensorMap | ScalarArg, ...]
    line: int
    cluster: tuple[int, int, int] | None
    cooperative: bool
    specialisation: Specialisation | None = None


class PendingFill(NamedTuple):
    """A memset of a whole storage to zero."""

    storage: Storage
    line: int


class PendingLibrary(NamedTuple):
    """A call of a torch operator whose buffers have no ids yet."""

    operator: str
    args: tuple[LibraryArgument, ...]
    kwargs: dict[str, LibraryArgument]
    out: tuple[Tensor, ...]
    line: int

    @property
    def read(self) -> list[Tensor]:
        """Tensors among its arguments."""
        return [value for value in (*self.args, *self.kwargs.values()) if isinstance(value, Tensor)]


LibraryArgument = Tensor | int | float | bool | str | None | tuple[int, ...]
PendingStep = PendingLaunch | PendingFill | PendingLibrary


@dataclass
class Recording:
    """The steps of ``setup`` or ``forward`` in order, and its allocations."""

    steps: list[PendingStep] = field(default_factory=list)
    workspaces: list[Storage] = field(default_factory=list)


class Machine:
    """One resolution of a plan.

    Attributes:
        steps: Cost so far; :attr:`max_steps` bounds it.
        module: Values of the plan's top level, by slot.
        setup: Steps of ``setup``; empty without one.
        forward: Steps of ``forward``.
        prepared: Return value of ``setup``.
        library: Torch operators that the task allows.
    """

    def __init__(
        self,
        limits: PlanLimits,
        weights: Mapping[str, TensorSpec],
        attrs: Mapping[str, int | float | bool | str],
        library: frozenset[str] = frozenset(),
    ) -> None:
        self.limits = limits
        self.steps = 0
        self.max_steps = limits.steps
        self.module: list[Any] = []
        self.setup = Recording()
        self.forward = Recording()
        self.prepared: Any = None
        self.library = library
        self._recording: Recording | None = None
        self.line = 0
        """Line of the launch or allocation being made."""
        self.inputs: list[Storage] = []
        self.weights: dict[str, Tensor] = {}
        """Weights used so far, in order of first use."""
        self._weight_specs = weights
        self._attrs = attrs

    def spend(self, steps: int) -> None:
        self.steps += steps
        if self.steps > self.max_steps:
            self.exhausted()

    def exhausted(self) -> NoReturn:
        raise Fault(f"the plan takes more than {self.max_steps:,} steps; loops over elements belong into kernels")

    def check_length(self, length: int) -> None:
        if length > self.limits.sequence_length:
            raise Fault(f"a sequence of {length:,} items is too long; the limit is {self.limits.sequence_length:,}")

    def check_string(self, length: int) -> None:
        if length > self.limits.string_length:
            raise Fault(f"a string of {length:,} characters is too long; the limit is {self.limits.string_length:,}")

    def begin(self, routine: Literal["setup", "forward"]) -> None:
        """Record steps and allocations as those of ``routine`` from now on. The top level has neither."""
        self._recording = self.setup if routine == "setup" else self.forward

    def recording(self, what: str) -> Recording:
        """The recording of the routine that runs now."""
        if self._recording is None:
            raise Fault(f"{what} inside setup and forward only")
        return self._recording

    def add(self, step: PendingStep) -> None:
        """Append a step and mark the storages that it touches."""
        steps = self.recording("steps are taken").steps
        if len(self.setup.steps) + len(self.forward.steps) >= self.limits.launches:
            raise Fault(f"the plan makes more than {self.limits.launches:,} launches, memsets and library calls")
        index = len(steps)
        steps.append(step)
        if isinstance(step, PendingFill):
            step.storage.touch(index)
        elif isinstance(step, PendingLibrary):
            for tensor in (*step.read, *step.out):
                tensor.storage.touch(index)
        else:
            for arg in step.args:
                if isinstance(arg, TensorMap):
                    arg.tensor.storage.touch(index)
                elif isinstance(arg, Tensor):
                    arg.storage.touch(index)

    def take_input(self, value: TensorSpec | int | float | bool | None, name: str, position: int) -> Any:
        """The initial value of a parameter of ``forward``."""
        if isinstance(value, TensorSpec):
            storage = Storage("input", span_bytes(value), label=name, source=position)
            self.inputs.append(storage)
            return Tensor(storage, 0, value.shape, value.stride, value.dtype)
        if type(value) is int and abs(value) > INT_BOUND:
            raise Fault(f"the input {name} does not fit 64 bits")
        return value

    def look_up(self, named: Named, key: Any) -> Any:
        """``w[key]`` or ``attrs[key]``."""
        if type(key) is not str:
            raise Fault(f"{named.name}[...] takes a name such as {named.name}['fc.weight'], not {kind_of(key)}")
        if not self.has(named, key):
            raise Fault(f"{named.name} has no {show(key)}; it has {self._names(named)}")
        if named.name == "attrs":
            value = self._attrs[key]
            if type(value) is int and abs(value) > INT_BOUND:
                raise Fault(f"attrs[{show(key)}] does not fit 64 bits")
            return value
        if key not in self.weights:
            spec = self._weight_specs[key]
            storage = Storage("weight", span_bytes(spec), label=f"w[{key!r}]", source=key)
            self.weights[key] = Tensor(storage, 0, spec.shape, spec.stride, spec.dtype)
        return self.weights[key]

    def has(self, named: Named, key: Any) -> bool:
        """``key in w`` or ``key in attrs``."""
        return type(key) is str and key in (self._weight_specs if named.name == "w" else self._attrs)

    def _names(self, named: Named) -> str:
        names = sorted(self._weight_specs if named.name == "w" else self._attrs)
        if not names:
            return "nothing: the reference has none"
        return ", ".join(repr(name) for name in names[:12]) + (f" and {len(names) - 12} more" if names[12:] else "")

    def allocate(self, shape: tuple[int, ...], dtype: DType) -> Tensor:
        """A new contiguous tensor in a new storage."""
        workspaces = self.recording("tensors are allocated").workspaces
        nbytes = math.prod(shape) * dtype.itemsize
        if nbytes > self.limits.workspace_bytes:
            raise Fault(
                f"a tensor of shape {show(shape)} asks for {bytes_text(nbytes)} of workspace; "
                f"the limit is {bytes_text(self.limits.workspace_bytes)}"
            )
        storage = Storage("workspace", nbytes, line=self.line)
        workspaces.append(storage)
        return Tensor(storage, 0, shape, row_major(shape), dtype)


def row_major(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides of a contiguous tensor, in elements."""
    strides: list[int] = []
    step = 1
    for extent in reversed(shape):
        strides.append(step)
        step *= max(extent, 1)
    return tuple(reversed(strides))


def span_bytes(spec: TensorSpec) -> int:
    """Bytes from the first element to the last, gaps of the stride included."""
    if spec.numel == 0:
        return 0
    last = sum((extent - 1) * stride for extent, stride in zip(spec.shape, spec.stride, strict=True))
    return (last + 1) * spec.dtype.itemsize
