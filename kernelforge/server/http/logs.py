"""Request log, one line each, as JSON or text. No tokens, no completions."""

from __future__ import annotations

import logging
import re
import secrets
import sys
from collections.abc import Callable
from time import perf_counter
from typing import Literal, TextIO

import structlog
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from structlog.typing import Processor

from kernelforge.server.base import RequestRejected
from kernelforge.server.http.errors import problem_response

LogFormat = Literal["json", "text"]
RequestObserver = Callable[[str, str, int, float], None]
"""Called for every request with method, route template, status and seconds."""
UNKNOWN_ROUTE = "unknown"
_ID = re.compile(rb"[A-Za-z0-9._-]{1,64}")
_QUIET = frozenset({"/healthz", "/readyz", "/metrics"})
_METHODS = frozenset({"GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH"})

_ADDED: list[Processor] = [
    structlog.stdlib.add_log_level,
    structlog.processors.TimeStamper(fmt="iso"),
    structlog.processors.format_exc_info,  # without values of variables, which may be tokens
]
log: structlog.stdlib.BoundLogger = structlog.wrap_logger(
    logging.getLogger("kernelforge.server"),
    processors=[structlog.stdlib.filter_by_level, *_ADDED, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
    wrapper_class=structlog.stdlib.BoundLogger,
    cache_logger_on_first_use=True,
)
"""Uses the standard library, so that an embedding application can redirect it."""


def configure_logs(form: LogFormat, stream: TextIO | None = None) -> None:
    """Send the server's log, and warnings of libraries, to a stream; None for stderr."""
    stream = stream or sys.stderr
    renderer: list[Processor] = (
        [structlog.processors.EventRenamer("message"), structlog.processors.JSONRenderer()]
        if form == "json"
        else [structlog.dev.ConsoleRenderer(colors=stream.isatty())]
    )
    handler = logging.StreamHandler(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *renderer],
            foreign_pre_chain=_ADDED,
        )
    )
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("kernelforge.server").setLevel(logging.INFO)


class RequestLog:
    """Assigns request ids, logs and counts requests, and answers 500 after an unexpected error. Pure ASGI."""

    def __init__(self, app: ASGIApp, observe: RequestObserver) -> None:
        self._app = app
        self._observe = observe

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        began, status = perf_counter(), 0
        name = _request_id(scope)
        scope.setdefault("state", {})["request_id"] = name
        header = (b"x-request-id", name.encode())

        async def send_named(message: Message) -> None:
            nonlocal status
            kind = message["type"]
            if kind in ("http.response.start", "websocket.http.response.start"):
                status = message["status"]
                message["headers"] = [*message.get("headers", ()), header]
            elif kind == "websocket.accept":
                status = 101
            await send(message)

        try:
            await self._app(scope, receive, send_named)
        except Exception:
            log.exception("fault", request_id=name, path=scope["path"])
            if status == 0 and scope["type"] == "http":
                refusal = RequestRejected(500, "internal", "a server error; see its log under this request id")
                await problem_response(refusal, scope)(scope, receive, send_named)
        finally:
            self._note(scope, name, status, perf_counter() - began)

    def _note(self, scope: Scope, name: str, status: int, seconds: float) -> None:
        route = route_of(scope)
        method = scope.get("method", "WS")
        method = method if method in _METHODS or scope["type"] == "websocket" else "OTHER"
        self._observe(method, route, status, seconds)
        caller = scope["state"].get("caller")
        write = log.debug if route in _QUIET else log.info
        write(
            "request",
            request_id=name,
            caller=caller.name if caller else None,
            method=method,
            route=route,
            status=status,
            ms=round(seconds * 1e3, 2),
        )


def route_of(scope: Scope) -> str:
    """The template of a request's path, without ids, so that the number of values is bounded."""
    return str(getattr(scope.get("route"), "path", UNKNOWN_ROUTE))


def _request_id(scope: Scope) -> str:
    for name, value in scope["headers"]:
        if name == b"x-request-id" and _ID.fullmatch(value):
            return str(value.decode())
    return secrets.token_hex(8)
