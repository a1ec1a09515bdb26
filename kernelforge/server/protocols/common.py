"""Helpers shared by the trainer protocols: task names, completions, scoring."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, TypeVar

from fastapi import Query, Request
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import from_json

from kernelforge.client.models import Components, Job, JobRequest, Name, Narrow, RewardResult
from kernelforge.server.base import Caller, RequestRejected
from kernelforge.server.http.errors import missing_score
from kernelforge.server.http.limits import limiter_of
from kernelforge.server.jobs.service import JobService

KEEP_QUEUED_S = 60.0
"""How long a completion stays in the queue after a 504 answer; trainers retry within 31 s."""
_MAX_LABEL_CHARS = 300 << 10
LARGE_CHARS = 64 << 10
"""Longer texts are processed in a thread, so that they do not block the event loop."""


ModelT = TypeVar("ModelT", bound=BaseModel)


class Named(Narrow):
    """Fields that a trainer may give in a label or row, in addition to the completion."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    task: str | None = Field(default=None, max_length=200)
    """``suite/name``, the name of a task of the default suite, or a task's digest."""
    reference_code: str | None = None
    """The task file instead of its name; only its hash is used."""
    policy: str | None = Field(default=None, max_length=100)
    """Reward policy; by default the server's."""
    run_id: Name | None = None
    policy_version: int | None = Field(default=None, ge=0, le=2**53)
    """Version of the weights that wrote the completion."""
    priority: int | None = Field(default=None, ge=-10, le=10)
    profile: bool | None = None
    """Also profile a correct candidate."""
    sizes: Literal["all", "train"] | None = None
    """Sizes to check, among those that the server offers; by default the run's, else the server's."""


class _UrlDefaults(Named):
    """Defaults for a run, in the query of the URL; a label or row overrides them."""


UrlDefaults = Annotated[_UrlDefaults, Query()]
"""A parameter of routes whose URL may hold defaults, because trainers have one URL for a run."""


def body_of(model: type[ModelT], data: Any, where: str) -> ModelT:
    """Validated data.

    Raises:
        RequestRejected: 422, with the path of the first invalid field and without its value.
    """
    try:
        return model.model_validate(data)
    except ValidationError as error:
        item = error.errors(include_url=False, include_input=False, include_context=False)[0]
        field = ".".join(str(part)[:60] for part in (where, *item["loc"]))
        raise RequestRejected(422, "invalid", f"{field}: {item['msg'].removeprefix('Value error, ')}") from error


Label = str | dict[str, Any] | None
"""Content of a data set's label column."""


def from_label(label: Label) -> Named:
    """Fields of a label: the name of a task, or the fields of :class:`Named`, as JSON or a dictionary."""
    if isinstance(label, dict):
        return body_of(Named, label, "label")
    if label is None or not label.strip():
        return Named()
    if len(label) > _MAX_LABEL_CHARS:
        raise RequestRejected(
            422, "invalid", f"the label has {len(label):,} characters; the limit is {_MAX_LABEL_CHARS:,}"
        )
    text = label.strip()
    if not text.startswith("{"):
        return body_of(Named, {"task": text}, "label")
    try:
        data = from_json(text, allow_inf_nan=False)
    except ValueError as error:
        raise RequestRejected(422, "invalid", f"label: starts like a JSON object but is not one: {error}") from error
    return body_of(Named, data, "label")


def job_request(named: Named, defaults: Named, completion: str) -> JobRequest:
    """The job of a completion.

    Args:
        named: fields of the label or row.
        defaults: fields of the URL, for those that the label lacks.

    Raises:
        RequestRejected: 422: no task is named, or a limit is exceeded.
    """
    fields = defaults.model_dump(exclude_none=True)
    if named.task is not None or named.reference_code is not None:
        fields.pop("task", None)
        fields.pop("reference_code", None)
    fields.update(named.model_dump(exclude_none=True))
    if "task" not in fields and "reference_code" not in fields:
        raise RequestRejected(
            422, "no_task", "no task is named: put 'suite/name' into the label, or ?task= into the URL"
        )
    return body_of(JobRequest, {**fields, "completion": completion}, "completion")


async def score_all(
    request: Request, service: JobService, caller: Caller, jobs: Sequence[JobRequest], *, timeout_s: float
) -> list[RewardResult]:
    """Score several completions in parallel.

    All are awaited even if one fails, so that the others are in the cache when the trainer retries. Jobs that have not
    ended when time runs out continue for :data:`KEEP_QUEUED_S`; the same completion, sent again, joins them.

    Raises:
        RequestRejected: the first refusal or infrastructure failure, in the order of the jobs.
    """
    async with limiter_of(request).waiting(request):
        timed = [job.model_copy(update={"deadline_s": timeout_s + KEEP_QUEUED_S}) for job in jobs]
        submission = asyncio.ensure_future(service.submit(timed, caller))
        try:
            accepted = await asyncio.shield(submission)
            names = _names(accepted)
            if names:
                await service.wait(names, None, timeout_s)
        except asyncio.CancelledError:
            # The client disconnected: also cancel jobs that are being accepted.
            await service.cancel(_names(await submission), caller)
            raise
    results = []
    for item in accepted:
        if isinstance(item, RequestRejected):
            raise item
        job = service.job(item.id)
        if not job.status.ended:
            raise RequestRejected(
                504, "infra_error", f"job {job.id} is {job.status} after {timeout_s:g} s; ask again", retry_after_s=1.0
            )
        results.append(scored(job))
    return results


def _names(accepted: Sequence[Job | RequestRejected]) -> list[str]:
    return [job.id for job in accepted if isinstance(job, Job)]


async def ended(
    request: Request,
    service: JobService,
    caller: Caller,
    jobs: Sequence[JobRequest],
    *,
    timeout_s: float,
    keys: Sequence[str | None] | None = None,
) -> list[Job | RequestRejected]:
    """Completed jobs, or refusals, of several completions that are scored in parallel."""
    async with limiter_of(request).waiting(request):
        outcomes = await asyncio.gather(
            *(
                service.score(job, caller, timeout_s=timeout_s, key=key)
                for job, key in zip(jobs, keys or [None] * len(jobs), strict=True)
            ),
            return_exceptions=True,
        )
    jobs_or_refusals: list[Job | RequestRejected] = []
    for outcome in outcomes:
        if isinstance(outcome, BaseException) and not isinstance(outcome, RequestRejected):
            raise outcome
        jobs_or_refusals.append(outcome)
    return jobs_or_refusals


def scored(job: Job) -> RewardResult:
    """The result of a job that has a score; of an unsupported candidate that of a failure, for a policy must not gain
    by one, and none of these protocols can leave a sample out.

    Raises:
        RequestRejected: it has no score.
    """
    if job.result is not None and job.result.failure_reward is not None:
        return job.result.model_copy(update={"reward": job.result.failure_reward})
    if job.result is None or job.result.outcome != "scored":
        raise missing_score(job)
    return job.result


def extras(components: Components) -> dict[str, float]:
    """Components as numbers under fixed keys, for loggers that do not accept None.

    ``timed`` is 1 if ``speedup`` and its bound are known; otherwise they are 0, so that the mean of ``speedup`` over
    the mean of ``timed`` is the mean speedup.
    """
    return {
        **components.flags(),
        "timed": float(components.speedup is not None),
        "speedup": components.speedup or 0.0,
        "speedup_lower": components.speedup_lower or 0.0,
    }


_END_TOKEN = re.compile(
    r"<\|[A-Za-z0-9_./-]{1,48}\|>|<｜[\w▁ ]{1,48}｜>|</s>|<eos>|<pad>|<end_of_turn>|<EOT>|\[EOS\]|\[PAD\]"
)
"""Final and padding tokens of Llama, Qwen, Phi, GPT-OSS (``<|...|>``), DeepSeek (``<｜...｜>``), Mistral, Gemma."""
_END_TOKEN_CHARS = 52


async def completion_text(text: str) -> str:
    """:func:`without_end_tokens`, in a thread if the text is long, because it may consist of such tokens only."""
    return await asyncio.to_thread(without_end_tokens, text) if len(text) > LARGE_CHARS else without_end_tokens(text)


def without_end_tokens(completion: str) -> str:
    """A completion without the special tokens that a tokenizer leaves at its end.

    After a closing fence they would make the fence part of the code.
    """
    end_of_text = len(completion)
    while True:
        end = end_of_text
        while end and completion[end - 1].isspace():
            end -= 1
        first = max(0, end - _END_TOKEN_CHARS)
        start = max(completion.rfind("<", first, end), completion.rfind("[", first, end))
        if start < 0 or _END_TOKEN.fullmatch(completion, start, end) is None:
            return completion[:end_of_text]
        end_of_text = start


def plain(row: Mapping[str, Any], *names: str) -> dict[str, Any]:
    """The named entries that are present in a row."""
    return {name: row[name] for name in names if row.get(name) is not None}
