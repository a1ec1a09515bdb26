"""Tasks: the reference, its sizes, and the rules for judging candidates."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Final, Literal

from pydantic import BeforeValidator, Field, field_validator, model_validator

from kernelforge.records.base import Record, content_hash, restore_non_finite


class DType(StrEnum):
    """Element types that cross the boundary between host and candidate, by torch's names."""

    FLOAT64 = "float64"
    FLOAT32 = "float32"
    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"
    INT64 = "int64"
    INT32 = "int32"
    INT16 = "int16"
    INT8 = "int8"
    UINT8 = "uint8"
    BOOL = "bool"

    @property
    def itemsize(self) -> int:
        """Bytes per element."""
        return _ITEMSIZE[self]

    @property
    def is_floating(self) -> bool:
        return self in (DType.FLOAT64, DType.FLOAT32, DType.FLOAT16, DType.BFLOAT16)


_ITEMSIZE = {
    DType.FLOAT64: 8, DType.FLOAT32: 4, DType.FLOAT16: 2, DType.BFLOAT16: 2, DType.INT64: 8,
    DType.INT32: 4, DType.INT16: 2, DType.INT8: 1, DType.UINT8: 1, DType.BOOL: 1,
}  # fmt: skip


class TensorSpec(Record):
    """Shape, dtype and strides (in elements) of one tensor."""

    shape: tuple[int, ...] = Field(max_length=64)
    dtype: DType
    stride: tuple[int, ...] = Field(max_length=64)

    @model_validator(mode="after")
    def _one_stride_per_extent(self) -> TensorSpec:
        if len(self.shape) != len(self.stride):
            raise ValueError(f"shape {self.shape} and stride {self.stride} differ in length")
        if any(not 0 <= number < 2**63 for number in (*self.shape, *self.stride)):
            raise ValueError("a shape and its strides are numbers from 0 to what 63 bits hold")
        if self.numel >= 2**63:
            raise ValueError("a tensor has no more elements than 63 bits can count")
        return self

    @property
    def numel(self) -> int:
        count = 1
        for extent in self.shape:
            count *= extent
        return count

    @property
    def nbytes(self) -> int:
        """Bytes of the elements themselves."""
        return self.numel * self.dtype.itemsize

    @property
    def is_contiguous(self) -> bool:
        """Whether the elements lie in C order without gaps; a tensor of no elements always does, as in torch."""
        if self.numel == 0:
            return True
        expected = 1
        for extent, stride in zip(reversed(self.shape), reversed(self.stride), strict=True):
            if extent != 1 and stride != expected:
                return False
            expected *= extent
        return True

    @classmethod
    def contiguous(cls, shape: tuple[int, ...], dtype: DType) -> TensorSpec:
        strides: list[int] = []
        step = 1
        for extent in reversed(shape):
            strides.append(step)
            step *= max(extent, 1)
        return cls(shape=shape, dtype=dtype, stride=tuple(reversed(strides)))


DRAWN_SIZE: Final = "hidden_drawn"
"""Name of the hidden size drawn for each evaluation; no task lists it."""


class Size(Record):
    """Values for the task file's module constants."""

    name: str = Field(pattern=r"^(full|small|hidden(_[a-z0-9_]+)?)$")
    """``full`` (the file as it is), ``small``, or ``hidden_...``."""
    constants: dict[str, int | float | bool] = {}
    """Module constants replaced in the file; none for ``full``."""

    @model_validator(mode="after")
    def _full_is_the_file(self) -> Size:
        if self.name == "full" and self.constants:
            raise ValueError("the size 'full' is the file as it is; it replaces no constants")
        return self

    @property
    def is_hidden(self) -> bool:
        return self.name.startswith("hidden")


class TaskPolicy(Record):
    """Rules for judging a task, beyond its source."""

    mutates: tuple[int, ...] = ()
    """Positions of ``forward`` inputs that the reference changes in place; compared as further outputs."""
    oracle: Literal["float64", "task-precision"] = "float64"
    """``task-precision`` for tasks that themselves cast or quantise."""
    accumulator: Literal["float16", "float32", "float64"] = "float32"
    """Accumulator type allowed for candidates; sets the sequential-accumulation bound."""
    reduction_length: str | None = None
    """Number of terms that one output element sums, as arithmetic over module constants. None: the oracle finds it."""
    library: tuple[str, ...] = ()
    """Torch operators a plan may call through ``library``; none by default."""
    ties: tuple[int, ...] = ()
    """Outputs that are indices, where any index of an equal value is accepted (argmax, top-k)."""


class Task(Record):
    """A KernelBench-style task: source of the reference, its sizes, its policy."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9_\-./]*$")
    suite: str
    title: str
    level: int = Field(ge=0)
    tags: tuple[str, ...] = ()
    source: str
    """Python text with ``Model``, ``get_inputs`` and ``get_init_inputs``."""
    c_source: str = ""
    """Sequential C for the Coder to translate, shown in place of ``source``, which stays the oracle; or empty."""
    sizes: tuple[Size, ...]
    policy: TaskPolicy = TaskPolicy()

    @field_validator("name")
    @classmethod
    def _plain_path(cls, value: str) -> str:
        if any(part in ("", ".", "..") for part in value.split("/")):
            raise ValueError(f"a task's name is a plain relative path, {value!r} is not")
        return value

    @model_validator(mode="after")
    def _has_full_and_small(self) -> Task:
        names = [size.name for size in self.sizes]
        if len(set(names)) != len(names):
            raise ValueError(f"size names repeat: {names}")
        if not {"full", "small"} <= set(names):
            raise ValueError("a task needs the sizes 'full' and 'small'")
        return self

    @property
    def digest(self) -> str:
        """Hash of the content. A task without ``c_source`` has the same digest as before that field existed."""
        return content_hash(self.model_dump(mode="json", exclude=None if self.c_source else {"c_source"}))

    def size(self, name: str) -> Size:
        for size in self.sizes:
            if size.name == name:
                return size
        raise KeyError(name)


class WeightSpec(Record):
    """A parameter, buffer or plain tensor attribute of the reference, reachable in a plan as ``w[name]``."""

    name: str
    spec: TensorSpec
    kind: Literal["parameter", "buffer", "attribute"]
    aliases: tuple[str, ...] = ()
    """Other names of the same storage (tied weights)."""


class SizeFacts(Record):
    """Facts of one size, from running the reference in the oracle."""

    size: str
    inputs: tuple[TensorSpec | int | float | bool | None, ...]
    """Positional arguments of ``forward``: tensors by spec, scalars by value."""
    outputs: tuple[TensorSpec, ...]
    """Flattened outputs, then the inputs named by ``mutates``."""
    weights: tuple[WeightSpec, ...]
    attrs: Annotated[dict[str, int | float | bool | str], BeforeValidator(restore_non_finite)]
    """Scalar attributes of modules by dotted name."""
    compulsory_bytes: int = Field(ge=0, lt=2**63)
    """Bytes that must be read or written at least once: inputs, weights and outputs in use."""
    flops: int = Field(ge=0, lt=2**63)
    """Floating point operations of the reference, a multiply-add as two; 0 without countable ones."""
    eager_launches: int = Field(ge=0, lt=2**63)
    """Operator calls that eager PyTorch would make, views excluded: a lower bound on its kernel launches."""


class TaskFacts(Record):
    """Facts for every size of a task."""

    task_digest: str
    sizes: tuple[SizeFacts, ...]

    def at(self, size: str) -> SizeFacts:
        for facts in self.sizes:
            if facts.size == size:
                return facts
        raise KeyError(size)
