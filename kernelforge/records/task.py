"""Tasks: the reference, its sizes, facts and graph, and the rules for judging; and the candidates that answer them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Annotated, Any, Final, Literal

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


C_ELEMENTS: Final[Mapping[str, DType]] = MappingProxyType({
    "float": DType.FLOAT32, "double": DType.FLOAT64, "int": DType.INT32, "long long": DType.INT64,
    "unsigned char": DType.UINT8, "signed char": DType.INT8,
})  # fmt: skip
"""C types of array elements of a translation task's function."""


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

VISIBLE_SIZE: Final = "visible"
"""Name of a size that follows from what an author sees, to show a failure at; no task lists it."""


class Size(Record):
    """Values for the task file's module constants."""

    name: str = Field(pattern=r"^(full|small|visible|hidden(_[a-z0-9_]+)?)$")
    """``full`` (the file as it is), ``small``, or ``hidden_...``; no task lists :data:`VISIBLE_SIZE`."""
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


SourceLanguage = Literal["c", "cpp", "fortran"]
"""Language of sequential code that is to be translated."""


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
    host_inputs: tuple[int, ...] = ()
    """Positions of ``forward`` inputs in pinned host memory that is mapped into the device's address space: kernels
    read them over the host link (zero-copy)."""

    def content(self) -> dict[str, Any]:
        """Fields that digests of a policy are of: all but an empty one that is younger than digests."""
        return self.model_dump(mode="json", exclude=None if self.host_inputs else {"host_inputs"})

    @model_validator(mode="after")
    def _host_inputs_are_only_read(self) -> TaskPolicy:
        if len(set(self.host_inputs)) != len(self.host_inputs) or any(position < 0 for position in self.host_inputs):
            raise ValueError(f"host_inputs {list(self.host_inputs)} are not positions of different inputs")
        if both := sorted({*self.host_inputs} & {*self.mutates}):
            raise ValueError(f"input {both[0]} is in host_inputs and in mutates; host memory is only read")
        if self.host_inputs and self.library:
            raise ValueError("a policy with host_inputs allows no library: torch operators take tensors of the device")
        return self


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
    """Sequential code for the Coder to translate, shown in place of ``source``, which stays the oracle; or empty."""
    c_language: SourceLanguage = "c"
    """Language of ``c_source``."""
    translation: str = ""
    """A right candidate of a task with ``c_source``, as a reply: translations in either direction are compared with it
    or made of it. Empty where there is none."""
    sizes: tuple[Size, ...]
    policy: TaskPolicy = TaskPolicy()
    license: str = ""
    """Licence of ``source``, an SPDX expression where there is one; empty where none is stated."""

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
        """Hash of the content, which its licence and its known translation are no part of. A task without ``c_source``
        has the same digest as before that field existed."""
        left_out = {"license", "translation"} if self.c_source else {"c_source", "license", "translation"}
        if self.c_language == "c":
            left_out.add("c_language")  # a field that is younger than the digests of such tasks
        content = self.model_dump(mode="json", exclude=left_out)
        return content_hash(content | {"policy": self.policy.content()})

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
    """Bytes of device memory that must be read or written at least once: inputs, weights and outputs in use."""
    host_bytes: int = Field(default=0, ge=0, lt=2**63)
    """Bytes of inputs in host memory that must be read over the host link at least once: rows that indices name count
    once, by the task's draw of seed 0."""
    flops: int = Field(ge=0, lt=2**63)
    """Floating point operations of the reference, a multiply-add as two; 0 without countable ones."""
    eager_launches: int = Field(ge=0, lt=2**63)
    """Operator calls that eager PyTorch would make, views excluded: a lower bound on its kernel launches."""

    @property
    def moved_bytes(self) -> int:
        """Bytes of device and host memory that must be moved at least once."""
        return self.compulsory_bytes + self.host_bytes


class TaskFacts(Record):
    """Facts for every size of a task."""

    task_digest: str
    sizes: tuple[SizeFacts, ...]

    def at(self, size: str) -> SizeFacts:
        for facts in self.sizes:
            if facts.size == size:
                return facts
        raise KeyError(size)


class Node(Record):
    """One operator call. Arguments are JSON: ``{"ref": "name"}`` for a node, else a plain value or a list."""

    name: str
    kind: Literal["input", "weight", "op", "output"]
    op: str
    """ATen overload packet (``aten.softmax``), the weight's dotted name, or the input's position."""
    args: Annotated[tuple[Any, ...], BeforeValidator(restore_non_finite)] = ()
    kwargs: Annotated[dict[str, Any], BeforeValidator(restore_non_finite)] = {}
    spec: TensorSpec | None = None
    """The value's shape and dtype where it is one tensor."""


FAMILIES: Final[dict[str, str]] = {
    "attention": r"scaled_dot_product|attention",
    "convolution": r"conv",
    "matmul": r"matmul|\bmm\b|addmm|bmm|baddbmm|linear|einsum|\bdot\b|\bmv\b|outer",
    "recurrent": r"\b(gru|lstm|rnn)",
    "softmax": r"softmax|logsumexp|cross_entropy",
    "normalisation": r"_norm|batch_norm|normalize",
    "pooling": r"pool",
    "scan": r"cumsum|cumprod|cummax|cummin|logcumsumexp",
    "loss": r"loss|cross_entropy|kl_div|mse",
    "reduction": r"\b(sum|mean|amax|amin|max|min|prod|argmax|argmin|var|std|norm|any|all|topk|sort)\b",
    "index": r"gather|scatter|index|embedding|take",
    "movement": r"transpose|permute|\bcat\b|stack|flip|roll|copy|pad\b",
}
"""Families of operators, the most telling first, each with the ATen names that belong to it."""

OTHER_FAMILY: Final = "elementwise"


class Graph(Record):
    """Nodes in execution order; the last one is the output node whose ``args`` lists the results."""

    size: str
    nodes: tuple[Node, ...]

    @property
    def families(self) -> tuple[str, ...]:
        """The operator families in it, the most telling first; ``elementwise`` when there is no other."""
        names = [node.op.removeprefix("aten.") for node in self.nodes if node.kind == "op"]
        families = (family for family, pattern in FAMILIES.items() if any(re.search(pattern, name) for name in names))
        return tuple(families) or (OTHER_FAMILY,)


MAX_GENERATOR_BYTES = 4096
"""Largest text of one generator."""

GENERATOR_NAME = r"^[a-z][a-z0-9_]{0,31}$"


class InputGenerator(Record):
    """One input generator, and whether candidates are checked on its inputs."""

    name: str = Field(pattern=GENERATOR_NAME)
    plan: str
    """Its text, in the language of ``docs/input-generators.md``."""
    provider: str
    """Its author's specification."""
    admitted: bool
    reason: str
    """Reason why it was not admitted, or not at every size; empty if admitted at all."""
    sizes: tuple[str, ...] = ()
    """Sizes at which it is used; never ``full``."""

    @model_validator(mode="after")
    def _consistent(self) -> InputGenerator:
        if self.admitted != bool(self.sizes):
            raise ValueError("a generator is admitted where there are sizes at which it is in force")
        if not self.admitted and not self.reason:
            raise ValueError("a generator that was refused needs a reason")
        if "full" in self.sizes or len(set(self.sizes)) != len(self.sizes):
            raise ValueError(f"a generator is not in force at the sizes {', '.join(self.sizes)}")
        if len(self.plan.encode(errors="surrogatepass")) > MAX_GENERATOR_BYTES and self.admitted:
            raise ValueError(f"an admitted generator has at most {MAX_GENERATOR_BYTES} bytes")
        return self


MAX_SOURCE_BYTES = 256 * 1024
MAX_PLAN_BYTES = 256 * 1024
"""Reading a plan takes time in proportion to its length, at most some seconds for this one; that of a network with a
hundred layers has 200 KiB."""
Lane = Literal["plan", "modelnew", "c"]
"""Kind of a candidate: device code with a launch plan, a class ``ModelNew``, or a C function."""
Language = Literal["cuda", "triton"]
LanguageChoice = Literal["cuda", "triton", "any"]
"""Language that replies are written in."""
_TRITON_KERNEL = re.compile(r"^@triton\.jit\b", re.MULTILINE)


def language_of(source: str) -> Language:
    """The language of device source: Triton has kernels under ``@triton.jit``, which no C++ can."""
    return "triton" if _TRITON_KERNEL.search(source) else "cuda"


class Candidate(Record):
    """Device source in CUDA C++ or Triton and its launch plan, named by the hash of both.

    A candidate of lane ``modelnew`` is a Python file with a class ``ModelNew``, one of lane ``c`` a C file with the
    function that a task translates; neither has a plan.
    """

    source: str = Field(min_length=1)
    plan: str
    choices: dict[str, int] = {}
    """Values of the plan's ``# tune:`` names; a name left out takes its first value."""
    lane: Lane = "plan"

    @field_validator("source")
    @classmethod
    def _bounded_source(cls, value: str) -> str:
        if len(value.encode()) > MAX_SOURCE_BYTES:
            raise ValueError(f"source is larger than {MAX_SOURCE_BYTES} bytes")
        return value

    @field_validator("plan")
    @classmethod
    def _bounded_plan(cls, value: str) -> str:
        if len(value.encode()) > MAX_PLAN_BYTES:
            raise ValueError(f"plan is larger than {MAX_PLAN_BYTES} bytes")
        return value

    @model_validator(mode="after")
    def _a_plan_or_none(self) -> Candidate:
        if (self.lane == "plan") != bool(self.plan):
            raise ValueError("a candidate has a launch plan, one of lane 'modelnew' or 'c' has none")
        if self.lane != "plan" and self.choices:
            raise ValueError(f"a candidate of lane {self.lane!r} has no choices: it has no plan to make them in")
        return self

    @property
    def language(self) -> Language | None:
        """The language of its kernels, which follows from the source; None of a class ``ModelNew``, which can mix, and
        of a C function, which has none."""
        return language_of(self.source) if self.lane == "plan" else None

    @property
    def hash(self) -> str:
        return content_hash("candidate", self.source, self.plan, self.choices, self.lane)


class Diagnostic(Record):
    """One compiler message."""

    file: str
    line: int | None = Field(default=None, ge=0)
    severity: Literal["error", "warning", "note", "remark"]
    message: str

    def __str__(self) -> str:
        position = self.file if self.line is None else f"{self.file}:{self.line}"
        return f"{position}: {self.severity}: {self.message}"


class CompiledLaunch(Record):
    """Facts of every launch of one kernel that Triton's compiler decides."""

    threads_per_block: int = Field(ge=32, le=1024)
    dynamic_shared_bytes: int = Field(ge=0)
    scratch_bytes_per_block: int = Field(ge=0)
    """Global memory that each block gets, in order of the blocks."""
    hidden_parameters: int = Field(ge=0, le=4)
    """Pointers after the parameters of the source: the first one is to that memory, others are null."""


class KernelFacts(Record):
    """Report of ptxas about one entry point on the real architecture."""

    expression: str
    """The name the plan launches: ``softmax`` or ``softmax<float, 256>``."""
    symbol: str
    """Lowered (mangled) name in the PTX and the cubin."""
    registers_per_thread: int = Field(ge=0)
    static_shared_bytes: int = Field(ge=0)
    spill_store_bytes: int = Field(ge=0)
    spill_load_bytes: int = Field(ge=0)
    stack_frame_bytes: int = Field(ge=0)
    max_threads_per_block: int | None = None
    launch: CompiledLaunch | None = None
    """Of a Triton kernel: what its compiler decides of every launch."""


class Build(Record):
    """Result of one compilation. One that is ``ok`` has no errors; any other has an error, a refusal or a limit."""

    key: str
    """Content address: source, options, toolchain version, architecture."""
    ok: bool
    refused: str | None = None
    """Reason why the policy gate refused an otherwise good build (verdict ``POLICY``)."""
    limit: Literal["time", "memory", "output"] | None = None
    """Limit that the compiler process exceeded, if any (verdict ``LIMIT`` or ``TIMEOUT``)."""
    arch: str
    toolchain: str
    """For instance ``nvrtc 13.0.88``."""
    ptx_hash: str | None = None
    """Hash of the PTX without names: equal for sources that differ only in names and layout. None without PTX."""
    kernels: tuple[KernelFacts, ...] = ()
    diagnostics: tuple[Diagnostic, ...] = ()
    seconds: float = Field(ge=0, allow_inf_nan=False)
    """Wall time of the compilation; 0 when it came from the cache."""
    cached: bool = False

    @model_validator(mode="after")
    def _consistent(self) -> Build:
        if self.ok and (self.refused or self.limit):
            raise ValueError("a build that is ok cannot be refused or have hit a limit")
        if self.ok and self.errors:
            raise ValueError("a build that is ok cannot carry errors")
        if not self.ok and not self.refused and not self.limit and not self.errors:
            raise ValueError("a failed build needs an error, a refusal or a limit")
        return self

    @property
    def errors(self) -> tuple[Diagnostic, ...]:
        return tuple(d for d in self.diagnostics if d.severity == "error")
