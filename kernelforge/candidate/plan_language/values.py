"""Values of the plan language and their common operations: type, truth, equality.

Besides the classes here a value is an ``int`` within 64 bits, a ``float``, a ``bool``, a ``str``, ``None``, a
``DType``, a ``tuple`` (lists are tuples too: sequences never change) or a ``range``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from kernelforge.candidate.resolved import PixelBox
from kernelforge.records.task import DType

INT_BOUND = 2**63
NUMERIC = frozenset({int, float, bool})
MAX_NESTING = 16

ScalarType = Literal["i32", "i64", "f32", "f64", "f16", "bf16"]
Spend = Callable[[int], None]


class Fault(Exception):
    """An error of a plan. The statement that was running adds its line; the public API makes a PlanError of it."""

    def __init__(self, message: str, line: int | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.line = line


class Refusal(Fault):
    """An ``assert`` of the plan refused this size."""


@dataclass(slots=True, eq=False)
class Storage:
    """Memory behind tensors: one input, one weight, or one allocation of the plan.

    An allocation is ``workspace``; one that ``setup`` returned is ``prepared`` from then on.
    """

    kind: Literal["input", "weight", "prepared", "workspace"]
    nbytes: int
    label: str | None = field(default=None, kw_only=True)
    source: int | str | None = field(default=None, kw_only=True)
    line: int | None = field(default=None, kw_only=True)
    first_use: int | None = field(default=None, init=False)
    """Index of the first step that touches it; None while no step does."""
    last_use: int = field(default=-1, init=False)

    def touch(self, step: int) -> None:
        if self.first_use is None:
            self.first_use = step
        self.last_use = step


@dataclass(slots=True, eq=False)
class Tensor:
    """A view of a storage: offset in bytes, shape and stride in elements."""

    storage: Storage
    offset_bytes: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: DType

    @property
    def numel(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.numel * self.dtype.itemsize


@dataclass(slots=True, eq=False)
class TensorMap:
    """A tensor that a kernel copies by tiles, made by ``tensor_map(...)``; ``box`` has one extent per dimension.

    With ``pixels`` it is one of images, in im2col mode: ``box`` has pixels and channels.
    """

    tensor: Tensor
    box: tuple[int, ...]
    swizzle_bytes: int
    pixels: PixelBox | None = None


@dataclass(slots=True, eq=False)
class TypedScalar:
    """A number with its kernel parameter type, made by ``i32(...)``, ``f32(...)`` and so on."""

    type: ScalarType
    value: int | float


@dataclass(slots=True, eq=False)
class KernelName:
    """A kernel by its C++ name expression."""

    expression: str


@dataclass(slots=True, eq=False)
class Named:
    """``w`` or ``attrs``: values by dotted name."""

    name: Literal["w", "attrs"]


WEIGHTS = Named("w")
ATTRS = Named("attrs")


def kind_of(value: Any) -> str:
    """Name of a value's kind for messages, with its article."""
    kinds: dict[type, str] = {
        int: "an int", float: "a float", bool: "a bool", str: "a string", type(None): "None", tuple: "a sequence",
        range: "a range", DType: "a dtype", Tensor: "a tensor", KernelName: "a kernel", TypedScalar: "a typed scalar",
        TensorMap: "a tensor map", slice: "a slice",
    }  # fmt: skip
    if isinstance(value, Named):
        return value.name
    return kinds[type(value)]


def show(value: Any) -> str:
    """A short text of a value for messages, of bounded length."""
    if type(value) is tuple:
        items = [show(item) if type(item) is not tuple else "(...)" for item in value[:6]]
        return "(" + ", ".join(items + ["..."] * (len(value) > 6)) + ")"
    if type(value) is str:
        return repr(value if len(value) <= 40 else value[:37] + "...")
    if type(value) in NUMERIC:
        return repr(value)
    if isinstance(value, DType):
        return value.value
    return kind_of(value)


def truth(value: Any) -> bool:
    """Truth of a value in ``if``."""
    if value is None or type(value) in NUMERIC or type(value) in (tuple, range, str):
        return bool(value)
    raise Fault(f"{kind_of(value)} is neither true nor false here; compare something of it, such as its shape")


def equal(a: Any, b: Any, spend: Spend, depth: int = 0) -> bool:
    """``==``: by value for numbers, strings, dtypes and sequences; every item costs a step."""
    if depth > MAX_NESTING:
        raise Fault(f"sequences nested more than {MAX_NESTING} deep cannot be compared")
    if type(a) in NUMERIC and type(b) in NUMERIC:
        return bool(a == b)
    if isinstance(a, DType) or isinstance(b, DType):
        return a is b
    if type(a) is str and type(b) is str:
        return a == b
    if type(a) in (tuple, range) and type(b) in (tuple, range):
        if len(a) != len(b):
            return False
        for x, y in zip(a, b, strict=True):
            spend(1)
            if not equal(x, y, spend, depth + 1):
                return False
        return True
    for value in (a, b):
        if type(value) in (Tensor, TensorMap, TypedScalar, KernelName, Named) and a is not None and b is not None:
            raise Fault(f"{kind_of(value)} cannot be compared")
    return a is None and b is None


def flatten(value: Any, spend: Spend, depth: int = 0) -> list[Any]:
    """The leaves of nested sequences, in order."""
    if type(value) is not tuple:
        return [value]
    if depth > MAX_NESTING:
        raise Fault(f"what is returned is nested more than {MAX_NESTING} deep")
    leaves: list[Any] = []
    for item in value:
        spend(1)
        leaves.extend(flatten(item, spend, depth + 1))
    return leaves


def sequence(value: Any, what: str) -> tuple[Any, ...] | range:
    """A sequence, or a fault that names the alternative."""
    if type(value) is tuple or type(value) is range:
        return value
    if type(value) is Tensor:
        raise Fault(f"{what} needs a sequence; walk a tensor by index: for i in range(x.shape[0])")
    raise Fault(f"{what} needs a sequence, got {kind_of(value)}")


def as_int(value: Any, what: str) -> int:
    """An int, or a fault. A bool counts as an int, as in Python."""
    if type(value) is int:
        return value
    if type(value) is bool:
        return int(value)
    if type(value) is float:
        raise Fault(f"{what} must be an int, got the float {value!r}; use // for whole division or int(...)")
    raise Fault(f"{what} must be an int, got {kind_of(value)}")


def number(value: Any, what: str) -> int | float:
    """An int or a float, or a fault."""
    if type(value) is bool:
        return int(value)
    if type(value) is int or type(value) is float:
        return value
    raise Fault(f"{what} must be a number, got {kind_of(value)}")


def plural(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def bytes_text(nbytes: int) -> str:
    """Bytes in decimal units, as memory sizes are advertised: ``2.0 TB``."""
    size = float(nbytes)
    for unit in ("bytes", "KB", "MB", "GB", "TB", "PB"):
        if size < 1000 or unit == "PB":
            return f"{nbytes} bytes" if unit == "bytes" else f"{size:.1f} {unit}"
        size /= 1000
    raise AssertionError("unreachable")
