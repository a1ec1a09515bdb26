"""Operator routes: runs, liveness, readiness, metrics, draining, and the API's pages."""

from __future__ import annotations

import asyncio
from typing import Annotated

from fastapi import APIRouter, Body, Path, Query, Request
from fastapi.openapi.docs import get_swagger_ui_html
from starlette.responses import JSONResponse, PlainTextResponse, Response

from kernelforge.client.models import (
    JobId,
    Name,
    RunSettings,
    RunStatus,
    ServerStatus,
    Suspect,
    SuspectDecision,
    WorkerPattern,
    WorkerRow,
)
from kernelforge.server.http.auth import Admin, Anyone, Reader, SubmitterOrAdmin
from kernelforge.server.http.errors import documented
from kernelforge.server.http.limits import api_router, json_answer
from kernelforge.server.http.logs import CONTENT_TYPE_LATEST, Metrics
from kernelforge.server.http.routes.jobs import examples
from kernelforge.server.jobs.service import JobService

_RUN = examples(
    half_share={"weight": 0.5, "min_policy_version": 11},
    bounded={"policy_version": 12, "max_staleness": 4, "batch_size": 512},
)


_WORKERS = examples(one_node={"name": "gpu-3-*"})
_Named = Annotated[WorkerPattern, Body(openapi_examples=_WORKERS)]
_NAMED = documented(400, 404, 408, 413, 422, 429)
_DECISION = examples(release={"decision": "release"}, hack={"decision": "confirm"})


def router(service: JobService, metrics: Metrics) -> APIRouter:
    """Routes for operators and monitoring."""
    api = api_router("operations")
    drains: set[asyncio.Task[None]] = set()

    @api.get(
        "/healthz",
        response_class=PlainTextResponse,
        summary="Whether the process answers",
        responses=documented(json=False),
    )
    async def healthz(caller: Anyone) -> str:
        return "ok\n"

    @api.get(
        "/readyz",
        response_model=ServerStatus,
        summary="Whether jobs are accepted",
        responses={
            **documented(),
            503: {"model": ServerStatus, "description": "Starting, draining, without a worker."},
        },
    )
    async def readyz(caller: Anyone) -> Response:
        status = service.status()
        return json_answer(status, 200 if status.state == "ready" and status.workers else 503)

    @api.get(
        "/metrics",
        summary="Metrics for Prometheus",
        response_class=PlainTextResponse,
        responses=documented(json=False),
    )
    async def read_metrics(caller: Reader) -> Response:
        return Response(metrics.render(), media_type=CONTENT_TYPE_LATEST)

    @api.post(
        "/v1/admin/drain",
        status_code=202,
        response_model=ServerStatus,
        summary="Accept no more jobs, and finish those that run",
        responses=documented(),
    )
    async def drain(caller: Admin) -> Response:
        """Queued jobs stay for the next start. The process runs until it is stopped."""
        if not drains:
            drains.add(asyncio.create_task(service.drain()))
            await asyncio.sleep(0)  # so that the state below is the new one
        return json_answer(service.status(), 202)

    @api.get("/v1/workers", summary="Workers of this server", responses=documented())
    async def list_workers(caller: Reader) -> list[WorkerRow]:
        return service.workers()

    @api.post(
        "/v1/workers/drain",
        summary="Take workers out once they have finished",
        responses=_NAMED,
    )
    async def drain_workers(which: _Named, caller: Admin) -> list[WorkerRow]:
        """For maintenance of a GPU or a node. Workers of these names that join later stay out too."""
        return service.drain_workers(which.name)

    @api.post("/v1/workers/resume", summary="Bring drained workers back", responses=_NAMED)
    async def resume_workers(which: _Named, caller: Admin) -> list[WorkerRow]:
        return service.drain_workers(which.name, resume=True)

    @api.get("/openapi.json", include_in_schema=False)
    async def openapi(request: Request, caller: Anyone) -> Response:
        return JSONResponse(await asyncio.to_thread(request.app.openapi))  # the first time takes a moment

    @api.get("/docs", include_in_schema=False)
    async def docs(caller: Anyone) -> Response:
        return get_swagger_ui_html(openapi_url="/openapi.json", title="KernelForge reward server")

    return api


def runs_router(service: JobService) -> APIRouter:
    """Status of runs, and their share of the devices."""
    api = api_router("runs")

    @api.get("/v1/runs", summary="All runs", responses=documented())
    async def list_runs(caller: Reader) -> list[RunStatus]:
        return service.runs()

    @api.patch(
        "/v1/runs/{run_id:path}",
        response_model=RunStatus,
        summary="Set a run's share, its policy version, and bounds of staleness",
        responses=documented(400, 404, 408, 413, 422, 429),
    )
    async def set_run(
        run_id: Annotated[Name, Path(description="As jobs name it.")],
        settings: Annotated[RunSettings, Body(openapi_examples=_RUN)],
        caller: SubmitterOrAdmin,
    ) -> Response:
        """Without the scope `admin` a run of your own: one without others' jobs, which then takes none."""
        return json_answer(await service.set_run(run_id, settings, caller))

    @api.get("/v1/suspects", summary="Candidates whose reward is or was withheld", responses=documented(422))
    async def list_suspects(
        caller: Reader, run_id: Annotated[Name | None, Query(description="Only of this run.")] = None
    ) -> list[Suspect]:
        """Yours, or with the scope `admin` all; the latest 1000."""
        return service.suspects(run_id, caller)

    @api.post(
        "/v1/suspects/{suspect_id}",
        summary="Release a withheld reward, or confirm a hack",
        responses=documented(400, 404, 408, 409, 413, 422),
    )
    async def decide(
        suspect_id: Annotated[JobId, Path(description="A suspect's id.")],
        body: Annotated[SuspectDecision, Body(openapi_examples=_DECISION)],
        caller: Admin,
    ) -> Suspect:
        return await service.decide(suspect_id, body.decision)

    return api
