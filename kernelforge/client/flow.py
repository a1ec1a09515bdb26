"""Client behaviour beyond one request: retries, waiting, cancelling abandoned jobs.

Both clients run these coroutines. They differ in the :class:`Transport`: that of the synchronous client never suspends,
so its coroutines finish in one step.
"""

from __future__ import annotations

import contextlib
import logging
import secrets
import time
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from random import SystemRandom
from typing import Any, Protocol, TypeVar

from kernelforge.client import requests
from kernelforge.client.models import MAX_BATCH, CancelRequest, Fault, Job, JobRequest, RewardResult, WaitAnswer
from kernelforge.client.requests import RequestSpec, ResponseData
from kernelforge.errors import InvalidServerResponse, ServerError, ServerUnreachable

T = TypeVar("T")

_LOG = logging.getLogger(__name__)

HOLD_S = 30.0
"""Longest time the server is asked to hold a request for a job that has not ended."""
ROUND_HOLD_S = 1.0
"""The same if there are more jobs than one request may name, which then take turns."""
ANSWER_S = 60.0
"""Longest wait for an answer, in addition to the time the server is asked to hold it."""
LATE_S = 2.0
"""How long an answer is awaited beyond the caller's time limit: a late answer is better than none."""
CLOSING_S = 5.0
"""Longest time spent on cancelling."""
CLOSING_RETRIES = 2
FIRST_BACKOFF_S = 0.1
LONGEST_BACKOFF_S = 15.0
LONGEST_RETRY_AFTER_S = 3_600.0
"""A longer Retry-After of the server is treated as a refusal."""
RETRIED = frozenset({429, 502, 503, 504})

_random = SystemRandom()


class ConnectionFailed(Exception):
    """No connection, or a broken one.

    Args:
        sent: whether the request may have arrived.
    """

    def __init__(self, message: str, *, sent: bool) -> None:
        super().__init__(message)
        self.sent = sent


@dataclass
class Limits:
    """Limits of time and number of tries."""

    url: str
    retries: int
    until: float
    """Deadline on the monotonic clock, in seconds."""

    @property
    def remaining_s(self) -> float:
        return max(0.0, self.until - time.monotonic())

    def closing(self) -> Limits:
        """Limits for cancelling abandoned jobs."""
        return Limits(self.url, CLOSING_RETRIES, time.monotonic() + CLOSING_S)


class Transport(Protocol):
    """Interface of a client's connections for the flows."""

    async def send(self, call: RequestSpec[Any], timeout_s: float) -> ResponseData:
        """Send a request once.

        Raises:
            ConnectionFailed: no answer came.
        """
        ...

    async def sleep(self, seconds: float) -> None: ...

    async def poll(self, job: Job, limits: Limits) -> Job:
        """Wait for the end of a job; the same job if it has not ended in time."""
        ...

    async def clean_up(self, steps: Coroutine[Any, Any, None]) -> None:
        """Run ``steps`` to their end, even if the caller is cancelled again."""
        ...


_unreachable: set[str] = set()
"""Addresses whose server could not be reached the last time: one warning each, though thousands of calls wait."""


def new_key() -> str:
    """A random idempotency key."""
    return secrets.token_hex(16)


async def ask(transport: Transport, call: RequestSpec[T], limits: Limits) -> T:
    """Send one request, and repeat it where that is safe and useful.

    A broken connection and statuses 429, 502, 503 and 504 are retried with exponential backoff. A server that answers
    with Retry-After is asked until time is up; other failures are counted.

    Raises:
        ServerError: refused, and waiting does not help or takes too long.
    """
    failures = 0
    while True:
        try:
            timeout_s = min(call.hold_s + ANSWER_S, limits.remaining_s + LATE_S)
            received = await transport.send(call, timeout_s)
            _unreachable.discard(limits.url)
            return call.read(received)
        except ConnectionFailed as error:
            failure: ServerError = ServerUnreachable(
                f"the reward server at {limits.url} cannot be reached ({error}): start it with 'kernelforge serve', "
                "or name another with KERNELFORGE_SERVER",
                code="unreachable",
            )
            if error.sent and not call.repeatable:
                raise failure from error
            if limits.retries and limits.url not in _unreachable:
                _unreachable.add(limits.url)
                _LOG.warning("%s; trying again, %d times at most", failure, limits.retries)
        except InvalidServerResponse:
            raise
        except ServerError as refusal:
            if refusal.status not in RETRIED or (refusal.code == "infra_error" and refusal.retry_after_s is None):
                raise
            failure = refusal
        retry_after_s = failure.retry_after_s
        if retry_after_s is None:
            failures += 1
        pause_s = next_pause_s(failures, retry_after_s)
        if failures > limits.retries or pause_s > min(limits.remaining_s, LONGEST_RETRY_AFTER_S):
            raise failure
        await transport.sleep(pause_s)


def next_pause_s(failures: int, retry_after_s: float | None) -> float:
    """Seconds to wait before the next try. Jitter spreads callers that were refused at the same time."""
    if retry_after_s is not None:
        return retry_after_s + _random.uniform(0.0, min(1.0, 0.25 * retry_after_s))
    return min(LONGEST_BACKOFF_S, FIRST_BACKOFF_S * 2.0 ** (failures - 1)) * _random.uniform(0.5, 1.0)


async def score(transport: Transport, request: JobRequest, key: str, limits: Limits) -> RewardResult:
    """Submit a job and wait for its end. It is cancelled when the caller is interrupted or time is up."""
    job: Job | None = None
    may_exist = True
    try:
        try:
            job = await ask(transport, requests.submission(request, key), limits)
        except ServerError as error:
            if error.code == "stale":
                return refused_as_stale(str(error))
            may_exist = isinstance(error, ServerUnreachable)
            raise
        while job.result is None and limits.remaining_s > 0:
            job = await transport.poll(job, limits)
    except BaseException:
        if job is not None or may_exist:
            await transport.clean_up(_abandon(transport, request, key, job, limits.closing()))
        raise
    return job.result or await _end(transport, job.id, limits.closing())


def refused_as_stale(message: str) -> RewardResult:
    """The result of a job that its run's bound of staleness refused: it costs the caller one sample, and not a step."""
    return RewardResult(outcome="infra_error", error=Fault(code="stale", message=message))


async def _end(transport: Transport, job_id: str, closing: Limits) -> RewardResult:
    """Cancel a job whose time is up, and return its result: it may have ended in the meantime."""
    await ask(transport, requests.cancel(CancelRequest(ids=[job_id])), closing)
    # The server holds the request until the end is committed.
    job = await ask(transport, requests.poll(job_id, closing.remaining_s), closing)
    if job.result is None:
        raise still_running()
    return job.result


def still_running() -> InvalidServerResponse:
    return InvalidServerResponse("the server continues a job that it was asked to cancel", code="malformed_answer")


async def _abandon(transport: Transport, request: JobRequest, key: str, job: Job | None, closing: Limits) -> None:
    """Cancel an abandoned job. If its id is unknown, the idempotency key returns it."""
    # Suppressed so that the caller sees the original error; a job that stays behind ends by its deadline.
    with contextlib.suppress(ServerError):
        if job is None:
            job = await ask(transport, requests.submission(request, key), closing)
        if not job.status.ended:
            await ask(transport, requests.cancel(CancelRequest(ids=[job.id])), closing)


async def wait(transport: Transport, ids: Sequence[str], k: int | None, limits: Limits) -> WaitAnswer:
    """Wait for any ``k`` of some jobs: longer than one request is held, and for more jobs than one may name."""
    pending = list(dict.fromkeys(ids))
    expected = len(pending) if k is None else min(k, len(pending))
    ended: dict[str, Job] = {}
    checked = 0
    while len(ended) < expected:
        window, rest = pending[:MAX_BATCH], pending[MAX_BATCH:]
        hold_s = 0.0 if checked < len(ids) and rest else min(ROUND_HOLD_S if rest else HOLD_S, limits.remaining_s)
        missing = 1 if rest else expected - len(ended)
        answer = await ask(transport, requests.wait(window, min(missing, len(window)), hold_s), limits)
        ended.update((job.id, job) for job in answer.ended)
        pending = rest + [job_id for job_id in window if job_id not in ended]
        checked += len(window)
        if limits.remaining_s <= 0 and checked >= len(ids):
            break
    return WaitAnswer(
        ended=list(ended.values()), pending=[job_id for job_id in dict.fromkeys(ids) if job_id not in ended]
    )


async def cancel(transport: Transport, ids: Sequence[str], limits: Limits) -> list[str]:
    """End jobs. Returns those that had not ended."""
    cancelled: list[str] = []
    for start in range(0, len(ids), MAX_BATCH):
        part = CancelRequest(ids=list(ids[start : start + MAX_BATCH]))
        cancelled += (await ask(transport, requests.cancel(part), limits)).cancelled
    return cancelled
