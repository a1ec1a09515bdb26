"""Sessions, prompts of search strategies, and the experience stream, over HTTP."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Body, Path, Query, Request
from starlette.responses import Response

from kernelforge.client.models import (
    MAX_CLAIM,
    Acknowledged,
    AcknowledgeRequest,
    Claim,
    ClaimRequest,
    Experience,
    JobId,
    Name,
    PromptAnswer,
    PromptRequest,
    Session,
    SessionRequest,
    Turn,
    TurnRequest,
)
from kernelforge.server.http.auth import Reader, Submitter
from kernelforge.server.http.errors import documented
from kernelforge.server.http.limits import api_router, limiter_of
from kernelforge.server.http.routes.jobs import examples
from kernelforge.server.sessions.service import Sessions

SessionPath = Annotated[JobId, Path(description="A session's id.")]


def router(sessions: Sessions) -> APIRouter:
    routes = api_router("sessions")

    @routes.post("/v1/sessions", status_code=201, responses=documented(400, 408, 413, 422, 429))
    async def open_session(body: SessionRequest, caller: Submitter) -> Session:
        """Begin a conversation about a task; the answer has the first prompt."""
        return await sessions.open(body, caller)

    @routes.post("/v1/prompts", responses=documented(400, 408, 413, 422))
    async def prompts(body: PromptRequest, caller: Submitter) -> PromptAnswer:
        """Prompts of a search strategy, written from the right candidates of your jobs in a run."""
        return await sessions.prompts(body, caller)

    @routes.post("/v1/sessions/{session}/turns", responses=documented(400, 404, 408, 409, 413, 422, 429, 504))
    async def take_turn(request: Request, session: SessionPath, body: TurnRequest, caller: Submitter) -> Turn:
        """Evaluate a reply; the answer has its reward and the next prompt.

        An infrastructure failure is 503 or 504, and the turn is not counted. A turn with a number can be sent again at
        any time: the request joins the turn in progress or gets its answer.
        """
        async with limiter_of(request).waiting(request):
            return await sessions.turn(session, body, caller)

    @routes.get("/v1/sessions/{session}", responses=documented(404))
    async def show_session(session: SessionPath, caller: Reader) -> Session:
        """The complete conversation, with the discounted return of each turn."""
        return await sessions.get(session, caller)

    @routes.delete("/v1/sessions/{session}", status_code=204, responses=documented(404))
    async def delete_session(session: SessionPath, caller: Submitter) -> Response:
        """End a conversation, including its running turn, and delete it."""
        await sessions.delete(session, caller)
        return Response(status_code=204)

    _experiences(routes, sessions)
    return routes


_CLAIM = examples(batch={"run_id": "grpo-7", "group": "trainer", "count": 64, "max_staleness": 4, "wait_s": 30})


def _experiences(routes: APIRouter, sessions: Sessions) -> None:
    @routes.post(
        "/v1/experiences/claim",
        summary="Lease the next scored trajectories of a run",
        responses=documented(400, 408, 413, 422),
    )
    async def claim(
        request: Request, body: Annotated[ClaimRequest, Body(openapi_examples=_CLAIM)], caller: Submitter
    ) -> Claim:
        """Trajectories are this token's jobs and finished sessions of a run, in the order of their ends, without those
        that have an `infra_error`; with the scope `admin`, those of all tokens."""
        async with limiter_of(request).waiting(request):
            return await sessions.claim(body, caller)

    @routes.post(
        "/v1/experiences/acknowledge",
        summary="Mark the trajectories of a lease as used",
        responses=documented(400, 408, 409, 413, 422),
    )
    async def acknowledge(body: AcknowledgeRequest, caller: Submitter) -> Acknowledged:
        """All or none of them; a repeated request has no further effect."""
        return Acknowledged(acknowledged=await sessions.acknowledge(body.lease, caller))

    @routes.get("/v1/experiences", summary="Read scored trajectories of a run", responses=documented(422))
    async def read(
        caller: Reader,
        run_id: Name = "default",
        after: Annotated[int, Query(ge=0, le=2**53, description="Number of the last one that was read.")] = 0,
        limit: Annotated[int, Query(ge=1, le=MAX_CLAIM)] = 100,
    ) -> list[Experience]:
        """The same trajectories, without a lease."""
        return await sessions.experiences(run_id, after, limit, caller)
