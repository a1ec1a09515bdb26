"""slime's remote reward: ``--rm-type remote_rm --rm-url http://host:port/slime/reward``.

The trainer sends one sample, waits 120 s, and retries ten times with growing pauses after any error. It uses the answer
unchanged: a number, or with ``--reward-key`` a dictionary (add ``?form=dict`` to the URL).
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request
from pydantic import ConfigDict, Field

from kernelforge.client.models import MAX_COMPLETION_CHARS, Narrow
from kernelforge.server.http.auth import Submitter
from kernelforge.server.http.errors import documented
from kernelforge.server.http.limits import api_router
from kernelforge.server.jobs.service import JobService
from kernelforge.server.protocols.common import (
    Label,
    Named,
    completion_text,
    extras,
    from_label,
    job_request,
    score_all,
)

HELD_S = 110.0
"""The trainer disconnects after 120 s."""


class RewardRequest(Narrow):
    """Request of slime."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    prompt: Any = None
    """Text or messages; ignored."""
    response: str = Field(max_length=MAX_COMPLETION_CHARS)
    """The completion, with special tokens at its end unless the trainer removes them."""
    label: Label = None
    """``suite/name`` of the task, or an object with ``task``, ``policy``, ``run_id``, ``policy_version``..."""


class _Url(Named):
    form: Literal["number", "dict"] = "number"
    """``dict``: ``{"reward": 0.3, "correct": 1.0, ...}``, of which ``--reward-key reward`` takes the reward."""


def router(service: JobService) -> APIRouter:
    routes = api_router("slime")

    @routes.post("/slime/reward", responses=documented(400, 408, 413, 422, 429, 504))
    async def reward(
        request: Request, body: RewardRequest, url: Annotated[_Url, Query()], caller: Submitter
    ) -> float | dict[str, float]:
        """The reward of one sample, as slime's remote reward model."""
        defaults = Named(**url.model_dump(exclude={"form"}))
        job = job_request(from_label(body.label), defaults, await completion_text(body.response))
        (result,) = await score_all(request, service, caller, [job], timeout_s=HELD_S)
        assert result.reward is not None
        return result.reward if url.form == "number" else {"reward": result.reward, **extras(result.components)}

    return routes
