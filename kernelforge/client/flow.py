"""Client behaviour beyond one request: retries, waiting, cancelling abandoned jobs.

Each flow is a generator that yields what is to be done next and is sent what came of it, or has thrown into it what
went wrong. So it is written once, and the two clients differ only in how they do the steps. A flow that is interrupted
(a cancelled task, Ctrl-C) may still yield steps, to cancel its jobs; those are marked ``leaving``.
"""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from random import SystemRandom
from typing import Generic, TypeVar

from kernelforge.client import requests
from kernelforge.client.models import MAX_BATCH, CancelRequest, Job, JobRequest, RewardResult, WaitAnswer
from kernelforge.client.requests import RequestSpec, ResponseData
from kernelforge.errors import InvalidServerResponse, ServerError, ServerUnreachable

T = TypeVar("T")

HOLD_S = 30.0
"""How long the server is asked to hold a request for a job that has not ended."""
ROUND_HOLD_S = 1.0
"""The same where there are more jobs than one request may name: each has its turn."""
ANSWER_S = 60.0
"""Longest wait for an answer, over and above what the server was asked to hold it."""
LATE_S = 2.0
"""How much later than the caller's time an answer may come: one that is late is better than none."""
CLOSING_S = 5.0
"""Longest time spent on cancelling."""
CLOSING_RETRIES = 2
FIRST_BACKOFF_S = 0.1
LONGEST_BACKOFF_S = 15.0
LONGEST_ASKED_S = 3_600.0
"""A server that asks for more patience than this is not believed."""
TRIED_AGAIN = frozenset({429, 502, 503, 504})

_random = SystemRandom()


@dataclass(frozen=True)
class Send:
    """Send a request and give back what was received; trouble of the connection is a :class:`Broken`."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    content: bytes | None
    timeout_s: float
    leaving: bool = False
    """The caller is on the way out already."""


@dataclass(frozen=True)
class Pause:
    seconds: float


@dataclass(frozen=True)
class Emit:
    """Hand a result to the caller at once."""

    index: int
    result: RewardResult


@dataclass(frozen=True)
class Await:
    """Wait for a job together with other tasks; None where it has not ended in time."""

    job_id: str
    seconds: float


class Broken(Exception):
    """A connection could not be had, or broke. ``sent``: whether the request may have arrived."""

    def __init__(self, message: str, *, sent: bool) -> None:
        super().__init__(message)
        self.sent = sent


Step = Send | Pause | Emit | Await
Outcome = ResponseData | Job | None
Steps = Generator[Step, Outcome, T]


class Walk(Generic[T]):
    """A flow on its way: ``step`` is what is to be done next; None once it has ended and ``result`` is there."""

    def __init__(self, steps: Steps[T]) -> None:
        self._steps = steps
        self.step: Step | None = None
        self.result: T
        self.go_on(None)

    def go_on(self, outcome: Outcome) -> None:
        self._advance(lambda: self._steps.send(outcome))

    def fail(self, error: BaseException) -> None:
        """Tell the flow that its step failed. What it cannot deal with is raised again, now or after more steps."""
        self._advance(lambda: self._steps.throw(error))

    def _advance(self, move: Callable[[], Step]) -> None:
        self.step = None
        try:
            self.step = move()
        except StopIteration as stop:
            self.result = stop.value


@dataclass
class Limits:
    """How long and how often a flow tries."""

    url: str
    retries: int
    until: float
    """On the monotonic clock, in seconds."""
    leaving: bool = False

    @property
    def left_s(self) -> float:
        return max(0.0, self.until - time.monotonic())

    def closing(self, *, leaving: bool) -> Limits:
        """For cancelling what nobody waits for any more."""
        return Limits(self.url, CLOSING_RETRIES, time.monotonic() + CLOSING_S, leaving)


def new_key() -> str:
    """An idempotency key."""
    return secrets.token_hex(16)


def ask(call: RequestSpec[T], limits: Limits) -> Steps[T]:
    """Send one request, again where that is safe and of use.

    A broken connection and 502, 503, 504 are tried again with exponential backoff; so is 429. A server that says when
    to come again (Retry-After) is well, and is asked until time is up; other failures are counted.

    Raises:
        ServerError: refused, and waiting does not help or takes longer than there is time.
    """
    failures = 0
    while True:
        try:
            received = yield _send(call, limits)
            assert isinstance(received, ResponseData)
            return call.read(received)
        except Broken as broken:
            trouble: ServerError = ServerUnreachable(
                f"the reward server at {limits.url} cannot be reached ({broken}): start it with 'kernelforge serve', "
                "or name another with KERNELFORGE_SERVER",
                code="unreachable",
            )
            if broken.sent and not call.repeatable:
                raise trouble from broken
        except InvalidServerResponse:
            raise
        except ServerError as refused:
            if refused.status not in TRIED_AGAIN or (refused.code == "infra_error" and refused.retry_after_s is None):
                raise
            trouble = refused
        asked = trouble.retry_after_s
        if asked is None:
            failures += 1
        pause_s = next_pause_s(failures, asked)
        if failures > limits.retries or pause_s > min(limits.left_s, LONGEST_ASKED_S):
            raise trouble
        yield Pause(pause_s)


def _send(call: RequestSpec[T], limits: Limits) -> Send:
    return Send(
        call.method,
        call.path,
        dict(call.query),
        call.headers(),
        call.content(),
        min(call.hold_s + ANSWER_S, limits.left_s + LATE_S),
        limits.leaving,
    )


def next_pause_s(failures: int, asked: float | None) -> float:
    """Jitter keeps a thousand callers that were refused together from coming back together."""
    if asked is not None:
        return asked + _random.uniform(0.0, min(1.0, 0.25 * asked))
    return min(LONGEST_BACKOFF_S, FIRST_BACKOFF_S * 2.0 ** (failures - 1)) * _random.uniform(0.5, 1.0)


def score(request: JobRequest, key: str, limits: Limits, *, together: bool = False) -> Steps[RewardResult]:
    """Submit a job and wait for its end; it is cancelled when the caller leaves, and when time is up.

    Args:
        together: wait with :class:`Await`, not with a request of its own.
    """
    job: Job | None = None
    in_doubt = True
    try:
        try:
            job = yield from ask(requests.submission(request, key), limits)
        except ServerError as error:
            in_doubt = isinstance(error, ServerUnreachable)
            raise
        while job.result is None and limits.left_s > 0:
            if together:
                ended = yield Await(job.id, limits.left_s)
                job = ended if isinstance(ended, Job) else job
            else:
                job = yield from ask(requests.poll(job.id, min(limits.left_s, HOLD_S)), limits)
    except BaseException:
        if job is not None or in_doubt:
            yield from _abandon(request, key, job, limits)
        raise
    if job.result is None:
        return (yield from _end(job.id, limits))
    return job.result


def _end(job_id: str, limits: Limits) -> Steps[RewardResult]:
    """Cancel a job whose time is up, and give what came of it: it may have ended meanwhile."""
    closing = limits.closing(leaving=False)
    yield from ask(requests.cancel(CancelRequest(ids=[job_id])), closing)
    job = yield from ask(
        requests.poll(job_id, closing.left_s), closing
    )  # held for the moment that writing it down takes
    if job.result is None:
        raise still_running()
    return job.result


def still_running() -> InvalidServerResponse:
    return InvalidServerResponse("the server goes on with a job that it was told to cancel", code="malformed_answer")


def _abandon(request: JobRequest, key: str, job: Job | None, limits: Limits) -> Steps[None]:
    """Cancel a job that nobody waits for. Where its id never came, the same key asks for it again."""
    closing = limits.closing(leaving=True)
    # What made the caller leave is what it has to hear of; a job that stays behind ends by its deadline.
    with contextlib.suppress(ServerError):
        if job is None:
            job = yield from ask(requests.submission(request, key), closing)
        if not job.status.ended:
            yield from ask(requests.cancel(CancelRequest(ids=[job.id])), closing)


def wait(ids: Sequence[str], k: int | None, limits: Limits) -> Steps[WaitAnswer]:
    """Wait for any ``k`` of some jobs, longer than one request may be held and for more than it may name."""
    pending = list(dict.fromkeys(ids))
    wanted = len(pending) if k is None else min(k, len(pending))
    ended: dict[str, Job] = {}
    looked = 0
    while len(ended) < wanted:
        window, rest = pending[:MAX_BATCH], pending[MAX_BATCH:]
        hold_s = 0.0 if looked < len(ids) and rest else min(ROUND_HOLD_S if rest else HOLD_S, limits.left_s)
        missing = 1 if rest else wanted - len(ended)
        answer = yield from ask(requests.wait(window, min(missing, len(window)), hold_s), limits)
        ended.update((job.id, job) for job in answer.ended)
        pending = rest + [job_id for job_id in window if job_id not in ended]
        looked += len(window)
        if limits.left_s <= 0 and looked >= len(ids):
            break
    return WaitAnswer(
        ended=list(ended.values()), pending=[job_id for job_id in dict.fromkeys(ids) if job_id not in ended]
    )


def cancel(ids: Sequence[str], limits: Limits) -> Steps[list[str]]:
    """End jobs. Returns those that had not ended."""
    cancelled: list[str] = []
    for start in range(0, len(ids), MAX_BATCH):
        part = CancelRequest(ids=list(ids[start : start + MAX_BATCH]))
        cancelled += (yield from ask(requests.cancel(part), limits)).cancelled
    return cancelled
