"""Many jobs at once: submitted in batches, results in the order of completion."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence

from kernelforge.client import requests as calls
from kernelforge.client.flow import (
    HOLD_S,
    LONGEST_ASKED_S,
    ROUND_HOLD_S,
    Emit,
    Limits,
    Pause,
    Steps,
    ask,
    next_pause_s,
    still_running,
)
from kernelforge.client.models import MAX_BATCH, BatchAnswer, CancelRequest, Job, JobRequest, Problem, RewardResult
from kernelforge.client.requests import RequestSpec
from kernelforge.errors import InvalidServerResponse, ServerError, ServerUnreachable

MAX_BATCH_CHARS = 8 << 20
"""Text of one batch; a larger one is sent in several."""


def stream(requests: Sequence[JobRequest], keys: Sequence[str], limits: Limits) -> Steps[None]:
    """Submit jobs in batches and emit each result once it is there; all are cancelled when the caller leaves.

    Raises:
        ServerError: one was refused for good; none is left running.
    """
    crowd = _InFlight(requests, keys, limits)
    try:
        yield from crowd.go()
    except BaseException:
        with contextlib.suppress(ServerError):
            yield from crowd.abandon()
        raise


def submit_many(requests: Sequence[JobRequest], keys: Sequence[str], limits: Limits) -> Steps[list[Job]]:
    """Submit jobs in batches, and wait for none of them.

    Raises:
        ServerError: one was refused for good; those that were accepted are cancelled.
    """
    crowd = _InFlight(requests, keys, limits)
    try:
        yield from crowd.submit_all()
    except BaseException:
        with contextlib.suppress(ServerError):
            yield from crowd.abandon()
        raise
    return [crowd.jobs[index] for index in range(len(requests))]


class _InFlight:
    """Jobs of one stream: to be submitted, waited for, or done."""

    def __init__(self, requests: Sequence[JobRequest], keys: Sequence[str], limits: Limits) -> None:
        self.requests = requests
        self.keys = keys
        self.limits = limits
        self.unsent = list(range(len(requests)))
        self.jobs: dict[int, Job] = {}
        """As they were accepted, by index."""
        self.waiting: dict[str, list[int]] = {}
        self.unanswered: list[int] = []
        """Of the batch that is on its way."""
        self.not_before = 0.0
        self.refusal: ServerError | None = None

    def submit_all(self) -> Steps[None]:
        while self.unsent:
            pause_s = max(0.0, self.not_before - time.monotonic())
            if pause_s > self.limits.left_s:
                raise self.refusal or ServerError("time was up before every job was submitted", code="timeout")
            if pause_s:
                yield Pause(pause_s)
            yield from self._submit()

    def go(self) -> Steps[None]:
        while self.unsent or self.waiting:
            until_next = max(0.0, self.not_before - time.monotonic()) if self.unsent else HOLD_S
            if self.unsent and not until_next:
                for index, result in (yield from self._submit()):
                    yield Emit(index, result)
            elif self.limits.left_s <= 0 or (not self.waiting and until_next > self.limits.left_s):
                yield from self._end()
            elif self.waiting:
                yield from self._collect(min(until_next, HOLD_S, self.limits.left_s), self.limits)
            else:
                yield Pause(until_next)

    def _submit(self) -> Steps[list[tuple[int, RewardResult]]]:
        """Send the next batch. Returns what the cache answered at once."""
        indices = self._next_batch()
        self.unanswered = indices
        try:
            answer = yield from ask(self._batch(indices), self.limits)
        except ServerUnreachable:
            raise
        except ServerError:
            self.unanswered = []
            raise
        self.unanswered = []
        ended: list[tuple[int, RewardResult]] = []
        refused: dict[int, Problem] = {}
        for index, item in zip(indices, answer.items, strict=False):
            if item.job is not None:
                self.jobs[index] = item.job
                if item.job.result is None:
                    self.waiting.setdefault(item.job.id, []).append(index)
                else:
                    ended.append((index, item.job.result))
            elif item.problem is not None:
                refused[index] = item.problem
        unanswered = sum(index not in self.jobs and index not in refused for index in indices)
        if unanswered or len(answer.items) != len(indices):
            raise InvalidServerResponse(
                f"the server answered {len(answer.items)} jobs of a batch of {len(indices)}, and left {unanswered} "
                "neither accepted nor refused",
                code="malformed_answer",
            )
        self._again_later(refused)
        return ended

    def _again_later(self, refused: Mapping[int, Problem]) -> None:
        """
        Raises:
            ServerError: one of them was refused for good.
        """
        for index, problem in refused.items():
            asked = problem.retry_after_s
            self.refusal = ServerError(
                f"request {index + 1} of {len(self.requests)}: {problem.message}",
                code=problem.code,
                retry_after_s=asked,
            )
            if asked is None or asked > LONGEST_ASKED_S:
                raise self.refusal
            self.not_before = max(self.not_before, time.monotonic() + next_pause_s(0, asked))
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

    def _collect(self, hold_s: float, limits: Limits) -> Steps[None]:
        """Oldest first: those end first. Where there are more than one wait may name, all have their turn."""
        ids = list(self.waiting)
        window = ids[:MAX_BATCH]
        if len(window) < len(ids):
            hold_s = min(hold_s, ROUND_HOLD_S)
        answer = yield from ask(calls.wait(window, 1, hold_s), limits)
        if len(window) < len(ids):
            for job_id in window:
                self.waiting[job_id] = self.waiting.pop(job_id)
        for job in answer.ended:
            if job.result is not None:
                for index in self.waiting.pop(job.id, ()):
                    yield Emit(index, job.result)

    def _end(self) -> Steps[None]:
        """Time is up: cancel what waits and emit what came of it; what was never accepted is an error."""
        closing = self.limits.closing(leaving=False)
        yield from self._cancel(closing)
        while self.waiting:
            before = len(self.waiting)
            yield from self._collect(closing.left_s, closing)
            if len(self.waiting) == before:
                raise still_running()
        if self.unsent:
            raise self.refusal or ServerError("time was up before every job was submitted", code="timeout")

    def _cancel(self, closing: Limits) -> Steps[None]:
        ids = list(self.waiting)
        for start in range(0, len(ids), MAX_BATCH):
            yield from ask(calls.cancel(CancelRequest(ids=ids[start : start + MAX_BATCH])), closing)

    def abandon(self) -> Steps[None]:
        closing = self.limits.closing(leaving=True)
        if self.unanswered:
            answer = yield from ask(self._batch(self.unanswered), closing)
            for item in answer.items:
                if item.job is not None and not item.job.status.ended:
                    self.waiting[item.job.id] = []
        yield from self._cancel(closing)


def _chars(request: JobRequest) -> int:
    candidate = request.candidate
    texts = [request.completion or "", request.reference_code or ""]
    return sum(map(len, texts)) + (len(candidate.source) + len(candidate.plan) if candidate else 0)
