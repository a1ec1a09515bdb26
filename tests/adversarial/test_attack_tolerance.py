"""Answers that are wrong where a tolerance might be too kind."""

from __future__ import annotations

import math

import pytest
import torch

from kernelforge.evaluation.oracle.worker.comparison import Got, compare_outputs
from kernelforge.evaluation.oracle.worker.reference_runner import ReferenceRunner
from kernelforge.evaluation.oracle.worker.tolerance import expected_output
from kernelforge.records import DType, Size
from tests.support.axpy import axpy_task

SIZES = (Size(name="full"), Size(name="small"))


def got(*values: float) -> Got:
    return Got(torch.tensor(values, dtype=torch.float32).numpy().tobytes(), (len(values),), DType.FLOAT32)


def task(forward: str, inputs: str) -> ReferenceRunner:
    source = f"""import torch
import torch.nn as nn
class Model(nn.Module):
    def forward(self, x):
        return {forward}
def get_inputs():
    return [{inputs}]
def get_init_inputs():
    return []
"""
    return ReferenceRunner(axpy_task(source, SIZES))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("forward", "inputs"),
    [
        ("torch.floor(x)", "torch.randint(1, 5, (64, 96)).float()"),
        ("(x == x.round()).float()", "torch.randint(0, 3, (64, 96)).float()"),
        ("torch.round(x * 8) / 8", "torch.randint(1, 64, (64, 96)).float() / 16"),
        ("(x >= 2).float()", "torch.randint(0, 4, (64, 96)).float()"),
    ],
)
def test_a_step_in_the_formula_does_not_void_its_tolerance(forward: str, inputs: str) -> None:
    """A nudge across a step moves the result by a whole unit: conditioning without bound would accept any answer."""
    drawn = task(forward, inputs).draw("small", "task", 3)
    assert drawn.expected is not None
    want = drawn.expected[0]
    assert want.exact is not None
    assert want.tolerance is not None
    zeros_pass = (want.exact.abs() <= want.tolerance) & (want.exact != 0)
    assert not bool(zeros_pass.any())


def test_a_float64_nan_is_no_wildcard() -> None:
    reference = torch.tensor([0.0, 1.0, 2.0])
    exact = torch.tensor([math.nan, 1.0, 2.0], dtype=torch.float64)
    want = expected_output(reference, exact, reference)
    assert compare_outputs([want], [got(0, 1, 2)], [None]).ok
    for wrong in (5e9, math.nan, math.inf):
        assert not compare_outputs([want], [got(wrong, 1, 2)], [None]).ok


def test_nan_and_infinity_pass_only_where_torch_has_them() -> None:
    reference = torch.tensor([math.nan, math.inf, -math.inf, 1.0])
    want = expected_output(reference, reference.double(), reference)
    assert compare_outputs([want], [got(math.nan, math.inf, -math.inf, 1)], [None]).ok
    for wrong in (
        (1, math.inf, -math.inf, 1),
        (math.nan, math.nan, -math.inf, 1),
        (math.nan, math.inf, math.inf, 1),
        (math.nan, math.inf, -math.inf, math.nan),
        (math.nan, 3e38, -math.inf, 1),
    ):
        assert not compare_outputs([want], [got(*wrong)], [None]).ok


def test_no_output_is_broadcast_or_cut() -> None:
    reference = torch.ones(4)
    want = expected_output(reference, reference.double(), reference)
    assert not compare_outputs([want], [], []).ok
    assert not compare_outputs([want], [got(1)], [None]).ok
    assert not compare_outputs([want], [got(1, 1, 1, 1, 1)], [None]).ok
    assert not compare_outputs([want], [Got(got(1, 1, 1).data, (4,), DType.FLOAT32)], [None]).ok
    assert not compare_outputs([want], [Got(got(1, 1, 1, 1).data, (4,), DType.INT32)], [None]).ok
