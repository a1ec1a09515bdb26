"""A launch plan resolved at one size: a flat list of buffers and steps that any device can run."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from kernelforge.records.task import Build, DType


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


PixelMode = Literal["im2col", "im2col::w", "im2col::w::128"]
"""How copies go through images: positions along all dimensions, or along the width alone, then in the next image."""


@dataclass(frozen=True, slots=True)
class PixelBox:
    """A box of positions in im2col mode along depth, height and width, outermost first; in a wide mode the width."""

    lower: tuple[int, ...]
    """First position along each dimension, from the tensor's first element."""
    upper: tuple[int, ...]
    """Last position, from the tensor's last element."""
    stride: tuple[int, ...]
    """Distance of positions that follow one another."""
    mode: PixelMode = "im2col"


@dataclass(frozen=True, slots=True)
class TensorMapArg:
    """A tensor map (TMA descriptor) over a contiguous tensor, passed by value: tiled, or of images in im2col mode."""

    buffer: int
    offset_bytes: int
    dtype: DType
    shape: tuple[int, ...]
    """Outermost first, as in the plan."""
    box: tuple[int, ...]
    """Extents of the tile that one copy moves, outermost first; with ``pixels``, how many pixels and channels."""
    swizzle_bytes: int = 0
    """0, 32, 64 or 128."""
    pixels: PixelBox | None = None
    """Of a map in im2col mode."""


@dataclass(frozen=True, slots=True)
class TensorView:
    """A contiguous tensor within a buffer, or an input or weight with its strides, for a ``library`` call."""

    buffer: int
    offset_bytes: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    """In elements."""
    dtype: DType

    @property
    def span_bytes(self) -> int:
        """Bytes from its first element to the end of its last."""
        if 0 in self.shape:
            return 0
        last = sum((extent - 1) * stride for extent, stride in zip(self.shape, self.stride, strict=True))
        return (last + 1) * self.dtype.itemsize


Constant = int | float | bool | str | DType | None
"""Value of a ``tl.constexpr`` parameter."""

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

    @property
    def operands(self) -> tuple[TensorView, ...]:
        """Tensors among its arguments, each once, in order."""
        values = (*self.args, *self.kwargs.values())
        return tuple(dict.fromkeys(value for value in values if isinstance(value, TensorView)))


@dataclass(frozen=True, slots=True)
class Specialisation:
    """Types, constants and options that a Triton kernel is compiled for.

    Its text is the kernel's expression: ``f<*fp32:16, i32, BLOCK=256, num_warps=4, num_stages=3>``.
    """

    kernel: str
    arguments: tuple[str, ...]
    """Of the parameters that are not ``tl.constexpr``: Triton's type, with ``:16`` for a multiple of 16; or ``1`` or
    ``None``, which become constants and are not passed."""
    constants: tuple[tuple[str, Constant], ...]
    """Values of the ``tl.constexpr`` parameters that the launch names."""
    num_warps: int
    num_stages: int

    def __str__(self) -> str:
        # DType is a str: its text is the name alone, that of a string is quoted.
        named = [f"{name}={str(value) if isinstance(value, DType) else repr(value)}" for name, value in self.constants]
        options = [f"num_warps={self.num_warps}", f"num_stages={self.num_stages}"]
        return f"{self.kernel}<{', '.join([*self.arguments, *named, *options])}>"


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
    specialisation: Specialisation | None = None
    """Of a Triton kernel. Until the plan is bound to a build, its launch lacks what the compiler decides."""


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

    def bound_to(self, build: Build) -> ResolvedPlan:
        """The plan with what Triton's compiler decided of its launches: threads, shared memory, hidden parameters."""
        compiled = {kernel.expression: kernel.launch for kernel in build.kernels if kernel.launch is not None}
        if not compiled:
            return self
        buffers = list(self.buffers)

        def bound(step: Step) -> Step:
            facts = compiled.get(step.expression) if isinstance(step, Launch) else None
            if facts is None or not isinstance(step, Launch):
                return step
            hidden: list[TensorArg | ScalarArg] = [ScalarArg("i64", 0)] * facts.hidden_parameters
            if facts.scratch_bytes_per_block and hidden:
                nbytes = facts.scratch_bytes_per_block * math.prod(step.grid)
                buffers.append(Buffer(len(buffers), "workspace", nbytes, f"scratch of {step.expression}"))
                hidden[0] = TensorArg(buffers[-1].id, 0, DType.UINT8)
            return replace(
                step,
                block=(facts.threads_per_block, 1, 1),
                dynamic_shared_bytes=facts.dynamic_shared_bytes,
                args=(*step.args, *hidden),
            )

        setup, steps = tuple(map(bound, self.setup)), tuple(map(bound, self.steps))
        return replace(self, buffers=tuple(buffers), steps=steps, setup=setup)

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
        return {
            "buffers": [asdict(buffer) for buffer in self.buffers],
            "steps": [step_to_wire(step) for step in self.steps],
            "outputs": [asdict(output) for output in self.outputs],
            "constants": self.constants,
            "setup": [step_to_wire(step) for step in self.setup],
        }

    @classmethod
    def from_wire(cls, wire: dict[str, Any]) -> ResolvedPlan:
        """Inverse of :meth:`to_wire`."""
        return cls(
            buffers=tuple(Buffer(**raw) for raw in wire["buffers"]),
            steps=tuple(step_from_wire(raw) for raw in wire["steps"]),
            outputs=tuple(
                Output(raw["buffer"], raw["offset_bytes"], tuple(raw["shape"]), DType(raw["dtype"]))
                for raw in wire["outputs"]
            ),
            constants=dict(wire["constants"]),
            setup=tuple(step_from_wire(raw) for raw in wire["setup"]),
        )


def step_to_wire(step: Step) -> dict[str, Any]:
    """One step as plain JSON."""
    fields = asdict(step)
    fields.pop("specialisation", None)  # the compiler's business: the runner knows the kernel by its expression
    return {"step": type(step).__name__, **fields}


def step_from_wire(raw: dict[str, Any]) -> Step:
    """Inverse of :func:`step_to_wire`."""
    if raw["step"] == "Fill":
        return Fill(raw["buffer"], raw["offset_bytes"], raw["nbytes"], raw["line"])
    if raw["step"] == "Library":
        return Library(
            raw["operator"],
            tuple(_value_from_wire(value) for value in raw["args"]),
            {name: _value_from_wire(value) for name, value in raw["kwargs"].items()},
            tuple(_view_from_wire(view) for view in raw["out"]),
            raw["line"],
        )
    return Launch(
        expression=raw["expression"],
        grid=tuple(raw["grid"]),
        block=tuple(raw["block"]),
        dynamic_shared_bytes=raw["dynamic_shared_bytes"],
        args=tuple(_argument_from_wire(arg) for arg in raw["args"]),
        line=raw["line"],
        cluster=None if raw["cluster"] is None else tuple(raw["cluster"]),
        cooperative=raw["cooperative"],
    )


def _argument_from_wire(raw: dict[str, Any]) -> TensorArg | ScalarArg | TensorMapArg:
    if "box" in raw:
        return TensorMapArg(
            raw["buffer"],
            raw["offset_bytes"],
            DType(raw["dtype"]),
            tuple(raw["shape"]),
            tuple(raw["box"]),
            raw["swizzle_bytes"],
            _pixel_box_from_wire(raw["pixels"]),
        )
    if "buffer" in raw:
        return TensorArg(raw["buffer"], raw["offset_bytes"], DType(raw["dtype"]))
    return ScalarArg(raw["type"], raw["value"])


def _pixel_box_from_wire(raw: dict[str, Any] | None) -> PixelBox | None:
    if raw is None:
        return None
    return PixelBox(tuple(raw["lower"]), tuple(raw["upper"]), tuple(raw["stride"]), raw["mode"])


def _value_from_wire(raw: Any) -> LibraryValue:
    if isinstance(raw, dict):
        return _view_from_wire(raw)
    return tuple(raw) if isinstance(raw, list | tuple) else raw


def _view_from_wire(raw: dict[str, Any]) -> TensorView:
    return TensorView(
        raw["buffer"], raw["offset_bytes"], tuple(raw["shape"]), tuple(raw["stride"]), DType(raw["dtype"])
    )
