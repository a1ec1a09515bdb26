"""Feedback on an evaluation for a trainer: what was compared, and what was not; keys that may be stored."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from kernelforge.errors import MissingRewardError, StoreError
from kernelforge.records import TRAIN_SUFFIX, UNCOMPARED, Correctness, Evaluation, SizeCheck, Verdict
from kernelforge.rewards import POLICIES, Context
from kernelforge.server.jobs.job_store import Batch, JobStore, NewKey
from kernelforge.server.jobs.results import KeyFilter, failed, feedback, scored
from tests.support.factories import make_evaluation, measured_evaluation, uncompared_evaluation

IN_PART = "compared in part: 144 elements of the output, at places drawn from the secret seed"


def compared_in_part() -> Evaluation:
    full = SizeCheck(size="full", status="passed", message=IN_PART)
    return make_evaluation(correctness=Correctness(sizes=(SizeCheck(size="small", status="passed"), full)))


def test_a_full_size_that_was_not_compared_is_told_with_the_reason() -> None:
    text = feedback(uncompared_evaluation())
    assert "right at every size" not in text
    assert "right at the smaller sizes; full size not compared" in text
    assert "too large" in text


def test_a_full_size_that_was_compared_in_part_is_told_with_how_much() -> None:
    assert feedback(compared_in_part()).startswith(f"right at every size; the full size: {IN_PART}")
    assert feedback(make_evaluation()).startswith("right at every size; ")
    assert "full size:" not in feedback(make_evaluation())


def test_a_result_says_that_less_was_checked_for_training() -> None:
    evaluation = compared_in_part()
    fingerprint = evaluation.fingerprint.model_copy(update={"evaluator": f"10{TRAIN_SUFFIX}+tests.ab12"})
    less = scored("kernelforge/2", evaluation.model_copy(update={"fingerprint": fingerprint}), Context())
    complete = scored("kernelforge/2", evaluation, Context())
    assert (less.sizes, complete.sizes) == ("train", "all")
    assert "checked less than otherwise, for training" in less.feedback
    assert less.evaluation != complete.evaluation


def test_a_time_that_the_policy_cannot_compare_may_be_measured_again() -> None:
    result = scored("cuda-l1/1", measured_evaluation(None), Context())
    assert (result.outcome, result.reward) == ("infra_error", None)
    assert result.error is not None
    assert (result.error.code, result.error.retryable) == ("device", True)
    assert "was timed with it" in result.error.message


@pytest.mark.parametrize("policy", POLICIES)
def test_an_unsupported_candidate_has_the_reward_of_a_failure_apart(policy: str) -> None:
    result = failed("unsupported", "no clusters here", policy=policy)
    crash = scored(policy, make_evaluation(Verdict.CRASH, stage="small"), Context())
    assert (result.outcome, result.reward, result.failure_reward) == ("unsupported", None, crash.reward)
    assert result.feedback == "this device cannot run it: no clusters here"
    with pytest.raises(MissingRewardError, match=r"\(unsupported\): no clusters here"):
        result.require()


def test_trouble_and_policies_that_are_gone_have_no_number() -> None:
    for result in (failed("device", "gone", policy="kevin/1"), failed("unsupported", "no", policy="gone/1")):
        assert (result.outcome, result.reward, result.failure_reward) == ("infra_error", None, None)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_result_marks_it_and_has_no_share_in_what_is_correct(policy: str) -> None:
    result = scored(policy, uncompared_evaluation(), Context())
    assert (result.verdict, result.uncompared, result.verdict_words) == ("OK", True, UNCOMPARED)
    assert result.components.correct == 0
    compared = scored(policy, make_evaluation(), Context())
    assert (compared.uncompared, compared.verdict_words, compared.components.correct) == (False, "OK", 1)


async def test_a_refresh_keeps_the_keys_that_are_being_committed(tmp_path: Path) -> None:
    store = JobStore(tmp_path)
    keys = KeyFilter("SELECT caller, key FROM keys", store)
    keys.add("local", "gone")
    with closing(store.reader()) as reader, closing(sqlite3.connect(store.path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        committed = store.commit(Batch(keys=[NewKey("local", "k", "job1", "")]))
        keys.add("local", "k")
        refreshed = asyncio.create_task(keys.refresh(reader))
        await asyncio.sleep(0.1)
        other.execute("COMMIT")
        await committed
        await refreshed
    assert [keys.may_have("local", key) for key in ("k", "gone")] == [True, False]
    store.close()
    with pytest.raises(StoreError):
        await keys.refresh(reader)
    assert keys.may_have("local", "k")
