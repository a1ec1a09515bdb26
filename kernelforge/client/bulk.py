"""Many jobs at once: submitted in batches, results in the order of completion."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import NamedTuple

from kernelforge.client import requests as calls
from kernelforge.client.flow import (
    HOLD_S,
    LONGEST_RETRY_AFTER_S,
    ROUND_HOLD_S,
    Limits,
    Transport,
    ask,
    cancel,
    next_pause_s,
    refused_as_stale,
    still_running,
)
from kernelforge.client.models import MAX_BATCH, BatchAnswer, Job, JobRequest, Problem, RewardResult
from kernelforge.client.requests import RequestSpec
from kernelforge.client.settings import Request, Settings, job_requests
from kernelforge.errors import InvalidServerResponse, ServerError, ServerUnreachable, UsageError

MAX_BATCH_CHARS = 8 << 20
"""Characters of one batch; a larger one is split."""

Results = list[tuple[int, RewardResult]]
"""Results with the indices of their requests."""


class Gathered(NamedTuple):
    """Answer of ``gather``; indices are those of its requests."""

    results: dict[int, RewardResult]
    """Results of the jobs that ended, by index."""
    cancelled: list[int]
    """Indices of the jobs that were not sent or cancelled: submit their requests in a later step."""


async def stream(
    transport: Transport, settings: Settings, requests: Sequence[Request], timeout_s: float | None
) -> AsyncGenerator[tuple[int, RewardResult], None]:
    """Submit jobs in batches and yield each result; the remaining jobs are cancelled if the caller stops early.

    Raises:
        ServerError: a job was refused permanently; all others are cancelled.
    """
    made, keys = job_requests(requests, settings.time_s(timeout_s))
    jobs = _InFlight(transport, made, keys, settings.limits(timeout_s))
    try:
        while jobs.unsent or jobs.waiting:
            for item in await jobs.advance():
                yield item
    except BaseException:
        await jobs.abandon()
        raise


async def gather(
    transport: Transport, settings: Settings, requests: Sequence[Request], k: int, timeout_s: float | None
) -> Gathered:
    """Submit jobs, and cancel the others once ``k`` have ended without an infrastructure failure.

    Raises:
        ServerError: a job was refused permanently; all others are cancelled.
        UsageError: ``k`` is not between 1 and the number of requests.
    """
    if not 1 <= k <= len(requests):
        raise UsageError(f"gather waits for {k} of {len(requests)} requests: give a k from 1 to their number")
    made, keys = job_requests(requests, settings.time_s(timeout_s))
    jobs = _InFlight(transport, made, keys, settings.limits(timeout_s))
    results: dict[int, RewardResult] = {}
    try:
        while (jobs.unsent or jobs.waiting) and sum(r.outcome != "infra_error" for r in results.values()) < k:
            results.update(await jobs.advance())
        results.update(await jobs.leave())
    except BaseException:
        await jobs.abandon()
        raise
    return Gathered(results, [index for index in range(len(requests)) if index not in results])


async def submit_many(
    transport: Transport, requests: Sequence[JobRequest], keys: Sequence[str], limits: Limits
) -> list[Job]:
    """Submit jobs in batches, without waiting for their ends.

    Raises:
        ServerError: a job was refused permanently; those that were accepted are cancelled.
    """
    jobs = _InFlight(transport, requests, keys, limits)
    try:
        await jobs.submit_all()
    except BaseException:
        await jobs.abandon()
        raise
    return [jobs.jobs[index] for index in range(len(requests))]


class _InFlight:
    """Jobs of one call: to be submitted, waited for, or done."""

    def __init__(
        self, transport: Transport, requests: Sequence[JobRequest], keys: Sequence[str], limits: Limits
    ) -> None:
        self.transport = transport
        self.requests = requests
        self.keys = keys
        self.limits = limits
        self.closing: Limits | None = None
        """Set once time is up and the jobs were cancelled."""
        self.unsent = list(range(len(requests)))
        self.jobs: dict[int, Job] = {}
        """Accepted jobs by index."""
        self.waiting: dict[str, list[int]] = {}
        self.unanswered: list[int] = []
        """Indices of the batch that is being sent."""
        self.not_before = 0.0
        self.refusal: ServerError | None = None

    async def submit_all(self) -> None:
        while self.unsent:
            pause_s = max(0.0, self.not_before - time.monotonic())
            if pause_s > self.limits.remaining_s:
                raise self._not_submitted()
            if pause_s:
                await self.transport.sleep(pause_s)
            await self._submit()

    async def advance(self) -> Results:
        """Submit a batch, wait for results, pause, or cancel, as needed. Returns new results."""
        if self.closing is not None:
            return await self._collect_cancelled(self.closing)
        until_next = max(0.0, self.not_before - time.monotonic()) if self.unsent else HOLD_S
        if self.unsent and not until_next:
            return await self._submit()
        if self.limits.remaining_s <= 0 or (not self.waiting and until_next > self.limits.remaining_s):
            self.closing = self.limits.closing()
            await cancel(self.transport, list(self.waiting), self.closing)
            return await self._collect_cancelled(self.closing)
        if self.waiting:
            return await self._collect(min(until_next, HOLD_S, self.limits.remaining_s), self.limits)
        await self.transport.sleep(until_next)
        return []

    async def _submit(self) -> Results:
        """Send the next batch. Returns the results that came from the cache."""
        indices = self._next_batch()
        self.unanswered = indices
        try:
            answer = await ask(self.transport, self._batch(indices), self.limits)
        except ServerUnreachable:
            raise
        except ServerError:
            self.unanswered = []
            raise
        self.unanswered = []
        ended: Results = []
        refused: dict[int, Problem] = {}
        for index, item in zip(indices, answer.items, strict=False):
            if item.job is not None:
                self.jobs[index] = item.job
                if item.job.result is None:
                    self.waiting.setdefault(item.job.id, []).append(index)
                else:
                    ended.append((index, item.job.result))
            elif item.problem is not None and item.problem.code == "stale":
                ended.append((index, refused_as_stale(item.problem.message)))
            elif item.problem is not None:
                refused[index] = item.problem
        unanswered = sum(item.job is None and item.problem is None for item in answer.items)
        if unanswered or len(answer.items) != len(indices):
            raise InvalidServerResponse(
                f"the server answered {len(answer.items)} jobs of a batch of {len(indices)}, and left {unanswered} "
                "neither accepted nor refused",
                code="malformed_answer",
            )
        self._retry_later(refused)
        return ended

    def _retry_later(self, refused: Mapping[int, Problem]) -> None:
        """Put refused jobs back at the front.

        Raises:
            ServerError: one of them was refused permanently.
        """
        for index, problem in refused.items():
            retry_after_s = problem.retry_after_s
            self.refusal = ServerError(
                f"request {index + 1} of {len(self.requests)}: {problem.message}",
                code=problem.code,
                retry_after_s=retry_after_s,
            )
            if retry_after_s is None or retry_after_s > LONGEST_RETRY_AFTER_S:
                raise self.refusal
            self.not_before = max(self.not_before, time.monotonic() + next_pause_s(0, retry_after_s))
        self.unsent = [*refused, *self.unsent]

    def _next_batch(self) -> list[int]:
        chars = 0
        count = 0
        for index in self.unsent[:MAX_BATCH]:
            chars += _chars(self.requests[index])
            if count and chars > MAX_BATCH_CHARS:
                break
            count += 1
        indices, self.unsent = self.unsent[:count], self.unsent[count:]
        return indices

    def _batch(self, indices: list[int]) -> RequestSpec[BatchAnswer]:
        return calls.batch([self.requests[index] for index in indices], [self.keys[index] for index in indices])

    async def _collect(self, hold_s: float, limits: Limits) -> Results:
        """Wait for the oldest jobs, which end first. If one request may not name all, they take turns."""
        ids = list(self.waiting)
        window = ids[:MAX_BATCH]
        if len(window) < len(ids):
            hold_s = min(hold_s, ROUND_HOLD_S)
        answer = await ask(self.transport, calls.wait(window, 1, hold_s), limits)
        if len(window) < len(ids):
            for job_id in window:
                self.waiting[job_id] = self.waiting.pop(job_id)
        return [
            (index, job.result)
            for job in answer.ended
            if job.result is not None
            for index in self.waiting.pop(job.id, ())
        ]

    async def _collect_cancelled(self, closing: Limits) -> Results:
        """Results of cancelled jobs; an error if a job was never accepted."""
        if not self.waiting:
            if self.unsent:
                raise self._not_submitted()
            return []
        before = len(self.waiting)
        results = await self._collect(closing.remaining_s, closing)
        if len(self.waiting) == before:
            raise still_running()
        return results

    async def leave(self) -> Results:
        """Cancel the jobs that have not ended. Returns the results of those that ended before it."""
        closing = self.limits.closing()
        for job_id in await cancel(self.transport, list(self.waiting), closing) if self.waiting else ():
            del self.waiting[job_id]
        self.unsent = []
        ended: Results = []
        while self.waiting:
            ended += await self._collect_cancelled(closing)
        return ended

    def _not_submitted(self) -> ServerError:
        return self.refusal or ServerError("time was up before every job was submitted", code="timeout")

    async def abandon(self) -> None:
        """Cancel all accepted jobs, those of an unanswered batch included."""
        if self.waiting or self.unanswered:
            await self.transport.clean_up(self._abandon(self.limits.closing()))

    async def _abandon(self, closing: Limits) -> None:
        with contextlib.suppress(ServerError):
            if self.unanswered:
                answer = await ask(self.transport, self._batch(self.unanswered), closing)
                for item in answer.items:
                    if item.job is not None and not item.job.status.ended:
                        self.waiting[item.job.id] = []
            await cancel(self.transport, list(self.waiting), closing)


def _chars(request: JobRequest) -> int:
    candidate = request.candidate
    texts = [request.completion or "", request.reference_code or ""]
    return sum(map(len, texts)) + (len(candidate.source) + len(candidate.plan) if candidate else 0)
