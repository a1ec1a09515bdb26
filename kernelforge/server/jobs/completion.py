"""Job completion: exactly once, one transaction with its evaluation; clients are notified after the commit."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from kernelforge.client.models import Job, JobStatus, RewardResult
from kernelforge.errors import StoreError, UsageError
from kernelforge.records import Evaluation, Verdict
from kernelforge.server.base import DATABASE_NAME, utc_seconds
from kernelforge.server.jobs.admission import score_with
from kernelforge.server.jobs.cache import CompletedJobs, EvaluationCache, Stored
from kernelforge.server.jobs.job_store import SERVER, Batch, JobEnd, JobStore, WorkEnd, WorkProgress
from kernelforge.server.jobs.models import ActiveJob, ActiveJobs, Phase, SharedEvaluation
from kernelforge.server.jobs.notifications import JobWatchers
from kernelforge.server.jobs.results import FaultCode, failed, troubled
from kernelforge.server.jobs.scheduler import Scheduler
from kernelforge.store.database import Database, as_text, readable
from kernelforge.workers.base import EvaluationReport, Trouble

_PAGE = 500
"""Jobs that are held in memory at a time; there may be very many."""


class EndedJob(NamedTuple):
    """What a reward can be computed from again."""

    id: str
    task: str
    """``suite/name``."""
    policy: str
    reward: float | None
    """As it was answered; None for trouble."""
    source: str | None
    evaluation: Evaluation


def completed_jobs(folder: Path, run_id: str | None = None) -> Iterator[EndedJob]:
    """Jobs that an evaluation answered, in the order of submission; those of one run if it is named.

    Raises:
        StoreError: ``server.db`` cannot be read.
        UsageError: there is none, or it holds no job of that run.
    """
    if not (folder / DATABASE_NAME).is_file():
        raise UsageError(
            f"no reward server has kept jobs in {folder}: start one with 'kernelforge serve', or name another folder "
            "with --results"
        )
    database = Database(folder / DATABASE_NAME, SERVER, create=False, read_only=True)
    try:
        rows = database.tuples("SELECT DISTINCT run FROM jobs ORDER BY run")
        with readable(database.path, "names of runs"):
            known = [as_text(run) for (run,) in rows]
        if run_id is not None and run_id not in known:
            raise UsageError(f"{database.path} has no job of run '{run_id}'; it has: {', '.join(known) or 'none'}")
        after = -1
        while True:
            rows = database.tuples(
                "SELECT jobs.seq, jobs.id, jobs.task, jobs.policy, jobs.result, works.source, works.evaluation "
                "FROM jobs JOIN works ON works.id = jobs.work "
                "WHERE jobs.seq > ? AND (? IS NULL OR jobs.run = ?) "
                "AND json_extract(jobs.result, '$.verdict') IS NOT NULL AND works.evaluation IS NOT NULL "
                "ORDER BY jobs.seq LIMIT ?",
                (after, run_id, run_id, _PAGE),
            )
            for _, name, task, policy, result, source, evaluation in rows:
                with readable(database.path, f"job {name}"):
                    found = RewardResult.model_validate_json(result)
                    made = Evaluation.model_validate_json(evaluation)
                    job = EndedJob(as_text(name), as_text(task), as_text(policy), found.reward, source, made)
                yield job
            if len(rows) < _PAGE:
                return
            after = rows[-1][0]
    finally:
        database.close()


_LOG = logging.getLogger(__name__)

_AT_A_TIME = 200
"""Jobs that are ended in one step."""
_AGAIN_AFTER_S = 1.0
"""Between tries to write what must not be lost."""

End = tuple[ActiveJob, JobStatus, RewardResult]


class JobCompletion:
    """Ends jobs and works; what the scheduler reports to."""

    scheduler: Scheduler

    def __init__(
        self,
        book: ActiveJobs,
        journal: JobStore,
        archive: CompletedJobs,
        cache: EvaluationCache,
        watchers: JobWatchers,
        counters: Counter[str],
    ) -> None:
        self._book = book
        self._journal = journal
        self._archive = archive
        self._cache = cache
        self._watchers = watchers
        self._counters = counters
        self._writes: set[asyncio.Task[list[ActiveJob]]] = set()
        self._closed = False

    def end(
        self, ends: Sequence[End], work_end: WorkEnd | None = None, *, forget_keys: bool = False
    ) -> Awaitable[list[ActiveJob]]:
        """End jobs, unless another end of theirs is on its way. What comes back can be awaited: the jobs that ended
        by this, once that is committed.

        A work that nobody waits for after that is dropped, and what worked on it is freed at once.
        """
        now = utc_seconds()
        batch = Batch()
        shown: list[tuple[ActiveJob, Job]] = []
        works: dict[int, SharedEvaluation] = {}
        if self._closed:  # what is open when the gateway closes is taken up by the next
            ends, work_end = (), None
        for job, status, result in ends:
            if job.ending:
                continue
            job.ending = True
            end = job.ended(status, result, now)
            shown.append((job, end))
            batch.ended_jobs.append(
                JobEnd(job.id, status.value, end.started_at, now, end.tries, None, result.model_dump_json())
            )
            batch.ended_of_runs.append((job.run, 1))
            if forget_keys and job.key is not None:
                job.forgotten = True
                batch.forgotten_keys.append((job.caller, job.key, job.id))
            job.work.jobs.pop(job.id, None)
            works[job.work.id] = job.work
        if work_end is not None:
            batch.ended_works.append(work_end)
        for work in works.values():
            if not work.jobs:
                if work.id in self._book.works and (work_end is None or work_end.id != work.id):
                    batch.ended_works.append(WorkEnd(work.id, "dropped", now, None, None, None))
                self._book.close(work)
            self.scheduler.update(work)
        write = asyncio.create_task(self._write(batch, shown))
        for job, _ in shown:
            job.end = write
        self._track(write)
        return asyncio.shield(write)

    async def end_all(
        self, jobs: Sequence[ActiveJob], status: JobStatus, code: FaultCode, message: str, *, retryable: bool = False
    ) -> list[ActiveJob]:
        """End many jobs alike, some at a time: others want the event loop too."""
        ended: list[ActiveJob] = []
        for start in range(0, len(jobs), _AT_A_TIME):
            part = jobs[start : start + _AT_A_TIME]
            ended += await self.end(
                [(job, status, failed(code, message, policy=job.policy, retryable=retryable)) for job in part]
            )
        return ended

    def expire(self, jobs: Sequence[ActiveJob]) -> None:
        """End jobs whose deadline has passed."""
        self._counters["expired"] += len(jobs)
        self._track(asyncio.create_task(self.end_all(jobs, JobStatus.EXPIRED, "deadline", "its deadline passed")))

    def _track(self, write: asyncio.Task[list[ActiveJob]]) -> None:
        self._writes.add(write)
        write.add_done_callback(self._writes.discard)

    def keep(self, batch: Batch) -> None:
        """Write something that nobody waits for."""
        self._track(asyncio.create_task(self._write(batch, [])))

    def forget(self, jobs: Sequence[ActiveJob]) -> None:
        """These jobs were not accepted after all."""
        for job in jobs:
            job.ending = True
            self._book.remove(job)
            job.work.jobs.pop(job.id, None)
            if not job.work.jobs:
                self._book.close(job.work)
            self.scheduler.update(job.work)

    async def settled(self) -> None:
        """Return when every end that is on its way is committed."""
        while self._writes:
            await asyncio.wait(self._writes)

    async def close(self) -> None:
        """Give what is on its way to the journal a moment; what cannot be written stays open for the next start."""
        self._closed = True
        if self._writes:
            await asyncio.wait(self._writes, timeout=5 * _AGAIN_AFTER_S)
        for write in self._writes:
            write.cancel()
        await asyncio.gather(*self._writes, return_exceptions=True)

    def work_moved(self, work: SharedEvaluation, phase: Phase) -> None:
        if phase == "queued" and work.deaths:
            row = WorkProgress(work.id, work.key, work.profile, work.tries, work.deaths, work.started_at)
            self._journal.note(Batch(progress=[row]))
        if phase == "preparing" or (phase == "queued" and work.tries):
            for job in work.jobs.values():
                if self._watchers.followed(job.id):
                    self._watchers.changed(job.shown())

    def work_reported(self, work: SharedEvaluation, report: EvaluationReport) -> None:
        evaluation, trouble = report.evaluation, report.trouble
        if evaluation is not None and trouble is None:
            trouble = _impossible(work, evaluation)
        if evaluation is None or trouble is not None:
            trouble = trouble or Trouble(code="internal", message="the engine reported nothing", retryable=False)
            self._fail(work, trouble)
            return
        self._counters["evaluated"] += 1
        self._counters["failed_at_hidden"] += evaluation.failed_at_hidden
        now = utc_seconds()
        stored = Stored(work.id, evaluation, report.profile, work.profile, work.candidate.source, now)
        self._cache.put(work.key, stored)
        self._book.close(work)
        profile = None if report.profile is None else report.profile.model_dump_json()
        end = WorkEnd(work.id, "done", now, evaluation.model_dump_json(), profile, None)
        self.end(
            [(job, JobStatus.FINISHED, score_with(stored, job.policy).result) for job in list(work.jobs.values())], end
        )

    def work_died(self, work: SharedEvaluation, message: str) -> None:
        self._counters["given_up"] += 1
        self._book.close(work)
        text = Trouble(code="internal", message=message, retryable=True).model_dump_json()
        end = WorkEnd(work.id, "failed", utc_seconds(), None, None, text)
        self.end(
            [
                (job, JobStatus.FINISHED, failed("worker_died", message, policy=job.policy, retryable=True))
                for job in list(work.jobs.values())
            ],
            end,
        )

    def _fail(self, work: SharedEvaluation, trouble: Trouble) -> None:
        self._counters["troubled"] += 1
        self._book.close(work)
        end = WorkEnd(work.id, "failed", utc_seconds(), None, None, trouble.model_dump_json())
        self.end(
            [(job, JobStatus.FINISHED, troubled(trouble, policy=job.policy)) for job in list(work.jobs.values())], end
        )

    async def _write(self, batch: Batch, ends: Sequence[tuple[ActiveJob, Job]]) -> list[ActiveJob]:
        while batch:
            try:
                await asyncio.shield(self._journal.commit(batch))
                break
            except StoreError as error:
                _LOG.error("%d jobs have ended and cannot be written down; tried again: %s", len(ends), error)
                await asyncio.sleep(_AGAIN_AFTER_S)
        for job, shown in ends:
            self._book.remove(job)
            self._book.run(job.run).ended += 1
            self._archive.put(shown)
            self._watchers.ended(shown)
        return [job for job, _ in ends]


def _impossible(work: SharedEvaluation, evaluation: Evaluation) -> Trouble | None:
    """Trouble, if an evaluation is not of this work, or is none: it must not become anybody's score."""
    if evaluation.verdict is Verdict.INFRA:
        return Trouble(code="unsupported", message=evaluation.reason, retryable=False)
    if evaluation.candidate != work.candidate_hash or evaluation.task != work.registered.digest:
        message = f"the engine answered for candidate {evaluation.candidate} where {work.candidate_hash} was asked for"
        return Trouble(code="internal", message=message, retryable=True)
    if evaluation.key != work.key:
        made = evaluation.fingerprint
        message = (
            f"it was evaluated on {made.device} ({made.gpu or made.arch}, {made.toolchain}), not on what was asked"
        )
        return Trouble(code="internal", message=message, retryable=True)
    return None
