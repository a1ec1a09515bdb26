"""What a client does beyond one request: trying again, waiting, cancelling what nobody waits for any more.

Each flow is a generator that yields what is to be done next and is sent what came of it, or has thrown into it what
went wrong. So it is written once, and the two clients differ only in how they do the steps. A flow that is interrupted
(a cancelled task, Ctrl-C) may still yield steps, to cancel its jobs; those are marked ``closing``.
"""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from random import SystemRandom
from typing import Generic, TypeVar

from kernelforge.client import calls
from kernelforge.client.calls import Call, Received
from kernelforge.client.wire import MAX_BATCH, BatchAnswer, CancelRequest, Job, JobRequest, RewardResult, WaitAnswer
from kernelforge.errors import MalformedAnswer, ServerError, ServerUnreachable

T = TypeVar("T")

HOLD_S = 30.0
"""How long the server is asked to hold a request for a job that has not ended."""
ANSWER_S = 60.0
"""Longest wait for an answer, over and above what the server was asked to hold it."""
CLOSING_S = 5.0
"""Longest time spent on cancelling when the caller is on the way out."""
FIRST_BACKOFF_S = 0.1
LONGEST_BACKOFF_S = 15.0
LONGEST_ASKED_S = 3_600.0
"""A server that asks for more patience than this is not believed."""
MAX_BATCH_CHARS = 8 << 20
"""Text of one batch; a larger one is sent in several."""
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
    closing: bool = False


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
Outcome = Received | Job | None
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
    closing: bool = False
    """The caller is on the way out: nothing is tried twice, and nothing that is done may take long."""

    @property
    def left_s(self) -> float:
        return max(0.0, self.until - time.monotonic())


def new_key() -> str:
    """An idempotency key."""
    return secrets.token_hex(16)


def ask(call: Call[T], limits: Limits) -> Steps[T]:
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
            assert isinstance(received, Received)
            return call.read(received)
        except Broken as broken:
            trouble: ServerError = ServerUnreachable(
                f"the reward server at {limits.url} cannot be reached ({broken}): start it with 'kernelforge serve', "
                "or name another with KERNELFORGE_SERVER",
                code="unreachable",
            )
            if broken.sent and not call.repeatable:
                raise trouble from broken
        except MalformedAnswer:
            raise
        except ServerError as refused:
            if refused.status not in TRIED_AGAIN or (refused.code == "infra_error" and refused.retry_after_s is None):
                raise
            trouble = refused
        asked = trouble.retry_after_s
        if asked is None:
            failures += 1
        pause_s = _pause_s(failures, asked)
        if limits.closing or failures > limits.retries or pause_s > min(limits.left_s, LONGEST_ASKED_S):
            raise trouble
        yield Pause(pause_s)


def _send(call: Call[T], limits: Limits) -> Send:
    timeout_s = call.hold_s + ANSWER_S
    if limits.left_s < timeout_s and not limits.closing:
        timeout_s = max(limits.left_s, CLOSING_S)  # an answer that comes a little late is better than a broken one
    return Send(
        call.method,
        call.path,
        dict(call.query),
        call.headers(),
        call.content(),
        CLOSING_S if limits.closing else timeout_s,
        limits.closing,
    )


def _pause_s(failures: int, asked: float | None) -> float:
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
            job = yield from ask(calls.submission(request, key), limits)
        except ServerError as error:
            in_doubt = isinstance(error, ServerUnreachable)
            raise
        while job.result is None and limits.left_s > 0:
            if together:
                ended = yield Await(job.id, limits.left_s)
                job = ended if isinstance(ended, Job) else job
            else:
                job = yield from ask(calls.poll(job.id, min(limits.left_s, HOLD_S)), limits)
    except BaseException:
        if job is not None or in_doubt:
            yield from _abandon(request, key, job, limits)
        raise
    if job.result is None:
        job = yield from _end(job, limits)
    assert job.result is not None
    return job.result


def _end(job: Job, limits: Limits) -> Steps[Job]:
    """Cancel a job whose time is up, and give it as it then is: it may have ended meanwhile."""
    closing = _closing(limits)
    yield from ask(calls.cancel(CancelRequest(ids=[job.id])), closing)
    return (yield from ask(calls.poll(job.id), closing))


def _abandon(request: JobRequest, key: str, job: Job | None, limits: Limits) -> Steps[None]:
    """Cancel a job that nobody waits for. Where its id never came, the same key asks for it again."""
    closing = _closing(limits)
    # What made the caller leave is what it has to hear of; a job that stays behind ends by its deadline.
    with contextlib.suppress(ServerError):
        if job is None:
            job = yield from ask(calls.submission(request, key), closing)
        if not job.status.ended:
            yield from ask(calls.cancel(CancelRequest(ids=[job.id])), closing)


def _closing(limits: Limits) -> Limits:
    return Limits(limits.url, 0, time.monotonic() + CLOSING_S, closing=True)


def stream(requests: Sequence[JobRequest], keys: Sequence[str], limits: Limits) -> Steps[None]:
    """Submit jobs in batches and emit each result once it is there; all are cancelled when the caller leaves.

    Raises:
        ServerError: one was refused for good; none is left running.
    """
    crowd = _Crowd(requests, keys, limits)
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
    crowd = _Crowd(requests, keys, limits)
    try:
        yield from crowd.submit_all()
    except BaseException:
        with contextlib.suppress(ServerError):
            yield from crowd.abandon()
        raise
    return [crowd.jobs[index] for index in range(len(requests))]


def wait(ids: Sequence[str], k: int | None, limits: Limits) -> Steps[WaitAnswer]:
    """Wait for any ``k`` of some jobs, longer than one request may be held."""
    pending = list(dict.fromkeys(ids))
    wanted = len(pending) if k is None else min(k, len(pending))
    ended: list[Job] = []
    while True:
        missing = wanted - len(ended)
        window = pending[:MAX_BATCH]
        if not window:
            break
        hold_s = min(HOLD_S, limits.left_s)
        answer = yield from ask(calls.wait(window, min(max(missing, 1), len(window)), hold_s), limits)
        done = {job.id for job in answer.ended}
        ended += answer.ended
        pending = [job_id for job_id in pending if job_id not in done]
        if len(ended) >= wanted or limits.left_s <= 0:
            break
    return WaitAnswer(ended=ended, pending=pending)


def cancel(ids: Sequence[str], limits: Limits) -> Steps[list[str]]:
    """End jobs. Returns those that had not ended."""
    cancelled: list[str] = []
    for start in range(0, len(ids), MAX_BATCH):
        part = CancelRequest(ids=list(ids[start : start + MAX_BATCH]))
        cancelled += (yield from ask(calls.cancel(part), limits)).cancelled
    return cancelled


class _Crowd:
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
        answer = yield from ask(self._batch(indices), self.limits)
        self.unanswered = []
        if len(answer.items) != len(indices):
            raise MalformedAnswer(
                f"the server answered {len(answer.items)} jobs of a batch of {len(indices)}", code="malformed_answer"
            )
        ended: list[tuple[int, RewardResult]] = []
        refused: list[int] = []
        for index, item in zip(indices, answer.items, strict=True):
            if item.job is not None:
                self.jobs[index] = item.job
                if item.job.result is None:
                    self.waiting.setdefault(item.job.id, []).append(index)
                else:
                    ended.append((index, item.job.result))
                continue
            if item.problem is None:
                raise MalformedAnswer("the server answered a job of a batch with nothing", code="malformed_answer")
            asked = item.problem.retry_after_s
            self.refusal = ServerError(
                f"request {index + 1} of {len(self.requests)}: {item.problem.message}",
                code=item.problem.code,
                retry_after_s=asked,
            )
            if asked is None or asked > LONGEST_ASKED_S:
                raise self.refusal
            refused.append(index)
            self.not_before = max(self.not_before, time.monotonic() + _pause_s(0, asked))
        self.unsent = refused + self.unsent
        return ended

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

    def _batch(self, indices: list[int]) -> Call[BatchAnswer]:
        return calls.batch([self.requests[index] for index in indices], [self.keys[index] for index in indices])

    def _collect(self, hold_s: float, limits: Limits) -> Steps[None]:
        """Oldest first: those end first, and a wait takes only so many."""
        ids = list(self.waiting)[:MAX_BATCH]
        answer = yield from ask(calls.wait(ids, 1, hold_s), limits)
        for job in answer.ended:
            if job.result is not None:
                for index in self.waiting.pop(job.id, ()):
                    yield Emit(index, job.result)

    def _end(self) -> Steps[None]:
        """Time is up: cancel what waits and emit what came of it; what was never accepted is an error."""
        closing = _closing(self.limits)
        yield from self._cancel(closing)
        while self.waiting:
            before = len(self.waiting)
            yield from self._collect(0.0, closing)
            if len(self.waiting) == before:
                raise MalformedAnswer("the server keeps running jobs that it cancelled", code="malformed_answer")
        if self.unsent:
            raise self.refusal or ServerError("time was up before every job was submitted", code="timeout")

    def _cancel(self, closing: Limits) -> Steps[None]:
        ids = list(self.waiting)
        for start in range(0, len(ids), MAX_BATCH):
            yield from ask(calls.cancel(CancelRequest(ids=ids[start : start + MAX_BATCH])), closing)

    def abandon(self) -> Steps[None]:
        closing = _closing(self.limits)
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
