"""KernelGYM's evaluation server (Dr. Kernel, arXiv 2602.05885): ``reward_model.server_url=http://host:port/kernelgym``.

Its client posts to ``/evaluate``, looks at ``/status/{task_id}`` until that says ``completed`` and then fetches
``/results/{task_id}``; what has failed gets its own penalty. So a candidate that does not build or is wrong is
``completed`` here, as there, and only trouble of ours is ``failed``, with no number in it.
"""

from __future__ import annotations

import hashlib
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
from kernelforge.records import Origin
from kernelforge.server.base import Caller, RequestRejected
from kernelforge.server.http.auth import Anyone, Reader, Submitter
from kernelforge.server.http.errors import GRACE_S, documented, trouble
from kernelforge.server.http.strict_json import api_router
from kernelforge.server.jobs.service import JobService
from kernelforge.server.protocols.common import body_of, ended

MAX_TRIES = 8
"""How often one ``task_id`` may be evaluated after trouble of ours."""
PRIORITIES = {"low": -5, "normal": 0, "high": 5}
Status = Literal["pending", "processing", "completed", "failed", "timeout", "cancelled"]


class EvaluationRequest(Narrow):
    """What KernelGYM's client sends. What is not honoured here is refused, or named in ``metadata.not_honoured``."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    task_id: str = Field(min_length=1, max_length=100)
    """The trainer's name for this evaluation: the same one with the same text is evaluated once."""
    reference_code: str = Field(max_length=MAX_SOURCE_CHARS)
    """The task's file. Only its hash is looked up."""
    kernel_code: str = Field(max_length=MAX_COMPLETION_CHARS)
    """A model's reply with its two fenced blocks, or a JSON object with ``source`` and ``plan``."""
    toolkit: Literal["kernelbench"] = "kernelbench"
    backend_adapter: Literal["kernelbench"] = "kernelbench"
    backend: Literal["cuda", "triton"] = "cuda"
    """Candidates are CUDA C++ whatever it says; the client says ``triton`` always."""
    workflow: Literal["kernelbench"] | None = "kernelbench"
    entry_point: Literal["Model"] = "Model"
    num_correct_trials: int = Field(default=5, ge=1, le=20)
    num_perf_trials: int = Field(default=100, ge=1, le=1000)
    num_warmup: int = Field(default=3, ge=0, le=100)
    perf_trim_count: int = Field(default=0, ge=0, le=50)
    timeout: int = Field(default=300, ge=10, le=3600)
    """Seconds after which nobody wants the answer."""
    priority: Literal["low", "normal", "high"] = "normal"
    device_preference: str | None = Field(default=None, max_length=100)
    """One of this server's devices, else the request is refused."""
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
    """Nothing is timed or rewarded unchecked."""
    cases: None = None
    cases_code: None = None
    """Code of a request is never executed."""
    resources: dict[Literal["gpus"], Literal[1]] | None = None


class KernelGymBatch(Narrow):
    model_config = ConfigDict(extra="forbid")

    batch_id: str = Field(min_length=1, max_length=100)
    tasks: list[EvaluationRequest] = Field(min_length=1, max_length=100)


class EvaluationAnswer(BaseModel):
    """KernelGYM's answer. Times are in milliseconds, and measured ones."""

    task_id: str
    status: Status
    compiled: bool | None = None
    correctness: bool | None = None
    decoy_kernel: bool | None = None
    """Refused by the policy gate, for what a candidate may not do."""
    reference_runtime: float | None = None
    """Of the fastest baseline."""
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
        request: Request, asked: list[EvaluationRequest], caller: Caller
    ) -> list[tuple[EvaluationRequest, Job | RequestRejected]]:
        jobs = [_job(service, one) for one in asked]
        keys = [_key(service, one, caller) for one in asked]
        longest = max(one.timeout for one in asked) + GRACE_S
        return list(zip(asked, await ended(request, service, caller, jobs, timeout_s=longest, keys=keys), strict=True))

    @routes.post("/kernelgym/evaluate", responses=errors)
    async def evaluate(request: Request, body: EvaluationRequest, caller: Submitter) -> EvaluationAnswer:
        """Evaluate a candidate and wait for it, as KernelGYM's server."""
        ((_, job),) = await answers(request, [body], caller)
        if isinstance(job, RequestRejected):
            raise job
        if job.result is None or job.result.outcome != "scored":
            raise trouble(job)
        return answer(service, body.task_id, job, not_honoured(body))

    @routes.post("/kernelgym/evaluate/batch", responses=errors)
    async def evaluate_batch(request: Request, body: KernelGymBatch, caller: Submitter) -> KernelGymBatchAnswer:
        """Evaluate several candidates side by side. One that has no score does not fail the others."""
        began = _when(datetime.now(UTC).timestamp())
        results = [
            _refused(one, job)
            if isinstance(job, RequestRejected)
            else answer(service, one.task_id, job, not_honoured(one))
            for one, job in await answers(request, body.tasks, caller)
        ]
        good = sum(one.status == "completed" for one in results)
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
        """Where an evaluation is."""
        job = _known(service, task_id, caller)
        message = None if job.result is None or job.result.error is None else job.result.error.message
        return StatusAnswer(task_id=task_id, status=_status(job), error_message=message)

    @routes.get("/kernelgym/results/{task_id}", responses=errors)
    async def results(task_id: str, caller: Reader) -> EvaluationAnswer:
        """What came of an evaluation."""
        job = _known(service, task_id, caller)
        if not job.status.ended:
            raise RequestRejected(
                404, "not_finished", f"task {task_id!r} is {_status(job)}; look again", retry_after_s=1.0
            )
        return answer(service, task_id, job, {})

    @routes.delete("/kernelgym/tasks/{task_id}", responses=errors)
    async def cancel(task_id: str, caller: Submitter) -> StatusAnswer:
        """End an evaluation and free what it holds."""
        job = _known(service, task_id, caller)
        await service.cancel([job.id])
        return StatusAnswer(task_id=task_id, status=_status(service.job(job.id)))

    @routes.get("/kernelgym/health", responses=errors)
    async def health(caller: Anyone) -> dict[str, Any]:
        """Whether evaluations are taken now."""
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


def not_honoured(asked: EvaluationRequest) -> dict[str, str]:
    """Options that a request sets and that change nothing here, with what is done instead."""
    told = {
        "backend": ("triton", "candidates are CUDA C++ with a launch plan"),
        "num_correct_trials": (..., "every size and input distribution of the task is checked"),
        "num_perf_trials": (..., "the timing protocol takes as many samples as its interval needs"),
        "num_warmup": (..., "the timing protocol warms up by itself"),
        "perf_trim_count": (..., "the timing protocol gives medians with intervals"),
        "reference_backend": (..., "the speedup is over the fastest baseline"),
        "uuid": (..., "results are kept by content"),
        "use_reference_cache": (True, "baseline and candidate are timed in one lease"),
        "is_valid": (True, "results are kept by content"),
        "verbose_errors": (False, "error_message has what a Coder can use"),
        "enable_triton_detection": (False, "the policy gate is always on"),
        "detect_decoy_kernel": (False, "the policy gate is always on"),
        "run_triton_detection": (False, "the policy gate is always on"),
        "measure_performance": (False, "a correct candidate is always timed"),
        "run_performance": (False, "a correct candidate is always timed"),
    }
    found = {}
    for name in asked.model_fields_set & told.keys():
        when, instead = told[name]
        value = getattr(asked, name)
        if value is not None and (when is ... or value == when):
            found[name] = instead
    return dict(sorted(found.items()))


def answer(service: JobService, task_id: str, job: Job, ignored: dict[str, str]) -> EvaluationAnswer:
    """A job that has ended, in KernelGYM's words."""
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
            metadata={"outcome": "infra_error"},
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
        # Its client divides the two; both are of the timed candidate, not of a profiler's run.
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


def _job(service: JobService, asked: EvaluationRequest) -> JobRequest:
    """
    Raises:
        RequestRejected: 422: the reference is no registered task's, or the device is not here. Nothing was executed.
    """
    reference, _ = service.find_task(None, asked.reference_code)
    if asked.device_preference is not None:
        devices = service.status().devices  # counts all that is queued
        if asked.device_preference not in devices:
            raise RequestRejected(
                422, "no_such_device", f"there is no device {asked.device_preference!r}; there are {devices}"
            )
    code = asked.kernel_code
    if code.lstrip().startswith("{"):
        try:
            held: dict[str, Any] = {"candidate": CandidateText.model_validate_json(code)}
        except ValueError:
            held = {"completion": code}
    else:
        held = {"completion": code}
    return body_of(
        JobRequest,
        {
            "task": reference,
            "priority": PRIORITIES[asked.priority],
            "deadline_s": asked.timeout,
            "profile": bool(asked.enable_profiling),
            "fresh": asked.force_refresh,
            **held,
        },
        "kernel_code",
    )


def _keys(task_id: str) -> list[str]:
    """Idempotency keys of a trainer's task: one for each time it is tried."""
    digest = hashlib.sha256(task_id.encode()).hexdigest()[:40]
    return [f"kernelgym/{digest}/{turn}" for turn in range(MAX_TRIES)]


def _key(service: JobService, asked: EvaluationRequest, caller: Caller) -> str | None:
    """The key to evaluate under: that of the job there is, unless trouble of ours ended it or another is wanted."""
    for key in _keys(asked.task_id):
        job = service.keyed(key, caller)
        if job is None:
            return key
        if not asked.force_refresh and (job.result is None or job.result.outcome == "scored"):
            return key
    return None


def _known(service: JobService, task_id: str, caller: Caller) -> Job:
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


def _refused(asked: EvaluationRequest, refusal: RequestRejected) -> EvaluationAnswer:
    return EvaluationAnswer(
        task_id=asked.task_id, status="failed", error_message=f"{refusal.code}: {refusal}", error_code="SYSTEM_ERROR"
    )


def _measured_ms(service: JobService, job: Job) -> float | None:
    """The candidate's time, where it was measured and is believed."""
    stored = service.stored(job.id)
    speed = None if stored is None else stored.evaluation.performance
    if speed is None or speed.origin is not Origin.MEASURED or speed.quarantined is not None:
        return None
    return speed.time_us / 1e3


def _when(seconds: float | None) -> str | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")
