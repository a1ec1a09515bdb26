"""Child side: a matrix product of strided tensors in the terms of cuBLAS, whose matrices are stored by columns.

Pure arithmetic on shapes and strides; nothing here needs a GPU.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

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


def gemm_of(left: torch.Tensor, right: torch.Tensor) -> Gemm:
    """The call for ``left @ right`` with a contiguous output; both operands are :func:`usable`.

    Raises:
        ValueError: one of them is not.
    """
    a, b = _stored(right), _stored(left)
    if a is None or b is None:
        raise ValueError("cuBLAS cannot read an operand whose rows and columns both have gaps")
    rows, depth = left.shape[-2:]
    columns = right.shape[-1]
    batch = left.shape[0] if left.dim() > 2 else 1
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
        stride_a=right.stride(0) if right.dim() > 2 else 0,
        stride_b=left.stride(0) if left.dim() > 2 else 0,
        stride_c=rows * columns,
        dtype=left.dtype,
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
