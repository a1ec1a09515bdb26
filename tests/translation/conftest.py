"""An evaluator of C candidates for one small task, and a way to say what must come of one."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator

import pytest

from kernelforge.evaluation.pool import EvaluatorPool
from kernelforge.records import Evaluation, Task, Verdict
from kernelforge.sandbox import Zygote
from kernelforge.translation.evaluator import CEvaluator, c_candidate
from tests.support.factories import make_fingerprint
from tests.support.shipped_prompts import shipped

Judge = Callable[..., Evaluation]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if shutil.which("cc") is None:
        for item in items:
            if "translation" in str(item.path.parent):
                item.add_marker(pytest.mark.skip(reason="there is no C compiler `cc`"))


@pytest.fixture(scope="session")
def c_zygote(kept_zygotes: Callable[..., Zygote]) -> Zygote:
    return kept_zygotes("c-candidate")


@pytest.fixture(scope="session")
def heat_step() -> Task:
    """The shipped task, with sizes at which the reference takes no time."""
    task = next(task for task in shipped("translate") if task.name == "heat_step")
    small_file = task.source.replace("ROWS = 4096", "ROWS = 96").replace("COLS = 8192", "COLS = 128")
    sizes = tuple(size for size in task.sizes if size.name in ("full", "small", "hidden_odd"))
    return task.model_copy(update={"source": small_file, "sizes": sizes})


@pytest.fixture(scope="session")
def c_evaluator(workshop: EvaluatorPool, c_zygote: Zygote, heat_step: Task) -> Iterator[CEvaluator]:
    fingerprint = make_fingerprint(device="cpu", device_kind="cpu", arch="cpu", toolchain="cc")
    made = CEvaluator(heat_step, workshop.oracle(heat_step), c_zygote, fingerprint, build_s=120.0, run_s=5.0)
    yield made
    made.close()


@pytest.fixture(scope="session")
def judge(c_evaluator: CEvaluator) -> Judge:
    """Evaluate a C text, check the verdict and words of the reason."""

    def run(text: str, verdict: Verdict = Verdict.OK, *words: str) -> Evaluation:
        evaluation = c_evaluator.evaluate(c_candidate(text), seed=11).evaluation
        assert evaluation.verdict is verdict, evaluation.reason
        assert evaluation.lane == "c"
        for word in words:
            assert word in evaluation.reason
        return evaluation

    return run
