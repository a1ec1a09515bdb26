"""Matrix products: whether a traced reference is one, of which operands, and the same in the terms of cuBLAS."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import torch

from kernelforge.evaluation.oracle.worker.reference import Value
from kernelforge.records import Graph, Node

Layout = Literal["N", "T"]


@dataclass(frozen=True)
class Gemm:
    """``C = op(A) op(B)`` in cuBLAS's terms: m x n x k, leading dimensions and batch strides in elements.

    A row-major output is the transposed of a column-major one, and (L R)^T = R^T L^T: so A is the right operand and B
    the left one, and an operand that is stored by rows needs no transposition.
    """

    op_a: Layout
    op_b: Layout
    m: int
    n: int
    k: int
    lda: int
    ldb: int
    ldc: int
    batch: int
    stride_a: int
    stride_b: int
    stride_c: int
    dtype: torch.dtype

    @property
    def layout(self) -> str:
        """``NN`` where both operands are stored by rows, ``TN`` where the right one is stored by columns."""
        return self.op_a + self.op_b


def usable(matrix: torch.Tensor) -> torch.Tensor:
    """The matrix itself where its rows or its columns are in one piece, as cuBLAS needs it; else a copy by rows."""
    return matrix if _stored(matrix) is not None else matrix.contiguous()


def by_columns(matrix: torch.Tensor) -> torch.Tensor:
    """A copy whose columns are in one piece."""
    return matrix.transpose(-1, -2).contiguous().transpose(-1, -2)


def gemm_of(lhs: torch.Tensor, rhs: torch.Tensor) -> Gemm:
    """The call for ``lhs @ rhs`` with a contiguous output; both operands are :func:`usable`.

    Raises:
        ValueError: one of them is not.
    """
    a, b = _stored(rhs), _stored(lhs)
    if a is None or b is None:
        raise ValueError("cuBLAS cannot read an operand whose rows and columns both have gaps")
    rows, depth = lhs.shape[-2:]
    columns = rhs.shape[-1]
    batch = lhs.shape[0] if lhs.dim() > 2 else 1
    return Gemm(
        op_a=a[0],
        op_b=b[0],
        m=columns,
        n=rows,
        k=depth,
        lda=a[1],
        ldb=b[1],
        ldc=columns,
        batch=batch,
        stride_a=rhs.stride(0) if rhs.dim() > 2 else 0,
        stride_b=lhs.stride(0) if lhs.dim() > 2 else 0,
        stride_c=rows * columns,
        dtype=lhs.dtype,
    )


def _stored(matrix: torch.Tensor) -> tuple[Layout, int] | None:
    """``N`` for storage by rows, ``T`` for storage by columns, with the leading dimension in elements."""
    (rows, columns), (down, along) = matrix.shape[-2:], matrix.stride()[-2:]
    if columns == 1 or along == 1:
        if rows == 1:
            return "N", columns
        if down >= columns:
            return "N", down
    if rows == 1 or down == 1:
        if columns == 1:
            return "T", rows
        if along >= rows:
            return "T", along
    return None


_PRODUCTS: Final = frozenset({"aten.mm", "aten.bmm", "aten.matmul", "aten.linear"})

_VIEWS: Final = frozenset({
    "aten.t", "aten.numpy_T", "aten.mT", "aten.transpose.int", "aten.permute", "aten.view", "aten.reshape",
    "aten.unsqueeze", "aten.squeeze.dim", "aten.expand", "aten.contiguous", "aten.detach",
})  # fmt: skip
"""Operators that only say how a tensor is looked at."""

_BATCHED_DIM: Final = 3


@dataclass(frozen=True)
class MatmulOperands:
    """``lhs @ rhs``: matrices, or batches of as many matrices. ``shape`` is that of the reference's output."""

    lhs: torch.Tensor
    rhs: torch.Tensor
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Product:
    """A traced reference that is one matrix product of views of its inputs and weights."""

    nodes: Mapping[str, Node]
    product: Node

    def operands(self, inputs: Sequence[Value], weights: Mapping[str, torch.Tensor]) -> MatmulOperands | None:
        """The operands of one draw; None where they are not two matrices or two equal batches of them."""
        lhs, rhs = (self._value(argument, inputs, weights) for argument in self.product.args[:2])
        if not isinstance(lhs, torch.Tensor) or not isinstance(rhs, torch.Tensor):
            return None
        rhs = rhs.t() if self.product.op == "aten.linear" else rhs
        return _as_matrices(lhs, rhs)

    def _value(self, argument: Any, inputs: Sequence[Value], weights: Mapping[str, torch.Tensor]) -> Any:
        if isinstance(argument, tuple | list):
            return [self._value(item, inputs, weights) for item in argument]
        if not isinstance(argument, dict):
            return argument
        node = self.nodes[argument["ref"]]
        if node.kind == "input":
            return inputs[int(node.op)]
        if node.kind == "weight":
            return weights[node.op].detach()
        _, name, *overload = node.op.split(".")
        operator = getattr(getattr(torch.ops.aten, name), overload[0] if overload else "default")
        return operator(
            *(self._value(item, inputs, weights) for item in node.args),
            **{key: self._value(item, inputs, weights) for key, item in node.kwargs.items()},
        )


def as_matmul(graph: Graph) -> Product | None:
    """The one matrix product that a graph is; None where it is anything else."""
    nodes = {node.name: node for node in graph.nodes}
    work = [node for node in graph.nodes if node.kind == "op" and node.op not in _VIEWS]
    if len(work) != 1 or work[0].op not in _PRODUCTS:
        return None
    (product,) = work
    if product.op == "aten.linear" and any(bias is not None for bias in product.args[2:]):
        return None
    outputs = next((node.args for node in graph.nodes if node.kind == "output"), ())
    if len(outputs) != 1 or outputs[0] != {"ref": product.name} or product.spec is None:
        return None
    return Product(nodes, product)


def _as_matrices(lhs: torch.Tensor, rhs: torch.Tensor) -> MatmulOperands | None:
    if lhs.dtype != rhs.dtype or lhs.numel() == 0 or rhs.numel() == 0:
        return None
    if rhs.dim() == 2 and lhs.dim() >= 2:
        shape = (*lhs.shape[:-1], rhs.shape[1])
        return MatmulOperands(lhs.reshape(-1, lhs.shape[-1]) if lhs.dim() > 2 else lhs, rhs, shape)
    if lhs.dim() == rhs.dim() >= _BATCHED_DIM and lhs.shape[:-2] == rhs.shape[:-2]:
        batch = math.prod(lhs.shape[:-2])
        matrices = (lhs.reshape(batch, *lhs.shape[-2:]), rhs.reshape(batch, *rhs.shape[-2:]))
        return MatmulOperands(*matrices, (*lhs.shape[:-1], rhs.shape[-1]))
    return None
