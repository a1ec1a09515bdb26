"""KernelGYM's evaluation server (Dr. Kernel, arXiv 2602.05885): ``reward_model.server_url=http://host:port/kernelgym``.

Its client posts to ``/evaluate``, polls ``/status/{task_id}`` until that is ``completed``, and then fetches
``/results/{task_id}``; a failed evaluation gets a separate penalty. So a candidate that does not build or is wrong is
``completed``, and only an infrastructure failure is ``failed``, without numbers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Literal

from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict, Field

from kernelforge.client.models import (
    MAX_COMPLETION_CHARS,
    MAX_SOURCE_CHARS,
    CandidateText,
    Job,
    JobRequest,
    JobStatus,
    Narrow,
)
from kernelforge.records import Language, Origin, language_of
from kernelforge.server.base import Caller, RequestRejected
from kernelforge.server.http.auth import Anyone, Reader, Submitter
from kernelforge.server.http.errors import GRACE_S, documented, missing_score
from kernelforge.server.http.limits import api_router
from kernelforge.server.jobs.service import JobService
from kernelforge.server.protocols.common import body_of, ended

MAX_TRIES = 8
"""How often one ``task_id`` may be evaluated after infrastructure failures."""
_OTHER_LANGUAGE: Mapping[Language, Language] = {"cuda": "triton", "triton": "cuda"}
PRIORITIES = {"low": -5, "normal": 0, "high": 5}
Status = Literal["pending", "processing", "completed", "failed", "timeout", "cancelled"]


class EvaluationRequest(Narrow):
    """Request of KernelGYM's client. Unsupported options are refused, or listed in ``metadata.not_honoured``."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    task_id: str = Field(min_length=1, max_length=100)
    """The trainer's name for this evaluation. A repeated name with the same text is evaluated once."""
    reference_code: str = Field(max_length=MAX_SOURCE_CHARS)
    """The task file; only its hash is used."""
    kernel_code: str = Field(max_length=MAX_COMPLETION_CHARS)
    """A model's reply with its two fenced blocks, or a JSON object with ``source`` and ``plan``."""
    toolkit: Literal["kernelbench"] = "kernelbench"
    backend_adapter: Literal["kernelbench"] = "kernelbench"
    backend: Literal["cuda", "triton"] = "cuda"
    """The client always sends ``triton``: the language of a candidate is that of its own source."""
    workflow: Literal["kernelbench"] | None = "kernelbench"
    entry_point: Literal["Model"] = "Model"
    num_correct_trials: int = Field(default=5, ge=1, le=20)
    num_perf_trials: int = Field(default=100, ge=1, le=1000)
    num_warmup: int = Field(default=3, ge=0, le=100)
    perf_trim_count: int = Field(default=0, ge=0, le=50)
    timeout: int = Field(default=300, ge=10, le=3600)
    """Seconds after which the evaluation is cancelled."""
    priority: Literal["low", "normal", "high"] = "normal"
    device_preference: str | None = Field(default=None, max_length=100)
    """One of this server's devices; another one is refused."""
    force_refresh: bool = False
    reference_backend: str | None = Field(default=None, max_length=100)
    uuid: str | None = Field(default=None, max_length=200)
    use_reference_cache: bool = False
    is_valid: bool | None = False
    verbose_errors: bool | None = None
    enable_profiling: bool | None = None
    enable_triton_detection: bool | None = None
    detect_decoy_kernel: bool | None = None
    run_triton_detection: bool | None = None
    measure_performance: bool | None = None
    run_performance: bool | None = None
    run_correctness: Literal[True] | None = None
    """Every candidate is checked before it is timed or rewarded."""
    cases: None = None
    cases_code: None = None
    """Code of a request is never executed."""
    resources: dict[Literal["gpus"], Literal[1]] | None = None
    sizes: Literal["all", "train"] | None = None
    """Of ours: sizes to check, as in :class:`~kernelforge.client.models.JobRequest`."""


class KernelGymBatch(Narrow):
    model_config = ConfigDict(extra="forbid")

    batch_id: str = Field(min_length=1, max_length=100)
    tasks: list[EvaluationRequest] = Field(min_length=1, max_length=100)


class EvaluationAnswer(BaseModel):
    """KernelGYM's answer. Times are measured, in milliseconds."""

    task_id: str
    status: Status
    compiled: bool | None = None
    correctness: bool | None = None
    decoy_kernel: bool | None = None
    """Refused by the policy gate."""
    reference_runtime: float | None = None
    """Time of the fastest baseline."""
    kernel_runtime: float | None = None
    speedup: float | None = None
    metadata: dict[str, Any] | None = None
    error_message: str | None = None
    error_code: str | None = None
    submitted_at: str | None = None
    completed_at: str | None = None
    processing_time: float | None = None


class KernelGymBatchAnswer(BaseModel):
    batch_id: str
    total_tasks: int
    completed_tasks: int
    failed_tasks: int
    results: list[EvaluationAnswer]
    batch_status: Status
    submitted_at: str | None = None
    completed_at: str | None = None


class StatusAnswer(BaseModel):
    task_id: str
    status: Status
    error_message: str | None = None


def router(service: JobService) -> APIRouter:
    routes = api_router("kernelgym")
    errors = documented(400, 404, 408, 409, 413, 422, 429, 504)

    async def answers(
        request: Request, bodies: list[EvaluationRequest], caller: Caller
    ) -> list[tuple[EvaluationRequest, Job | RequestRejected]]:
        jobs = [_job(service, body) for body in bodies]
        keys = [_key(service, body, caller) for body in bodies]
        longest = max(body.timeout for body in bodies) + GRACE_S
        return list(zip(bodies, await ended(request, service, caller, jobs, timeout_s=longest, keys=keys), strict=True))

    @routes.post("/kernelgym/evaluate", responses=errors)
    async def evaluate(request: Request, body: EvaluationRequest, caller: Submitter) -> EvaluationAnswer:
        """Evaluate a candidate and wait for it, as KernelGYM's server."""
        ((_, job),) = await answers(request, [body], caller)
        if isinstance(job, RequestRejected):
            raise job
        if job.result is None or job.result.outcome != "scored":
            raise missing_score(job)
        return answer(service, body.task_id, job, not_honoured(body))

    @routes.post("/kernelgym/evaluate/batch", responses=errors)
    async def evaluate_batch(request: Request, body: KernelGymBatch, caller: Submitter) -> KernelGymBatchAnswer:
        """Evaluate several candidates in parallel. One without a score does not fail the others."""
        began = _when(datetime.now(UTC).timestamp())
        results = [
            _refused(item, job)
            if isinstance(job, RequestRejected)
            else answer(service, item.task_id, job, not_honoured(item))
            for item, job in await answers(request, body.tasks, caller)
        ]
        good = sum(item.status == "completed" for item in results)
        return KernelGymBatchAnswer(
            batch_id=body.batch_id,
            total_tasks=len(results),
            completed_tasks=good,
            failed_tasks=len(results) - good,
            results=results,
            batch_status="completed" if good else "failed",
            submitted_at=began,
            completed_at=_when(datetime.now(UTC).timestamp()),
        )

    @routes.get("/kernelgym/status/{task_id}", responses=errors)
    async def status(task_id: str, caller: Reader) -> StatusAnswer:
        """Status of an evaluation."""
        job = _latest_job(service, task_id, caller)
        message = None if job.result is None or job.result.error is None else job.result.error.message
        return StatusAnswer(task_id=task_id, status=_status(job), error_message=message)

    @routes.get("/kernelgym/results/{task_id}", responses=errors)
    async def results(task_id: str, caller: Reader) -> EvaluationAnswer:
        """Result of an evaluation."""
        job = _latest_job(service, task_id, caller)
        if not job.status.ended:
            raise RequestRejected(
                404, "not_finished", f"task {task_id!r} is {_status(job)}; poll again", retry_after_s=1.0
            )
        return answer(service, task_id, job, {})

    @routes.delete("/kernelgym/tasks/{task_id}", responses=errors)
    async def cancel(task_id: str, caller: Submitter) -> StatusAnswer:
        """Cancel an evaluation and free its worker."""
        job = _latest_job(service, task_id, caller)
        await service.cancel([job.id], caller)
        return StatusAnswer(task_id=task_id, status=_status(service.job(job.id)))

    @routes.get("/kernelgym/health", responses=errors)
    async def health(caller: Anyone) -> dict[str, Any]:
        """Whether evaluations are accepted."""
        now = service.status()
        if now.state != "ready":
            raise RequestRejected(503, "unavailable", f"the server is {now.state}", retry_after_s=1.0)
        return {
            "status": "healthy",
            "timestamp": _when(datetime.now(UTC).timestamp()),
            "queue_status": {"pending": now.queued, "processing": now.running},
            "devices": now.devices,
            "workers": now.workers,
        }

    return routes


def not_honoured(request: EvaluationRequest) -> dict[str, str]:
    """Options of a request that have no effect here, each with the reason."""
    reasons = {
        "backend": (_OTHER_LANGUAGE[_language(request.kernel_code)], "the candidate's own source says its language"),
        "num_correct_trials": (..., "every size and input distribution of the task is checked"),
        "num_perf_trials": (..., "the timing protocol takes as many samples as its interval needs"),
        "num_warmup": (..., "the timing protocol warms up by itself"),
        "perf_trim_count": (..., "the timing protocol gives medians with intervals"),
        "reference_backend": (..., "the speedup is over the fastest baseline"),
        "uuid": (..., "results are kept by content"),
        "use_reference_cache": (True, "baseline and candidate are timed under one GPU lock"),
        "is_valid": (True, "results are kept by content"),
        "verbose_errors": (False, "error_message has what a Coder can use"),
        "enable_triton_detection": (False, "the policy gate is always on"),
        "detect_decoy_kernel": (False, "the policy gate is always on"),
        "run_triton_detection": (False, "the policy gate is always on"),
        "measure_performance": (False, "a correct candidate is always timed"),
        "run_performance": (False, "a correct candidate is always timed"),
    }
    ignored = {}
    for name in request.model_fields_set & reasons.keys():
        when, reason = reasons[name]
        value = getattr(request, name)
        if value is not None and (when is ... or value == when):
            ignored[name] = reason
    return dict(sorted(ignored.items()))


def answer(service: JobService, task_id: str, job: Job, ignored: dict[str, str]) -> EvaluationAnswer:
    """A completed job as KernelGYM's answer."""
    result = job.result
    times: dict[str, Any] = {
        "submitted_at": _when(job.submitted_at),
        "completed_at": _when(job.finished_at),
        "processing_time": None if job.finished_at is None else job.finished_at - job.submitted_at,
    }
    if result is None or result.outcome != "scored":
        error = None if result is None else result.error
        return EvaluationAnswer(
            task_id=task_id,
            status=_status(job),
            error_message="no result" if error is None else f"{error.code}: {error.message}",
            error_code="TIMEOUT_ERROR" if error is not None and error.code == "deadline" else "SYSTEM_ERROR",
            metadata={"outcome": "infra_error" if result is None else result.outcome},
            **times,
        )
    parts = result.components
    metadata = result.model_dump(exclude={"outcome", "components", "feedback", "error"}) | {
        "components": parts.model_dump(),
        "job": job.id,
    }
    if ignored:
        metadata["not_honoured"] = ignored
    kernel_ms = _measured_ms(service, job)
    if kernel_ms is not None and parts.coverage is not None:
        # The client divides the two; both belong to the timed candidate, not to a profiled run.
        metadata["total_kernel_run_time_in_profiling_us"] = 1e3 * kernel_ms
        metadata["custom_kernel_cuda_time_in_profiling_us"] = 1e3 * kernel_ms * parts.coverage
    return EvaluationAnswer(
        task_id=task_id,
        status="completed",
        compiled=parts.built == 1,
        correctness=parts.correct == 1,
        decoy_kernel=result.verdict == "POLICY" and result.stage == "policy",
        reference_runtime=None if kernel_ms is None or parts.speedup is None else kernel_ms * parts.speedup,
        kernel_runtime=kernel_ms,
        speedup=parts.speedup,
        metadata=metadata,
        error_message=None if result.verdict == "OK" and not result.uncompared else result.feedback,
        error_code=_ERRORS["WRONG"] if result.uncompared else _ERRORS.get(result.verdict or ""),
        **times,
    )


_ERRORS = {
    "WRONG": "CORRECTNESS_ERROR",
    "POLICY": "VALIDATION_ERROR",
    "BUILD": "COMPILATION_ERROR",
    "CRASH": "RUNTIME_ERROR",
    "TIMEOUT": "TIMEOUT_ERROR",
    "LIMIT": "RESOURCE_ERROR",
}


def _job(service: JobService, request: EvaluationRequest) -> JobRequest:
    """The job of a request.

    Raises:
        RequestRejected: 422: the reference belongs to no registered task, or there is no such device.
    """
    reference, _ = service.find_task(None, request.reference_code)
    if request.device_preference is not None:
        devices = service.status().devices  # computed once: status() counts all queued jobs
        if request.device_preference not in devices:
            raise RequestRejected(
                422, "no_such_device", f"there is no device {request.device_preference!r}; there are {devices}"
            )
    text = _candidate_text(request.kernel_code)
    candidate: dict[str, Any] = {"completion": request.kernel_code} if text is None else {"candidate": text}
    return body_of(
        JobRequest,
        {
            "task": reference,
            "priority": PRIORITIES[request.priority],
            "deadline_s": request.timeout,
            "profile": bool(request.enable_profiling),
            "fresh": request.force_refresh,
            "sizes": request.sizes,
            **candidate,
        },
        "kernel_code",
    )


def _candidate_text(kernel_code: str) -> CandidateText | None:
    """A candidate that is sent as a JSON object; None where the text is a model's reply."""
    if not kernel_code.lstrip().startswith("{"):
        return None
    try:
        return CandidateText.model_validate_json(kernel_code)
    except ValueError:
        return None


def _language(kernel_code: str) -> Language:
    """The language of a candidate's kernels."""
    text = _candidate_text(kernel_code)
    return language_of(kernel_code if text is None else text.source)


def _keys(task_id: str) -> list[str]:
    """Idempotency keys of a trainer's task, one for each try."""
    digest = hashlib.sha256(task_id.encode()).hexdigest()[:40]
    return [f"kernelgym/{digest}/{turn}" for turn in range(MAX_TRIES)]


def _key(service: JobService, request: EvaluationRequest, caller: Caller) -> str | None:
    """The key of the existing job, or a new one after an infrastructure failure or with ``force_refresh``."""
    for key in _keys(request.task_id):
        job = service.keyed(key, caller)
        if job is None:
            return key
        if not request.force_refresh and (job.result is None or job.result.outcome == "scored"):
            return key
    return None


def _latest_job(service: JobService, task_id: str, caller: Caller) -> Job:
    """The latest job of a trainer's task."""
    for key in reversed(_keys(task_id)):
        job = service.keyed(key, caller)
        if job is not None:
            return job
    raise RequestRejected(404, "unknown_task_id", f"nothing was evaluated under the task_id {task_id[:100]!r}")


def _status(job: Job) -> Status:
    if job.status is JobStatus.QUEUED:
        return "pending"
    if job.status is JobStatus.RUNNING:
        return "processing"
    if job.status is JobStatus.CANCELLED:
        return "cancelled"
    if job.status is JobStatus.EXPIRED:
        return "timeout"
    return "completed" if job.result is not None and job.result.outcome == "scored" else "failed"


def _refused(request: EvaluationRequest, refusal: RequestRejected) -> EvaluationAnswer:
    return EvaluationAnswer(
        task_id=request.task_id, status="failed", error_message=f"{refusal.code}: {refusal}", error_code="SYSTEM_ERROR"
    )


def _measured_ms(service: JobService, job: Job) -> float | None:
    """The candidate's time in milliseconds, if it was measured and not quarantined."""
    stored = service.stored(job.id)
    speed = None if stored is None else stored.evaluation.performance
    if speed is None or speed.origin is not Origin.MEASURED or speed.quarantined is not None:
        return None
    return speed.time_us / 1e3


def _when(seconds: float | None) -> str | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")
