"""Submission of requests: parse, decide, commit, then answer."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections.abc import Sequence

from kernelforge.client.models import Job, JobRequest
from kernelforge.errors import StoreError
from kernelforge.server.base import Caller, RequestRejected
from kernelforge.server.jobs.admission import Accepted, Admission, ParsedRequest
from kernelforge.server.jobs.completion import JobCompletion
from kernelforge.server.jobs.models import ActiveJob
from kernelforge.server.jobs.notifications import Deadlines
from kernelforge.server.jobs.requests import RequestParser
from kernelforge.server.jobs.scheduler import Scheduler
from kernelforge.server.jobs.state import ServiceState

_LOG = logging.getLogger(__name__)

Outcome = Job | ActiveJob | RequestRejected

_MAX_STEP_S = 0.005
"""Longest time that one batch occupies the event loop before other requests get their turn."""


class Submission:
    """Accepts requests: each becomes a committed job or a refusal."""

    def __init__(
        self,
        state: ServiceState,
        parser: RequestParser,
        admission: Admission,
        scheduler: Scheduler,
        completion: JobCompletion,
        deadlines: Deadlines,
    ) -> None:
        self._state = state
        self._parser = parser
        self._admission = admission
        self._scheduler = scheduler
        self._completion = completion
        self._deadlines = deadlines
        self._pending_keys: dict[tuple[str, str], tuple[str, str]] = {}
        """Idempotency keys being committed."""
        self._pending_jobs: dict[str, tuple[asyncio.Future[None], Job | ActiveJob]] = {}
        """Jobs being committed, with their commits."""

    def is_pending(self, job_id: str) -> bool:
        """Whether a job is not committed yet; it is hidden from callers until then."""
        return job_id in self._pending_jobs

    async def submit(
        self, requests: Sequence[JobRequest], caller: Caller, keys: Sequence[str | None] | None
    ) -> list[Job | RequestRejected]:
        """The job of each request, or its refusal, once all are committed."""
        outcomes: list[tuple[Outcome, asyncio.Future[None] | None]] = []
        parsed: list[ParsedRequest | RequestRejected] = []
        since = time.monotonic()
        for index, request in enumerate(requests):
            try:
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
        self._admission.require_ready()
        policy = self._parser.policy(request)
        completion, candidate = await self._parser.parse(request, self._admission.fingerprint)
        request_hash = "" if key is None else hashlib.sha256(request.model_dump_json().encode()).hexdigest()
        parsed = ParsedRequest(request, caller, completion, candidate, policy, key, request_hash)
        try:
            if self._admission.needs_candidate(parsed):
                parsed.candidate = await self._parser.candidate(request)
        except StoreError as error:
            raise not_stored(error) from error
        return parsed

    def _decide(self, parsed: ParsedRequest, into: Accepted) -> Job | ActiveJob:
        self._admission.require_ready()
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
        return self._admission.accept(parsed, into)

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
        self._state.cache.forget({task.id: task.key for task in accepted.batch.tasks})

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


def not_stored(error: StoreError) -> RequestRejected:
    """The refusal of a request that could not be written to the database."""
    return RequestRejected(503, "storage", f"the database cannot be written: {error}", retry_after_s=5.0)


def unknown_job(job_id: str) -> RequestRejected:
    """The refusal of a job id that is not in memory or in the database."""
    return RequestRejected(404, "unknown_job", f"there is no job {job_id[:80]!r}, or it is no longer kept")
