"""Conformance of verdicts: candidates of plans and ModelNew classes that are bad in the same way are judged alike."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

import pytest

from kernelforge.evaluation import EvaluationResult, EvaluatorPool
from kernelforge.evaluation.oracle.client import Oracle
from kernelforge.evaluation.stages.compile_stage import HIDDEN_REASONS
from kernelforge.modelnew.evaluator import ModelNewEvaluators, modelnew_candidate
from kernelforge.records import Candidate, Evaluation, Verdict
from tests.support.axpy import KERNEL, PLAN, axpy_task

CLASS = "import torch\n\nclass ModelNew(torch.nn.Module):\n    def forward(self, x, y):\n        "


class TaskEvaluator(Protocol):
    oracle: Oracle

    def evaluate(self, candidate: Candidate, *, seed: int) -> EvaluationResult: ...


@dataclass(frozen=True)
class Candidates:
    """A language of candidates: ``2x + y`` in it, right and wrong."""

    good: Candidate
    wrong_values: Candidate
    wrong_last_element: Candidate
    wrong_at_33_columns: Candidate
    crash_at_33_columns: Candidate
    wrong_shape: Candidate
    wrong_shape_verdict: Verdict
    """A plan's shapes are known before it runs; a class is run."""


def plans(source: str = KERNEL, plan: str = PLAN) -> Candidate:
    return Candidate(source=source, plan=plan)


def classes(*lines: str) -> Candidate:
    return modelnew_candidate(CLASS + "\n        ".join(lines) + "\n")


LANES = {
    "plan": Candidates(
        good=plans(),
        wrong_values=plans(KERNEL.replace("2.0f", "2.5f")),
        wrong_last_element=plans(KERNEL.replace("i < n", "i < n - 1")),
        wrong_at_33_columns=plans(KERNEL.replace("i < n", "i < n - (n == 231)")),
        crash_at_33_columns=plans(KERNEL.replace("i < n", "i < n || n == 231")),
        wrong_shape=plans(plan=PLAN.replace("return out", "return out.view(x.numel())")),
        wrong_shape_verdict=Verdict.POLICY,
    ),
    "modelnew": Candidates(
        good=classes("return x + x + y"),
        wrong_values=classes("return 2.5 * x + y"),
        wrong_last_element=classes("out = 2 * x + y", "out[-1, -1] = 0", "return out"),
        wrong_at_33_columns=classes("return 2 * x + y + (x.shape[1] == 33)"),
        crash_at_33_columns=classes("assert x.shape[1] != 33, f'the shape is {x.shape}'", "return 2 * x + y"),
        wrong_shape=classes("return (2 * x + y).flatten()"),
        wrong_shape_verdict=Verdict.WRONG,
    ),
}


@pytest.fixture(scope="module", params=LANES)
def candidates(request: pytest.FixtureRequest) -> Candidates:
    return LANES[request.param]


@pytest.fixture(scope="module")
def evaluate(
    candidates: Candidates, workshop: EvaluatorPool, warmly: Callable[[], AbstractContextManager[None]]
) -> Iterator[Callable[..., Evaluation]]:
    """Evaluate a candidate with a seed."""
    with warmly():
        made: TaskEvaluator = workshop.evaluator(axpy_task())
        if candidates is LANES["modelnew"]:
            made.oracle.close()
            made = ModelNewEvaluators("cpu").evaluator(axpy_task())
    yield lambda candidate, seed=11: made.evaluate(candidate, seed=seed).evaluation
    made.oracle.close()


@pytest.mark.slow
def test_a_good_candidate_passes_at_every_size(evaluate: Callable[..., Evaluation], candidates: Candidates) -> None:
    evaluation = evaluate(candidates.good)
    assert evaluation.verdict is Verdict.OK, evaluation.reason
    assert evaluation.correctness is not None
    passed = {check.size for check in evaluation.correctness.sizes if check.status == "passed"}
    assert passed >= {"small", "hidden_odd", "hidden_tiny", "full"}


@pytest.mark.slow
def test_the_same_seed_gives_the_same_evaluation(evaluate: Callable[..., Evaluation], candidates: Candidates) -> None:
    first, second = evaluate(candidates.good, seed=5), evaluate(candidates.good, seed=5)
    assert (first.correctness, first.key) == (second.correctness, second.key)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["wrong_values", "wrong_last_element"])
def test_wrong_values_name_the_worst_element(
    evaluate: Callable[..., Evaluation], candidates: Candidates, kind: str
) -> None:
    evaluation = evaluate(getattr(candidates, kind))
    assert evaluation.verdict is Verdict.WRONG
    assert all(words in evaluation.reason for words in ("at the small size", "worst at", "expected"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "verdict"), [("wrong_at_33_columns", Verdict.WRONG), ("crash_at_33_columns", Verdict.CRASH)]
)
def test_nothing_is_said_of_a_hidden_size_but_the_verdict(
    evaluate: Callable[..., Evaluation], candidates: Candidates, kind: str, verdict: Verdict
) -> None:
    evaluation = evaluate(getattr(candidates, kind))
    assert (evaluation.verdict, evaluation.reason) == (verdict, HIDDEN_REASONS[verdict])


@pytest.mark.slow
def test_an_output_of_another_shape_is_refused(evaluate: Callable[..., Evaluation], candidates: Candidates) -> None:
    evaluation = evaluate(candidates.wrong_shape)
    assert evaluation.verdict is candidates.wrong_shape_verdict
    assert "shape" in evaluation.reason
    assert evaluation.performance is None


@pytest.mark.slow
def test_a_bad_candidate_leaves_the_next_one_alone(evaluate: Callable[..., Evaluation], candidates: Candidates) -> None:
    assert evaluate(candidates.crash_at_33_columns).verdict is Verdict.CRASH
    assert evaluate(candidates.good).verdict is Verdict.OK
