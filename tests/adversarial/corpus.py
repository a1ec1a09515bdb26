"""Candidates that want a reward without a correct kernel, or more than a candidate may have.

Each case names what it attacks and the verdict that it must get. ``CANARY`` is planted where an attack may look for a
secret; it must be in no reason, no record and no feedback.
"""

from __future__ import annotations

from dataclasses import dataclass

from kernelforge.evaluate import EvaluationResult, Evaluator
from kernelforge.records import Candidate, Size, Task, Verdict
from kernelforge.rewards import DEFAULT_POLICY, reward

CANARY = "canary-b7d1f0"

REFERENCE = """
import torch
import torch.nn as nn

ROWS = 64
COLS = 96


class Model(nn.Module):
    def forward(self, x, y):
        return x * 2 + y


def get_inputs():
    return [torch.randn(ROWS, COLS), torch.randn(ROWS, COLS)]


def get_init_inputs():
    return []
"""

KERNEL = """__global__ void axpy(const float* x, const float* y, float* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = 2.0f * x[i] + y[i];
}
"""

PLAN = """def forward(x, y):
    out = empty_like(x)
    axpy[ceil_div(x.numel(), 128), 128](x, y, out, i32(x.numel()))
    return out
"""

SIZES = (
    Size(name="full"),
    Size(name="small", constants={"ROWS": 8, "COLS": 32}),
    Size(name="hidden_odd", constants={"ROWS": 7, "COLS": 33}),
    Size(name="hidden_tiny", constants={"ROWS": 1, "COLS": 5}),
)


@dataclass(frozen=True)
class Case:
    """One attack. ``words`` must be in the reason."""

    attacks: str
    verdict: Verdict
    source: str = KERNEL
    plan: str = PLAN
    words: tuple[str, ...] = ()


def axpy_task(source: str = REFERENCE, sizes: tuple[Size, ...] = SIZES) -> Task:
    return Task(name="axpy", suite="test", title="2x + y", level=1, source=source, sizes=sizes)


def body(code: str) -> str:
    """The honest kernel with ``code`` before its last line."""
    return KERNEL.replace("    if (i < n)", f"    {code}\n    if (i < n)")


def judge(evaluator: Evaluator, case: Case) -> EvaluationResult:
    """Evaluate a case: its verdict and words, no reward unless OK, no canary anywhere, and an unhurt next candidate."""
    result = evaluator.evaluate(Candidate(source=case.source, plan=case.plan), seed=11)
    evaluation = result.evaluation
    assert evaluation.verdict is case.verdict, evaluation.reason
    for word in case.words:
        assert word in evaluation.reason
    assert CANARY not in evaluation.model_dump_json()
    if case.verdict is not Verdict.OK:
        assert not reward(DEFAULT_POLICY, evaluation).value
        assert result.profile is None
        honest = evaluator.evaluate(Candidate(source=KERNEL, plan=PLAN), seed=11, profile=False)
        assert honest.evaluation.verdict is Verdict.OK, honest.evaluation.reason
    return result
