"""OpenRLHF's remote reward: ``--reward.remote_url http://host:port/openrlhf/reward``.

The trainer sends lists of queries, prompts and labels (today one of each), waits 180 s, and tries five times, a second
apart, whatever the error was; then the sample has no reward. Older versions send empty lists to all URLs but the first,
which have to be answered.
"""

from __future__ import annotations

import asyncio

from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict, Field

from kernelforge.client.models import MAX_BATCH, MAX_COMPLETION_CHARS, Narrow
from kernelforge.server.base import RequestRejected
from kernelforge.server.http.auth import Submitter
from kernelforge.server.http.errors import documented
from kernelforge.server.http.strict_json import api_router
from kernelforge.server.jobs.service import JobService
from kernelforge.server.protocols.common import (
    LARGE_CHARS,
    Label,
    Wanted,
    extras,
    from_label,
    job_request,
    score_all,
    without_end_tokens,
)

HELD_S = 170.0
"""The trainer hangs up after 180."""
_TAIL_CHARS = 256
"""Of a prompt that was cut at its start, so much has to be there."""
_TAIL_TRIES = 64


class RewardRequest(Narrow):
    """What OpenRLHF sends. The lists are parallel."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    query: list[str] = Field(max_length=MAX_BATCH)
    """Prompt and completion in one text, with the tokenizer's special tokens."""
    prompts: list[str] = Field(max_length=MAX_BATCH)
    labels: list[Label] = Field(max_length=MAX_BATCH)
    """``suite/name`` of the task, or an object with ``task``, ``policy``, ``run_id``, ``policy_version``..."""


class RewardAnswer(BaseModel):
    """Parallel to the request."""

    rewards: list[float]
    scores: list[float]
    """The same numbers; OpenRLHF filters groups by them."""
    extra_logs: dict[str, list[float]]


def router(service: JobService) -> APIRouter:
    routes = api_router("openrlhf")

    @routes.post("/openrlhf/reward", responses=documented(400, 404, 408, 413, 422, 429, 504))
    async def reward(request: Request, body: RewardRequest, wanted: Wanted, caller: Submitter) -> RewardAnswer:
        """Rewards of completions, as OpenRLHF's remote reward model."""
        if not len(body.query) == len(body.prompts) == len(body.labels):
            sizes = f"{len(body.query)}, {len(body.prompts)} and {len(body.labels)}"
            raise RequestRejected(
                422, "invalid", f"query, prompts and labels are parallel lists, not of {sizes} entries"
            )
        # Where white space differs a text is walked through letter by letter: not in the event loop, if it is long.
        large = sum(map(len, body.query)) > LARGE_CHARS
        said = await asyncio.to_thread(_completions, body) if large else _completions(body)
        jobs = [job_request(from_label(label), wanted, text) for text, label in zip(said, body.labels, strict=True)]
        results = await score_all(request, service, caller, jobs, timeout_s=HELD_S)
        rewards = [result.reward for result in results if result.reward is not None]
        logs = [extras(result.components) for result in results]
        return RewardAnswer(
            rewards=rewards, scores=rewards, extra_logs={key: [one[key] for one in logs] for key in (logs or [{}])[0]}
        )

    return routes


def _completions(body: RewardRequest) -> list[str]:
    pairs = zip(body.query, body.prompts, strict=True)
    return [without_end_tokens(completion_in(query, prompt)) for query, prompt in pairs]


def completion_in(query: str, prompt: str) -> str:
    """What follows the prompt in a query.

    The tokenizer may have changed white space on the way, and the trainer cuts long prompts at their start. Where the
    prompt cannot be found nothing is guessed: it may hold a correct candidate itself.

    Raises:
        RequestRejected: 422: the query does not begin with its prompt, or it is too long.
    """
    if len(query) > 2 * MAX_COMPLETION_CHARS:
        raise RequestRejected(
            422, "invalid", f"a query has {len(query):,} characters; the limit is {2 * MAX_COMPLETION_CHARS:,}"
        )
    if query.startswith(prompt):
        return query[len(prompt) :]
    wanted = "".join(prompt.split())
    if not wanted:
        return query
    seen = "".join(query.split())
    if seen.startswith(wanted):
        return _after(query, len(wanted))
    tail = wanted[-_TAIL_CHARS:]
    end = len(wanted)
    for _ in range(_TAIL_TRIES):
        at = seen.rfind(tail, 0, end)
        if at < 0:
            break
        if wanted.endswith(seen[: at + len(tail)]):
            return _after(query, at + len(tail))
        end = at + len(tail) - 1
    raise RequestRejected(
        422, "invalid", "a query does not begin with its prompt, so the completion in it is not known"
    )


def _after(text: str, count: int) -> str:
    """What follows the first ``count`` characters that are no white space."""
    for position, letter in enumerate(text):
        if not letter.isspace():
            count -= 1
            if count == 0:
                return text[position + 1 :]
    return ""
