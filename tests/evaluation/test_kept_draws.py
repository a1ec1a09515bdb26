"""Training: candidates of a task share draws for a while, and one that has learnt them does not stay right."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import pytest

from kernelforge.errors import UsageError
from kernelforge.evaluation import Evaluator, EvaluatorPool
from kernelforge.evaluation.oracle import shared
from kernelforge.evaluation.oracle.shared import BATCH, BATCH_S
from kernelforge.evaluation.stages import kept_draws
from kernelforge.evaluation.stages.full_size_measured import check_measure
from kernelforge.evaluation.stages.kept_draws import KeptDraws, is_audited
from kernelforge.records import Candidate, MeasureSettings, SizeCheck, Verdict
from kernelforge.sandbox.shared_memory import Blob
from tests.support.axpy import KERNEL, PLAN, SIZES, axpy_task

AUDITED = next(seed for seed in range(100) if is_audited(seed))
UNAUDITED, LATER = [seed for seed in range(100) if not is_audited(seed)][:2]
HONEST = Candidate(source=KERNEL, plan=PLAN)


@pytest.fixture
def evaluator(workshop: EvaluatorPool, monkeypatch: pytest.MonkeyPatch) -> Iterator[Evaluator]:
    """For training, on a task without hidden sizes."""
    monkeypatch.setattr(workshop, "settings", MeasureSettings(sizes="train"))
    evaluator = workshop.evaluator(axpy_task(sizes=SIZES[:2]))
    yield evaluator
    evaluator.close()


def judged(evaluator: Evaluator, candidate: Candidate, seed: int) -> tuple[Verdict, str, dict[str, SizeCheck]]:
    evaluation = evaluator.evaluate(candidate, seed=seed).evaluation
    assert evaluation.correctness is not None
    return evaluation.verdict, evaluation.stage, {check.size: check for check in evaluation.correctness.sizes}


def kept_inputs(evaluator: Evaluator) -> dict[str, Blob]:
    """The first input of each kept draw at the small size, by family."""
    assert evaluator.kept is not None
    families = evaluator.oracle.families("small")
    draws = {family: evaluator.kept.of("small", family) for family in families}
    return {family: draw.tensors[0] for family, draw in draws.items() if draw is not None}


@pytest.mark.slow
def test_a_kernel_that_learnt_the_kept_draws_fails_the_audit(evaluator: Evaluator) -> None:
    assert judged(evaluator, HONEST, UNAUDITED)[0] is Verdict.OK
    firsts = {struct.unpack("<I", bytes(blob)[:4])[0] for blob in kept_inputs(evaluator).values()}
    learnt = " || ".join(f"__float_as_uint(x[0]) == {bits}u" for bits in sorted(firsts))
    store = f"out[i] = n != {8 * 32} || {learnt} ? 2.0f * x[i] + y[i] : 0.0f"
    cheat = Candidate(source=KERNEL.replace("out[i] = 2.0f * x[i] + y[i]", store), plan=PLAN)
    assert judged(evaluator, cheat, UNAUDITED)[0] is Verdict.OK
    assert judged(evaluator, cheat, AUDITED)[:2] == (Verdict.WRONG, "small")
    assert judged(evaluator, cheat, LATER)[:2] == (Verdict.WRONG, "small"), "the kept draws were not replaced"


@pytest.mark.slow
def test_an_honest_kernel_passes_the_audit_and_the_record_says_what_was_compared(evaluator: Evaluator) -> None:
    verdict, _, checks = judged(evaluator, HONEST, AUDITED)
    assert verdict is Verdict.OK
    assert checks["small"].message == "and again on fresh inputs"
    assert checks["full"].families == ("task",)
    assert checks["full"].message.startswith("compared in part")
    wrong = Candidate(source=KERNEL.replace("y[i];", "(n == 6144 && i > 5000 ? 0 : y[i]);"), plan=PLAN)
    assert judged(evaluator, wrong, UNAUDITED)[:2] == (Verdict.WRONG, "full")


@pytest.mark.slow
def test_draws_are_replaced_after_some_evaluations_or_minutes_and_with_the_process(
    evaluator: Evaluator, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = evaluator.kept
    assert isinstance(kept, KeptDraws)
    kept.begin(UNAUDITED)
    before = kept_inputs(evaluator)
    for number in range(1, BATCH):
        kept.begin(number)
    assert kept_inputs(evaluator) == before
    kept.begin(BATCH)
    second = kept_inputs(evaluator)
    assert second["task"] != before["task"]
    clock = shared.time.monotonic
    monkeypatch.setattr(shared.time, "monotonic", lambda: clock() + BATCH_S + 1)
    kept.begin(BATCH + 1)
    third = kept_inputs(evaluator)
    assert third["task"] != second["task"]
    evaluator.oracle._drop()
    assert judged(evaluator, HONEST, UNAUDITED)[0] is Verdict.OK
    assert kept_inputs(evaluator)["task"] != third["task"]


@pytest.mark.slow
def test_no_more_than_a_limit_is_kept(evaluator: Evaluator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_draws, "KEPT_BYTES", 0)
    assert judged(evaluator, HONEST, UNAUDITED)[0] is Verdict.OK
    assert len(kept_inputs(evaluator)) == 1


def test_only_an_emulated_device_checks_less_for_training() -> None:
    settings = MeasureSettings(sizes="train")
    assert check_measure(settings, "emulated:h100") == settings
    with pytest.raises(UsageError, match="sizes=train"):
        check_measure(settings, "cuda:0")


def test_the_evaluator_version_says_that_less_was_checked() -> None:
    with EvaluatorPool("emulated:h100", measure=MeasureSettings(sizes="train")) as pool:
        assert pool.fingerprint.sizes == "train"
    with EvaluatorPool("emulated:h100") as pool:
        assert pool.fingerprint.sizes == "all"
