"""Operator routes: liveness, readiness, health, and the API's pages."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter, Request
from fastapi.openapi.docs import get_swagger_ui_html
from starlette.responses import JSONResponse, PlainTextResponse, Response

from kernelforge.client.models import ServerStatus
from kernelforge.server.http.auth import Admin, Anyone, Reader
from kernelforge.server.http.errors import documented
from kernelforge.server.http.metrics import CONTENT_TYPE_LATEST, Metrics
from kernelforge.server.http.strict_json import api_router, json_answer
from kernelforge.server.jobs.service import JobService


def router(service: JobService, metrics: Metrics) -> APIRouter:
    """Routes of operation over a gateway."""
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
        summary="Accept nothing more, and finish what runs",
        responses=documented(),
    )
    async def drain(caller: Admin) -> Response:
        """What is queued stays for the next start. The process goes on until it is told to end."""
        if not drains:
            drains.add(asyncio.create_task(service.drain()))
            await asyncio.sleep(0)  # so that the state below is the new one
        return json_answer(service.status(), 202)

    @api.get("/openapi.json", include_in_schema=False)
    async def openapi(request: Request, caller: Anyone) -> Response:
        return JSONResponse(await asyncio.to_thread(request.app.openapi))  # the first time takes a moment

    @api.get("/docs", include_in_schema=False)
    async def docs(caller: Anyone) -> Response:
        return get_swagger_ui_html(openapi_url="/openapi.json", title="KernelForge reward server")

    return api
