"""OpenRLHF's remote reward: ``--reward.remote_url http://host:port/openrlhf/reward``.

The trainer sends lists of queries, prompts and labels (today one of each), waits 180 s, and retries five times, a
second apart, after any error; then the sample has no reward. Older versions send empty lists to all URLs but the first,
which need an answer.
"""

from __future__ import annotations

import asyncio

from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict, Field

from kernelforge.client.models import MAX_BATCH, MAX_COMPLETION_CHARS, Narrow
from kernelforge.server.base import RequestRejected
from kernelforge.server.http.auth import Submitter
from kernelforge.server.http.errors import documented
from kernelforge.server.http.limits import api_router
from kernelforge.server.jobs.service import JobService
from kernelforge.server.protocols.common import (
    LARGE_CHARS,
    Label,
    UrlDefaults,
    extras,
    from_label,
    job_request,
    score_all,
    without_end_tokens,
)

HELD_S = 170.0
"""The trainer disconnects after 180 s."""
_TAIL_CHARS = 256
"""Length that must remain of a prompt that was cut at its start."""
_TAIL_TRIES = 64


class RewardRequest(Narrow):
    """Request of OpenRLHF. The lists are parallel."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    query: list[str] = Field(max_length=MAX_BATCH)
    """Prompt and completion in one text, with the tokenizer's special tokens."""
    prompts: list[str] = Field(max_length=MAX_BATCH)
    labels: list[Label] = Field(max_length=MAX_BATCH)
    """``suite/name`` of the task, or an object with ``task``, ``policy``, ``run_id``, ``policy_version``..."""


class RewardAnswer(BaseModel):
    """Answer for OpenRLHF; the lists are parallel to the request."""

    rewards: list[float]
    scores: list[float]
    """The same numbers; OpenRLHF filters groups by them."""
    extra_logs: dict[str, list[float]]


def router(service: JobService) -> APIRouter:
    routes = api_router("openrlhf")

    @routes.post("/openrlhf/reward", responses=documented(400, 404, 408, 413, 422, 429, 504))
    async def reward(request: Request, body: RewardRequest, defaults: UrlDefaults, caller: Submitter) -> RewardAnswer:
        """Rewards of completions, as OpenRLHF's remote reward model."""
        if not len(body.query) == len(body.prompts) == len(body.labels):
            sizes = f"{len(body.query)}, {len(body.prompts)} and {len(body.labels)}"
            raise RequestRejected(
                422, "invalid", f"query, prompts and labels are parallel lists, not of {sizes} entries"
            )
        # If white space differs, texts are compared character by character; long ones in a thread.
        large = sum(map(len, body.query)) > LARGE_CHARS
        completions = await asyncio.to_thread(_completions, body) if large else _completions(body)
        jobs = [
            job_request(from_label(label), defaults, text) for text, label in zip(completions, body.labels, strict=True)
        ]
        results = await score_all(request, service, caller, jobs, timeout_s=HELD_S)
        rewards = [result.reward for result in results if result.reward is not None]
        logs = [extras(result.components) for result in results]
        return RewardAnswer(
            rewards=rewards, scores=rewards, extra_logs={key: [row[key] for row in logs] for key in (logs or [{}])[0]}
        )

    return routes


def _completions(body: RewardRequest) -> list[str]:
    pairs = zip(body.query, body.prompts, strict=True)
    return [without_end_tokens(completion_in(query, prompt)) for query, prompt in pairs]


def completion_in(query: str, prompt: str) -> str:
    """The completion in a query: the text after the prompt.

    The tokenizer may have changed white space, and the trainer cuts long prompts at their start. A query without its
    prompt is refused, because the prompt itself may hold a correct candidate.

    Raises:
        RequestRejected: 422: the query does not begin with its prompt, or it is too long.
    """
    if len(query) > 2 * MAX_COMPLETION_CHARS:
        raise RequestRejected(
            422, "invalid", f"a query has {len(query):,} characters; the limit is {2 * MAX_COMPLETION_CHARS:,}"
        )
    if query.startswith(prompt):
        return query[len(prompt) :]
    prompt_text = "".join(prompt.split())
    if not prompt_text:
        return query
    query_text = "".join(query.split())
    if query_text.startswith(prompt_text):
        return _after(query, len(prompt_text))
    tail = prompt_text[-_TAIL_CHARS:]
    end = len(prompt_text)
    for _ in range(_TAIL_TRIES):
        at = query_text.rfind(tail, 0, end)
        if at < 0:
            break
        if prompt_text.endswith(query_text[: at + len(tail)]):
            return _after(query, at + len(tail))
        end = at + len(tail) - 1
    raise RequestRejected(422, "invalid", "a query does not begin with its prompt, so its completion is unknown")


def _after(text: str, count: int) -> str:
    """The text after the first ``count`` characters that are not white space."""
    for position, letter in enumerate(text):
        if not letter.isspace():
            count -= 1
            if count == 0:
                return text[position + 1 :]
    return ""
