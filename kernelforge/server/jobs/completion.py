"""Job completion: exactly once, one transaction with its evaluation; clients are notified after the commit."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Sequence
from typing import NamedTuple

from kernelforge.client.models import Fault, FaultCode, Job, JobStatus, RewardResult
from kernelforge.errors import StoreError
from kernelforge.evaluation.stages.programs import may_be_shared
from kernelforge.records import Evaluation, Verdict
from kernelforge.server.base import utc_seconds
from kernelforge.server.jobs.job_store import Batch, JobEnd, TaskEnd, TaskProgress
from kernelforge.server.jobs.results import Stored, failed
from kernelforge.server.jobs.state import ActiveJob, EvaluationTask, Phase, ServiceState, has_result
from kernelforge.workers.base import EvaluationReport

_LOG = logging.getLogger(__name__)

_RETRY_S = 1.0
"""Wait before a failed write of job ends is repeated."""

End = tuple[ActiveJob, JobStatus, RewardResult]


class Completed(NamedTuple):
    """Jobs whose end is being committed."""

    tasks: list[EvaluationTask]
    """Tasks whose jobs changed: the caller passes them to :meth:`Scheduler.update`, which drops those without jobs."""
    written: Awaitable[list[ActiveJob]]
    """The jobs that ended by this call, once the commit is done."""


class JobCompletion:
    """Ends jobs and evaluation tasks."""

    def __init__(self, state: ServiceState) -> None:
        self._state = state
        self._writes: set[asyncio.Task[list[ActiveJob]]] = set()
        self._closed = False

    def complete(
        self,
        ends: Sequence[End],
        task_end: TaskEnd | None = None,
        *,
        forget_keys: bool = False,
        rows: Batch | None = None,
    ) -> Completed:
        """End jobs, except those that are ending already. A task without remaining jobs is closed as dropped.

        Args:
            rows: further rows of the same transaction.
        """
        now = utc_seconds()
        batch = rows or Batch()
        ended: list[tuple[ActiveJob, Job]] = []
        tasks: dict[int, EvaluationTask] = {}
        if self._closed:  # jobs that are open now are restored by the next start
            ends, task_end, batch = (), None, Batch()
        for job, status, result in ends:
            if job.ending:
                continue
            job.ending = True
            end = job.ended(status, result, now)
            ended.append((job, end))
            batch.ended_jobs.append(
                JobEnd(job.id, status.value, end.started_at, now, end.tries, job.marked(result).model_dump_json())
            )
            batch.ended_of_runs.append((end.run_id, has_result(end)))
            if forget_keys and job.key is not None:
                job.forgotten = True
                batch.forgotten_keys.append((job.caller, job.key, job.id))
            job.evaluation_task.jobs.pop(job.id, None)
            tasks[job.evaluation_task.id] = job.evaluation_task
        if task_end is not None:
            batch.ended_tasks.append(task_end)
        for task in tasks.values():
            if not task.jobs:
                if task.id in self._state.active.tasks and (task_end is None or task_end.id != task.id):
                    batch.ended_tasks.append(TaskEnd(task.id, "dropped", now))
                self._state.active.close(task)
        write = asyncio.create_task(self._write(batch, ended))
        for job, _ in ended:
            job.end = write
        self.track(write)
        return Completed(list(tasks.values()), asyncio.shield(write))

    def track(self, write: asyncio.Task[list[ActiveJob]]) -> None:
        """Have :meth:`settled` and :meth:`close` wait for a task that ends jobs."""
        self._writes.add(write)
        write.add_done_callback(self._writes.discard)

    def write(self, batch: Batch) -> None:
        """Commit rows in the background."""
        self.track(asyncio.create_task(self._write(batch, [])))

    def discard(self, jobs: Sequence[ActiveJob]) -> list[EvaluationTask]:
        """Forget jobs whose rows could not be written. Returns their tasks, for :meth:`Scheduler.update`."""
        for job in jobs:
            job.ending = True
            self._state.active.remove(job)
            job.evaluation_task.jobs.pop(job.id, None)
            if not job.evaluation_task.jobs:
                self._state.active.close(job.evaluation_task)
        return [job.evaluation_task for job in jobs]

    async def settled(self) -> None:
        """Return when every end in progress is committed."""
        while self._writes:
            await asyncio.wait(self._writes)

    async def close(self) -> None:
        """Wait a few seconds for commits in progress; jobs that cannot be written stay open for the next start."""
        self._closed = True
        if self._writes:
            await asyncio.wait(self._writes, timeout=5 * _RETRY_S)
        for write in self._writes:
            write.cancel()
        await asyncio.gather(*self._writes, return_exceptions=True)

    def task_moved(self, task: EvaluationTask, phase: Phase) -> None:
        """Record a task's new phase, and notify the watchers of its jobs."""
        if phase == "queued" and task.deaths:
            row = TaskProgress(task.id, task.key, task.profile, task.tries, task.deaths, task.started_at)
            self._state.store.note(Batch(progress=[row]))
        if phase == "preparing" or (phase == "queued" and task.tries):
            watchers = self._state.watchers
            for job in task.jobs.values():
                if watchers.followed(job.id):
                    watchers.changed(job.snapshot())

    def task_reported(self, task: EvaluationTask, report: EvaluationReport) -> None:
        """End a task with its evaluation, or with an infrastructure failure that is not retried."""
        evaluation, failure = report.evaluation, report.trouble
        if evaluation is not None and failure is None:
            failure = _mismatch(task, evaluation)
        if evaluation is None or failure is not None:
            failure = failure or Fault(code="internal", message="the engine reported nothing")
            self._state.counters["troubled"] += 1
            self._fail(task, failure, failure_code=failure.code)
            return
        self._state.counters["evaluated"] += 1
        self._state.counters["failed_at_hidden"] += evaluation.failed_at_hidden
        stored = Stored(
            evaluation,
            report.profile,
            task.candidate.source,
            utc_seconds(),
            task=task.id,
            profiled=task.profile,
            program=task.program if may_be_shared(evaluation) else None,
        )
        self._evaluated(task, stored)

    def answer_shared(self, task: EvaluationTask) -> bool:
        """End a prepared task by the evaluation of an equal candidate; False if there is none that may answer."""
        key, age = task.shared_key, task.max_age_s
        if key is None or age is None:
            return False
        stored = self._state.cache.shared(key)
        if stored is None or not stored.answers(profile=task.profile, max_age_s=age, now=utc_seconds()):
            return False
        answer = stored.shared_with(task.candidate_hash, task.build, task.prepared, task.program)
        if answer is None:
            return False
        self._state.counters["shared"] += 1
        source, profiled = task.candidate.source, stored.profiled
        self._evaluated(task, Stored(*answer, source, stored.finished_at, task=task.id, profiled=profiled))
        return True

    def _evaluated(self, task: EvaluationTask, stored: Stored) -> None:
        """End a task, and its jobs, with an evaluation."""
        shared_key = None if stored.program is None else task.shared_key
        self._state.cache.put(task.key, stored, shared_key)
        self._state.active.close(task)
        end = TaskEnd(
            task.id,
            "done",
            stored.finished_at,
            stored.evaluation.model_dump_json(),
            None if stored.profile is None else stored.profile.model_dump_json(),
            shared_key=shared_key,
            program=None if stored.program is None else stored.program.model_dump_json(),
        )
        jobs = [job for job in task.jobs.values() if not job.ending]
        rows = Batch()
        ends: list[End] = []
        for job in jobs:
            result = stored.scored_by(job.policy, profile=job.profile).result
            result = self._state.screened(job.caller, job.accepted.run_id, stored, result, rows)
            ends.append((job, JobStatus.FINISHED, result))
        self.complete(ends, end, rows=rows)

    def task_lost(self, task: EvaluationTask, message: str) -> None:
        """End a task that has cost too many workers."""
        self._state.counters["given_up"] += 1
        self._fail(task, Fault(code="internal", message=message, retryable=True), failure_code="worker_died")

    def _fail(self, task: EvaluationTask, failure: Fault, *, failure_code: FaultCode) -> None:
        self._state.active.close(task)
        end = TaskEnd(task.id, "failed", utc_seconds(), trouble=failure.model_dump_json())
        ends: list[End] = []
        for job in task.jobs.values():
            result = failed(failure_code, failure.message, policy=job.policy, retryable=failure.retryable)
            ends.append((job, JobStatus.FINISHED, result))
        self.complete(ends, end)

    async def _write(self, batch: Batch, ended: Sequence[tuple[ActiveJob, Job]]) -> list[ActiveJob]:
        state = self._state
        while batch:
            try:
                await asyncio.shield(state.store.commit(batch))
                break
            except StoreError as error:
                _LOG.error("the ends of %d jobs could not be written; trying again: %s", len(ended), error)
                await asyncio.sleep(_RETRY_S)
        for active, job in ended:
            state.active.remove(active)
            run = state.active.run(job.run_id)
            run.ended += 1
            run.with_result += has_result(job)
            state.completed.put(job)
            state.watchers.ended(job)
        return [active for active, _ in ended]


def _mismatch(task: EvaluationTask, evaluation: Evaluation) -> Fault | None:
    """A fault if an evaluation is infrastructural or belongs to another task: it must not become a reward."""
    if evaluation.verdict is Verdict.INFRA:
        return Fault(code="unsupported", message=evaluation.reason)
    if evaluation.candidate != task.candidate_hash or evaluation.task != task.registered.digest:
        message = f"the engine answered for candidate {evaluation.candidate}; requested was {task.candidate_hash}"
        return Fault(code="internal", message=message, retryable=True)
    if evaluation.key != task.key:
        made = evaluation.fingerprint
        message = f"the evaluation ran on {made.device} ({made.gpu or made.arch}, {made.toolchain}), not as requested"
        return Fault(code="internal", message=message, retryable=True)
    return None
