"""Submission of requests: parse, decide, commit, then answer."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections.abc import Callable, Sequence

from kernelforge.client.models import Job, JobRequest
from kernelforge.errors import StoreError
from kernelforge.records import Fingerprint
from kernelforge.server.base import Caller, RequestRejected
from kernelforge.server.jobs.admission import Accepted, Admission, Asked
from kernelforge.server.jobs.cache import CompletedJobs, EvaluationCache
from kernelforge.server.jobs.completion import JobCompletion
from kernelforge.server.jobs.job_store import JobStore
from kernelforge.server.jobs.models import ActiveJob, ActiveJobs
from kernelforge.server.jobs.notifications import Deadlines, JobWatchers
from kernelforge.server.jobs.request_parser import RequestParser
from kernelforge.server.jobs.scheduler import Scheduler

_LOG = logging.getLogger(__name__)

Outcome = Job | ActiveJob | RequestRejected

_MOST_AT_A_STRETCH_S = 0.005
"""After so long with one batch, others get their turn on the event loop."""


class Submission:
    """Takes requests in.

    Args:
        must_be_ready: raises Refusal while nothing is accepted.
        fingerprint: the engine's.
    """

    def __init__(
        self,
        *,
        intake: RequestParser,
        admission: Admission,
        book: ActiveJobs,
        journal: JobStore,
        archive: CompletedJobs,
        cache: EvaluationCache,
        ending: JobCompletion,
        scheduler: Scheduler,
        deadlines: Deadlines,
        watchers: JobWatchers,
        must_be_ready: Callable[[], None],
        fingerprint: Callable[[], Fingerprint],
    ) -> None:
        self._intake = intake
        self._admission = admission
        self._book = book
        self._journal = journal
        self._archive = archive
        self._cache = cache
        self._ending = ending
        self._scheduler = scheduler
        self._deadlines = deadlines
        self._watchers = watchers
        self._must_be_ready = must_be_ready
        self._fingerprint = fingerprint
        self._claims: dict[tuple[str, str], tuple[str, str]] = {}
        """Idempotency keys on their way to the journal."""
        self._under_way: dict[str, tuple[asyncio.Future[None], Job | ActiveJob]] = {}
        """Jobs on their way to the journal, with their commits."""

    def under_way(self, job_id: str) -> bool:
        """Whether a job is not in the journal yet: nobody may be told of it."""
        return job_id in self._under_way

    async def submit(
        self, requests: Sequence[JobRequest], caller: Caller, keys: Sequence[str | None] | None
    ) -> list[Job | RequestRejected]:
        """What became of each request, once it is in the journal."""
        told: list[tuple[Outcome, asyncio.Future[None] | None]] = []
        read: list[Asked | RequestRejected] = []
        since = time.monotonic()
        for index, request in enumerate(requests):
            try:
                read.append(await self._read(request, caller, None if keys is None else keys[index]))
            except RequestRejected as refusal:
                read.append(refusal)
            if index == len(requests) - 1 or time.monotonic() - since > _MOST_AT_A_STRETCH_S:
                told += self._decide_all(read)
                read = []
                if index < len(requests) - 1:
                    await asyncio.sleep(0)
                since = time.monotonic()
        return [await self._told(outcome, commit) for outcome, commit in told]

    def _decide_all(self, read: Sequence[Asked | RequestRejected]) -> list[tuple[Outcome, asyncio.Future[None] | None]]:
        """Decide, and hand the rows to the journal, in one step: nothing may happen to a work in between."""
        accepted = Accepted()
        outcomes: list[Outcome] = []
        for asked in read:
            try:
                outcomes.append(asked if isinstance(asked, RequestRejected) else self._decide(asked, accepted))
            except RequestRejected as refusal:
                outcomes.append(refusal)
            except StoreError as error:
                outcomes.append(not_stored(error))
            except BaseException:  # a fault of ours: what was entered before it must not stay without a row
                self._undo(accepted)
                raise
        if accepted.batch:
            self._commit(accepted)
        return [(outcome, self._commit_of(outcome)) for outcome in outcomes]

    def _commit_of(self, outcome: Outcome) -> asyncio.Future[None] | None:
        under_way = None if isinstance(outcome, RequestRejected) else self._under_way.get(outcome.id)
        return None if under_way is None else under_way[0]

    async def _read(self, request: JobRequest, caller: Caller, key: str | None) -> Asked:
        self._must_be_ready()
        policy = self._intake.policy(request)
        reading, candidate = await self._intake.read(request, self._fingerprint())
        hashed = "" if key is None else hashlib.sha256(request.model_dump_json().encode()).hexdigest()
        asked = Asked(request, caller, reading, candidate, policy, key, hashed)
        try:
            if self._admission.wants_candidate(asked):
                asked.candidate = await self._intake.candidate(request)
        except StoreError as error:
            raise not_stored(error) from error
        return asked

    def _decide(self, asked: Asked, into: Accepted) -> Job | ActiveJob:
        self._must_be_ready()
        if asked.key is not None:
            place = (asked.caller.name, asked.key)
            earlier = into.keys.get(place) or self._claims.get(place) or self._archive.keyed(*place)
            if earlier is not None and not self._is_forgotten(earlier[0]):
                job_id, request_hash = earlier
                if request_hash != asked.request_hash:
                    raise RequestRejected(
                        409,
                        "key_reused",
                        f"idempotency key {asked.key} came with another request before; use a new one",
                    )
                return self._live_or_ended(job_id, into)
        return self._admission.accept(asked, into)

    def _is_forgotten(self, job_id: str) -> bool:
        live = self._book.jobs.get(job_id)
        return live is not None and live.forgotten

    def _live_or_ended(self, job_id: str, into: Accepted) -> Job | ActiveJob:
        live = self._book.jobs.get(job_id)
        if live is not None:
            return live
        for job in into.ended:
            if job.id == job_id:
                return job
        under_way = self._under_way.get(job_id)
        return under_way[1] if under_way is not None else self._archived(job_id)

    def _archived(self, job_id: str) -> Job:
        found = self._archive.get(job_id)
        if found is None:
            raise RequestRejected(404, "unknown_job", f"there is no job {job_id[:80]!r}, or it is no longer kept")
        return found

    def _commit(self, accepted: Accepted) -> None:
        """Write the rows, and finish the step once they are committed, even if no caller waits any more."""
        committed = self._journal.commit(accepted.batch)
        # Done once the step is finished: a commit may be awaited between its end and the call that finishes the step.
        entered: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._claims.update(accepted.keys)
        for place in accepted.keys:
            self._archive.known_keys.add(*place)
        for job in accepted.jobs():
            self._under_way[job.id] = (entered, job)
        committed.add_done_callback(lambda done: self._committed(accepted, done, entered))
        for live in accepted.live:
            work = live.work
            if work.phase == "queued" and not work.tries and work not in self._scheduler.queue:
                self._scheduler.add(work)
            else:
                self._scheduler.update(work)
            if live.deadline_at is not None:
                self._deadlines.add(live.deadline_at, live.id)

    def _committed(self, accepted: Accepted, done: asyncio.Future[None], entered: asyncio.Future[None]) -> None:
        if done.cancelled():
            entered.cancel()
            return
        for place in accepted.keys:
            self._claims.pop(place, None)
        for job in accepted.jobs():
            self._under_way.pop(job.id, None)
        error = done.exception()
        if error is not None:
            _LOG.error("%d jobs were refused: %s", len(accepted.batch.jobs), error)
            self._undo(accepted)
            entered.set_exception(error)
            entered.exception()  # nobody may be there to look at it
            return
        for ended in accepted.ended:
            self._book.run(ended.run_id).ended += 1
            self._archive.put(ended)
            self._watchers.ended(ended)
        entered.set_result(None)

    def _undo(self, accepted: Accepted) -> None:
        """Forget what will have no row in the journal."""
        self._ending.forget(accepted.live)
        self._cache.forget({work.id: work.key for work in accepted.batch.works})

    async def _told(self, outcome: Outcome, commit: asyncio.Future[None] | None) -> Job | RequestRejected:
        """What a caller is told, once it is in the journal."""
        if isinstance(outcome, RequestRejected):
            return outcome
        if commit is not None:
            try:
                await asyncio.shield(commit)
            except StoreError as error:
                return not_stored(error)
        if isinstance(outcome, Job):
            return outcome
        return outcome.shown() if outcome.id in self._book.jobs else self._archived(outcome.id)


def not_stored(error: StoreError) -> RequestRejected:
    """How a request is refused that could not be written down."""
    return RequestRejected(503, "storage", f"this could not be written down: {error}", retry_after_s=5.0)
