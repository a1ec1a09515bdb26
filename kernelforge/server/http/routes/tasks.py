"""Task routes: tasks with their prompts, and reward policies."""

from __future__ import annotations

from functools import cache
from typing import Annotated

from fastapi import APIRouter, Path, Query
from pydantic import TypeAdapter
from starlette.responses import Response

from kernelforge.agents.base import CoderRequest
from kernelforge.agents.prompts import coder_prompt
from kernelforge.client.models import PolicyRow, TaskPage, TaskRow
from kernelforge.errors import UsageError
from kernelforge.records import Operator, Task
from kernelforge.rewards import POLICIES
from kernelforge.server.base import RequestRejected
from kernelforge.server.http.auth import Reader
from kernelforge.server.http.errors import documented
from kernelforge.server.http.limits import api_router, json_answer
from kernelforge.server.jobs.requests import reference_hash
from kernelforge.server.jobs.service import JobService

_ROWS = TypeAdapter(list[TaskRow])


def router(service: JobService) -> APIRouter:
    """Routes of tasks and reward policies."""
    api = api_router("tasks")
    pages: dict[str, TaskPage] = {}  # one per task of the catalogue at most

    @cache
    def rows(suite: str | None) -> bytes:
        """The serialised answer, cached: there may be thousands of tasks, and they do not change."""
        names = service.catalogue.names if suite is None else (suite,)
        return _ROWS.dump_json([row_of(name, task) for name in names for task in service.catalogue.tasks(name)])

    @api.get(
        "/v1/tasks", response_model=list[TaskRow], summary="The tasks that are offered", responses=documented(404, 422)
    )
    async def list_tasks(
        caller: Reader,
        suite: Annotated[str | None, Query(max_length=200, description="Only this suite.")] = None,
    ) -> Response:
        if suite is not None and suite not in service.catalogue.names:
            raise RequestRejected(404, "unknown_suite", f"suites here: {', '.join(service.catalogue.names)}")
        return Response(rows(suite), media_type="application/json")

    @api.get(
        "/v1/tasks/{suite}/{name:path}",
        response_model=TaskPage,
        summary="A task, with its prompt",
        responses=documented(404, 422),
    )
    async def show_task(
        suite: Annotated[str, Path(max_length=100)], name: Annotated[str, Path(max_length=200)], caller: Reader
    ) -> Response:
        """The reference is run once, for the shapes in the prompt; the answer is cached."""
        try:
            offered, task = service.catalogue.task(f"{suite}/{name}")
        except UsageError as error:
            raise RequestRejected(404, "unknown_task", f"there is no task {suite}/{name} here") from error
        if task.digest not in pages:
            pages[task.digest] = await _page(service, offered.name, task)
        return json_answer(pages[task.digest])

    @api.get("/v1/policies", summary="Reward policies", responses=documented())
    async def list_policies(caller: Reader) -> list[PolicyRow]:
        return [
            PolicyRow(
                policy=name,
                title=policy.title,
                source=policy.source,
                bounds=policy.bounds,
                default=name == service.default_policy,
            )
            for name, policy in POLICIES.items()
        ]

    return api


def row_of(suite: str, task: Task) -> TaskRow:
    """A task in a list."""
    return TaskRow(
        task=f"{suite}/{task.name}", digest=task.digest, title=task.title, level=task.level, tags=list(task.tags)
    )


async def _page(service: JobService, suite: str, task: Task) -> TaskPage:
    context = await service.task_context(task)
    first = CoderRequest(brief=context, operator=Operator.SEED, parent=None, finding=None, history=())
    prompt = coder_prompt(first, asks=False)
    return TaskPage(
        **row_of(suite, task).model_dump(),
        device=next(iter(service.status().devices), ""),
        prompt=prompt.text,
        system=prompt.text[: prompt.stable].strip(),
        user=prompt.text[prompt.stable :],
        reference_sha256=reference_hash(task.source),
    )
