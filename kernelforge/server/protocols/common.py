"""Helpers shared by the trainer protocols: task names, completions, scoring."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, TypeVar

from fastapi import Query, Request
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import from_json

from kernelforge.client.models import Components, Job, JobRequest, Name, Narrow, RewardResult
from kernelforge.server.base import Caller, RequestRejected
from kernelforge.server.http.errors import trouble
from kernelforge.server.http.long_poll import held_by
from kernelforge.server.jobs.service import JobService

AGAIN_S = 60.0
"""How long a completion stays in the queue after its request was answered with 504: trainers ask again within 31 s."""
_MAX_LABEL_CHARS = 300 << 10
LARGE_CHARS = 64 << 10
"""From here on texts are walked through in a thread: the event loop has others to serve."""


ModelT = TypeVar("ModelT", bound=BaseModel)


class Named(Narrow):
    """What a trainer may say of a completion beside the completion, in its label or its row."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    task: str | None = Field(default=None, max_length=200)
    """``suite/name``, the name of a task of the default suite, or a task's digest."""
    reference_code: str | None = None
    """The task's file instead; only its hash is looked up."""
    policy: str | None = Field(default=None, max_length=100)
    """Reward policy; the server's own when left out."""
    run_id: Name | None = None
    policy_version: int | None = Field(default=None, ge=0, le=2**53)
    """Version of the weights that wrote the completion."""
    priority: int | None = Field(default=None, ge=-10, le=10)
    profile: bool | None = None
    """Also profile a correct candidate."""


class _Wanted(Named):
    """The same for a whole run, in the query of the URL; a label or row that says otherwise wins."""


Wanted = Annotated[_Wanted, Query()]
"""A parameter of routes that can be told of the run by their URL, as trainers have one URL for a run."""


def body_of(model: type[ModelT], data: Any, where: str) -> ModelT:
    """Data as a model.

    Raises:
        RequestRejected: 422, with the place of the first fault and nothing of what was sent.
    """
    try:
        return model.model_validate(data)
    except ValidationError as error:
        found = error.errors(include_url=False, include_input=False, include_context=False)[0]
        place = ".".join(str(part)[:60] for part in (where, *found["loc"]))
        raise RequestRejected(422, "invalid", f"{place}: {found['msg'].removeprefix('Value error, ')}") from error


Label = str | dict[str, Any] | None
"""What trainers keep in the label column of a data set."""


def from_label(label: Label) -> Named:
    """What a label says: the name of a task, or an object with the fields of :class:`Named`, as JSON or as it is."""
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
        raise RequestRejected(422, "invalid", f"label: begins as a JSON object and is none: {error}") from error
    return body_of(Named, data, "label")


def job_request(named: Named, wanted: Named, completion: str) -> JobRequest:
    """A job of the gateway.

    Args:
        named: what the label or row says.
        wanted: what the URL says, for all that the label does not.

    Raises:
        RequestRejected: 422: no task is named, or a limit is passed.
    """
    fields = wanted.model_dump(exclude_none=True)
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
    """Score several completions side by side.

    All are waited for even if one fails: what was evaluated is in the cache when the trainer tries again. So is what
    is queued or running when time runs out: it goes on for :data:`AGAIN_S`, and the same completion, sent again, joins
    it in its place in the queue.

    Raises:
        RequestRejected: one was refused, or has no score for a reason of ours; the first in their order.
    """
    async with held_by(request).waiting(request):
        timed = [job.model_copy(update={"deadline_s": timeout_s + AGAIN_S}) for job in jobs]
        submission = asyncio.ensure_future(service.submit(timed, caller))
        try:
            accepted = await asyncio.shield(submission)
            names = _names(accepted)
            if names:
                await service.wait(names, None, timeout_s)
        except asyncio.CancelledError:
            # The client is gone. What was accepted on the way is ended too.
            await service.cancel(_names(await submission))
            raise
    results = []
    for one in accepted:
        if isinstance(one, RequestRejected):
            raise one
        job = service.job(one.id)
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
    """What became of several completions that were scored side by side; the request is held until all have ended."""
    async with held_by(request).waiting(request):
        found = await asyncio.gather(
            *(
                service.score(job, caller, timeout_s=timeout_s, key=key)
                for job, key in zip(jobs, keys or [None] * len(jobs), strict=True)
            ),
            return_exceptions=True,
        )
    became: list[Job | RequestRejected] = []
    for one in found:
        if isinstance(one, BaseException) and not isinstance(one, RequestRejected):
            raise one
        became.append(one)
    return became


def scored(job: Job) -> RewardResult:
    """The result of a job that has a score.

    Raises:
        RequestRejected: it has none.
    """
    if job.result is None or job.result.outcome != "scored":
        raise trouble(job)
    return job.result


def extras(components: Components) -> dict[str, float]:
    """Components as plain numbers under keys that are always the same, for loggers that cannot take None.

    ``timed`` tells whether ``speedup`` and its bound are known; where they are not they are 0, so that the mean of
    ``speedup`` over the mean of ``timed`` is the mean speedup. What a candidate did not get to counts as 0.
    """
    timed = components.speedup is not None
    return {
        "format": components.format or 0.0,
        "built": components.built or 0.0,
        "correct": components.correct or 0.0,
        "policy": 1.0 if components.policy is None else components.policy,
        "timed": float(timed),
        "speedup": components.speedup or 0.0,
        "speedup_lower": components.speedup_lower or 0.0,
    }


_END_TOKEN = re.compile(
    r"<\|[A-Za-z0-9_./-]{1,48}\|>|<｜[\w▁ ]{1,48}｜>|</s>|<eos>|<pad>|<end_of_turn>|<EOT>|\[EOS\]|\[PAD\]"
)
"""What Llama, Qwen, Phi, GPT-OSS (``<|...|>``), DeepSeek (``<｜...｜>``), Mistral and Gemma end a turn or fill with."""
_END_TOKEN_CHARS = 52


async def said_in(text: str) -> str:
    """:func:`without_end_tokens`, beside the event loop where the text is long: it may be nothing but such tokens."""
    return await asyncio.to_thread(without_end_tokens, text) if len(text) > LARGE_CHARS else without_end_tokens(text)


def without_end_tokens(completion: str) -> str:
    """A completion without the special tokens that a tokenizer leaves at its end.

    Behind a closing fence they would make the fence part of the code.
    """
    kept = len(completion)
    while True:
        end = kept
        while end and completion[end - 1].isspace():
            end -= 1
        first = max(0, end - _END_TOKEN_CHARS)
        start = max(completion.rfind("<", first, end), completion.rfind("[", first, end))
        if start < 0 or _END_TOKEN.fullmatch(completion, start, end) is None:
            return completion[:kept]
        kept = start


def plain(row: Mapping[str, Any], *names: str) -> dict[str, Any]:
    """The named entries of a row that are there."""
    return {name: row[name] for name in names if row.get(name) is not None}
