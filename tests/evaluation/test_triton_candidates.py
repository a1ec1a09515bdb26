"""Candidates in Triton through the whole cascade: their verdicts, and the page that explains them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kernelforge.candidate import parse_reply
from kernelforge.compile.triton_build import installed_triton
from kernelforge.evaluation import Evaluator, EvaluatorPool
from kernelforge.records import Candidate, Evaluation, Verdict
from tests.support.axpy import axpy_task

pytestmark = pytest.mark.skipif(installed_triton() is None, reason="the extra triton is not installed")

PAGE = Path(__file__).resolve().parents[2] / "docs" / "triton.md"
SOURCE = """import triton
import triton.language as tl

@triton.jit
def axpy(x, y, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, 2.0 * tl.load(x + at, mask=at < n) + tl.load(y + at, mask=at < n), mask=at < n)
"""
PLAN = """# tune: BLOCK = 128 | 256
def forward(x, y):
    out = empty_like(x)
    axpy[ceil_div(x.numel(), BLOCK)](x, y, out, i32(x.numel()), BLOCK=BLOCK)
    return out
"""


@pytest.fixture(scope="module")
def evaluator(workshop: EvaluatorPool) -> Iterator[Evaluator]:
    made = workshop.evaluator(axpy_task())
    yield made
    made.oracle.close()


@pytest.fixture
def verdict(evaluator: Evaluator) -> Callable[..., Evaluation]:
    def evaluate(source: str = SOURCE, plan: str = PLAN) -> Evaluation:
        return evaluator.evaluate(Candidate(source=source, plan=plan), seed=5, profile=False).evaluation

    return evaluate


@pytest.mark.slow
def test_a_right_kernel_is_ok_at_every_size(verdict: Callable[..., Evaluation]) -> None:
    evaluation = verdict()
    assert evaluation.verdict is Verdict.OK, evaluation.reason
    assert evaluation.build is not None
    assert evaluation.build.toolchain == installed_triton()
    assert evaluation.build.kernels[0].expression.startswith("axpy<*fp32:16, *fp32:16, *fp32:16, i32")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "expected", "reason"),
    [
        (("2.0 *", "3.0 *"), Verdict.WRONG, ""),
        (("load(x + at,", "load(x + at + n,"), Verdict.CRASH, "candidate.py:7"),
        (("2.0 *", "missing *"), Verdict.BUILD, "candidate.py:7: error: missing is not defined"),
        (("tl.program_id(0)", "tl.extra.cuda.smid()"), Verdict.POLICY, "must not ask where it runs"),
        (("import triton\n", "import triton, os\n"), Verdict.POLICY, "host code is the plan's"),
        (("BLOCK: tl.constexpr", "WIDTH: tl.constexpr"), Verdict.BUILD, "no tl.constexpr parameter 'BLOCK'"),
    ],
)
def test_a_bad_one_has_its_verdict(
    verdict: Callable[..., Evaluation], change: tuple[str, str], expected: Verdict, reason: str
) -> None:
    evaluation = verdict(SOURCE.replace(*change))
    assert evaluation.verdict is expected, evaluation.reason
    assert reason in evaluation.reason


def test_the_candidate_of_the_page_builds() -> None:
    blocks = re.findall(r"^```(?:triton|python)\n.*?^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    candidate = parse_reply("\n\n".join(blocks))
    assert candidate.language == "triton"
