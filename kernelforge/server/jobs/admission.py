"""Admission of jobs: answer from the cache, join a running evaluation, queue, or refuse.

All requests of a call are decided in one step of the event loop, so that requests cannot race. The step produces rows
for the database; callers get their answers after the commit.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field

from kernelforge.client.models import Job, JobRequest, JobStatus, RewardResult
from kernelforge.records import Candidate, Fingerprint
from kernelforge.server.base import Caller, RequestRejected, utc_seconds
from kernelforge.server.jobs.cache import Stored, with_cache_age
from kernelforge.server.jobs.job_store import Batch, NewJob, NewKey, NewTask, NewText, Restored
from kernelforge.server.jobs.models import ActiveJob, EvaluationTask
from kernelforge.server.jobs.requests import ParsedCompletion, candidate_in
from kernelforge.server.jobs.results import failed, without_candidate
from kernelforge.server.jobs.scheduler import Scheduler
from kernelforge.server.jobs.state import ServiceState
from kernelforge.workers.base import Engine

_MAX_RETRY_AFTER_S = 60.0
_ID_BYTES = 8


@dataclass(slots=True)
class ParsedRequest:
    """A request whose completion was parsed."""

    request: JobRequest
    caller: Caller
    completion: ParsedCompletion
    candidate: Candidate | None
    """None where the completion was in the parser's cache."""
    policy: str
    key: str | None
    request_hash: str


@dataclass(slots=True)
class Accepted:
    """Jobs of one step, with the rows to commit."""

    batch: Batch = field(default_factory=Batch)
    ended: list[Job] = field(default_factory=list)
    """Answered at once."""
    active: list[ActiveJob] = field(default_factory=list)
    keys: dict[tuple[str, str], tuple[str, str]] = field(default_factory=dict)
    """By caller and key: job and hash of the request."""

    def jobs(self) -> list[Job | ActiveJob]:
        return [*self.active, *self.ended]


class Admission:
    """Decides whether requests are answered, joined, queued or refused.

    Args:
        restored: the first free numbers of jobs and evaluation tasks.
        require_ready: raises RequestRejected while the service accepts no job.
    """

    def __init__(
        self,
        state: ServiceState,
        engine: Engine,
        scheduler: Scheduler,
        restored: Restored,
        require_ready: Callable[[], None],
    ) -> None:
        self.require_ready = require_ready
        self._state = state
        self._engine = engine
        self._scheduler = scheduler
        self._ids = _Ids()
        self._next_seq = restored.next_seq
        self._next_task = restored.next_task

    @property
    def fingerprint(self) -> Fingerprint:
        """The engine's."""
        return self._engine.fingerprint

    def accept(self, parsed: ParsedRequest, into: Accepted) -> Job | ActiveJob:
        """The job of a request: answered from the cache, joined to an evaluation in progress, or queued.

        Raises:
            RequestRejected: 429 or 503: too many jobs are waiting.
        """
        now = utc_seconds()
        run = self._state.active.run(parsed.request.run_id)
        if run.stale(parsed.request.policy_version):
            message = f"policy_version {parsed.request.policy_version} is below the run's {run.min_policy_version}"
            result = failed("stale", message, policy=parsed.policy)
            return self._ended(parsed, into, now, None, JobStatus.EXPIRED, result, result.model_dump_json())
        stored, cached = self._cached(parsed, now), True
        if stored is None and parsed.completion.fault is not None:
            stored, cached = self._rejected(parsed, into, now), False
        if stored is not None:
            answer = stored.scored_by(parsed.policy)
            if answer.result.error is None or not answer.result.error.retryable:
                self._state.counters["cached"] += cached
                result = with_cache_age(answer.result, stored.finished_at, now) if cached else answer.result
                return self._ended(
                    parsed, into, now, stored.task, JobStatus.FINISHED, result, answer.text,
                    evaluated_at=stored.finished_at if cached else None,
                )  # fmt: skip
        self._require_room(parsed.request.run_id)
        return self._queue(parsed, into, now)

    def _rejected(self, parsed: ParsedRequest, into: Accepted, now: float) -> Stored:
        """The evaluation of a completion without a candidate; no worker is needed."""
        completion = parsed.completion
        assert completion.fault is not None
        evaluation = without_candidate(
            completion.candidate, completion.registered.digest, self.fingerprint, completion.fault
        )
        row = NewTask(
            id=self._new_task(),
            key=completion.key,
            state="done",
            task=completion.registered.name,
            task_digest=completion.registered.digest,
            candidate=completion.candidate,
            source=None,
            plan=None,
            choices=None,
            profiled=True,
            finished_at=now,
            evaluation=evaluation.model_dump_json(),
        )
        into.batch.tasks.append(row)
        stored = Stored(row.id, evaluation, None, True, None, now)
        self._state.cache.put(completion.key, stored)
        return stored

    def _cached(self, parsed: ParsedRequest, now: float) -> Stored | None:
        """An evaluation that may answer the request."""
        request, rejected = parsed.request, parsed.completion.fault is not None
        stored = None if request.fresh and not rejected else self._state.cache.newest(parsed.completion.key)
        if stored is None or rejected:
            return stored
        limit = self._state.settings.max_measured_age_s
        age = limit if request.max_age_s is None else min(request.max_age_s, limit)
        return stored if stored.answers(profile=request.profile, max_age_s=age, now=now) else None

    def needs_candidate(self, parsed: ParsedRequest) -> bool:
        """Whether a request will be evaluated and its candidate is missing, because the parse came from a cache."""
        completion = parsed.completion
        if parsed.candidate is not None or completion.fault is not None:
            return False
        joins = self._state.active.joinable_task(completion.key, profile=parsed.request.profile) is not None
        return not joins and self._cached(parsed, utc_seconds()) is None

    def _require_room(self, run: str) -> None:
        active, limits = self._state.active, self._state.settings
        waiting = len(active.run(run).jobs)
        if len(active.jobs) >= limits.max_jobs or active.chars >= limits.max_queued_chars:
            raise RequestRejected(
                503, "queue_full", f"{len(active.jobs):,} jobs are waiting, which is all that this server takes",
                retry_after_s=self._retry_after(len(active.jobs)),
            )  # fmt: skip
        if waiting >= limits.max_jobs_per_run:
            raise RequestRejected(
                429, "run_queue_full", f"run {run} has {waiting:,} jobs waiting, which is all that one run may have",
                retry_after_s=self._retry_after(waiting),
            )  # fmt: skip

    def _retry_after(self, waiting: int) -> float:
        """Seconds until a tenth of the waiting jobs may be done, at the recent rate."""
        rate = self._scheduler.rate()
        return _MAX_RETRY_AFTER_S / 6 if rate is None else min(max(0.1 * waiting / rate, 1.0), _MAX_RETRY_AFTER_S)

    def _queue(self, parsed: ParsedRequest, into: Accepted, now: float) -> ActiveJob:
        request, completion = parsed.request, parsed.completion
        task = self._state.active.joinable_task(completion.key, profile=request.profile)
        if task is None:
            candidate = parsed.candidate or candidate_in(request)
            task = EvaluationTask(
                self._new_task(),
                completion.key,
                completion.registered,
                candidate,
                completion.candidate,
                request.profile,
            )
            into.batch.tasks.append(
                NewTask(
                    id=task.id,
                    key=task.key,
                    state="open",
                    task=completion.registered.name,
                    task_digest=completion.registered.digest,
                    candidate=completion.candidate,
                    source=candidate.source,
                    plan=candidate.plan,
                    choices=json.dumps(candidate.choices),
                    profiled=request.profile,
                )
            )
        else:
            self._state.counters["joined"] += 1
            task.profile = task.profile or request.profile
        job = ActiveJob(
            seq=self._new_seq(),
            id=self._ids.new(now),
            caller=parsed.caller.name,
            key=parsed.key,
            task=completion.registered.name,
            run=request.run_id,
            policy=parsed.policy,
            policy_version=request.policy_version,
            priority=request.priority,
            deadline_at=None if request.deadline_s is None else now + request.deadline_s,
            profile=request.profile,
            tag=request.tag,
            submitted_at=now,
            evaluation_task=task,
        )
        self._state.active.add(job)
        into.active.append(job)
        self._write(parsed, into, job.seq, job.id, now, task.id, job.deadline_at)
        return job

    def _ended(
        self,
        parsed: ParsedRequest,
        into: Accepted,
        now: float,
        task_id: int | None,
        status: JobStatus,
        result: RewardResult,
        text: str,
        *,
        evaluated_at: float | None = None,
    ) -> Job:
        request = parsed.request
        job = Job(
            id=self._ids.new(now),
            status=status,
            task=parsed.completion.registered.name,
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
        self._write(parsed, into, self._new_seq(), job.id, now, task_id, None, status, text, evaluated_at)
        return job

    def _write(
        self,
        parsed: ParsedRequest,
        into: Accepted,
        seq: int,
        job_id: str,
        now: float,
        task_id: int | None,
        deadline_at: float | None,
        status: JobStatus = JobStatus.QUEUED,
        text: str | None = None,
        evaluated_at: float | None = None,
    ) -> None:
        request, sha256 = parsed.request, parsed.completion.text
        if sha256 is not None and request.completion is not None:
            into.batch.texts.append(NewText(sha256, request.completion))
        row = NewJob(
            seq=seq,
            id=job_id,
            caller=parsed.caller.name,
            work=task_id,
            task=parsed.completion.registered.name,
            run=request.run_id,
            policy=parsed.policy,
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
        if parsed.key is not None:
            into.batch.keys.append(NewKey(parsed.caller.name, parsed.key, job_id, parsed.request_hash))
            into.keys[parsed.caller.name, parsed.key] = (job_id, parsed.request_hash)
        self._state.counters["submitted"] += 1

    def _new_seq(self) -> int:
        self._next_seq += 1
        return self._next_seq - 1

    def _new_task(self) -> int:
        self._next_task += 1
        return self._next_task - 1


class _Ids:
    """Job ids: they sort by time, to the millisecond, and cannot be guessed."""

    def __init__(self) -> None:
        self._pool = b""

    def new(self, now: float) -> str:
        if len(self._pool) < _ID_BYTES:  # in bulk: each system call may switch threads
            self._pool = secrets.token_bytes(256 * _ID_BYTES)
        drawn, self._pool = self._pool[:_ID_BYTES], self._pool[_ID_BYTES:]
        return f"{int(now * 1000):011x}-{drawn.hex()}"
