"""The ASGI application."""

from __future__ import annotations

from collections.abc import Sequence

from fastapi import APIRouter, FastAPI, Request
from starlette.responses import Response

from kernelforge.rewards import DEFAULT_POLICY
from kernelforge.server.http.auth import AuthMiddleware, TokenBook
from kernelforge.server.http.errors import answer_problems
from kernelforge.server.http.limits import BodyLimit, Limits
from kernelforge.server.http.logs import RequestLog
from kernelforge.server.http.long_poll import ClientGone, LongPollLimiter
from kernelforge.server.http.metrics import Metrics
from kernelforge.server.http.routes import jobs, operations, runs, tasks
from kernelforge.server.jobs.service import JobService
from kernelforge.version import __version__

_CLIENT_CLOSED = 499
"""Nobody hears this status; the log does. nginx uses the same."""

DESCRIPTION = """Rewards for completions that hold CUDA kernels.

`POST /v1/rewards` submits one completion and answers with its reward; `POST /v1/jobs` and the routes beside it do the
same without holding a connection. Every answer with a status of 400 or more has one shape."""


def create_app(
    service: JobService,
    *,
    tokens: TokenBook | None = None,
    public: bool = False,
    limits: Limits | None = None,
    policy: str = DEFAULT_POLICY,
    routers: Sequence[APIRouter] = (),
) -> FastAPI:
    """An application around a gateway that has been started.

    Args:
        tokens: None where there can be none; then only loopback names are answered.
        public: whether it is reached by more than a loopback address; then every request needs a token.
        limits: of requests and bodies.
        policy: the reward policy of jobs that name none, as the gateway was told.
        routers: further routes, such as trainers' own wires. Each declares what it needs as a parameter of
            :mod:`kernelforge.server.http.auth`.
    """
    limits = limits or Limits()
    held = LongPollLimiter(limits.held)
    metrics = Metrics(service, held)
    # Both pages are routes of ours, so that they are refused like all others.
    app = FastAPI(
        title="KernelForge reward server",
        version=__version__,
        description=DESCRIPTION,
        openapi_url=None,
        redirect_slashes=False,
    )
    app.state.held = held
    app.state.service = service
    answer_problems(app)
    app.add_exception_handler(ClientGone, _gone)
    for router in (
        jobs.router(service),
        runs.router(service),
        tasks.router(service, policy),
        operations.router(service, metrics),
        *routers,
    ):
        app.include_router(router)
    # The last that is added is the first to see a request.
    app.add_middleware(BodyLimit, limits=limits)
    app.add_middleware(AuthMiddleware, tokens=tokens, public=public)
    app.add_middleware(RequestLog, observe=metrics.observe_request)
    return app


async def _gone(request: Request, error: Exception) -> Response:
    return Response(status_code=_CLIENT_CLOSED)
