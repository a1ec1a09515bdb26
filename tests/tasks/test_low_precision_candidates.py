"""Right kernels for tasks of the suite ``low-precision``, written by hand, are OK on the emulated device.

Their full size is the small one here; all other sizes are the task's own.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from kernelforge.candidate import parse_reply
from kernelforge.evaluation import EvaluatorPool
from kernelforge.records import Task, Verdict
from kernelforge.tasks import size_source
from tests.support.shipped_prompts import shipped

FILES = sorted((Path(__file__).parent / "low_precision_candidates").glob("*.md"))


def reduced(name: str) -> Task:
    """A task whose full size is its small one."""
    task = shipped("low-precision").task(name)
    return task.model_copy(update={"source": size_source(task, "small")})


@pytest.mark.slow
@pytest.mark.one_in(4)
@pytest.mark.parametrize("file", FILES, ids=[file.stem for file in FILES])
def test_a_right_kernel_is_ok(workshop: EvaluatorPool, file: Path) -> None:
    evaluator = workshop.evaluator(reduced(file.stem))
    try:
        candidate = parse_reply(file.read_text(encoding="utf-8"))
        evaluation = evaluator.evaluate(candidate, seed=5, profile=False).evaluation
    finally:
        evaluator.oracle.close()
    assert evaluation.verdict is Verdict.OK, evaluation.reason
    assert evaluation.correctness is not None
    assert {check.status for check in evaluation.correctness.sizes} == {"passed"}
