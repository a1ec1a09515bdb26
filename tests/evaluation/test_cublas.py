"""References that are one matrix product, and the call that cuBLAS gets for each."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernelforge.errors import BaselineError
from kernelforge.evaluation.oracle.worker.cublas import Choice, _AlgorithmTiming, _alignment, fastest
from kernelforge.evaluation.oracle.worker.matmul import Gemm, Product, as_matmul, by_columns, gemm_of, usable
from kernelforge.evaluation.oracle.worker.reference_runner import ReferenceRunner
from kernelforge.evaluation.oracle.worker.tracing import trace_source
from kernelforge.records import Task
from tests.evaluation.oracle_tasks import make_task


def traced(task: Task) -> Product | None:
    return as_matmul(trace_source(task.source, {}))


def gemm_by_columns(call: Gemm, a: np.ndarray, b: np.ndarray, size: int) -> np.ndarray:
    """``cublasGemmStridedBatchedEx`` as the cuBLAS documentation defines it, on flat memory."""

    def matrix(flat: np.ndarray, offset: int, rows: int, columns: int, leading: int) -> np.ndarray:
        return np.array([[flat[offset + j * leading + i] for j in range(columns)] for i in range(rows)])

    out = np.full(size, np.nan)
    for index in range(call.batch):
        first, second = ((call.m, call.k), (call.k, call.n))
        lhs = matrix(a, index * call.stride_a, *(first if call.op_a == "N" else first[::-1]), call.lda)
        rhs = matrix(b, index * call.stride_b, *(second if call.op_b == "N" else second[::-1]), call.ldb)
        product = (lhs if call.op_a == "N" else lhs.T) @ (rhs if call.op_b == "N" else rhs.T)
        for i in range(call.m):
            for j in range(call.n):
                out[index * call.stride_c + j * call.ldc + i] = product[i, j]
    return out


def flat(tensor: torch.Tensor) -> np.ndarray:
    """Memory from a tensor's first element on."""
    storage = torch.empty(0, dtype=tensor.dtype).set_(tensor.untyped_storage())
    return storage[tensor.storage_offset() :].numpy()


@given(
    st.integers(1, 5), st.integers(1, 5), st.integers(1, 5), st.integers(0, 3),
    st.booleans(), st.booleans(), st.booleans(), st.integers(0, 2),
)  # fmt: skip
@settings(max_examples=60)
def test_the_call_computes_the_product_whatever_the_layouts(
    m: int, n: int, k: int, batch: int, left_by_columns: bool, right_by_columns: bool, padded: bool, offset: int
) -> None:
    lead = (batch,) if batch else ()

    def made(rows: int, columns: int, columns_first: bool) -> torch.Tensor:
        extra = 3 if padded else 0
        storage = torch.randn(*lead, rows + offset, columns + extra, dtype=torch.float64)
        part = storage[..., offset:, :columns]
        return by_columns(part) if columns_first else part

    lhs, rhs = usable(made(m, k, left_by_columns)), usable(made(k, n, right_by_columns))
    out = gemm_by_columns(gemm_of(lhs, rhs), flat(rhs), flat(lhs), max(batch, 1) * m * n)
    np.testing.assert_allclose(out.reshape(*lead, m, n), (lhs @ rhs).numpy(), rtol=1e-12, atol=1e-12)


def test_layouts_are_named_as_cublas_names_them() -> None:
    lhs, rhs = torch.randn(4, 3), torch.randn(3, 5)
    assert gemm_of(lhs, rhs).layout == "NN"
    assert gemm_of(lhs, by_columns(rhs)).layout == "TN"
    assert gemm_of(by_columns(lhs), rhs).layout == "NT"


def test_an_operand_with_gaps_both_ways_is_copied() -> None:
    gappy = torch.randn(8, 8)[::2, ::2]
    assert usable(gappy).is_contiguous()
    with pytest.raises(ValueError, match="gaps"):
        gemm_of(gappy, gappy)


@pytest.mark.parametrize(
    ("forward", "inputs", "init"),
    [
        ("a @ b", "torch.randn(4, 6), torch.randn(6, 5)", "pass"),
        ("torch.matmul(a.T, b.T)", "torch.randn(6, 4), torch.randn(5, 6)", "pass"),
        ("torch.bmm(a, b)", "torch.randn(2, 4, 6), torch.randn(2, 6, 5)", "pass"),
        ("a @ b", "torch.randn(2, 3, 4, 6), torch.randn(2, 3, 6, 5)", "pass"),
        ("a @ b", "torch.randn(2, 4, 6), torch.randn(6, 5)", "pass"),
        ("self.fc(a)", "torch.randn(4, 6)", "self.fc = nn.Linear(6, 5, bias=False)"),
        ("a @ self.w.permute(1, 0)", "torch.randn(4, 6)", "self.w = nn.Parameter(torch.randn(5, 6))"),
    ],
)
def test_one_product_is_found_with_its_operands(forward: str, inputs: str, init: str) -> None:
    task = make_task(forward, inputs, init=init)
    product = traced(task)
    assert product is not None
    reckoner = ReferenceRunner(task)
    drawn = reckoner.draw("full", "task", 7)
    model = reckoner.model_of(drawn)
    operands = product.operands(drawn.inputs, dict(model.named_parameters()))
    assert operands is not None
    assert drawn.expected is not None
    torch.testing.assert_close((operands.lhs @ operands.rhs).reshape(operands.shape), drawn.expected[0].reference)


@pytest.mark.parametrize(
    ("forward", "inputs", "init"),
    [
        ("a @ b + 1", "torch.randn(4, 6), torch.randn(6, 5)", "pass"),
        ("self.fc(a)", "torch.randn(4, 6)", "self.fc = nn.Linear(6, 5)"),
        ("torch.relu(a)", "torch.randn(4, 6)", "pass"),
        ("(a @ b, a)", "torch.randn(4, 6), torch.randn(6, 5)", "pass"),
        ("a @ b @ b", "torch.randn(4, 6), torch.randn(6, 6)", "pass"),
    ],
)
def test_anything_more_than_one_product_has_no_cublas_baseline(forward: str, inputs: str, init: str) -> None:
    assert traced(make_task(forward, inputs, init=init)) is None


def test_a_product_with_a_vector_is_left_to_others() -> None:
    product = traced(make_task("a @ b", "torch.randn(4, 6), torch.randn(6)"))
    assert product is None or product.operands((torch.randn(4, 6), torch.randn(6)), {}) is None


def test_the_result_structure_has_the_size_that_the_header_gives() -> None:
    assert ctypes.sizeof(_AlgorithmTiming) == 96


def test_alignment_is_the_largest_power_of_two_up_to_256() -> None:
    assert [_alignment(pointer) for pointer in (0x1000, 0x1010, 0x1002, 0x1001)] == [256, 16, 2, 1]


def test_the_fastest_is_by_median_and_failures_are_left_out() -> None:
    calls: dict[int, int] = {}

    def time_us(choice: Choice) -> float:
        calls[choice[0]] = calls.get(choice[0], 0) + 1
        if choice[0] == 0:
            raise BaselineError("cublasLtMatmul gave status 15")
        if choice[0] == 1:  # the least single time, yet slow as a rule
            return 1.0 if calls[1] % 3 == 0 else 9.0
        return 5.0

    choices: list[Choice] = [(0, None), (1, None), (2, None)]
    assert fastest(choices, time_us, budget_s=0.05) == (2, None)
    assert calls[0] == 1


def test_a_baseline_without_a_working_algorithm_says_why() -> None:
    def fails(choice: Choice) -> float:
        raise BaselineError("cublasLtMatmul gave status 15")

    with pytest.raises(BaselineError, match="status 15"):
        fastest([(0, None)], fails, budget_s=1.0)
    with pytest.raises(BaselineError, match="no algorithm"):
        fastest([], fails, budget_s=1.0)
