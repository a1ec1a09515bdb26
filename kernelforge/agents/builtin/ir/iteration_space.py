"""Iteration space of a kernel: element types, coordinates, and the parameters that it needs."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import NamedTuple

from kernelforge.agents.builtin.ir.nodes import Dim, Scalar, StoredTensor, Value, is_of_round, product
from kernelforge.records import DType

C_TYPES = {
    DType.FLOAT64: "double", DType.FLOAT32: "float", DType.FLOAT16: "__half", DType.BFLOAT16: "__nv_bfloat16",
    DType.INT64: "long long", DType.INT32: "int", DType.INT16: "short", DType.INT8: "signed char",
    DType.UINT8: "unsigned char", DType.BOOL: "bool",
}  # fmt: skip
_FROM = {DType.FLOAT16: "__half2float({})", DType.BFLOAT16: "__bfloat162float({})"}
_TO = {DType.FLOAT16: "__float2half({})", DType.BFLOAT16: "__float2bfloat16({})"}

_TAKEN = re.compile(
    r"[a-z]{1,2}\d*(?<!x)(?<!y)|(acc|max|min|sum|prod|argmax|argmin|row_)\w*|value|carry|result|shared|kept|start|before|step|"
    r"batch|phase\w*|tap_list|taps?_\d|apart_\d|listed|terms|plane|line|column|tile\w*|"
    r"exp|log|sqrt|rsqrt|tanh|erf|sin|cos|abs|pow|floor|ceil|load|store"
)
"""Names that a kernel's own variables or functions may have: a parameter of that name gets a suffix."""


def compute_type(dtype: DType) -> str:
    """The C++ type that an element is computed in."""
    return "float" if dtype in _FROM else C_TYPES[dtype]


def sum_type(dtype: DType) -> str:
    """The C++ type in which products and windows of such elements are summed."""
    return "double" if dtype is DType.FLOAT64 else "float"


def from_storage(expression: str, dtype: DType) -> str:
    return _FROM.get(dtype, "{}").format(expression)


def to_storage(expression: str, dtype: DType) -> str:
    if dtype in _TO:
        return _TO[dtype].format(expression)
    return expression if dtype is DType.FLOAT32 else f"({C_TYPES[dtype]})({expression})"


@dataclass(frozen=True)
class LoopGroup:
    """Loop variable ``var`` walks ``dims`` in row-major order; a vector group advances by ``V``."""

    var: str
    dims: tuple[Dim, ...]
    vector: bool = False

    @property
    def extent(self) -> Dim:
        return product(self.dims)

    def coords(self) -> tuple[Coordinate, ...]:
        return tuple(Coordinate(f"{self.var}_{k}", self, k) for k in range(len(self.dims)))


@dataclass(frozen=True)
class Coordinate:
    """A coordinate: part of a group, or (without one) a C++ expression."""

    text: str
    group: LoopGroup | None = None
    position: int = 0

    @property
    def lives_everywhere(self) -> bool:
        """Whether it can be spelt in any scope: part of a loop variable, or a number."""
        return self.group is not None or self.text.isdigit()


ZERO = Coordinate("0")


class TensorMap(NamedTuple):
    """A tensor whose boxes of ``BOX`` x ``BOX`` halves a kernel copies, as matrices one after another."""

    tensor: Value
    extents: tuple[Dim, Dim, Dim]
    """Matrices, and the rows and columns of each."""


MOST_ELEMENTS = 2**31
"""Elements from which on an offset does not fit 32 bits."""

BOX = 64
"""Halves of a row that a swizzle of 128 bytes takes."""


@dataclass
class Signature:
    """A kernel's parameters: what the C++ calls them, and what the plan passes."""

    maps: dict[str, TensorMap] = field(default_factory=dict)
    """Tensors that are copied by boxes, by the names of their maps."""
    tensors: dict[Value, str] = field(default_factory=dict)
    extents: dict[str, str] = field(default_factory=dict)
    scalars: dict[tuple[str, DType], str] = field(default_factory=dict)
    wide: bool = False
    """Whether extents and indices have 64 bits."""
    constant: bool = False
    """Whether extents are arguments of the kernel's template, not of the launch. The number of a loop's round never is:
    each would be a kernel of its own."""

    @property
    def template_extents(self) -> dict[str, str]:
        """The ``extents`` that are arguments of the kernel's template."""
        return {text: name for text, name in self.extents.items() if self.constant and not is_of_round(text)}

    @property
    def launch_extents(self) -> dict[str, str]:
        """The ``extents`` that are arguments of the launch."""
        return {text: name for text, name in self.extents.items() if not self.constant or is_of_round(text)}

    def tensor(self, value: Value) -> str:
        if value not in self.tensors:
            name = value.name if isinstance(value, StoredTensor) else f"{value.origin or 'copy'}_in"
            if _TAKEN.fullmatch(name):
                name += "_in"
            taken = set(self.tensors.values())
            while name in taken:
                name += "_"
            self.tensors[value] = name
        return self.tensors[value]

    def extent(self, dim: Dim) -> str:
        if dim.is_literal:
            return dim.text
        if dim.text not in self.extents:
            self.extents[dim.text] = f"n{len(self.extents)}"
        return self.extents[dim.text]

    def scalar(self, value: Scalar) -> str:
        word = re.sub(r"\W+", "_", value.text).strip("_")
        dtype = DType.FLOAT64 if value.dtype is DType.FLOAT64 else DType.FLOAT32
        return self.scalars.setdefault((value.text, dtype), f"{'d' if dtype is DType.FLOAT64 else 's'}_{word}")

    def parameters(self, out: Value) -> str:
        parts = [f"const __grid_constant__ CUtensorMap {name}" for name in self.maps]
        parts += [f"const {C_TYPES[value.dtype]}* __restrict__ {name}" for value, name in self.tensors.items()]
        parts.append(f"{C_TYPES[out.dtype]}* __restrict__ out")
        parts += [f"int {name}" for name in self.launch_extents.values()]
        parts += [f"{C_TYPES[dtype]} {name}" for (_, dtype), name in self.scalars.items()]
        return ", ".join(parts)

    def arguments(self, names: dict[Value, str], out: str) -> str:
        def called(value: Value) -> str:
            return value.text if isinstance(value, StoredTensor) else names[value]

        parts = [
            f"tensor_map({called(item.tensor)}.view({', '.join(dim.text for dim in item.extents)}), "
            f"box=(1, {BOX}, {BOX}), swizzle=128)"
            for item in self.maps.values()
        ]
        parts += [*map(called, self.tensors), out]
        parts += [f"{'i64' if self.wide else 'i32'}({text})" for text in self.launch_extents]
        parts += [f"{'f64' if dtype is DType.FLOAT64 else 'f32'}({text})" for text, dtype in self.scalars]
        return ", ".join(parts)
