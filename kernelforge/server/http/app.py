"""The ASGI application."""

from __future__ import annotations

from collections.abc import Sequence

from fastapi import APIRouter, FastAPI, Request
from starlette.responses import Response

from kernelforge.server.http.auth import AuthMiddleware, Tokens
from kernelforge.server.http.errors import answer_problems
from kernelforge.server.http.limits import BodyLimit, ClientGone, Limits, LongPollLimiter, OpenRequests
from kernelforge.server.http.logs import Metrics, RequestLog
from kernelforge.server.http.routes import jobs, operations, tasks
from kernelforge.server.jobs.service import JobService
from kernelforge.version import __version__

_CLIENT_CLOSED = 499
"""Status in the log for a client that disconnected, as in nginx."""

DESCRIPTION = """Rewards for completions that hold CUDA kernels.

`POST /v1/rewards` submits one completion and answers with its reward; `POST /v1/jobs` and the related routes do
the same without holding a connection. Every answer with a status of 400 or more has the same form."""


def create_app(
    service: JobService,
    *,
    tokens: Tokens | None = None,
    public: bool = False,
    limits: Limits | None = None,
    routers: Sequence[APIRouter] = (),
) -> FastAPI:
    """The application of a started job service.

    Args:
        tokens: None if there are none; then only loopback host names are accepted.
        public: whether the address is not a loopback one; then every request needs a token.
        limits: limits of requests and bodies.
        routers: further routes, such as those of trainer protocols. Each declares its scope as a parameter of
            :mod:`kernelforge.server.http.auth`.
    """
    limits = limits or Limits()
    long_polls = LongPollLimiter(limits.long_polls)
    metrics = Metrics(service, long_polls)
    # Both pages are explicit routes, so that authentication applies to them.
    app = FastAPI(
        title="KernelForge reward server",
        version=__version__,
        description=DESCRIPTION,
        openapi_url=None,
        redirect_slashes=False,
    )
    app.state.long_polls = long_polls
    requests = app.state.requests = OpenRequests()
    app.state.service = service
    answer_problems(app)
    app.add_exception_handler(ClientGone, _gone)
    for router in (
        jobs.router(service),
        operations.runs_router(service),
        tasks.router(service),
        operations.router(service, metrics),
        *routers,
    ):
        app.include_router(router)
    # The last one added is the first to see a request.
    app.add_middleware(BodyLimit, limits=limits)
    app.add_middleware(AuthMiddleware, tokens=tokens, public=public)
    app.add_middleware(RequestLog, observe=metrics.observe_request, requests=requests)
    return app


async def _gone(request: Request, error: Exception) -> Response:
    return Response(status_code=_CLIENT_CLOSED)
