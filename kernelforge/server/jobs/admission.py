"""Admission of jobs: answer from the cache, join a running evaluation, queue, or refuse.

All of a request is decided in one step of the event loop, so that no two requests can race; the step ends in rows for
the journal. Only when these are committed is the caller told.
"""

from __future__ import annotations

import json
import secrets
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from kernelforge.client.models import Job, JobRequest, JobStatus, RewardResult
from kernelforge.records import Candidate, Fingerprint
from kernelforge.server.base import Caller, RequestRejected, utc_seconds
from kernelforge.server.jobs.cache import EvaluationCache, Scored, Stored, with_cache_age
from kernelforge.server.jobs.job_store import Batch, NewJob, NewKey, NewText, NewWork
from kernelforge.server.jobs.models import ActiveJob, ActiveJobs, SharedEvaluation
from kernelforge.server.jobs.request_parser import ParsedCompletion, candidate_in
from kernelforge.server.jobs.results import failed, scored, without_candidate
from kernelforge.server.jobs.scheduler import Scheduler
from kernelforge.server.jobs.settings import JobServiceSettings

_MOST_RETRY_AFTER_S = 60.0
_ID_BYTES = 8


@dataclass(slots=True)
class Asked:
    """One request that was read."""

    request: JobRequest
    caller: Caller
    reading: ParsedCompletion
    candidate: Candidate | None
    """What was read, if it was read just now."""
    policy: str
    key: str | None
    request_hash: str


@dataclass(slots=True)
class Accepted:
    """What some requests came to, before it is committed."""

    batch: Batch = field(default_factory=Batch)
    ended: list[Job] = field(default_factory=list)
    """Answered at once."""
    live: list[ActiveJob] = field(default_factory=list)
    keys: dict[tuple[str, str], tuple[str, str]] = field(default_factory=dict)
    """By caller and key: job and hash of the request."""

    def jobs(self) -> list[Job | ActiveJob]:
        return [*self.live, *self.ended]


class Admission:
    """Decides what becomes of requests.

    Args:
        fingerprint: the engine's.
    """

    def __init__(
        self,
        book: ActiveJobs,
        cache: EvaluationCache,
        scheduler: Scheduler,
        settings: JobServiceSettings,
        counters: Counter[str],
        fingerprint: Callable[[], Fingerprint],
    ) -> None:
        self._book = book
        self._cache = cache
        self._scheduler = scheduler
        self._settings = settings
        self._counters = counters
        self._fingerprint = fingerprint
        self._ids = _Ids()
        self.next_seq = 1
        self.next_work = 1

    def accept(self, asked: Asked, into: Accepted) -> Job | ActiveJob:
        """
        Raises:
            RequestRejected: 429 or 503: too much is waiting.
        """
        now = utc_seconds()
        run = self._book.run(asked.request.run_id)
        if run.stale(asked.request.policy_version):
            message = f"policy_version {asked.request.policy_version} is below the run's {run.min_policy_version}"
            result = failed("stale", message, policy=asked.policy)
            return self._ended(asked, into, now, None, JobStatus.EXPIRED, result, result.model_dump_json())
        stored, old = self._known(asked, now), True
        if stored is None and asked.reading.fault is not None:
            stored, old = self._rejected(asked, into, now), False
        if stored is not None:
            answer = score_with(stored, asked.policy)
            if not _may_pass(answer.result):
                self._counters["cached"] += old
                result = with_cache_age(answer.result, stored.finished_at, now) if old else answer.result
                return self._ended(
                    asked, into, now, stored.work, JobStatus.FINISHED, result, answer.text,
                    evaluated_at=stored.finished_at if old else None,
                )  # fmt: skip
        self._must_have_room(asked.request.run_id)
        return self._live(asked, into, now)

    def _rejected(self, asked: Asked, into: Accepted, now: float) -> Stored:
        """The evaluation of a completion without a candidate: made here, once."""
        reading = asked.reading
        assert reading.fault is not None
        evaluation = without_candidate(reading.candidate, reading.registered.digest, self._fingerprint(), reading.fault)
        work = NewWork(
            id=self._new_work(),
            key=reading.key,
            state="done",
            task=reading.registered.name,
            task_digest=reading.registered.digest,
            candidate=reading.candidate,
            source=None,
            plan=None,
            choices=None,
            profiled=True,
            finished_at=now,
            evaluation=evaluation.model_dump_json(),
        )
        into.batch.works.append(work)
        stored = Stored(work.id, evaluation, None, True, None, now)
        self._cache.put(reading.key, stored)
        return stored

    def _known(self, asked: Asked, now: float) -> Stored | None:
        """An evaluation that may answer the request."""
        request, rejected = asked.request, asked.reading.fault is not None
        stored = None if request.fresh and not rejected else self._cache.newest(asked.reading.key)
        if stored is None or rejected:
            return stored
        limit = self._settings.max_measured_age_s
        age = limit if request.max_age_s is None else min(request.max_age_s, limit)
        return stored if stored.answers(profile=request.profile, max_age_s=age, now=now) else None

    def wants_candidate(self, asked: Asked) -> bool:
        """Whether a request will be evaluated, and its candidate was not read: its text was known."""
        reading = asked.reading
        if asked.candidate is not None or reading.fault is not None:
            return False
        joins = self._book.open_work(reading.key, profile=asked.request.profile) is not None
        return not joins and self._known(asked, utc_seconds()) is None

    def _must_have_room(self, run: str) -> None:
        book, limits = self._book, self._settings
        waiting = len(book.run(run).jobs)
        if len(book.jobs) >= limits.max_jobs or book.chars >= limits.max_queued_chars:
            raise RequestRejected(
                503, "queue_full", f"{len(book.jobs):,} jobs are waiting, which is all that this server takes",
                retry_after_s=self._retry_after(len(book.jobs)),
            )  # fmt: skip
        if waiting >= limits.max_jobs_per_run:
            raise RequestRejected(
                429, "run_queue_full", f"run {run} has {waiting:,} jobs waiting, which is all that one run may have",
                retry_after_s=self._retry_after(waiting),
            )  # fmt: skip

    def _retry_after(self, waiting: int) -> float:
        """Seconds until a tenth of what waits may be done, at the rate of late."""
        rate = self._scheduler.rate()
        return _MOST_RETRY_AFTER_S / 6 if rate is None else min(max(0.1 * waiting / rate, 1.0), _MOST_RETRY_AFTER_S)

    def _live(self, asked: Asked, into: Accepted, now: float) -> ActiveJob:
        request, reading = asked.request, asked.reading
        work = self._book.open_work(reading.key, profile=request.profile)
        if work is None:
            candidate = asked.candidate or candidate_in(request)
            work = SharedEvaluation(
                self._new_work(), reading.key, reading.registered, candidate, reading.candidate, request.profile
            )
            into.batch.works.append(
                NewWork(
                    id=work.id,
                    key=work.key,
                    state="open",
                    task=reading.registered.name,
                    task_digest=reading.registered.digest,
                    candidate=reading.candidate,
                    source=candidate.source,
                    plan=candidate.plan,
                    choices=json.dumps(candidate.choices),
                    profiled=request.profile,
                )
            )
        else:
            self._counters["joined"] += 1
            work.profile = work.profile or request.profile
        job = ActiveJob(
            seq=self._new_seq(),
            id=self._ids.new(now),
            caller=asked.caller.name,
            key=asked.key,
            task=reading.registered.name,
            run=request.run_id,
            policy=asked.policy,
            policy_version=request.policy_version,
            priority=request.priority,
            deadline_at=None if request.deadline_s is None else now + request.deadline_s,
            profile=request.profile,
            tag=request.tag,
            submitted_at=now,
            work=work,
        )
        self._book.add(job)
        into.live.append(job)
        self._write(asked, into, job.seq, job.id, now, work.id, job.deadline_at)
        return job

    def _ended(
        self,
        asked: Asked,
        into: Accepted,
        now: float,
        work: int | None,
        status: JobStatus,
        result: RewardResult,
        text: str,
        *,
        evaluated_at: float | None = None,
    ) -> Job:
        request = asked.request
        job = Job(
            id=self._ids.new(now),
            status=status,
            task=asked.reading.registered.name,
            run_id=request.run_id,
            policy_version=request.policy_version,
            priority=request.priority,
            tag=request.tag,
            submitted_at=now,
            finished_at=now,
            result=result,
        )
        into.ended.append(job)
        into.batch.ended_of_runs.append((request.run_id, 1))
        self._write(asked, into, self._new_seq(), job.id, now, work, None, status, text, evaluated_at)
        return job

    def _write(
        self,
        asked: Asked,
        into: Accepted,
        seq: int,
        job_id: str,
        now: float,
        work: int | None,
        deadline_at: float | None,
        status: JobStatus = JobStatus.QUEUED,
        text: str | None = None,
        evaluated_at: float | None = None,
    ) -> None:
        request, sha256 = asked.request, asked.reading.text
        if sha256 is not None and request.completion is not None:
            into.batch.texts.append(NewText(sha256, request.completion))
        row = NewJob(
            seq=seq,
            id=job_id,
            caller=asked.caller.name,
            work=work,
            task=asked.reading.registered.name,
            run=request.run_id,
            policy=asked.policy,
            policy_version=request.policy_version,
            priority=request.priority,
            deadline_at=deadline_at,
            profile=request.profile,
            tag=request.tag,
            completion=sha256,
            status=status.value,
            submitted_at=now,
            started_at=None,
            finished_at=None if text is None else now,
            tries=0,
            evaluated_at=evaluated_at,
            result=text,
        )
        into.batch.jobs.append(row)
        if asked.key is not None:
            into.batch.keys.append(NewKey(asked.caller.name, asked.key, job_id, asked.request_hash))
            into.keys[asked.caller.name, asked.key] = (job_id, asked.request_hash)
        self._counters["submitted"] += 1

    def _new_seq(self) -> int:
        self.next_seq += 1
        return self.next_seq - 1

    def _new_work(self) -> int:
        self.next_work += 1
        return self.next_work - 1


def score_with(stored: Stored, policy: str) -> Scored:
    """What a policy makes of an evaluation; worked out once."""
    known = stored.results.get(policy)
    if known is None:
        result = scored(policy, stored.evaluation, stored.source)
        known = stored.results[policy] = Scored(result, result.model_dump_json())
    return known


def _may_pass(result: RewardResult) -> bool:
    """Whether another evaluation may well have a score where this one has none."""
    return result.error is not None and result.error.retryable


class _Ids:
    """Names of jobs: they sort by time, to the millisecond, and cannot be guessed."""

    def __init__(self) -> None:
        self._pool = b""

    def new(self, now: float) -> str:
        if len(self._pool) < _ID_BYTES:  # many at once: each call of the system lets another thread in between
            self._pool = secrets.token_bytes(256 * _ID_BYTES)
        drawn, self._pool = self._pool[:_ID_BYTES], self._pool[_ID_BYTES:]
        return f"{int(now * 1000):011x}-{drawn.hex()}"
