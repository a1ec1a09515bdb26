"""A job without a score, as an error of HTTP: trouble of ours is never a number."""

from __future__ import annotations

from kernelforge.client.wire import Job
from kernelforge.server.base import Refusal

RETRY_AFTER_S = 2.0
GRACE_S = 5.0
"""How much longer than a job's deadline is waited for it, so that the deadline itself ends it."""


def trouble(job: Job) -> Refusal:
    """Why a job that has ended has no score: 504 when its time ran out, else 503."""
    error = None if job.result is None else job.result.error
    if error is None:
        return Refusal(503, "infra_error", f"job {job.id} has no result; submit it again", retry_after_s=RETRY_AFTER_S)
    status = 504 if error.code == "deadline" else 503
    retry = RETRY_AFTER_S if error.retryable or error.code == "deadline" else None
    return Refusal(status, "infra_error", f"job {job.id}: {error.code}: {error.message}", retry_after_s=retry)
