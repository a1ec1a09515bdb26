"""Submission of requests: parse, decide, commit, then answer.

All requests of a call are decided in one step of the event loop, so that requests cannot race: each is answered from
the cache, joins a running evaluation, is queued, or is refused. The step produces rows for the database; callers get
their answers after the commit.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Any

from kernelforge.client.models import Job, JobRequest, JobStatus, RewardResult, TrainingStage
from kernelforge.errors import StoreError
from kernelforge.records import Candidate, CheckedSizes, Fingerprint
from kernelforge.rewards import MODELNEW_POLICY
from kernelforge.server.base import Caller, LRUCache, RequestRejected, utc_seconds
from kernelforge.server.jobs.completion import JobCompletion
from kernelforge.server.jobs.job_store import Batch, NewJob, NewKey, NewTask, NewText, TaskText
from kernelforge.server.jobs.requests import ParsedCompletion, RequestParser, candidate_in, text_hash
from kernelforge.server.jobs.results import (
    AS_SENT,
    Scored,
    Stored,
    failed,
    marked,
    with_cache_age,
    without_candidate,
)
from kernelforge.server.jobs.scheduler import Scheduler
from kernelforge.server.jobs.state import (
    CORRECTNESS_POLICY,
    ActiveJob,
    Deadlines,
    EvaluationTask,
    JobServiceSettings,
    Restored,
    ServiceState,
    has_result,
    is_older,
    is_trajectory,
    is_turn,
)
from kernelforge.workers.base import Engine

_LOG = logging.getLogger(__name__)

_MAX_RETRY_AFTER_S = 60.0
_AHEAD_RETRY_S = 1.0
"""After which a trajectory that came before the trainer could use it may be submitted again."""
_MAX_STEP_S = 0.005
"""Longest time that one batch occupies the event loop before other requests get their turn."""
_ID_BYTES = 8
_GROUPS = 10_000
"""Groups whose stage is in memory."""

Outcome = Job | ActiveJob | RequestRejected


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
    fingerprint: Fingerprint
    """Of the evaluation that it asks for."""
    stage: TrainingStage | None = None
    """Stage of its run; set when it is accepted."""


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


class SubmissionRates:
    """Jobs that callers with a limit may still submit: what a minute allows at once, then as fast as it grows again.

    Args:
        clock: seconds, for tests.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._room: dict[str, tuple[float, float]] = {}
        """By caller: how many jobs it might submit at a time."""

    def require(self, caller: Caller) -> None:
        """Check that a caller may submit a job now.

        Raises:
            RequestRejected: 429: the caller has submitted as many as it may in a minute.
        """
        self._after_one_more(caller)

    def take(self, caller: Caller) -> None:
        """Count a job.

        Raises:
            RequestRejected: 429: the caller has submitted as many as it may in a minute.
        """
        after = self._after_one_more(caller)
        if after is not None:
            self._room[caller.name] = after

    def _after_one_more(self, caller: Caller) -> tuple[float, float] | None:
        most = caller.jobs_per_minute
        if most is None:
            return None
        now, per_second = self._clock(), most / 60
        room, at = self._room.get(caller.name, (most, now))
        room = min(room + (now - at) * per_second, max(most, 1.0))
        if room < 1:
            raise RequestRejected(
                429, "too_fast", f"token {caller.name} may submit {most:g} jobs a minute",
                retry_after_s=(1 - room) / per_second,
            )  # fmt: skip
        return room - 1, now


class Submission:
    """Accepts requests: each becomes a committed job or a refusal.

    Args:
        restored: the first free numbers of jobs and evaluation tasks.
        require_ready: raises RequestRejected while the service accepts no job.
    """

    def __init__(
        self,
        state: ServiceState,
        parser: RequestParser,
        engine: Engine,
        scheduler: Scheduler,
        completion: JobCompletion,
        deadlines: Deadlines,
        restored: Restored,
        require_ready: Callable[[], None],
    ) -> None:
        self._state = state
        self._parser = parser
        self._engine = engine
        self._scheduler = scheduler
        self._completion = completion
        self._deadlines = deadlines
        self._require_ready = require_ready
        self._new_seq = partial(next, count(restored.next_seq))
        self._new_task = partial(next, count(restored.next_task))
        self._random = b""
        self._rates = SubmissionRates()
        self._stages: LRUCache[tuple[str, str], TrainingStage] = LRUCache(_GROUPS)
        """Stages of groups."""
        self._pending_keys: dict[tuple[str, str], tuple[str, str]] = {}
        """Idempotency keys being committed."""
        self._pending_jobs: dict[str, tuple[asyncio.Future[None], Job | ActiveJob]] = {}
        """Jobs being committed, with their commits."""

    def count(self, caller: Caller) -> None:
        """Count a request that is no job towards what the caller may submit in a minute.

        Raises:
            RequestRejected: 429: it has submitted as many.
        """
        self._rates.take(caller)

    def is_pending(self, job_id: str) -> bool:
        """Whether a job is not committed yet; it is hidden from callers until then."""
        return job_id in self._pending_jobs

    async def submit(
        self,
        requests: Sequence[JobRequest],
        caller: Caller,
        keys: Sequence[str | None] | None,
        *,
        turns: bool = False,
    ) -> list[Job | RequestRejected]:
        """The job of each request, or its refusal, once all are committed.

        Args:
            turns: whether they are turns of sessions, whose tags no other job may have.
        """
        outcomes: list[tuple[Outcome, asyncio.Future[None] | None]] = []
        parsed: list[ParsedRequest | RequestRejected] = []
        since = time.monotonic()
        for index, request in enumerate(requests):
            try:
                if is_turn(request.tag) and not turns:
                    message = f"only a session's turns have tags like {request.tag[:80]!r}; choose another"
                    raise RequestRejected(422, "reserved_tag", message)
                parsed.append(await self._parse(request, caller, None if keys is None else keys[index]))
            except RequestRejected as refusal:
                parsed.append(refusal)
            if index == len(requests) - 1 or time.monotonic() - since > _MAX_STEP_S:
                outcomes += self._decide_all(parsed)
                parsed = []
                if index < len(requests) - 1:
                    await asyncio.sleep(0)
                since = time.monotonic()
        return [await self._answer(outcome, commit) for outcome, commit in outcomes]

    def _decide_all(
        self, parsed: Sequence[ParsedRequest | RequestRejected]
    ) -> list[tuple[Outcome, asyncio.Future[None] | None]]:
        """Decide and start the commit without yielding to the event loop, so that no task can change in between."""
        accepted = Accepted()
        outcomes: list[Outcome] = []
        for item in parsed:
            try:
                outcomes.append(item if isinstance(item, RequestRejected) else self._decide(item, accepted))
            except RequestRejected as refusal:
                outcomes.append(refusal)
            except StoreError as error:
                outcomes.append(not_stored(error))
            except BaseException:  # undo the jobs entered before a bug, which would have no rows
                self._undo(accepted)
                raise
        if accepted.batch:
            self._commit(accepted)
        return [(outcome, self._commit_of(outcome)) for outcome in outcomes]

    def _commit_of(self, outcome: Outcome) -> asyncio.Future[None] | None:
        pending = None if isinstance(outcome, RequestRejected) else self._pending_jobs.get(outcome.id)
        return None if pending is None else pending[0]

    async def _parse(self, request: JobRequest, caller: Caller, key: str | None) -> ParsedRequest:
        self._require_ready()
        policy = self._parser.policy(request)
        fingerprint = self.fingerprint_at(request.sizes, request.run_id)
        completion, candidate = await self._parser.parse(request, fingerprint)
        if completion.reading.lane == "modelnew":
            policy = MODELNEW_POLICY
        request_hash = "" if key is None else hashlib.sha256(request.model_dump_json().encode()).hexdigest()
        parsed = ParsedRequest(request, caller, completion, candidate, policy, key, request_hash, fingerprint)
        try:
            if self._needs_candidate(parsed):
                parsed.candidate = await self._parser.candidate(request, fingerprint)
        except StoreError as error:
            raise not_stored(error) from error
        return parsed

    def fingerprint_at(self, sizes: CheckedSizes | None, run_id: str) -> Fingerprint:
        """The fingerprint of evaluations at some sizes, by default the run's, else the server's.

        Raises:
            RequestRejected: 422: the sizes are not offered.
        """
        run = self._state.active.runs.get(run_id)
        sizes = sizes or (None if run is None else run.methods.sizes)
        own = self._engine.fingerprint
        require_sizes(sizes, own, self._state.settings)
        return own.at_sizes(sizes)

    def _decide(self, parsed: ParsedRequest, into: Accepted) -> Job | ActiveJob:
        self._require_ready()
        if parsed.key is not None:
            owned_key = (parsed.caller.name, parsed.key)
            earlier = (
                into.keys.get(owned_key) or self._pending_keys.get(owned_key) or self._state.completed.keyed(*owned_key)
            )
            if earlier is not None and not self._is_forgotten(earlier[0]):
                job_id, request_hash = earlier
                if request_hash != parsed.request_hash:
                    raise RequestRejected(
                        409,
                        "key_reused",
                        f"idempotency key {parsed.key} came with another request before; use a new one",
                    )
                return self._active_or_ended(job_id, into)
        job = self._accept(parsed, into)
        self._rates.take(parsed.caller)  # what is refused is not counted
        return job

    def _is_forgotten(self, job_id: str) -> bool:
        active = self._state.active.jobs.get(job_id)
        return active is not None and active.forgotten

    def _active_or_ended(self, job_id: str, into: Accepted) -> Job | ActiveJob:
        active = self._state.active.jobs.get(job_id)
        if active is not None:
            return active
        for job in into.ended:
            if job.id == job_id:
                return job
        pending = self._pending_jobs.get(job_id)
        return pending[1] if pending is not None else self._completed(job_id)

    def _completed(self, job_id: str) -> Job:
        job = self._state.completed.get(job_id)
        if job is None:
            raise unknown_job(job_id)
        return job

    def _accept(self, parsed: ParsedRequest, into: Accepted) -> Job | ActiveJob:
        """The job of a request: answered from the cache, joined to an evaluation in progress, or queued.

        Raises:
            RequestRejected: 403: the run is another token's; 409 or 429: it is too stale, or too early, by the run's
                bound; 429 or 503: too many jobs are waiting, or came in the last minute; 503: a ``ModelNew`` has to be
                converted once more.
        """
        now = utc_seconds()
        run = self._state.active.run(parsed.request.run_id)
        run.require_owner(parsed.request.run_id, parsed.caller)
        run.require_fresh(parsed.request.policy_version)
        if is_trajectory(parsed.request.tag):
            run.require_capacity(_AHEAD_RETRY_S)
        self._rates.require(parsed.caller)
        parsed.stage = self._stage(parsed.request)
        if parsed.stage == "correctness" and parsed.completion.reading.lane == "plan":
            parsed.policy = CORRECTNESS_POLICY
        if is_older(parsed.request.policy_version, run.min_policy_version):
            message = f"policy_version {parsed.request.policy_version} is below the run's {run.min_policy_version}"
            result = failed("stale", message, policy=parsed.policy)
            return self._ended(parsed, into, now, None, JobStatus.EXPIRED, result, result.model_dump_json())
        stored, cached = self._cached(parsed, now), True
        if stored is None and parsed.completion.fault is not None:
            stored, cached = self._rejected(parsed, into, now), False
        if stored is not None:
            answer = stored.scored_by(parsed.policy, profile=parsed.request.profile)
            if not _may_differ(answer):
                self._state.counters["cached"] += cached
                screened = self._state.screened(
                    parsed.caller.name, parsed.request.run_id, stored, answer.result, into.batch
                )
                if screened is not answer.result:
                    answer = Scored(screened, screened.model_dump_json())
                result = with_cache_age(answer.result, stored.finished_at, now) if cached else answer.result
                return self._ended(
                    parsed, into, now, stored.task, JobStatus.FINISHED, result, answer.text,
                    evaluated_at=stored.finished_at if cached else None,
                )  # fmt: skip
        self._require_room(parsed.request.run_id, parsed.caller)
        return self._queue(parsed, into, now)

    def _stage(self, request: JobRequest) -> TrainingStage | None:
        """Stage of the run, or that of the first job of the group: rewards of a group are compared with each other."""
        stage = self._state.active.run(request.run_id).methods.stage
        if stage is None or request.group_id is None:
            return stage
        group = (request.run_id, request.group_id)
        first = self._stages.get(group)
        if first is None:
            rows = self._state.store.read(
                "SELECT training_stage FROM jobs WHERE run = ? AND group_id = ? AND training_stage IS NOT NULL LIMIT 1",
                group,
            )
            first = rows[0][0] if rows else stage
            self._stages.put(group, first)
        return first

    def _rejected(self, parsed: ParsedRequest, into: Accepted, now: float) -> Stored:
        """The evaluation of a completion without a candidate; no worker is needed."""
        completion = parsed.completion
        assert completion.fault is not None
        evaluation = without_candidate(
            completion.candidate, completion.registered.digest, parsed.fingerprint, completion.fault
        )
        row = self._task_row(
            completion, "done", profiled=True, finished_at=now, evaluation=evaluation.model_dump_json()
        )
        into.batch.tasks.append(row)
        stored = Stored(evaluation, None, None, now, task=row.id, profiled=True)
        self._state.cache.put(completion.key, stored)
        return stored

    def _cached(self, parsed: ParsedRequest, now: float) -> Stored | None:
        """An evaluation that may answer the request."""
        request, rejected = parsed.request, parsed.completion.fault is not None
        stored = None if request.fresh and not rejected else self._state.cache.newest(parsed.completion.key)
        if stored is None or rejected:
            return stored
        age = self._max_age_s(request)
        return stored if age is not None and stored.answers(profile=request.profile, max_age_s=age, now=now) else None

    def _max_age_s(self, request: JobRequest) -> float | None:
        """Oldest measured time that may answer a request; None where it has to be evaluated."""
        limit = self._state.settings.max_measured_age_s
        return None if request.fresh else limit if request.max_age_s is None else min(request.max_age_s, limit)

    def _needs_candidate(self, parsed: ParsedRequest) -> bool:
        """Whether a request will be evaluated and its candidate is missing, because the parse came from a cache."""
        completion = parsed.completion
        if parsed.candidate is not None or completion.fault is not None:
            return False
        if self._state.active.joinable_task(completion.key, profile=parsed.request.profile) is not None:
            return False
        stored = self._cached(parsed, utc_seconds())
        return stored is None or _may_differ(stored.scored_by(parsed.policy, profile=parsed.request.profile))

    def _require_room(self, run: str, caller: Caller) -> None:
        active, limits = self._state.active, self._state.settings
        waiting, own = len(active.run(run).jobs), active.of_callers[caller.name]
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
        if caller.max_jobs is not None and own >= caller.max_jobs:
            raise RequestRejected(
                429, "token_queue_full", f"token {caller.name} has {own:,} jobs waiting, which is all that it may have",
                retry_after_s=self._retry_after(own),
            )  # fmt: skip

    def _retry_after(self, waiting: int) -> float:
        """Seconds until a tenth of the waiting jobs may be done, at the recent rate."""
        rate = self._scheduler.rate()
        return _MAX_RETRY_AFTER_S / 6 if rate is None else min(max(0.1 * waiting / rate, 1.0), _MAX_RETRY_AFTER_S)

    def _queue(self, parsed: ParsedRequest, into: Accepted, now: float) -> ActiveJob:
        request, completion = parsed.request, parsed.completion
        task = self._state.active.joinable_task(completion.key, profile=request.profile)
        if task is None:
            # What it was to join, or be answered by, is gone.
            if parsed.candidate is None and completion.reading != AS_SENT:
                raise RequestRejected(503, "converter", "it has to be converted once more", retry_after_s=1.0)
            candidate = parsed.candidate or candidate_in(request)
            row = self._task_row(
                completion,
                "open",
                profiled=request.profile,
                source=candidate.source,
                plan=candidate.plan,
                choices=json.dumps(candidate.choices),
                sizes=parsed.fingerprint.sizes,
            )
            into.batch.tasks.append(row)
            registered = completion.registered
            into.batch.task_texts.append(TaskText(registered.digest, registered.task.model_dump_json()))
            task = EvaluationTask(
                row.id,
                row.key,
                completion.registered,
                candidate,
                completion.candidate,
                request.profile,
                parsed.fingerprint,
                max_age_s=self._max_age_s(request),
            )
        else:
            self._state.counters["joined"] += 1
            task.profile = task.profile or request.profile
            age = self._max_age_s(request)
            task.max_age_s = None if age is None or task.max_age_s is None else min(task.max_age_s, age)
        active = ActiveJob(
            self._job(parsed, now),
            seq=self._new_seq(),
            caller=parsed.caller.name,
            key=parsed.key,
            policy=parsed.policy,
            deadline_at=None if request.deadline_s is None else now + request.deadline_s,
            profile=request.profile,
            evaluation_task=task,
            reading=completion.reading,
            training_stage=parsed.stage,
        )
        self._state.active.add(active)
        self._scheduler.queue.set_share(parsed.caller.name, parsed.caller.share)
        into.active.append(active)
        self._write(parsed, into, active.seq, active.accepted, task.id, active.deadline_at)
        return active

    def _task_row(self, completion: ParsedCompletion, state: str, **fields: Any) -> NewTask:
        registered = completion.registered
        return NewTask(
            self._new_task(),
            completion.key,
            state,
            registered.name,
            registered.digest,
            completion.candidate,
            **fields,
        )

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
        own = marked(result, parsed.completion.reading, parsed.stage)
        if own is not result:
            result, text = own, own.model_dump_json()
        job = self._job(parsed, now, status=status, finished_at=now, result=result)
        into.ended.append(job)
        into.batch.ended_of_runs.append((job.run_id, has_result(job)))
        self._state.active.run(job.run_id).with_result += has_result(job)
        self._write(parsed, into, self._new_seq(), job, task_id, None, text, evaluated_at)
        return job

    def _job(self, parsed: ParsedRequest, now: float, status: JobStatus = JobStatus.QUEUED, **end: Any) -> Job:
        request = parsed.request
        return Job(
            id=self._new_id(now),
            status=status,
            task=parsed.completion.registered.name,
            run_id=request.run_id,
            policy_version=request.policy_version,
            priority=request.priority,
            tag=request.tag,
            submitted_at=now,
            **end,
        )

    def _new_id(self, now: float) -> str:
        """Job ids sort by time, to the millisecond, and cannot be guessed."""
        if len(self._random) < _ID_BYTES:  # in bulk: each system call may switch threads
            self._random = secrets.token_bytes(256 * _ID_BYTES)
        drawn, self._random = self._random[:_ID_BYTES], self._random[_ID_BYTES:]
        return f"{int(now * 1000):011x}-{drawn.hex()}"

    def _write(
        self,
        parsed: ParsedRequest,
        into: Accepted,
        seq: int,
        job: Job,
        task_id: int | None,
        deadline_at: float | None,
        text: str | None = None,
        evaluated_at: float | None = None,
    ) -> None:
        request, sha256 = parsed.request, parsed.completion.text
        if sha256 is not None and request.completion is not None:
            into.batch.texts.append(NewText(sha256, request.completion))
        prompt = None if request.prompt is None else text_hash(request.prompt)
        if prompt is not None and request.prompt is not None:
            into.batch.texts.append(NewText(prompt, request.prompt))
        row = NewJob(
            seq=seq,
            id=job.id,
            caller=parsed.caller.name,
            work=task_id,
            task=job.task,
            run=job.run_id,
            policy=parsed.policy,
            policy_version=job.policy_version,
            priority=job.priority,
            deadline_at=deadline_at,
            profile=request.profile,
            tag=job.tag,
            completion=sha256,
            status=job.status.value,
            submitted_at=job.submitted_at,
            started_at=None,
            finished_at=job.finished_at,
            tries=0,
            evaluated_at=evaluated_at,
            result=text,
            group_id=request.group_id,
            prompt=prompt,
            training_stage=parsed.stage,
            reading=parsed.completion.reading.stored(),
        )
        into.batch.jobs.append(row)
        if parsed.key is not None:
            into.batch.keys.append(NewKey(parsed.caller.name, parsed.key, job.id, parsed.request_hash))
            into.keys[parsed.caller.name, parsed.key] = (job.id, parsed.request_hash)
        self._state.counters["submitted"] += 1
        self._state.active.run(job.run_id).admitted(job.policy_version)

    def _commit(self, accepted: Accepted) -> None:
        """Start to write the rows; the step is finished after the commit, even if no caller waits any more."""
        committed = self._state.store.commit(accepted.batch)
        # A future of its own: callers must not continue between the end of the commit and the end of the step.
        entered: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._pending_keys.update(accepted.keys)
        for owned_key in accepted.keys:
            self._state.completed.key_filter.add(*owned_key)
        for job in accepted.jobs():
            self._pending_jobs[job.id] = (entered, job)
        committed.add_done_callback(lambda done: self._committed(accepted, done, entered))
        for active in accepted.active:
            task = active.evaluation_task
            if task.phase == "queued" and not task.tries and task not in self._scheduler.queue:
                self._scheduler.add(task)
            else:
                self._scheduler.update(task)
            if active.deadline_at is not None:
                self._deadlines.add(active.deadline_at, active.id)

    def _committed(self, accepted: Accepted, done: asyncio.Future[None], entered: asyncio.Future[None]) -> None:
        if done.cancelled():
            entered.cancel()
            return
        for owned_key in accepted.keys:
            self._pending_keys.pop(owned_key, None)
        for job in accepted.jobs():
            self._pending_jobs.pop(job.id, None)
        error = done.exception()
        if error is not None:
            _LOG.error("%d jobs were refused: %s", len(accepted.batch.jobs), error)
            self._undo(accepted)
            entered.set_exception(error)
            entered.exception()  # mark it as retrieved: perhaps no caller waits any more
            return
        for ended in accepted.ended:
            self._state.active.run(ended.run_id).ended += 1
            self._state.completed.put(ended)
            self._state.watchers.ended(ended)
        entered.set_result(None)

    def _undo(self, accepted: Accepted) -> None:
        """Forget jobs and evaluations that will have no row in the database."""
        for task in self._completion.discard(accepted.active):
            self._scheduler.update(task)
        for job in accepted.ended:
            self._state.active.run(job.run_id).with_result -= has_result(job)
        self._state.cache.forget({task.id: task.key for task in accepted.batch.tasks})
        try:
            self._state.checks.forget(accepted.batch.suspects)
        except StoreError as error:
            _LOG.error("suspects without a row stay withheld until the server restarts: %s", error)

    async def _answer(self, outcome: Outcome, commit: asyncio.Future[None] | None) -> Job | RequestRejected:
        """The job as its caller sees it, once it is committed."""
        if isinstance(outcome, RequestRejected):
            return outcome
        if commit is not None:
            try:
                await asyncio.shield(commit)
            except StoreError as error:
                return not_stored(error)
        if isinstance(outcome, Job):
            return outcome
        return outcome.snapshot() if outcome.id in self._state.active.jobs else self._completed(outcome.id)


def _may_differ(answer: Scored) -> bool:
    """Whether another evaluation may have a score where this one has none."""
    return answer.result.error is not None and answer.result.error.retryable


def require_sizes(sizes: CheckedSizes | None, own: Fingerprint, settings: JobServiceSettings) -> None:
    """Check that a server evaluates at these sizes. A complete evaluation is always offered.

    Args:
        sizes: that are asked for; None for the server's own.
        own: of the evaluations of a job that asks for none.
        settings: of the server.

    Raises:
        RequestRejected: 422: it does not.
    """
    if sizes == "train" and own.sizes != "train" and not settings.train_on_request:
        message = "this server checks all sizes; sizes=train needs one that was started with --sizes any or train"
        raise RequestRejected(422, "sizes_not_offered", message)


def not_stored(error: StoreError) -> RequestRejected:
    """The refusal of a request that could not be written to the database."""
    return RequestRejected(503, "storage", f"the database cannot be written: {error}", retry_after_s=5.0)


def unknown_job(job_id: str) -> RequestRejected:
    """The refusal of a job id that is not in memory or in the database."""
    return RequestRejected(404, "unknown_job", f"there is no job {job_id[:80]!r}, or it is no longer kept")
