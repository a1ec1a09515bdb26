"""Records of a captured model: its graph as the confined child sends it, and ``capture.json``.

``docs/models.md`` describes the fields of ``capture.json`` for those who read it without this package.
"""

from __future__ import annotations

import math
import re
from typing import Annotated, Any, Final, Literal

from pydantic import BeforeValidator, Field, model_validator

from kernelforge.prediction import OperatorTrace
from kernelforge.records import Node, TensorSpec
from kernelforge.records.base import Record

MOST_NODES: Final = 100_000
FEWEST_CALLS: Final = 20
"""Timed calls of a model, for an interval."""
_IDENTIFIER = r"^[A-Za-z_][A-Za-z0-9_]{0,255}$"
_OPERATOR = r"^[A-Za-z0-9_]{1,80}(\.[A-Za-z0-9_]{1,80}){0,3}$"
_DOTTED = r"^[A-Za-z0-9_.]{0,500}$"
_PARTS: Final = (("ref", _IDENTIFIER), ("dtype", r"^[a-z0-9_]{1,24}$"), ("memory_format", r"^[a-z_]{1,32}$"))


def _check_argument(value: Any, depth: int = 0) -> None:
    """Check an argument of an operator: plain values, lists, ``{"ref": name}``, ``{"dtype": name}``; nothing else."""
    if depth > 8:
        raise ValueError("arguments of an operator are nested too deeply")
    if isinstance(value, list | tuple):
        for item in value:
            _check_argument(item, depth + 1)
    elif isinstance(value, dict):
        fits = (value.keys() == {key} and re.match(pattern, str(value[key])) for key, pattern in _PARTS)
        if not any(fits):
            raise ValueError("an argument of an operator is none that a graph can have")
    elif value is not None and not isinstance(value, bool | int | float | str):
        raise ValueError("an argument of an operator is none that a graph can have")


class ComplexSpec(Record):
    """A tensor of complex numbers: no task can have one as an input, a weight or an output."""

    shape: tuple[Annotated[int, Field(ge=0)], ...] = Field(max_length=64)
    dtype: Literal["complex32", "complex64", "complex128"]

    @model_validator(mode="after")
    def _countable(self) -> ComplexSpec:
        if self.nbytes >= 2**63:
            raise ValueError("a tensor has no more bytes than 63 bits can count")
        return self

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * int(self.dtype.removeprefix("complex")) // 8


class CapturedNode(Node):
    """One node of a captured graph: an input, a weight, an operator's call, or the list of results."""

    name: str = Field(pattern=_IDENTIFIER)
    op: str = Field(pattern=rf"{_OPERATOR}|{_DOTTED}")
    """Operator (``aten.softmax.int``), dotted name of a weight, or position of an input."""
    complex_spec: ComplexSpec | None = None
    """In place of ``spec``, where the value is a tensor of complex numbers."""
    role: Literal["", "parameter", "buffer", "constant"] = ""
    """Of a weight. A constant is a tensor that ``forward`` makes of numbers."""
    module: str = Field(default="", pattern=_DOTTED)
    """Dotted name of the innermost module whose ``forward`` calls the operator."""
    operators: tuple[Annotated[int, Field(ge=0)], ...] = ()
    """Positions of what eager PyTorch runs for it in :attr:`CapturedGraph.trace`; none of a view."""

    @model_validator(mode="after")
    def _plain_arguments(self) -> CapturedNode:
        _check_argument([*self.args, *self.kwargs.values()])
        return self

    @property
    def tensor(self) -> TensorSpec | ComplexSpec | None:
        """The value where it is one tensor."""
        return self.spec or self.complex_spec

    @property
    def refs(self) -> tuple[str, ...]:
        """Names of the nodes that it reads, in order, each once."""
        return tuple(dict.fromkeys(references([*self.args, *self.kwargs.values()])))


def references(value: Any) -> list[str]:
    """Names of the nodes in an argument."""
    if isinstance(value, dict):
        return [value["ref"]] if "ref" in value else []
    if isinstance(value, list | tuple):
        return [name for item in value for name in references(item)]
    return []


class CapturedGraph(Record):
    """A model as the confined child sends it."""

    nodes: tuple[CapturedNode, ...] = Field(max_length=MOST_NODES)
    trace: OperatorTrace
    training: bool
    """Whether the model is in training mode."""

    @model_validator(mode="after")
    def _in_order(self) -> CapturedGraph:
        seen: set[str] = set()
        for node in self.nodes:
            if node.name in seen:
                raise ValueError(f"two nodes are called {node.name}")
            if not seen.issuperset(node.refs):
                raise ValueError(f"node {node.name} reads a later one")
            if any(position >= len(self.trace.operators) for position in node.operators):
                raise ValueError(f"node {node.name} runs an operator that is not in the trace")
            seen.add(node.name)
        return self


class ModelTimes(Record):
    """Times of a model on a GPU, as the confined child sends them."""

    calls_us: tuple[Annotated[float, Field(gt=0, le=1e9)], ...] = Field(min_length=FEWEST_CALLS, max_length=10_000)
    """Of single calls in eager PyTorch on an idle GPU, in order."""
    nodes_us: dict[str, Annotated[float, Field(ge=0, le=1e9)]] = Field(max_length=MOST_NODES)
    """Work of the GPU for each node of the graph in one call."""
    torch: str = Field(pattern=r"^[0-9A-Za-z.+-]{1,64}$")


GroupKind = Literal["attention", "matmul", "convolution", "recurrent", "reduction", "gather", "pointwise", "other"]


class GroupCall(Record):
    """One occurrence of a group in the model's graph."""

    module: str
    """Dotted name of the module that all of it is in; empty for the model itself."""
    nodes: tuple[str, ...]
    """Nodes that it computes, in order: the same operators in the same order at every occurrence."""
    views: tuple[str, ...] = ()
    """Views and constants that it makes for itself, of :attr:`inputs`; other groups may make them too."""
    inputs: tuple[str, ...]
    """Nodes that it reads: ``forward`` of the task takes these, in this order."""
    weights: tuple[str, ...] = ()
    """Dotted names of the weights that it reads, in the order of :attr:`CapturedGroup.weights`."""
    outputs: tuple[str, ...]
    """Nodes that others read: what ``forward`` of the task returns, in this order."""


class GroupWeight(Record):
    """A weight of a group's task."""

    name: str
    """In the task's ``Model``."""
    role: Literal["parameter", "buffer", "constant"]
    spec: TensorSpec


class CapturedGroup(Record):
    """Operators that one kernel could compute, with all equal ones of the model."""

    name: str
    """Such as ``g01-linear-silu``; the lower the number, the larger the share of the time."""
    kind: GroupKind
    digest: str
    """Of its operators, attributes, shapes and dtypes: groups are equal where this is."""
    operators: tuple[str, ...]
    """In order, views left out."""
    input_specs: tuple[TensorSpec, ...]
    output_specs: tuple[TensorSpec, ...]
    weights: tuple[GroupWeight, ...] = ()
    calls: tuple[GroupCall, ...] = Field(min_length=1)
    bytes: int = Field(ge=0)
    """That one call has to read and write: inputs, weights and outputs, once each."""
    flops: int = Field(ge=0)
    """Of one call."""
    time_us: float = Field(ge=0)
    """Of the kernels of one call in eager PyTorch on the GPU, without what the host's launches add; the mean over its
    calls. See :attr:`Capture.time_origin`."""
    share: float = Field(ge=0, le=1)
    """Of the time of the model's kernels, all calls together."""
    floor_us: float = Field(gt=0)
    """What one kernel for a call takes at least, as :attr:`time_us` without launches: its bytes and its operations,
    and what predicted times add for any kernel."""
    no_task: str = ""
    """Why no task can be made of it; empty where one can."""
    task: str = ""
    """Name of its task in the suite, if it was written."""

    @property
    def headroom(self) -> float:
        """Ratio of its time to its floor: how many times as fast it could be; 1 where nothing is faster."""
        return max(1.0, self.time_us / self.floor_us)


class CapturedFile(Record):
    """A file of the user's, by its text."""

    path: str
    """As it was given."""
    function: str
    sha256: str


SCHEMA: Final = "kernelforge-capture/1"


class Capture(Record):
    """A captured model: content of ``capture.json``."""

    format: Literal["kernelforge-capture/1"] = SCHEMA
    kernelforge: str
    """Version that wrote it."""
    model: CapturedFile
    inputs: CapturedFile
    module: str = ""
    """Part of the model that was captured; empty for all of it."""
    gpu: str
    """Title of the GPU that times and floors are for."""
    time_origin: Literal["predicted", "measured"]
    """Where times come from. Floors follow from figures of the GPU in both."""
    time_source: str
    total_us: float = Field(ge=0)
    """Time of one call of the model in eager PyTorch, with what the host adds; the median where it is measured."""
    low_us: float = Field(ge=0)
    high_us: float = Field(ge=0)
    """Ends of the interval of :attr:`total_us`: of 90 % where it is predicted, of 95 % where it is measured."""
    kernels_us: float = Field(ge=0)
    """Time of its kernels alone: shares are of this."""
    training: bool
    nodes: Annotated[tuple[CapturedNode, ...], BeforeValidator(tuple)]
    groups: tuple[CapturedGroup, ...]
    """The largest share first."""
