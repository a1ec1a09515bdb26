"""Run routes: status, and share of the devices."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Body, Path
from starlette.responses import Response

from kernelforge.client.models import Name, RunSettings, RunStatus
from kernelforge.server.http.auth import Admin, Reader
from kernelforge.server.http.errors import documented
from kernelforge.server.http.routes import examples
from kernelforge.server.http.strict_json import api_router, json_answer
from kernelforge.server.jobs.service import JobService


def router(service: JobService) -> APIRouter:
    """Routes of runs over a gateway."""
    api = api_router("runs")

    @api.get("/v1/runs", summary="All runs", responses=documented())
    async def list_runs(caller: Reader) -> list[RunStatus]:
        return service.runs()

    @api.patch(
        "/v1/runs/{run_id:path}",
        response_model=RunStatus,
        summary="Set a run's share, its oldest weights, or both",
        responses=documented(400, 408, 413, 422, 429),
    )
    async def set_run(
        run_id: Annotated[Name, Path(description="As jobs name it.")],
        settings: Annotated[RunSettings, Body(openapi_examples=examples.RUN)],
        caller: Admin,
    ) -> Response:
        return json_answer(await service.set_run(run_id, settings))

    return api
