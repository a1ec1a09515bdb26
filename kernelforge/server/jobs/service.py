"""The job service: durable jobs, shared evaluations, fair shares, exactly one end per job.

It knows no protocol: ``app.py`` and the wires put it on the network. All of it runs on one event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Literal

from kernelforge.agents.base import TaskContext
from kernelforge.client.models import Job, JobRequest, JobStatus, RunSettings, RunStatus, ServerStatus
from kernelforge.errors import StoreError
from kernelforge.records import Task
from kernelforge.server.base import Caller, Evaluated, RequestRejected
from kernelforge.server.jobs.admission import Admission
from kernelforge.server.jobs.cache import CompletedJobs, EvaluationCache
from kernelforge.server.jobs.completion import JobCompletion
from kernelforge.server.jobs.job_store import Batch, JobStore, Restored, RunRow, restore
from kernelforge.server.jobs.models import ActiveJob, ActiveJobs, RunState
from kernelforge.server.jobs.notifications import Deadlines, JobWatchers
from kernelforge.server.jobs.registry import Registry
from kernelforge.server.jobs.request_parser import RequestParser
from kernelforge.server.jobs.results import failed
from kernelforge.server.jobs.retention import Retention
from kernelforge.server.jobs.scheduler import Scheduler
from kernelforge.server.jobs.settings import JobServiceSettings
from kernelforge.server.jobs.submission import Submission, not_stored
from kernelforge.server.jobs.task_contexts import Briefs
from kernelforge.tasks.catalogue import Catalogue
from kernelforge.utils.file_locks import lock_path, run_lock
from kernelforge.version import __version__
from kernelforge.workers.base import Engine, Health

_LOG = logging.getLogger(__name__)

_Outcome = Job | ActiveJob | RequestRejected

_MOST_AT_A_STRETCH_S = 0.005
"""After so long with one batch, others get their turn on the event loop."""


class JobService:
    """The Core over an engine, with its journal in a results folder.

    Args:
        engine: started and closed by the gateway.
        catalogue: the tasks that are offered.
        folder: the results folder; one gateway at a time may have it.
    """

    def __init__(
        self, engine: Engine, catalogue: Catalogue, folder: Path, settings: JobServiceSettings | None = None
    ) -> None:
        self.catalogue = catalogue
        self.settings = settings or JobServiceSettings()
        self.registry = Registry(catalogue)
        self.counters: Counter[str] = Counter()
        """What happened since the start: ``submitted cached joined evaluated retried worker_deaths ...``."""
        self._engine = engine
        self._folder = folder
        self._intake = RequestParser(self.registry, self.settings.policy, self.settings.readings_in_memory)
        self.default_policy = self._intake.default_policy
        self._state: Literal["starting", "ready", "draining"] = "starting"
        self._held = contextlib.ExitStack()
        self._book = ActiveJobs()
        self._watchers = JobWatchers()
        self._arriving: Counter[tuple[str, str | None]] = Counter()
        """Requests that have not come to their job yet, by caller and idempotency key: it may be one that another
        request lets go."""
        self._settling = asyncio.Lock()
        """Of two changes of a run's settings, the second begins from what the first left."""
        self._briefs = Briefs(engine)

    async def start(self) -> None:
        """Take the folder, start the engine, and queue again what a gateway before this one left open.

        Raises:
            StoreError: another gateway has the folder, or ``server.db`` cannot be used.
            KernelForgeError: the engine does not start.
        """
        try:
            self._held.enter_context(run_lock(lock_path(self._folder, "server"), "server"))
        except StoreError as error:
            raise StoreError(f"another gateway serves {self._folder}: {error}") from error
        try:
            self._journal = JobStore(self._folder)
            self._held.callback(self._journal.close)
            await self._engine.start()
            restored = self._assemble()
        except BaseException:
            await self._engine.close()
            self._held.close()
            raise
        await self._take_up(restored.batch)
        self._state = "ready"
        self._scheduler.start()
        self._retention.start()

    def _assemble(self) -> Restored:
        settings, journal, book = self.settings, self._journal, self._book
        self._archive = CompletedJobs(journal, settings.jobs_in_memory)
        self._cache = EvaluationCache(journal, settings.evaluations_in_memory)
        self._ending = JobCompletion(book, journal, self._archive, self._cache, self._watchers, self.counters)
        self._scheduler = Scheduler(self._engine, self._ending, self.counters, lease_s=settings.lease_s)
        self._ending.scheduler = self._scheduler
        self._deadlines = Deadlines(self._expire, book.jobs.__contains__)
        self._admission = Admission(
            book, self._cache, self._scheduler, settings, self.counters, lambda: self._engine.fingerprint
        )
        restored = restore(journal, self.registry, self._engine.fingerprint, book)
        self._admission.next_seq, self._admission.next_work = restored.next_seq, restored.next_work
        self._submission = Submission(
            intake=self._intake,
            admission=self._admission,
            book=book,
            journal=journal,
            archive=self._archive,
            cache=self._cache,
            ending=self._ending,
            scheduler=self._scheduler,
            deadlines=self._deadlines,
            watchers=self._watchers,
            must_be_ready=self._must_be_ready,
            fingerprint=lambda: self._engine.fingerprint,
        )
        self._retention = Retention(journal, self._archive, self._cache, settings)
        for run, state in book.runs.items():
            self._scheduler.queue.set_weight(run, state.weight)
        return restored

    async def _take_up(self, batch: Batch) -> None:
        """Queue what was open at the last end."""
        if batch:
            self._ending.keep(batch)
        for run in list(self._book.runs.values()):
            await self._end_stale(run)
        for work in list(self._book.works.values()):
            self._scheduler.add(work)
        for job in list(self._book.jobs.values()):
            if job.deadline_at is not None:
                self._deadlines.add(job.deadline_at, job.id)
        self.counters["restored"] += len(self._book.jobs)

    async def drain(self) -> None:
        """Accept nothing more; returns when nothing runs. What is queued stays for the next start."""
        self._state = "draining"
        await self._scheduler.drain()
        await self._ending.settled()

    async def close(self) -> None:
        """Stop what runs, which the next start queues again; end the engine; let the folder go."""
        started, self._state = self._state != "starting", "draining"
        if started:
            self._deadlines.stop()
            await self._retention.stop()
            await self._scheduler.stop()
            await self._ending.close()
        try:
            await self._briefs.close()
            await self._engine.close()
        finally:
            self._intake.close()
            await asyncio.to_thread(self._held.close)

    # -- what it shows ------------------------------------------------------------------------------------------------

    def status(self) -> ServerStatus:
        if self._state == "starting":
            return ServerStatus(
                state="starting",
                version=__version__,
                engine=self._engine.name,
                devices=[],
                workers=0,
                queued=0,
                running=0,
            )
        running = sum(len(work.jobs) for work in self._book.works.values() if work.phase != "queued")
        return ServerStatus(
            state=self._state,
            version=__version__,
            engine=self._engine.name,
            devices=sorted({slot.device for slot in self._engine.slots()}),
            workers=self._engine.health().workers,
            queued=max(len(self._book.jobs) - running, 0),
            running=running,
        )

    def health(self) -> Health:
        return self._engine.health()

    def on_ended(self, listener: Callable[[Job], None]) -> None:
        self._watchers.on_ended(listener)

    def find_task(self, reference: str | None, reference_code: str | None = None) -> tuple[str, Task]:
        found = self.registry.find(reference, reference_code)
        return found.name, found.task

    async def brief(self, task: Task) -> TaskContext:
        return await self._briefs.get(task)

    # -- submitting ---------------------------------------------------------------------------------------------------

    async def submit(
        self, requests: Sequence[JobRequest], caller: Caller, keys: Sequence[str | None] | None = None
    ) -> list[Job | RequestRejected]:
        places = [(caller.name, key) for key in keys or ()]
        self._arriving.update(places)
        try:
            jobs = await self._submission.submit(requests, caller, keys)
            for job in jobs:
                live = None if isinstance(job, RequestRejected) else self._book.jobs.get(job.id)
                if live is not None:
                    live.kept = True
            return jobs
        finally:
            for place in places:
                self._arrived(place)

    def _must_be_ready(self) -> None:
        if self._state != "ready":
            raise RequestRejected(
                503, self._state, f"the server is {self._state}; send the request again soon", retry_after_s=5.0
            )

    async def score(self, request: JobRequest, caller: Caller, *, timeout_s: float, key: str | None = None) -> Job:
        place = (caller.name, key)
        self._arriving[place] += 1
        submission = asyncio.ensure_future(self._submission.submit([request], caller, [key]))
        try:
            [job] = await asyncio.shield(submission)
        except asyncio.CancelledError:
            submission.add_done_callback(lambda done: self._withdraw(done, place))
            raise
        except BaseException:
            self._arrived(place)
            raise
        live = None if isinstance(job, RequestRejected) else self._book.jobs.get(job.id)
        if live is not None:
            live.holders += 1
        self._arrived(place)
        if isinstance(job, RequestRejected):
            raise job
        if live is None:
            return self.job(job.id)
        try:
            ended = await self.wait([job.id], 1, timeout_s)
        except asyncio.CancelledError:
            live.holders -= 1
            self._let_go(live)
            raise
        live.holders -= 1
        if ended:
            return ended[0]
        message = f"it had not ended after the {timeout_s:g} s that its caller waited"
        self._ending.end([(live, JobStatus.EXPIRED, failed("deadline", message, policy=live.policy))])
        if live.end is not None:  # this end, or one that was on its way
            await asyncio.shield(live.end)
        return self.job(job.id)

    def _arrived(self, place: tuple[str, str | None]) -> None:
        self._arriving[place] -= 1
        if not self._arriving[place]:
            del self._arriving[place]

    def _withdraw(self, submission: asyncio.Future[list[Job | RequestRejected]], place: tuple[str, str | None]) -> None:
        self._arrived(place)
        if submission.cancelled() or submission.exception() is not None:
            return
        for job in submission.result():
            live = None if isinstance(job, RequestRejected) else self._book.jobs.get(job.id)
            if live is not None:
                self._let_go(live)

    def _let_go(self, live: ActiveJob) -> None:
        """A request that was held open for a job is gone. The last one takes the job with it, and its key: the same
        request, sent again, is evaluated."""
        arriving = live.key is not None and (live.caller, live.key) in self._arriving
        if not live.holders and not live.kept and not arriving:
            message = "its caller went away"
            self._ending.end(
                [(live, JobStatus.CANCELLED, failed("cancelled", message, policy=live.policy, retryable=True))],
                forget_keys=True,
            )

    # -- following ----------------------------------------------------------------------------------------------------

    def job(self, job_id: str) -> Job:
        live = self._book.jobs.get(job_id)
        if live is not None and not self._submission.under_way(job_id):
            return live.shown()
        found = self._archive.get(job_id) if live is None else None
        if found is None:
            raise RequestRejected(404, "unknown_job", f"there is no job {job_id[:80]!r}, or it is no longer kept")
        return found

    def keyed(self, key: str, caller: Caller) -> Job | None:
        found = self._archive.keyed(caller.name, key)
        if found is None:
            return None
        with contextlib.suppress(RequestRejected):
            return self.job(found.job)
        return None

    def stored(self, job_id: str) -> Evaluated | None:
        result = self.job(job_id).result
        work = None if result is None else self._archive.work_of(job_id)
        stored = None if work is None or result is None else self._cache.of_work(work, result.evaluation)
        return (
            None if stored is None else Evaluated(stored.evaluation, stored.profile, stored.source, stored.finished_at)
        )

    async def wait(self, ids: Sequence[str], k: int | None, timeout_s: float) -> list[Job]:
        names = list(dict.fromkeys(ids))
        wanted = len(names) if k is None else min(k, len(names))
        loop = asyncio.get_running_loop()
        until = loop.time() + timeout_s
        with self._watchers.follow(names) as changes:
            now = [self.job(name) for name in names]
            ended = sorted((job for job in now if job.status.ended), key=lambda job: job.finished_at or 0.0)
            while len(ended) < wanted:
                try:
                    async with asyncio.timeout_at(until):
                        job = await changes.get()
                except TimeoutError:
                    break
                if job.status.ended:
                    ended.append(job)
        return ended

    async def watch(self, ids: Sequence[str]) -> AsyncIterator[Job]:
        names = list(dict.fromkeys(ids))
        with self._watchers.follow(names) as changes:
            pending = set(names)
            for job in [self.job(name) for name in names]:
                if job.status.ended:
                    pending.discard(job.id)
                yield job
            while pending:
                job = await changes.get()
                if job.id not in pending:
                    continue
                if job.status.ended:
                    pending.discard(job.id)
                yield job

    # -- ending early -------------------------------------------------------------------------------------------------

    async def cancel(self, ids: Sequence[str]) -> list[str]:
        jobs = [self._book.jobs[name] for name in dict.fromkeys(ids) if name in self._book.jobs]
        return await self._cancel(jobs)

    async def cancel_run(self, run_id: str, older_than: int | None) -> list[str]:
        state = self._book.runs.get(run_id)
        jobs = [] if state is None else list(state.jobs.values())
        if older_than is not None:
            jobs = [job for job in jobs if job.policy_version is not None and job.policy_version < older_than]
        return await self._cancel(jobs)

    async def _cancel(self, jobs: Sequence[ActiveJob]) -> list[str]:
        ended = await self._ending.end_all(jobs, JobStatus.CANCELLED, "cancelled", "it was cancelled", retryable=True)
        return [job.id for job in ended]

    def _expire(self, due: list[str]) -> None:
        self._ending.expire([self._book.jobs[name] for name in due if name in self._book.jobs])

    # -- runs ---------------------------------------------------------------------------------------------------------

    def runs(self) -> list[RunStatus]:
        return [self._run_status(name) for name in sorted(self._book.runs)]

    async def set_run(self, run_id: str, settings: RunSettings) -> RunStatus:
        async with self._settling:
            state = self._book.runs.get(run_id) or RunState()
            weight, oldest = state.weight, state.min_policy_version
            if settings.weight is not None:
                weight = settings.weight
            if settings.min_policy_version is not None:
                oldest = settings.min_policy_version or None
            try:
                await asyncio.shield(self._journal.commit(Batch(runs=[RunRow(run_id, weight, oldest)])))
            except StoreError as error:
                raise not_stored(error) from error
            state = self._book.run(run_id)
            state.weight, state.min_policy_version = weight, oldest
            self._scheduler.queue.set_weight(run_id, weight)
        await self._end_stale(state)
        return self._run_status(run_id)

    async def _end_stale(self, state: RunState) -> None:
        stale = [job for job in state.jobs.values() if state.stale(job.policy_version)]
        message = f"the run wants policy_version {state.min_policy_version} or later"
        await self._ending.end_all(stale, JobStatus.EXPIRED, "stale", message)

    def _run_status(self, name: str) -> RunStatus:
        state = self._book.runs[name]
        running = sum(job.work.phase != "queued" for job in state.jobs.values())
        return RunStatus(
            run_id=name,
            weight=state.weight,
            min_policy_version=state.min_policy_version,
            queued=len(state.jobs) - running,
            running=running,
            ended=state.ended,
        )
