"""Right kernels, written by hand, pass every check of tasks that need more than one idea: ``right_candidates``.

A file there is a reply, named after its suite and task, and after its device where that is not an H100. The size
``small`` stands for the full one, whose emulation takes minutes: ``kernelforge eval FILE --task SUITE/TASK --device
emulated:h100`` does that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kernelforge.candidate import parse_reply
from kernelforge.compile import Compiler, installed_toolchain
from kernelforge.devices.emulated.device import EmulatedDevice
from kernelforge.evaluation import EvaluatorPool
from kernelforge.hardware.specs import SPECS
from kernelforge.records import Task, Verdict
from kernelforge.tasks import size_source
from tests.support.shipped_prompts import shipped

REPLIES = sorted((Path(__file__).parent / "right_candidates").glob("*/*.md"))


def small_task(reply: Path) -> Task:
    """The task of a reply, whose full size is its small one."""
    task = shipped(reply.parent.name).task(reply.name.partition(".")[0])
    return task.model_copy(update={"source": size_source(task, "small")})


@pytest.fixture(scope="module")
def volta(tmp_path_factory: pytest.TempPathFactory, open_warm: Callable[..., Any]) -> Iterator[EvaluatorPool]:
    """A pool of the emulated V100, for which CUDA 13 does not compile."""
    cache, device = tmp_path_factory.mktemp("builds"), open_warm(EmulatedDevice, SPECS["v100"])
    with open_warm(EvaluatorPool, "emulated:v100", cache=cache, opened=[device]) as made:
        made.compiler.close()
        made.compiler = open_warm(Compiler, cache, toolchain=installed_toolchain(12))
        yield made


@pytest.fixture
def pool(reply: Path, request: pytest.FixtureRequest) -> EvaluatorPool:
    """The pool of a reply's device."""
    device = reply.suffixes[0].removeprefix(".")
    made: EvaluatorPool = request.getfixturevalue({"md": "workshop", "v100": "volta"}[device])
    return made


@pytest.mark.slow
@pytest.mark.one_in(4)
@pytest.mark.parametrize("reply", REPLIES, ids=lambda reply: f"{reply.parent.name}/{reply.stem}")
def test_a_right_kernel_passes_at_every_size(reply: Path, pool: EvaluatorPool) -> None:
    evaluator = pool.evaluator(small_task(reply))
    try:
        evaluation, _ = evaluator.evaluate(parse_reply(reply.read_text(encoding="utf-8")), seed=11)
    finally:
        evaluator.close()
    assert evaluation.verdict is Verdict.OK, evaluation.reason
