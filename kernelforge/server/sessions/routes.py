"""Sessions, and prompts of search strategies, over HTTP."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Request
from starlette.responses import Response

from kernelforge.client.models import JobId, PromptAnswer, PromptRequest, Session, SessionRequest, Turn, TurnRequest
from kernelforge.server.http.auth import Reader, Submitter
from kernelforge.server.http.errors import documented
from kernelforge.server.http.limits import api_router, limiter_of
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

    return routes
