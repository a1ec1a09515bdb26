"""Errors as HTTP responses: problem details (RFC 9457) for refusals and infrastructure failures."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import Scope

from kernelforge.client.models import Job, Problem, ProblemAnswer
from kernelforge.errors import StoreError
from kernelforge.server.base import RequestRejected

_LOG = logging.getLogger(__name__)

MAX_MESSAGE_CHARS = 2_000
_SHOWN_ERRORS = 5

CODES: Mapping[int, str] = {
    400: "malformed",
    401: "unauthorised",
    403: "forbidden",
    404: "not_found",
    405: "method_not_allowed",
    408: "too_slow",
    409: "conflict",
    413: "too_large",
    422: "invalid",
    429: "queue_full",
    500: "internal",
    503: "unavailable",
    504: "infra_error",
}
"""Default error codes by status."""

MEANINGS: Mapping[int, str] = {
    400: "The body is not JSON.",
    401: "No valid token.",
    403: "The token lacks this scope, or the request comes from another site.",
    404: "There is no such job, task, run or path.",
    408: "The body took too long to arrive.",
    409: "The idempotency key belongs to another request.",
    413: "The body is too large.",
    422: "Well-formed but impossible.",
    429: "This run or token has too many jobs waiting.",
    500: "A server error; the log has the request's id.",
    503: "The server is full, starting or draining.",
    504: "The evaluation took longer than the request allows; it has no score.",
}


_SCHEMA = {"$ref": f"#/components/schemas/{ProblemAnswer.__name__}"}


def documented(*statuses: int, json: bool = True) -> dict[int | str, dict[str, Any]]:
    """Error responses of a route for OpenAPI. Those of authentication and overload apply to every route.

    Args:
        json: whether the route returns JSON on success. If not, the framework would use its content type for errors.
    """
    shape: dict[str, Any] = {"model": ProblemAnswer} if json else {"content": {"application/json": {"schema": _SCHEMA}}}
    return {status: {**shape, "description": MEANINGS[status]} for status in sorted({401, 403, 503, *statuses})}


def request_id(scope: Scope) -> str:
    """Id of a request in the log."""
    return str(scope.get("state", {}).get("request_id", ""))


def problem_response(refusal: RequestRejected, scope: Scope, headers: Mapping[str, str] | None = None) -> Response:
    """The HTTP response of a refusal."""
    problem = Problem(code=refusal.code, message=str(refusal)[:MAX_MESSAGE_CHARS], retry_after_s=refusal.retry_after_s)
    answer = ProblemAnswer(error=problem, request_id=request_id(scope))
    sent = dict(headers or {})
    if refusal.retry_after_s is not None:
        sent["Retry-After"] = str(max(1, math.ceil(refusal.retry_after_s)))
    if refusal.status == HTTPStatus.UNAUTHORIZED:
        sent["WWW-Authenticate"] = "Bearer"
    return Response(answer.model_dump_json(), refusal.status, sent, "application/json")


def answer_problems(app: FastAPI) -> None:
    """Make an application answer all errors in this form."""
    app.add_exception_handler(RequestRejected, _refused)
    app.add_exception_handler(StoreError, _unreadable)
    app.add_exception_handler(HTTPException, _by_framework)
    app.add_exception_handler(RequestValidationError, _invalid)


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestRejected)
    return problem_response(error, request.scope)


async def _unreadable(request: Request, error: Exception) -> Response:
    _LOG.error("%s", error)
    return problem_response(RequestRejected(503, "storage", str(error)), request.scope)


async def _by_framework(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    status = error.status_code
    refusal = RequestRejected(status, CODES.get(status, "refused"), str(error.detail))
    return problem_response(refusal, request.scope, error.headers)


async def _invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    errors = error.errors()
    if any(item["type"] == "json_invalid" for item in errors):
        return problem_response(RequestRejected(400, CODES[400], "the body is not JSON"), request.scope)
    sent = request.headers.get("content-type", "")
    if "json" not in sent and any(tuple(item["loc"]) == ("body",) for item in errors):
        advice = f"the body was sent as {sent[:80] or 'no type'}: send JSON, with Content-Type: application/json"
        return problem_response(RequestRejected(422, CODES[422], advice), request.scope)
    message = "; ".join(_describe(item) for item in errors[:_SHOWN_ERRORS])
    more = len(errors) - _SHOWN_ERRORS
    return problem_response(
        RequestRejected(422, CODES[422], message + (f"; and {more} more" if more > 0 else "")), request.scope
    )


def _describe(item: Mapping[str, Any]) -> str:
    """Field and reason of a validation error, without the value, which may be a completion."""
    field = ".".join(str(part)[:100] for part in item["loc"])
    return f"{field}: {item['msg'].removeprefix('Value error, ')}"


RETRY_AFTER_S = 2.0
GRACE_S = 5.0
"""Wait beyond a job's deadline, so that the deadline ends the job first."""


def missing_score(job: Job) -> RequestRejected:
    """The refusal for a job that ended without a score: 504 if its time ran out, else 503."""
    error = None if job.result is None else job.result.error
    if error is None:
        return RequestRejected(
            503, "infra_error", f"job {job.id} has no result; submit it again", retry_after_s=RETRY_AFTER_S
        )
    status = 504 if error.code == "deadline" else 503
    retry = RETRY_AFTER_S if error.retryable or error.code == "deadline" else None
    return RequestRejected(status, "infra_error", f"job {job.id}: {error.code}: {error.message}", retry_after_s=retry)
