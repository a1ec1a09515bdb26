"""Every reason for a missing score becomes an HTTP error, never a number."""

from __future__ import annotations

from typing import Any, get_args

import pytest

from kernelforge.client.models import Fault, Job, JobStatus, RewardResult
from kernelforge.server.http.errors import missing_score

CODES = get_args(Fault.model_fields["code"].annotation)


def job(status: JobStatus, result: RewardResult | None) -> Job:
    return Job(id="j1", status=status, task="core/gelu", run_id="r", submitted_at=0.0, result=result)


@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize("retryable", [True, False])
def test_every_fault_is_503_or_504_and_says_why(code: Any, retryable: bool) -> None:
    fault = Fault(code=code, message="the reason", retryable=retryable)
    refusal = missing_score(job(JobStatus.FINISHED, RewardResult(outcome="infra_error", error=fault)))
    assert refusal.status == (504 if code == "deadline" else 503)
    assert (refusal.code, "the reason" in str(refusal), code in str(refusal)) == ("infra_error", True, True)
    assert (refusal.retry_after_s is not None) == (retryable or code == "deadline")


def test_a_job_that_has_not_ended_has_no_score_either() -> None:
    assert missing_score(job(JobStatus.RUNNING, None)).status == 503
