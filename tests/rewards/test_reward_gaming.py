"""Rewards of kernels that do more than they have to, in ways that a formula might overlook: they are never higher."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kernelforge.evaluation import EvaluationResult, Evaluator, EvaluatorPool
from kernelforge.records import Candidate, Verdict
from kernelforge.rewards import Context, components, reward
from kernelforge.tasks import substitute
from tests.support.axpy import KERNEL, PLAN, axpy_task

POLICIES = ("shaped/1", "predicted/1", "kernelforge/2")
"""Those that pay for more than correctness where nothing is measured."""

SPLIT = """def forward(x, y):
    out = empty_like(x)
    half = x.numel() // 2
    axpy[ceil_div(half, 128), 128](x, y, out, i32(half), i32(0))
    axpy[ceil_div(x.numel() - half, 128), 128](x, y, out, i32(x.numel() - half), i32(half))
    return out
"""
SPLIT_KERNEL = KERNEL.replace("int n)", "int n, int from)").replace(
    "if (i < n) out[i]", "if (i >= n) return;\n    i += from;\n    out[i]"
)
REDUNDANT = """
    float s = 0.0f;
    for (int k = 1; k <= 8; ++k) s += *(volatile const float*)(y + (i + k * 4096) % n) * 0.0f;
"""
"""Eight more loads of each thread, every one as well laid out as can be."""


@pytest.fixture(scope="module")
def evaluator(workshop: EvaluatorPool) -> Iterator[Evaluator]:
    task = axpy_task()
    made = workshop.evaluator(task.model_copy(update={"source": substitute(task.source, {"ROWS": 1024, "COLS": 1024})}))
    yield made
    made.oracle.close()


@pytest.fixture(scope="module")
def plain(evaluator: Evaluator) -> EvaluationResult:
    return evaluate(evaluator, KERNEL)


def evaluate(evaluator: Evaluator, source: str, plan: str = PLAN) -> EvaluationResult:
    result = evaluator.evaluate(Candidate(source=source, plan=plan), seed=7)
    assert result.evaluation.verdict is Verdict.OK, result.evaluation.reason
    assert result.profile is not None, result.evaluation.correctness
    return result


def rewards(result: EvaluationResult) -> list[float]:
    values = [reward(name, result.evaluation, Context(profile=result.profile)).value for name in POLICIES]
    return [value for value in values if value is not None]


@pytest.mark.slow
def test_a_launch_that_is_split_earns_less(evaluator: Evaluator, plain: EvaluationResult) -> None:
    split = evaluate(evaluator, SPLIT_KERNEL, SPLIT)
    assert components(split.evaluation, split.profile).launches == 2
    assert all(more <= few for more, few in zip(rewards(split), rewards(plain), strict=True))
    assert rewards(split)[0] < rewards(plain)[0]


@pytest.mark.slow
def test_more_accesses_that_are_laid_out_well_earn_less(evaluator: Evaluator, plain: EvaluationResult) -> None:
    redundant = evaluate(
        evaluator,
        KERNEL.replace("    if (i < n) out[i] = ", f"    if (i >= n) return;{REDUNDANT}    out[i] = s + "),
    )
    counted, least = (components(item.evaluation, item.profile) for item in (redundant, plain))
    assert counted.sectors_per_request == least.sectors_per_request == 4
    assert counted.sector_ratio is not None
    assert counted.sector_ratio > 3
    assert all(more <= few for more, few in zip(rewards(redundant), rewards(plain), strict=True))
    assert rewards(redundant)[0] < rewards(plain)[0]


@pytest.mark.slow
@pytest.mark.parametrize("busy", ["blockIdx.x % 7 == 3", "blockIdx.x > 5000", "blockIdx.x * 2654435761u > 0xE0000000u"])
def test_work_in_blocks_that_may_not_be_sampled_is_counted(
    evaluator: Evaluator, plain: EvaluationResult, busy: str
) -> None:
    """An eighth to a third of the blocks does ten times the work: the counts are those of all blocks."""
    loads = REDUNDANT.replace("float s = 0.0f;", f"float s = 0.0f;\n    if ({busy})")
    slow = KERNEL.replace("    if (i < n) out[i] = ", f"    if (i >= n) return;{loads}    out[i] = s + ")
    result = evaluate(evaluator, slow)
    counted, least = (components(item.evaluation, item.profile).sector_ratio for item in (result, plain))
    assert counted is not None
    assert least is not None
    assert counted > 1.2 * least
    assert rewards(result)[0] < rewards(plain)[0]
