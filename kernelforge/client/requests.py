"""Requests of the native API and the parsing of their responses, independent of transport."""

from __future__ import annotations

import functools
import re
import time
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from typing import Generic, TypeVar, cast
from urllib.parse import quote

from pydantic import BaseModel, TypeAdapter, ValidationError

from kernelforge.client.models import (
    Acknowledged,
    AcknowledgeRequest,
    BatchAnswer,
    BatchRequest,
    CancelAnswer,
    CancelRequest,
    Claim,
    ClaimRequest,
    Experience,
    GroupAnswer,
    InputTestsAnswer,
    InputTestsRequest,
    Job,
    JobRequest,
    PolicyRow,
    ProblemAnswer,
    PromptAnswer,
    PromptedAgent,
    PromptRequest,
    RunSettings,
    RunStatus,
    ServerStatus,
    Session,
    SessionRequest,
    StoredEvaluation,
    Suspect,
    SuspectDecision,
    TaskPage,
    TaskRow,
    Turn,
    TurnRequest,
    WaitAnswer,
    WaitRequest,
)
from kernelforge.errors import InvalidServerResponse, ServerError

T = TypeVar("T")

_adapter = functools.cache(TypeAdapter)


@dataclass(frozen=True)
class ResponseData:
    """A raw response. Header names are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True)
class RequestSpec(Generic[T]):
    """One request, and the type of its response."""

    method: str
    path: str
    answer: type[T]
    body: BaseModel | None = None
    query: Mapping[str, str] = field(default_factory=dict)
    key: str | None = None
    """Idempotency key: a repeated request has no further effect."""
    hold_s: float = 0.0
    """How long the server was asked to hold the request open, in seconds."""
    repeatable: bool = True
    """Whether it may be repeated if it is unknown whether it arrived."""
    accepts: frozenset[int] = frozenset()
    """Statuses of 400 or more whose body is a normal response."""

    def headers(self) -> dict[str, str]:
        named = {"idempotency-key": self.key} if self.key is not None else {}
        return named | ({"content-type": "application/json"} if self.body is not None else {})

    def content(self) -> bytes | None:
        """The body without unset fields, so that older servers accept it."""
        return None if self.body is None else self.body.model_dump_json(exclude_unset=True).encode()

    def read(self, received: ResponseData) -> T:
        """Parse a response.

        Raises:
            ServerError: the server refused.
            InvalidServerResponse: the response is not one of a reward server.
        """
        if received.status >= 400 and received.status not in self.accepts:
            raise _refusal(self, received)
        where = f"{self.method} {self.path} was answered with status {received.status} and"
        if not 200 <= received.status < 300 and received.status not in self.accepts:
            target = received.headers.get("location", "nowhere")[:200]
            raise InvalidServerResponse(
                f"{where} a redirection to {target}, which is not followed: name the server's own address",
                status=received.status,
                code="malformed_answer",
            )
        try:
            body = b"null" if received.status == 204 else received.body
            answer: T = _adapter(cast(Hashable, self.answer)).validate_json(body)
            return answer
        except ValidationError as error:
            flaw = error.errors(include_url=False, include_input=False)[0]
            field_path = ".".join(map(str, flaw["loc"]))
            what = f"{field_path}: {flaw['msg']}" if field_path else _summary(received)
            raise InvalidServerResponse(
                f"{where} an unexpected body ({what}): check the address, and that client and "
                "server are of the same version",
                status=received.status,
                code="malformed_answer",
            ) from None


def _refusal(call: RequestSpec[T], received: ResponseData) -> ServerError:
    header_s = retry_after_s(received.headers.get("retry-after"))
    try:
        answer = ProblemAnswer.model_validate_json(received.body)
    except ValidationError:
        return ServerError(
            f"{call.method} {call.path} was answered with status {received.status} and {_summary(received)}, not "
            "by a reward server, perhaps by a proxy: check the address",
            status=received.status,
            code=f"http_{received.status}",
            retry_after_s=header_s,
        )
    return ServerError(
        answer.error.message,
        status=received.status,
        code=answer.error.code,
        retry_after_s=answer.error.retry_after_s if header_s is None else header_s,
        request_id=answer.request_id,
    )


def _summary(received: ResponseData) -> str:
    """Content type and title, or first words, of an unexpected response."""
    text = received.body[:4_000].decode("utf-8", "replace")
    kind = received.headers.get("content-type", "").partition(";")[0].strip() or "no content type"
    title = re.search(r"<title[^>]*>(.*?)</title", text, re.IGNORECASE | re.DOTALL)
    start = " ".join((title[1] if title else text).split())[:80]
    return f"{kind[:60]} that begins with {start!r}" if start else f"an empty body of {kind[:60]}"


def retry_after_s(value: str | None) -> float | None:
    """Seconds to wait by a Retry-After header, given in seconds or as a date; None if it is absent or unreadable.

    Source: RFC 9110, section 10.2.3.
    """
    if value is None:
        return None
    value = value.strip()
    if re.fullmatch(r"\d{1,9}(\.\d+)?", value):
        return float(value)
    try:
        return max(0.0, parsedate_to_datetime(value).timestamp() - time.time())
    except (ValueError, TypeError, OverflowError):
        return None


def submission(request: JobRequest, key: str) -> RequestSpec[Job]:
    return RequestSpec("POST", "/v1/jobs", Job, request, key=key)


def batch(requests: list[JobRequest], keys: list[str]) -> RequestSpec[BatchAnswer]:
    return RequestSpec("POST", "/v1/jobs/batch", BatchAnswer, BatchRequest(jobs=requests, idempotency_keys=keys))


def poll(job_id: str, wait_s: float = 0.0) -> RequestSpec[Job]:
    """Ask for a job; the server answers once it has ended or time is up."""
    return RequestSpec("GET", f"/v1/jobs/{_part(job_id)}", Job, query={"wait_s": f"{wait_s:.3f}"}, hold_s=wait_s)


def evaluation(key: str) -> RequestSpec[StoredEvaluation]:
    return RequestSpec("GET", f"/v1/evaluations/{_part(key)}", StoredEvaluation)


def wait(ids: list[str], k: int | None, timeout_s: float) -> RequestSpec[WaitAnswer]:
    return RequestSpec(
        "POST", "/v1/jobs/wait", WaitAnswer, WaitRequest(ids=ids, k=k, timeout_s=round(timeout_s, 3)), hold_s=timeout_s
    )


def cancel(request: CancelRequest) -> RequestSpec[CancelAnswer]:
    return RequestSpec("POST", "/v1/jobs/cancel", CancelAnswer, request)


def tasks(suite: str | None) -> RequestSpec[list[TaskRow]]:
    return RequestSpec("GET", "/v1/tasks", list[TaskRow], query={} if suite is None else {"suite": suite})


def task(name: str, agent: PromptedAgent) -> RequestSpec[TaskPage]:
    query = {} if agent == "coder" else {"agent": agent}  # an older server does not know it
    return RequestSpec("GET", "/v1/tasks/" + quote(name, safe="/"), TaskPage, query=query)


def tests(request: InputTestsRequest, hold_s: float) -> RequestSpec[InputTestsAnswer]:
    """Repeated, it joins the first, or gets its answer."""
    return RequestSpec("POST", "/v1/tests", InputTestsAnswer, request, hold_s=hold_s)


def group(run_id: str, group_id: str, size: int | None, wait_s: float) -> RequestSpec[GroupAnswer]:
    query = {"run_id": run_id, "group_id": group_id, "wait_s": f"{wait_s:.3f}"}
    query |= {} if size is None else {"size": str(size)}
    return RequestSpec("GET", "/v1/groups", GroupAnswer, query=query, hold_s=wait_s)


def suspects(run_id: str | None) -> RequestSpec[list[Suspect]]:
    return RequestSpec("GET", "/v1/suspects", list[Suspect], query={} if run_id is None else {"run_id": run_id})


def decide(suspect: str, decision: SuspectDecision) -> RequestSpec[Suspect]:
    return RequestSpec("POST", f"/v1/suspects/{_part(suspect)}", Suspect, decision, repeatable=False)


def prompts(request: PromptRequest) -> RequestSpec[PromptAnswer]:
    return RequestSpec("POST", "/v1/prompts", PromptAnswer, request)


def policies() -> RequestSpec[list[PolicyRow]]:
    return RequestSpec("GET", "/v1/policies", list[PolicyRow])


def runs() -> RequestSpec[list[RunStatus]]:
    return RequestSpec("GET", "/v1/runs", list[RunStatus])


def set_run(run_id: str, settings: RunSettings) -> RequestSpec[RunStatus]:
    return RequestSpec("PATCH", f"/v1/runs/{_part(run_id)}", RunStatus, settings)


def open_session(request: SessionRequest) -> RequestSpec[Session]:
    return RequestSpec("POST", "/v1/sessions", Session, request, repeatable=False)


def turn(session_id: str, request: TurnRequest, hold_s: float) -> RequestSpec[Turn]:
    """A turn with a number may be repeated: the second request joins the first, or gets its answer."""
    path = f"/v1/sessions/{_part(session_id)}/turns"
    return RequestSpec("POST", path, Turn, request, repeatable=request.number is not None, hold_s=hold_s)


def close_session(session_id: str) -> RequestSpec[None]:
    return RequestSpec("DELETE", f"/v1/sessions/{_part(session_id)}", type(None))


def session(session_id: str) -> RequestSpec[Session]:
    return RequestSpec("GET", f"/v1/sessions/{_part(session_id)}", Session)


def claim(request: ClaimRequest) -> RequestSpec[Claim]:
    """A claim whose answer was lost is repeated: the trajectories of the lost one come again when its lease expires."""
    return RequestSpec("POST", "/v1/experiences/claim", Claim, request, hold_s=request.wait_s)


def acknowledge(lease: str) -> RequestSpec[Acknowledged]:
    return RequestSpec("POST", "/v1/experiences/acknowledge", Acknowledged, AcknowledgeRequest(lease=lease))


def experiences(run_id: str, after: int, limit: int) -> RequestSpec[list[Experience]]:
    query = {"run_id": run_id, "after": str(after), "limit": str(limit)}
    return RequestSpec("GET", "/v1/experiences", list[Experience], query=query)


def status() -> RequestSpec[ServerStatus]:
    return RequestSpec("GET", "/readyz", ServerStatus, accepts=frozenset({503}))


def _part(text: str) -> str:
    return quote(text, safe="")
