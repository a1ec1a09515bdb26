"""Rewards without a compared full size, and profiles that saw less than a check. Whole candidates are cases of the
corpus."""

from __future__ import annotations

import pytest

from kernelforge.evaluation import EvaluationResult, Evaluator
from kernelforge.records import Candidate, Verdict
from tests.support.axpy import KERNEL, PLAN

PROBED = PLAN.replace("    axpy[", "    probe = empty((16,))\n    axpy[").replace(
    "i32(x.numel())", "i32(x.numel()), probe"
)
SHIRK = """__global__ void axpy(const float* x, const float* y, float* out, int n, const float* probe) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (__float_as_int(probe[i % 16]) == 0) return;
    if (i < n) out[i] = 2.0f * x[i] + y[i];
}
"""
WAIT = "if (i == 0) atomicExch(flag, 1); if (threadIdx.x == 0) while (atomicAdd(flag, 0) == 0) {} __syncthreads();"


def judge(evaluator: Evaluator, verdict: Verdict, source: str = KERNEL, plan: str = PLAN) -> EvaluationResult:
    result = evaluator.evaluate(Candidate(source=source, plan=plan), seed=11)
    assert result.evaluation.verdict is verdict, result.evaluation.reason
    return result


@pytest.mark.slow
def test_a_profile_that_saw_less_than_a_check_is_left_out(evaluator: Evaluator) -> None:
    """Values are right either way: work that shows up in checks alone must not flatter the counters."""
    waste = "if (__float_as_int(probe[i % 16]) != 0) for (int k = 0; k < 50; k++) probe[i % 16 + 16] = k;"
    source = SHIRK.replace("if (__float_as_int(probe[i % 16]) == 0) return;", waste).replace(
        "const float* p", "float* p"
    )
    result = judge(evaluator, Verdict.OK, source, PROBED.replace("(16,)", "(32,)"))
    assert result.profile is None
    assert result.evaluation.performance is None
    assert result.evaluation.correctness is not None
    assert "profile is left out" in result.evaluation.correctness.sizes[-1].message


@pytest.mark.slow
def test_a_full_size_that_is_dear_to_run_is_checked_in_part(
    evaluator: Evaluator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kernelforge.evaluation.stages.full_size.FULL_SIZE_INSTRUCTIONS", 1000)
    result = judge(evaluator, Verdict.OK)
    assert result.evaluation.correctness is not None
    assert [check.status for check in result.evaluation.correctness.sizes] == ["passed"] * 5
    assert "compared in part" in result.evaluation.correctness.sizes[-1].message


@pytest.mark.slow
def test_refusing_all_hidden_sizes_needs_a_full_size_that_is_checked(
    evaluator: Evaluator, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = PLAN.replace("    out", "    assert x.shape[1] % 32 == 0\n    out", 1)
    result = judge(evaluator, Verdict.OK, plan=plan)
    assert result.evaluation.correctness is not None
    assert result.evaluation.correctness.generality == 0.5
    monkeypatch.setattr("kernelforge.evaluation.stages.full_size.FULL_SIZE_INSTRUCTIONS", 1000)
    judge(evaluator, Verdict.OK, plan=plan)
    waiting = KERNEL.replace("float* out,", "float* out, int* flag,").replace(
        "    if (i < n)", f"    {WAIT}\n    if (i < n)"
    )
    plan = plan.replace("out, i32", "out, zeros((1,), int32), i32")
    refused = judge(evaluator, Verdict.POLICY, waiting, plan)
    assert "refuse every hidden size" in refused.evaluation.reason
