"""Job routes: submit, poll, wait, cancel."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated, Any

from fastapi import APIRouter, Body, Depends, Header, Path, Query, Request
from fastapi.sse import EventSourceResponse, ServerSentEvent
from starlette.responses import Response

from kernelforge.client.models import (
    MAX_BATCH,
    MAX_WAIT_S,
    BatchAnswer,
    BatchItem,
    BatchRequest,
    CancelAnswer,
    CancelRequest,
    GroupAnswer,
    Job,
    JobId,
    JobRequest,
    Name,
    Problem,
    StoredEvaluation,
    WaitAnswer,
    WaitRequest,
    WatchRequest,
)
from kernelforge.server.base import RequestRejected
from kernelforge.server.http.auth import Reader, Submitter
from kernelforge.server.http.errors import documented
from kernelforge.server.http.limits import api_router, json_answer, limiter_of, service_of
from kernelforge.server.jobs.service import JobService

_SOURCE = """extern "C" __global__ void swish(const float* x, float* y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = x[i] / (1.0f + expf(-x[i]));
}
"""
_PLAN = """def forward(x):
    y = empty_like(x)
    swish[ceil_div(x.numel(), 256), 256](x, y, i32(x.numel()))
    return y
"""
_REPLY = f"```cuda\n{_SOURCE}```\n\n```python\n{_PLAN}```"

_JOB = {"task": "core/swish", "completion": _REPLY, "run_id": "grpo-7", "policy_version": 12}


def examples(**values: Any) -> dict[str, Any]:
    """Examples of a request body for the OpenAPI page, by name."""
    return {name: {"value": value} for name, value in values.items()}


_SUBMIT = examples(
    completion=_JOB,
    candidate={
        "task": "core/swish",
        "candidate": {"source": _SOURCE, "plan": _PLAN},
        "deadline_s": 120,
        "priority": 5,
    },
)
_BATCH = examples(group={"jobs": [_JOB, {**_JOB, "tag": "sample 2"}], "idempotency_keys": ["step7-0", "step7-1"]})
_WAIT = examples(any_two={"ids": ["01JADE", "01JOLT", "01JUMP"], "k": 2, "timeout_s": 30})
_WATCH = examples(two={"ids": ["01JADE", "01JOLT"]})
_CANCEL = examples(jobs={"ids": ["01JADE"]}, stale={"run_id": "grpo-7", "older_than": 11})

DEFAULT_SCORE_S = 300.0
MAX_SCORE_S = 3_600.0

Key = Annotated[
    Name | None,
    Header(alias="Idempotency-Key", description="A key that was used before returns the same job."),
]
JobPath = Annotated[JobId, Path(description="A job's id.")]
JobBody = Annotated[JobRequest, Body(openapi_examples=_SUBMIT)]


def router(service: JobService) -> APIRouter:
    """Routes of jobs."""
    api = api_router("jobs")
    _submitting(api, service)
    _following(api, service)
    _waiting(api, service)
    _groups(api, service)
    _cancelling(api, service)
    return api


def _submitting(api: APIRouter, service: JobService) -> None:
    @api.post(
        "/v1/jobs",
        status_code=202,
        response_model=Job,
        summary="Submit one completion",
        responses={
            200: {
                "model": Job,
                "description": "It has ended already: from the cache, or the key was used before.",
            },
            **documented(400, 408, 409, 413, 422, 429),
        },
    )
    async def submit(job: JobBody, caller: Submitter, key: Key = None) -> Response:
        accepted = (await service.submit([job], caller, [key]))[0]
        if isinstance(accepted, RequestRejected):
            raise accepted
        return json_answer(accepted, 200 if accepted.status.ended else 202)

    @api.post(
        "/v1/jobs/batch",
        response_model=BatchAnswer,
        summary="Submit many; each is accepted or refused separately",
        responses=documented(400, 408, 413, 422),
    )
    async def submit_batch(
        batch: Annotated[BatchRequest, Body(openapi_examples=_BATCH)], caller: Submitter
    ) -> Response:
        return json_answer(
            BatchAnswer(items=[_item(job) for job in await service.submit(batch.jobs, caller, batch.idempotency_keys)])
        )

    @api.post(
        "/v1/rewards",
        response_model=Job,
        summary="Submit one completion and wait for its reward",
        responses=documented(400, 408, 409, 413, 422, 429),
    )
    async def score(
        request: Request,
        job: JobBody,
        caller: Submitter,
        timeout_s: Annotated[
            float,
            Query(gt=0, le=MAX_SCORE_S, allow_inf_nan=False, description="Then the job is cancelled."),
        ] = DEFAULT_SCORE_S,
        key: Key = None,
    ) -> Response:
        """The job is cancelled when the connection closes."""
        async with limiter_of(request).waiting(request):
            return json_answer(await service.score(job, caller, timeout_s=timeout_s, key=key))


def _following(api: APIRouter, service: JobService) -> None:
    @api.get("/v1/jobs/{job_id}", response_model=Job, summary="Status of a job", responses=documented(404, 422))
    async def poll(
        request: Request,
        job_id: JobPath,
        caller: Reader,
        wait_s: Annotated[
            float, Query(ge=0, le=MAX_WAIT_S, allow_inf_nan=False, description="Hold the answer until the job ends.")
        ] = 0.0,
    ) -> Response:
        job = service.job(job_id)
        if wait_s > 0 and not job.status.ended:
            async with limiter_of(request).waiting(request):
                await service.wait([job_id], 1, wait_s)
            job = service.job(job_id)
        return json_answer(job)

    @api.get(
        "/v1/evaluations/{key}",
        response_model=StoredEvaluation,
        summary="A stored evaluation, with its profile",
        responses=documented(404, 422),
    )
    async def evaluation(
        request: Request,
        key: Annotated[str, Path(max_length=64, pattern=r"^[0-9a-f]+$", description="A result's `evaluation`.")],
        caller: Reader,
    ) -> Response:
        """The newest of its key: a candidate is evaluated again where its time was too old, or by `fresh`."""
        task, stored, notes = service_of(request).evaluation(key)
        profile = None if stored.profile is None else stored.profile.model_dump(mode="json")
        return json_answer(
            StoredEvaluation(
                task=task,
                finished_at=stored.finished_at,
                source=stored.source,
                notes=list(notes),
                evaluation=stored.evaluation.model_dump(mode="json"),
                profile=profile,
            )
        )

    @api.get(
        "/v1/jobs/{job_id}/events",
        response_class=EventSourceResponse,
        summary="Follow a job as server-sent events",
        responses=documented(404, 422, json=False),
    )
    async def follow(
        request: Request, ids: Annotated[list[str], Depends(_stream_one)]
    ) -> AsyncIterator[ServerSentEvent]:
        """Event `job`: the job as it is now and whenever its status changes; the stream ends after the job has."""
        async for event in _events(request, ids):
            yield event

    @api.post(
        "/v1/jobs/events",
        response_class=EventSourceResponse,
        summary="Follow many jobs as server-sent events",
        responses=documented(400, 404, 408, 413, 422, json=False),
    )
    async def follow_many(
        request: Request, ids: Annotated[list[str], Depends(_stream_many)]
    ) -> AsyncIterator[ServerSentEvent]:
        """The same for many jobs; it ends after the last of them. A new stream starts with their current state."""
        async for event in _events(request, ids):
            yield event


async def _stream_one(request: Request, job_id: JobPath, caller: Reader) -> AsyncIterator[list[str]]:
    async for ids in _held_for(request, [job_id]):
        yield ids


async def _stream_many(
    request: Request, watched: Annotated[WatchRequest, Body(openapi_examples=_WATCH)], caller: Reader
) -> AsyncIterator[list[str]]:
    async for ids in _held_for(request, list(dict.fromkeys(watched.ids))):
        yield ids


async def _held_for(request: Request, ids: list[str]) -> AsyncIterator[list[str]]:
    """The jobs of a stream; unknown ones are refused before it starts."""
    for job_id in ids:
        service_of(request).job(job_id)
    async with limiter_of(request).waiting(request, watched=False):
        yield ids


async def _events(request: Request, ids: list[str]) -> AsyncIterator[ServerSentEvent]:
    async for job in limiter_of(request).until_closed(service_of(request).watch(ids)):
        yield ServerSentEvent(event="job", raw_data=job.model_dump_json())


def _waiting(api: APIRouter, service: JobService) -> None:
    @api.post(
        "/v1/jobs/wait",
        response_model=WaitAnswer,
        summary="Wait until any k of some jobs have ended",
        responses=documented(400, 404, 408, 413, 422),
    )
    async def wait(
        request: Request, body: Annotated[WaitRequest, Body(openapi_examples=_WAIT)], caller: Reader
    ) -> Response:
        ids = list(dict.fromkeys(body.ids))
        async with limiter_of(request).waiting(request):
            ended = await service.wait(ids, body.k, body.timeout_s)
        done = {job.id for job in ended}
        return json_answer(WaitAnswer(ended=ended, pending=[job_id for job_id in ids if job_id not in done]))


def _groups(api: APIRouter, service: JobService) -> None:
    @api.get("/v1/groups", summary="Rewards of a group, smoothed", responses=documented(404, 422))
    async def group(
        request: Request,
        caller: Reader,
        group_id: Annotated[Name, Query()],
        run_id: Annotated[Name, Query()] = "default",
        size: Annotated[int | None, Query(ge=1, le=MAX_BATCH, description="Jobs that it has.")] = None,
        wait_s: Annotated[
            float, Query(ge=0, le=MAX_WAIT_S, allow_inf_nan=False, description="Hold the answer until all have ended.")
        ] = 0.0,
    ) -> GroupAnswer:
        """The jobs of yours with a `group_id`. When all have ended, each has CUDA-L1's smoothed reward."""
        answer = service.group(run_id, group_id, size, caller)
        pending = [job.id for job in answer.jobs if not job.status.ended]
        if pending and wait_s > 0:
            async with limiter_of(request).waiting(request):
                await service.wait(pending, None, wait_s)
            answer = service.group(run_id, group_id, size, caller)
        return answer


def _cancelling(api: APIRouter, service: JobService) -> None:
    @api.delete(
        "/v1/jobs/{job_id}",
        response_model=Job,
        summary="Cancel a job",
        responses=documented(404, 422),
    )
    async def cancel_one(job_id: JobPath, caller: Submitter) -> Response:
        """Returns the job after that. A job that has ended does not change."""
        service.job(job_id)
        await service.cancel([job_id], caller)
        return json_answer(service.job(job_id))

    @api.post(
        "/v1/jobs/cancel",
        response_model=CancelAnswer,
        summary="Cancel some jobs, or those of a run",
        responses=documented(400, 404, 408, 413, 422),
    )
    async def cancel(body: Annotated[CancelRequest, Body(openapi_examples=_CANCEL)], caller: Submitter) -> Response:
        if body.run_id is not None:
            cancelled = await service.cancel_run(body.run_id, body.older_than, caller)
        else:
            cancelled = await service.cancel(list(dict.fromkeys(body.ids or ())), caller)
        return json_answer(CancelAnswer(cancelled=cancelled))


def _item(job: Job | RequestRejected) -> BatchItem:
    if isinstance(job, RequestRejected):
        return BatchItem(problem=Problem(code=job.code, message=str(job), retry_after_s=job.retry_after_s))
    return BatchItem(job=job)
