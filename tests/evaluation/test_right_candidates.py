"""Right kernels, written by hand, pass every check of tasks that need more than one idea: ``right_candidates``.

A file there is a reply, named after its suite and task. The size ``small`` stands for the full one, whose emulation
takes minutes: ``kernelforge eval FILE --task SUITE/TASK --device emulated:h100`` does that.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from kernelforge.candidate import parse_reply
from kernelforge.evaluation import EvaluatorPool
from kernelforge.records import Task, Verdict
from kernelforge.tasks import size_source
from tests.support.shipped_prompts import shipped

REPLIES = sorted((Path(__file__).parent / "right_candidates").glob("*/*.md"))


def small_task(reply: Path) -> Task:
    """The task of a reply, whose full size is its small one."""
    task = shipped(reply.parent.name).task(reply.stem)
    return task.model_copy(update={"source": size_source(task, "small")})


@pytest.mark.parametrize("reply", REPLIES, ids=lambda reply: f"{reply.parent.name}/{reply.stem}")
def test_a_right_kernel_passes_at_every_size(reply: Path, workshop: EvaluatorPool) -> None:
    evaluator = workshop.evaluator(small_task(reply))
    try:
        evaluation, _ = evaluator.evaluate(parse_reply(reply.read_text(encoding="utf-8")), seed=11)
    finally:
        evaluator.close()
    assert evaluation.verdict is Verdict.OK, evaluation.reason
