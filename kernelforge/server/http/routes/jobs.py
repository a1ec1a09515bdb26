"""Job routes: submit, poll, wait, cancel."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import APIRouter, Body, Depends, Header, Path, Query, Request
from fastapi.sse import EventSourceResponse, ServerSentEvent
from starlette.responses import Response

from kernelforge.client.models import (
    MAX_WAIT_S,
    BatchAnswer,
    BatchItem,
    BatchRequest,
    CancelAnswer,
    CancelRequest,
    Job,
    JobId,
    JobRequest,
    Name,
    Problem,
    WaitAnswer,
    WaitRequest,
    WatchRequest,
)
from kernelforge.server.base import RequestRejected
from kernelforge.server.http.auth import Reader, Submitter
from kernelforge.server.http.errors import documented
from kernelforge.server.http.long_poll import core_of, held_by, held_score
from kernelforge.server.http.routes import examples
from kernelforge.server.http.strict_json import api_router, json_answer
from kernelforge.server.jobs.service import JobService

DEFAULT_SCORE_S = 300.0
MAX_SCORE_S = 3_600.0

Key = Annotated[
    Name | None,
    Header(alias="Idempotency-Key", description="A key seen before gives the job of then."),
]
JobPath = Annotated[JobId, Path(description="A job's id.")]
JobBody = Annotated[JobRequest, Body(openapi_examples=examples.SUBMIT)]


def router(service: JobService) -> APIRouter:
    """Routes of jobs over a gateway."""
    api = api_router("jobs")
    _submitting(api, service)
    _following(api, service)
    _waiting(api, service)
    _cancelling(api, service)
    return api


def _submitting(api: APIRouter, service: JobService) -> None:
    @api.post(
        "/v1/jobs",
        status_code=202,
        response_model=Job,
        summary="Submit one completion",
        responses={
            200: {"model": Job, "description": "It has ended already: the cache answered, or the key is an old one."},
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
        summary="Submit many; each is accepted or refused by itself",
        responses=documented(400, 408, 413, 422),
    )
    async def submit_batch(
        batch: Annotated[BatchRequest, Body(openapi_examples=examples.BATCH)], caller: Submitter
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
        return json_answer(await held_score(request, service, job, caller, timeout_s=timeout_s, key=key))


def _following(api: APIRouter, service: JobService) -> None:
    @api.get("/v1/jobs/{job_id}", response_model=Job, summary="How a job is", responses=documented(404, 422))
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
            async with held_by(request).waiting(request):
                await service.wait([job_id], 1, wait_s)
            job = service.job(job_id)
        return json_answer(job)

    @api.get(
        "/v1/jobs/{job_id}/events",
        response_class=EventSourceResponse,
        summary="Follow a job as server-sent events",
        responses=documented(404, 422, json=False),
    )
    async def follow(request: Request, ids: Annotated[list[str], Depends(_one)]) -> AsyncIterator[ServerSentEvent]:
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
        request: Request, ids: Annotated[list[str], Depends(_several)]
    ) -> AsyncIterator[ServerSentEvent]:
        """As for one; the stream ends after the last of them has ended. A new stream begins with how they are then."""
        async for event in _events(request, ids):
            yield event


async def _one(request: Request, job_id: JobPath, caller: Reader) -> AsyncIterator[list[str]]:
    async for ids in _held_for(request, [job_id]):
        yield ids


async def _several(
    request: Request, watched: Annotated[WatchRequest, Body(openapi_examples=examples.WATCH)], caller: Reader
) -> AsyncIterator[list[str]]:
    async for ids in _held_for(request, list(dict.fromkeys(watched.ids))):
        yield ids


async def _held_for(request: Request, ids: list[str]) -> AsyncIterator[list[str]]:
    """The jobs of a stream, all known: once it has begun it is too late to refuse."""
    for job_id in ids:
        core_of(request).job(job_id)
    async with held_by(request).waiting(request, watched=False):
        yield ids


async def _events(request: Request, ids: list[str]) -> AsyncIterator[ServerSentEvent]:
    async for job in held_by(request).until_closed(core_of(request).watch(ids)):
        yield ServerSentEvent(event="job", raw_data=job.model_dump_json())


def _waiting(api: APIRouter, service: JobService) -> None:
    @api.post(
        "/v1/jobs/wait",
        response_model=WaitAnswer,
        summary="Wait until any k of some jobs have ended",
        responses=documented(400, 404, 408, 413, 422),
    )
    async def wait(
        request: Request, wanted: Annotated[WaitRequest, Body(openapi_examples=examples.WAIT)], caller: Reader
    ) -> Response:
        ids = list(dict.fromkeys(wanted.ids))
        async with held_by(request).waiting(request):
            ended = await service.wait(ids, wanted.k, wanted.timeout_s)
        done = {job.id for job in ended}
        return json_answer(WaitAnswer(ended=ended, pending=[job_id for job_id in ids if job_id not in done]))


def _cancelling(api: APIRouter, service: JobService) -> None:
    @api.delete(
        "/v1/jobs/{job_id}",
        response_model=Job,
        summary="Cancel a job",
        responses=documented(404, 422),
    )
    async def cancel_one(job_id: JobPath, caller: Submitter) -> Response:
        """Gives the job as it then is. One that has ended stays as it was."""
        service.job(job_id)
        await service.cancel([job_id])
        return json_answer(service.job(job_id))

    @api.post(
        "/v1/jobs/cancel",
        response_model=CancelAnswer,
        summary="Cancel some jobs, or those of a run",
        responses=documented(400, 404, 408, 413, 422),
    )
    async def cancel(
        wanted: Annotated[CancelRequest, Body(openapi_examples=examples.CANCEL)], caller: Submitter
    ) -> Response:
        if wanted.run_id is not None:
            cancelled = await service.cancel_run(wanted.run_id, wanted.older_than)
        else:
            cancelled = await service.cancel(list(dict.fromkeys(wanted.ids or ())))
        return json_answer(CancelAnswer(cancelled=cancelled))


def _item(job: Job | RequestRejected) -> BatchItem:
    if isinstance(job, RequestRejected):
        return BatchItem(problem=Problem(code=job.code, message=str(job), retry_after_s=job.retry_after_s))
    return BatchItem(job=job)
