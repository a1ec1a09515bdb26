"""Task routes: tasks with their prompts, scores of tests of them, and reward policies."""

from __future__ import annotations

import json
from functools import cache
from typing import Annotated

from fastapi import APIRouter, Body, Path, Query, Request
from pydantic import TypeAdapter
from starlette.responses import Response

from kernelforge.agents.base import CoderRequest
from kernelforge.agents.prompts import coder_prompt, tester_prompt
from kernelforge.agents.tester import generator_page
from kernelforge.client.models import InputTestsAnswer, InputTestsRequest, PolicyRow, PromptedAgent, TaskPage, TaskRow
from kernelforge.errors import UsageError
from kernelforge.records import Operator, Task
from kernelforge.rewards import POLICIES
from kernelforge.server.base import RequestRejected
from kernelforge.server.http.auth import Reader, Submitter
from kernelforge.server.http.errors import documented
from kernelforge.server.http.limits import api_router, json_answer, limiter_of
from kernelforge.server.http.routes.jobs import examples
from kernelforge.server.jobs.requests import reference_hash
from kernelforge.server.jobs.service import JobService

_ROWS = TypeAdapter(list[TaskRow])

_TEST = {
    "name": "far_below",
    "why": "a maximum starts at zero",
    "plan": "def inputs(x):\n    return uniform(-900, -800)\n",
}
_TESTS = examples(softmax={"task": "core/softmax", "completion": json.dumps({"generators": [_TEST]})})


def router(service: JobService) -> APIRouter:
    """Routes of tasks and reward policies."""
    api = api_router("tasks")
    pages: dict[tuple[str, PromptedAgent], TaskPage] = {}  # two per task of the catalogue at most

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
        suite: Annotated[str, Path(max_length=100)],
        name: Annotated[str, Path(max_length=200)],
        caller: Reader,
        agent: Annotated[PromptedAgent, Query(description="Whose prompt it is.")] = "coder",
    ) -> Response:
        """The reference is run once, for the shapes in the prompt; the answer is cached."""
        try:
            offered, task = service.catalogue.task(f"{suite}/{name}")
        except UsageError as error:
            raise RequestRejected(404, "unknown_task", f"there is no task {suite}/{name} here") from error
        if (task.digest, agent) not in pages:
            pages[task.digest, agent] = await _page(service, offered.name, task, agent)
        return json_answer(pages[task.digest, agent])

    @api.post(
        "/v1/tests",
        response_model=InputTestsAnswer,
        summary="Score the test inputs of a Tester's reply",
        responses=documented(400, 408, 413, 422, 429),
    )
    async def score_tests(
        request: Request, tests: Annotated[InputTestsRequest, Body(openapi_examples=_TESTS)], caller: Submitter
    ) -> Response:
        """The share of faults in the reference that its inputs show, of those that the task's own inputs do not."""
        async with limiter_of(request).waiting(request):
            return json_answer(await service.score_tests(tests, caller))

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


async def _page(service: JobService, suite: str, task: Task, agent: PromptedAgent) -> TaskPage:
    context = await service.task_context(task)
    if agent == "tester":
        prompt = tester_prompt(context, generator_page())
    else:
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
