"""NeMo-Gym's resources server: ``/seed_session``, ``/verify``, ``/aggregate_metrics`` and related routes.

NeMo-Gym addresses a resources server by host and port only, so the routes are at the root of this server too: put its
host and port into NeMo-Gym's configuration. A row names its task as ``task``, or as ``task`` in
``verifier_metadata``. An infrastructure failure is 503 or 504, which NeMo-RL retries.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Body, Request
from pydantic import BaseModel, ConfigDict, Field

from kernelforge.client.models import Narrow
from kernelforge.server.base import RequestRejected
from kernelforge.server.http.auth import Reader, Submitter
from kernelforge.server.http.errors import documented
from kernelforge.server.http.limits import api_router
from kernelforge.server.jobs.service import JobService
from kernelforge.server.protocols.common import Named, UrlDefaults, body_of, extras, job_request, plain, score_all

PREFIX = "/nemo-gym"
HELD_S = 600.0
"""NeMo-Gym sets no limit; this one frees the device if the client has stopped waiting."""
MAX_ROWS = 100_000
TASK_INDEX = "_ng_task_index"

_NAMES = tuple(Named.model_fields)
Row = Annotated[dict[str, Any], Body()]


class AggregateRequest(Narrow):
    """Request of NeMo-Gym after all rollouts are verified: their answers without the long parts."""

    model_config = ConfigDict(extra="forbid")

    verify_responses: list[dict[str, Any]] = Field(max_length=MAX_ROWS)


class AggregateAnswer(BaseModel):
    """Mean, minimum and maximum of the reward and its components."""

    group_level_metrics: list[dict[str, Any]]
    """Per task of the data set, in the order of first occurrence."""
    agent_metrics: dict[str, float]
    key_metrics: dict[str, float]


def router(service: JobService) -> APIRouter:
    routes = api_router("nemo-gym")

    async def seed_session(row: Row, defaults: UrlDefaults, caller: Submitter) -> dict[str, str]:
        """Check the row's task and sizes before the model is prompted. No state is kept."""
        session = row.get("resources_session_id")
        row = row.get("task_data", {}) if session is not None else row
        job = job_request(_named(row), defaults, "")
        service.find_task(job.task, job.reference_code)
        service.fingerprint_at(job.sizes, job.run_id)
        return {} if session is None else {"resources_session_id": str(session)}

    async def close_session(row: Row, caller: Submitter) -> dict[str, str]:
        """Sessions have no state, so there is nothing to close."""
        return {"resources_session_id": str(row.get("resources_session_id", ""))}

    async def verify(request: Request, row: Row, defaults: UrlDefaults, caller: Submitter) -> dict[str, Any]:
        """The row with its reward."""
        job = job_request(_named(row), defaults, last_message(row.get("response")))
        (result,) = await score_all(request, service, caller, [job], timeout_s=HELD_S)
        more = result.model_dump(exclude={"outcome", "reward", "components", "error"})
        return row | {"reward": result.reward, "reward_components": extras(result.components), "kernelforge": more}

    async def aggregate_metrics(body: AggregateRequest, caller: Reader) -> AggregateAnswer:
        """Statistics over verified rollouts."""
        return await asyncio.to_thread(aggregate, body.verify_responses)

    async def reverify_mode(caller: Reader) -> str:
        """Verification is stateless: it needs only the row."""
        return "stateless"

    posts: dict[str, Callable[..., Any]] = {
        "seed_session": seed_session,
        "close_session": close_session,
        "verify": verify,
        "aggregate_metrics": aggregate_metrics,
    }
    for prefix in (PREFIX, ""):
        for path, route in posts.items():
            routes.add_api_route(
                f"{prefix}/{path}",
                route,
                methods=["POST"],
                responses=documented(400, 408, 413, 422, 429, 504),
                include_in_schema=bool(prefix),
            )
        routes.add_api_route(
            f"{prefix}/reverify_mode", reverify_mode, responses=documented(), include_in_schema=bool(prefix)
        )
    return routes


def last_message(response: Any) -> str:
    """The text of the last message in an OpenAI response; empty if the model gave none.

    Raises:
        RequestRejected: 422: it is not an OpenAI response.
    """
    if not isinstance(response, dict) or not isinstance(response.get("output"), list):
        raise RequestRejected(422, "invalid", "response: an OpenAI response with its list 'output' is needed")
    for item in reversed(response["output"]):
        if isinstance(item, dict) and item.get("type") == "message" and item.get("role") == "assistant":
            content = item.get("content")
            if isinstance(content, str):
                return content
            if not isinstance(content, list):
                raise RequestRejected(422, "invalid", "response.output: a message has neither text nor parts")
            parts = [part for part in content if isinstance(part, dict) and part.get("type") == "output_text"]
            return "".join(part["text"] for part in parts if isinstance(part.get("text"), str))
    return ""


def aggregate(rows: Sequence[Mapping[str, Any]]) -> AggregateAnswer:
    """Statistics over verified rows; one that was masked, or has no number as its reward, is left out."""
    groups: dict[Any, list[dict[str, float]]] = defaultdict(list)
    for row in rows:
        reward, components = row.get("reward"), row.get("reward_components")
        if row.get("mask_sample") is True or reward is None or not _is_number(reward):
            continue
        parts = components if isinstance(components, dict) else {}
        index = row.get(TASK_INDEX)
        groups[index if isinstance(index, int | str) else None].append(
            {"reward": reward, **{str(key): value for key, value in parts.items() if _is_number(value)}}
        )
    every = _statistics([numbers for group in groups.values() for numbers in group])
    return AggregateAnswer(
        group_level_metrics=[{TASK_INDEX: index, **_statistics(group)} for index, group in groups.items()],
        agent_metrics=every,
        key_metrics={key: every[key] for key in ("mean/reward", "mean/correct") if key in every},
    )


def _statistics(rows: Sequence[Mapping[str, float]]) -> dict[str, float]:
    columns: dict[str, list[float]] = defaultdict(list)
    for row in rows:
        for key, value in row.items():
            columns[key].append(value)
    statistics: dict[str, float] = {}
    for key, values in columns.items():
        statistics |= {f"mean/{key}": sum(values) / len(values), f"min/{key}": min(values), f"max/{key}": max(values)}
    return statistics


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300


def _named(row: Mapping[str, Any]) -> Named:
    """Fields of a row, at its top level or in ``verifier_metadata``."""
    metadata = row.get("verifier_metadata")
    inner = plain(metadata, *_NAMES) if isinstance(metadata, dict) else {}
    return body_of(Named, inner | plain(row, *_NAMES), "row")
