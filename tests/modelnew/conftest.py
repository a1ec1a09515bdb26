"""A zygote, an evaluator for one small task, and a way to say what must come of a candidate."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from kernelforge.evaluation.pool import EvaluatorPool
from kernelforge.modelnew.evaluator import ModelNewEvaluator, modelnew_candidate
from kernelforge.records import Evaluation, Fingerprint, Size, Task, Verdict
from kernelforge.sandbox import Zygote
from tests.modelnew.modelnew_setup import LIMITS, REFERENCE, Judge
from tests.support.factories import make_fingerprint


def cpu_fingerprint() -> Fingerprint:
    return make_fingerprint(device="cpu", device_kind="cpu", arch="cpu", toolchain="none")


@pytest.fixture(scope="session")
def modelnew_zygote(kept_zygotes: Callable[..., Zygote]) -> Zygote:
    return kept_zygotes("modelnew")


def make_evaluator(workshop: EvaluatorPool, zygote: Zygote, task: Task, **changes: object) -> ModelNewEvaluator:
    arguments = {"limits": LIMITS, "build_s": 120.0, "run_s": 120.0, **changes}
    return ModelNewEvaluator(task, workshop.oracle(task), zygote, "cpu", cpu_fingerprint(), **arguments)  # type: ignore[arg-type]


@pytest.fixture(scope="session")
def evaluator(workshop: EvaluatorPool, modelnew_zygote: Zygote) -> Iterator[ModelNewEvaluator]:
    sizes = (
        Size(name="full"),
        Size(name="small", constants={"ROWS": 8, "COLS": 32}),
        Size(name="hidden_odd", constants={"ROWS": 7, "COLS": 33}),
    )
    task = Task(name="linear", suite="test", title="linear", level=1, source=REFERENCE, sizes=sizes)
    made = make_evaluator(workshop, modelnew_zygote, task)
    yield made
    made.oracle.close()


@pytest.fixture(scope="session")
def judge(evaluator: ModelNewEvaluator) -> Judge:
    """Evaluate a text, check the verdict and words of the reason."""

    def run(text: str, verdict: Verdict = Verdict.OK, *words: str, seed: int = 11) -> Evaluation:
        evaluation = evaluator.evaluate(modelnew_candidate(text), seed=seed).evaluation
        assert evaluation.verdict is verdict, evaluation.reason
        assert evaluation.lane == "modelnew"
        assert evaluation.performance is None
        for word in words:
            assert word in evaluation.reason
        return evaluation

    return run
