"""Operators that a reference runs in eager PyTorch, as plain numbers: what a predicted time is made of.

The oracle's process records them (:mod:`kernelforge.evaluation.oracle.worker.operator_trace`), for it alone runs the
reference; the parent validates what it sends.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal, get_args

from pydantic import AfterValidator, Field, model_validator

from kernelforge.records.base import Record

MAX_OPERATORS: Final = 4096
"""Operators of one reference. Of more, equal ones become one with several calls."""
MAX_OPERANDS: Final = 256

OperatorKind = Literal[
    "attention", "argreduce", "batch_norm", "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d",
    "conv_transpose3d", "copy", "depthwise", "fill", "gather", "group_norm", "grouped_conv", "layer_norm", "loss",
    "matmul", "matvec", "other", "pointwise", "pooling", "recurrent", "reduction", "scan", "softmax", "sort",
]  # fmt: skip
"""Classes of operators with one way to their time."""

KINDS: Final = get_args(OperatorKind)

GEOMETRY: Final = frozenset({
    "batch", "m", "n", "k",
    "outer", "length", "inner", "training", "affine",
    "in_channels", "out_channels", "groups", "window", "window_last", "stride", "dilation", "padding",
    "in_points", "out_points", "out_last", "dims",
    "causal", "masked", "steps", "hidden", "layers", "directions", "gates", "strided", "elements", "mean",
    "updates",
})  # fmt: skip
"""Names of extents. ``m n k`` of products; ``outer length inner`` of what goes along one axis: a row has ``length``
elements, ``inner`` apart; ``window`` is a kernel's or a pooling window's number of points, ``stride`` and ``dilation``
products over the axes; ``strided`` is 1 where an operand or the result is not read in the order of its memory."""


def _bounded_geometry(value: dict[str, int]) -> dict[str, int]:
    strange = value.keys() - GEOMETRY
    if strange:
        raise ValueError(f"no extent is called {sorted(strange)[0][:40]!r}")
    if any(not 0 <= number < 2**62 for number in value.values()):
        raise ValueError("an extent is a number from 0 to what 62 bits hold")
    return value


class Operand(Record):
    """A tensor that an operator reads."""

    bytes: int = Field(ge=0, lt=2**62)
    """Bytes of its distinct elements."""
    producer: int | None = Field(default=None, ge=0)
    """Position of the operator that wrote it last; None for an input or a weight."""
    storage: int = Field(default=0, ge=0, lt=2**31)
    """Number of the memory that it lies in, in the order of first use: operands of one number share it."""


class Operator(Record):
    """One operator call of eager PyTorch, views left out."""

    name: str = Field(pattern=r"^[A-Za-z0-9_.:]{1,80}$")
    """Without namespace: ``softmax.int``, ``convolution``."""
    kind: OperatorKind
    dtype: str = Field(pattern=r"^[a-z0-9_]{1,24}$")
    """Element type that it computes in."""
    reads: tuple[Operand, ...] = Field(default=(), max_length=MAX_OPERANDS)
    write_bytes: int = Field(ge=0, lt=2**62)
    flops: int = Field(ge=0, lt=2**62)
    """A multiply-add counts two."""
    geometry: Annotated[dict[str, int], AfterValidator(_bounded_geometry)] = {}
    """Extents by the names of :data:`GEOMETRY`, as far as they matter for its kind."""
    calls: int = Field(default=1, ge=1, lt=2**31)
    """Equal calls that this one stands for."""

    @property
    def read_bytes(self) -> int:
        return sum(operand.bytes for operand in self.reads)


class OperatorTrace(Record):
    """Every operator of a reference at one size, in order."""

    size: str = Field(max_length=64)
    operators: tuple[Operator, ...] = Field(max_length=MAX_OPERATORS)

    @model_validator(mode="after")
    def _producers_come_first(self) -> OperatorTrace:
        for position, operator in enumerate(self.operators):
            if any(operand.producer is not None and operand.producer >= position for operand in operator.reads):
                raise ValueError(f"operator {position} reads what is written by a later one")
        return self


def product_trace(m: int, n: int, k: int, dtype: str, element_bytes: int) -> OperatorTrace:
    """The trace of ``torch.mm(a, b)`` for ``a`` (M, K) and ``b`` (K, N), as the oracle would make it."""
    operator = Operator(
        name="mm",
        kind="matmul",
        dtype=dtype,
        reads=(Operand(bytes=element_bytes * m * k, storage=1), Operand(bytes=element_bytes * k * n, storage=2)),
        write_bytes=element_bytes * m * n,
        flops=2 * m * n * k,
        geometry={"batch": 1, "m": m, "n": n, "k": k},
    )
    return OperatorTrace(size="full", operators=(operator,))
