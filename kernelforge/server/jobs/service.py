"""The job service: durable jobs, shared evaluations, fair shares, exactly one end per job.

It is independent of protocols: ``http/`` and ``protocols/`` put it on the network. All of it runs on one event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Generic, Literal, TypeVar

from kernelforge.agents.base import TaskContext
from kernelforge.client.models import (
    FaultCode,
    GroupAnswer,
    GroupRow,
    InputTestsAnswer,
    InputTestsRequest,
    Job,
    JobRequest,
    JobStatus,
    RunSettings,
    RunStatus,
    ServerStatus,
    Suspect,
    WorkerRow,
)
from kernelforge.errors import KernelForgeError, StoreError, TaskError
from kernelforge.hardware.specs import spec_by_key
from kernelforge.records import Attempt, Candidate, CheckedSizes, Fingerprint, Task
from kernelforge.rewards.advantages import smoothed
from kernelforge.server.base import Caller, LRUCache, RequestRejected
from kernelforge.server.jobs.completion import End, JobCompletion
from kernelforge.server.jobs.conversion import ReplyConverter
from kernelforge.server.jobs.exemplars import ExemplarKey, Exemplars, exemplar_of
from kernelforge.server.jobs.job_store import Batch, JobStore, RunRow
from kernelforge.server.jobs.requests import Registry, RequestParser, text_hash
from kernelforge.server.jobs.results import (
    READING,
    CompletedJobs,
    Evaluated,
    EvaluationCache,
    Stored,
    failed,
    tests_answer,
    with_own,
)
from kernelforge.server.jobs.retention import Retention
from kernelforge.server.jobs.scheduler import Scheduler
from kernelforge.server.jobs.state import (
    ActiveJob,
    ActiveJobs,
    Deadlines,
    JobServiceSettings,
    JobWatchers,
    RunState,
    ServiceState,
    is_older,
    restore,
)
from kernelforge.server.jobs.submission import Submission, not_stored, require_sizes, unknown_job
from kernelforge.server.jobs.suspects import RewardChecks
from kernelforge.store.live_runs import run_lock
from kernelforge.tasks.suites import Catalogue
from kernelforge.version import __version__
from kernelforge.workers.base import Engine, Health, ScoredTests, WorkerDied

_LOG = logging.getLogger(__name__)

_CACHED = 512
_TRIES = 3
_AT_A_TIME = 200
"""Jobs that are ended in one step of the event loop."""


Answer = TypeVar("Answer")


class EngineAnswers(Generic[Answer]):
    """Answers of workers about tasks, cached by key. Concurrent callers of a key share one request.

    Args:
        at_once: most requests at a time; None for any number.
    """

    def __init__(self, at_once: int | None = None) -> None:
        self._answers: LRUCache[str, Answer] = LRUCache(_CACHED)
        self._requests: dict[str, asyncio.Task[Answer]] = {}
        self._turns = None if at_once is None else asyncio.Semaphore(at_once)

    async def get(self, key: str, task: Task, ask: Callable[[], Awaitable[Answer]]) -> Answer:
        """The answer of a key, by ``ask`` where it is not cached.

        Raises:
            RequestRejected: 422: the task cannot be evaluated here; 503: workers died of it.
        """
        cached = self._answers.get(key)
        if cached is not None:
            return cached
        request = self._requests.get(key)
        if request is None:
            request = self._requests[key] = asyncio.create_task(self._request(key, task, ask))
            request.add_done_callback(lambda _: self._requests.pop(key, None))
        return await asyncio.shield(request)

    async def close(self) -> None:
        for request in list(self._requests.values()):
            request.cancel()
        await asyncio.gather(*self._requests.values(), return_exceptions=True)

    async def _request(self, key: str, task: Task, ask: Callable[[], Awaitable[Answer]]) -> Answer:
        async with self._turns or contextlib.nullcontext():
            for _ in range(_TRIES):
                try:
                    answer = await ask()
                except TaskError as error:
                    raise RequestRejected(422, "task_unusable", str(error)) from error
                except WorkerDied:
                    continue
                except KernelForgeError as error:
                    raise RequestRejected(
                        503, "engine", f"the engine cannot answer about this task now: {error}"
                    ) from error
                self._answers.put(key, answer)
                return answer
        raise RequestRejected(
            503, "worker_died", f"{_TRIES} workers died of {task.suite}/{task.name}; see the log", retry_after_s=30.0
        )


class JobService:
    """Jobs over an engine, with their database in a results folder.

    Args:
        engine: started and closed by the service.
        catalogue: the tasks that are offered.
        folder: the results folder; only one service may use it at a time.
        allow_unconfined: convert completions with resource limits alone where no jail works.
        shares: of callers whose jobs an earlier service left queued; those that submit come with theirs.
    """

    def __init__(
        self,
        engine: Engine,
        catalogue: Catalogue,
        folder: Path,
        settings: JobServiceSettings | None = None,
        shares: Mapping[str, float] | None = None,
        allow_unconfined: bool = False,
    ) -> None:
        self.catalogue = catalogue
        self.settings = settings or JobServiceSettings()
        self.registry = Registry(catalogue)
        self.counters: Counter[str] = Counter()
        """Events since the start: ``submitted cached joined evaluated retried worker_deaths ...``."""
        self._engine = engine
        self._folder = folder
        self._shares = dict(shares or {})
        self._contexts = EngineAnswers[TaskContext]()
        self._scored_tests: EngineAnswers[ScoredTests] | None = None
        self._parser = RequestParser(
            self.registry,
            self.settings.policy,
            self.settings.readings_in_memory,
            ReplyConverter(allow_unconfined=allow_unconfined),
            self.task_context,
            lambda: engine.modelnew,
        )
        self.default_policy = self._parser.default_policy
        """Name of the reward policy of requests that name none."""
        self._phase: Literal["starting", "ready", "draining"] = "starting"
        self._resources = contextlib.ExitStack()
        self._active = ActiveJobs()
        self._watchers = JobWatchers()
        self._arriving: Counter[tuple[str, str | None]] = Counter()
        """Requests without a job yet, by caller and idempotency key: their job may be one that another request is
        about to abandon."""
        self._settings_lock = asyncio.Lock()
        """Changes of run settings are applied one after the other."""

    async def start(self) -> None:
        """Lock the folder, start the engine, and queue the jobs that were open when the last service ended.

        Raises:
            StoreError: another server uses the folder, or ``server.db`` cannot be used.
            KernelForgeError: the engine does not start.
        """
        try:
            self._resources.enter_context(run_lock(self._folder, "server"))
        except StoreError as error:
            raise StoreError(f"another server uses {self._folder}: {error}") from error
        try:
            store = JobStore(self._folder)
            self._resources.callback(store.close)
            await self._engine.start()
            corrections = self._assemble(store)
        except BaseException:
            try:
                await self._engine.close()
            finally:
                self._resources.close()
            raise
        await self._queue_restored(corrections)
        self._phase = "ready"
        self._scheduler.start()
        self._retention.start()

    def _assemble(self, store: JobStore) -> Batch:
        """Make the parts of the service and restore its jobs. Returns corrections of the database."""
        settings, active = self.settings, self._active
        completed = CompletedJobs(store, settings.jobs_in_memory)
        cache = EvaluationCache(store, settings.evaluations_in_memory)
        self.checks = RewardChecks(store)
        state = self._state = ServiceState(
            settings, store, active, self._watchers, self.counters, completed, cache, self.checks
        )
        self._exemplars = Exemplars(store, self._engine.fingerprint)
        self._resources.callback(self._exemplars.close)
        self._completion = JobCompletion(state)
        self._scheduler = Scheduler(
            self._engine, self._completion, self.counters, worker_limit_s=settings.worker_limit_s
        )
        self._deadlines = Deadlines(self._expire, active.jobs.__contains__)
        restored = restore(store, self.registry, self._engine, active)
        self._submission = Submission(
            state,
            self._parser,
            self._engine,
            self._scheduler,
            self._completion,
            self._deadlines,
            restored,
            self._require_ready,
        )
        # Half of the workers of the start; the others are for candidates.
        self._scored_tests = EngineAnswers(at_once=max(1, self._engine.preparing // 2))
        self._retention = Retention(state)
        self._watchers.on_ended(self._follow_stage)
        for run, run_state in active.runs.items():
            self._scheduler.queue.set_weight(run, run_state.weight)
        for caller, share in self._shares.items():
            self._scheduler.queue.set_share(caller, share)
        return restored.batch

    async def _queue_restored(self, corrections: Batch) -> None:
        if corrections:
            self._completion.write(corrections)
        for run in list(self._active.runs.values()):
            await self._end_stale(run)
        for task in list(self._active.tasks.values()):
            self._scheduler.add(task)
        for job in list(self._active.jobs.values()):
            if job.deadline_at is not None:
                self._deadlines.add(job.deadline_at, job.id)
        self.counters["restored"] += len(self._active.jobs)

    async def drain(self) -> None:
        """Accept no more jobs, and return when none runs. Queued jobs stay for the next start."""
        self._phase = "draining"
        await self._scheduler.drain()
        await self._completion.settled()

    async def close(self) -> None:
        """Stop running jobs, which the next start queues again; close the engine; release the folder."""
        started, self._phase = self._phase != "starting", "draining"
        if started:
            self._deadlines.stop()
            await self._retention.stop()
            await self._scheduler.stop()
            await self._completion.close()
        try:
            await self._contexts.close()
            if self._scored_tests is not None:
                await self._scored_tests.close()
            await self._engine.close()
        finally:
            self._parser.close()
            await asyncio.to_thread(self._resources.close)

    # -- status -------------------------------------------------------------------------------------------------------

    def status(self) -> ServerStatus:
        started = self._phase != "starting"
        running = sum(len(task.jobs) for task in self._active.tasks.values() if task.phase != "queued")
        return ServerStatus(
            state=self._phase,
            version=__version__,
            engine=self._engine.name,
            devices=sorted({slot.device for slot in self._engine.slots()}) if started else [],
            workers=self._engine.health().workers if started else 0,
            queued=max(len(self._active.jobs) - running, 0) if started else 0,
            running=running,
        )

    def health(self) -> Health:
        """State of the engine for operators."""
        return self._engine.health()

    def workers(self) -> list[WorkerRow]:
        """Slots and compile workers."""
        return [
            WorkerRow(
                name=state.name,
                kind="compiler" if state.compiles else "device",
                device=state.device,
                state=state.state,
                why=state.why,
            )
            for state in self._engine.worker_states()
        ]

    def drain_workers(self, name: str, *, resume: bool = False) -> list[WorkerRow]:
        """Take workers of matching names out once they have finished, or bring them back.

        Raises:
            RequestRejected: 404: there is none of that name.
        """
        count = self._engine.resume(name) if resume else self._engine.drain(name)
        if not count:
            names = ", ".join(state.name for state in self._engine.worker_states())
            raise RequestRejected(404, "no_worker", f"no worker is called {name!r}; there are: {names or 'none'}")
        _LOG.info("workers %s: %s", name, "resumed" if resume else "drained")
        return self.workers()

    def on_ended(self, listener: Callable[[Job], None]) -> None:
        """Call ``listener`` with every job once it has ended. The listener must neither block nor raise."""
        self._watchers.on_ended(listener)

    def find_task(self, reference: str | None, reference_code: str | None = None) -> tuple[str, Task]:
        """A registered task as ``suite/name`` with its record, by name, digest, or the text of its file.

        Raises:
            RequestRejected: 422: it is not registered, or the code belongs to another task. Nothing was executed.
        """
        registered = self.registry.find(reference, reference_code)
        return registered.name, registered.task

    async def task_context(self, task: Task) -> TaskContext:
        """The context of a task for agents, cached.

        Raises:
            RequestRejected: 422: the task cannot be evaluated here; 503: workers died of it.
        """
        return await self._contexts.get(task.digest, task, lambda: self._describe(task))

    async def _describe(self, task: Task) -> TaskContext:
        data = await self._engine.task_context(task)
        return TaskContext(
            task=task,
            facts=data.facts,
            shared=data.shared,
            graph=data.graph,
            device=data.device,
            spec=spec_by_key(data.spec),
        )

    async def score_tests(self, request: InputTestsRequest, caller: Caller) -> InputTestsAnswer:
        """Score a Tester's reply. Equal requests share an answer, which is kept in memory.

        Raises:
            RequestRejected: 422: unknown task, or one that cannot be evaluated; 429: too many jobs of the caller in a
                minute; 503: no job is accepted, or workers died of it.
        """
        self._require_ready()
        registered = self.registry.find(request.task)
        self._submission.count(caller)
        key = f"{registered.digest}/{request.most}/{text_hash(request.completion)}"
        assert self._scored_tests is not None, "a service that is ready has all of its parts"
        scored = await self._scored_tests.get(
            key, registered.task, lambda: self._engine.score_tests(registered.task, request.completion, request.most)
        )
        self.counters["tests_scored"] += 1
        return tests_answer(registered.name, scored)

    async def candidate(self, task: str, completion: str) -> Candidate | None:
        """The candidate of a completion, also one that has to be converted; None if it holds none.

        Raises:
            RequestRejected: 422: unknown task; 503: it cannot be converted now.
        """
        return await self._parser.candidate(JobRequest(task=task, completion=completion), self._engine.fingerprint)

    async def exemplars(self, caller: str, run_id: str, task: Task) -> list[Attempt]:
        """The right candidates of a caller's jobs in a run, oldest first; the latest failed ones where none is right.

        Raises:
            StoreError: the database cannot be used.
        """
        settings = self._active.runs.get(run_id, RunState()).methods
        return await self._exemplars.of(ExemplarKey(caller, run_id, task.digest), settings.exemplars)

    # -- submitting ---------------------------------------------------------------------------------------------------

    async def submit(
        self, requests: Sequence[JobRequest], caller: Caller, keys: Sequence[str | None] | None = None
    ) -> list[Job | RequestRejected]:
        """Accept jobs independently of each other. A returned job survives a kill; one answered from the cache has
        ended.

        Args:
            keys: idempotency keys; a key that this caller has used before returns the earlier job, or 409 if the
                request differs.
        """
        owned_keys = [(caller.name, key) for key in keys or ()]
        self._arriving.update(owned_keys)
        try:
            jobs = await self._submission.submit(requests, caller, keys)
            for job in jobs:
                active = None if isinstance(job, RequestRejected) else self._active.jobs.get(job.id)
                if active is not None:
                    active.kept = True
            return jobs
        finally:
            for owned_key in owned_keys:
                self._arrived(owned_key)

    def _require_ready(self) -> None:
        if self._phase != "ready":
            raise RequestRejected(
                503, self._phase, f"the server is {self._phase}; send the request again soon", retry_after_s=5.0
            )

    async def score(
        self, request: JobRequest, caller: Caller, *, timeout_s: float, key: str | None = None, turn: bool = False
    ) -> Job:
        """Submit a job and wait for it. It is cancelled when the wait is cancelled, or expires when time runs out.

        Args:
            turn: whether it is a turn of a session.

        Raises:
            RequestRejected: it was not accepted.
        """
        owned_key = (caller.name, key)
        self._arriving[owned_key] += 1
        submission = asyncio.ensure_future(self._submission.submit([request], caller, [key], turns=turn))
        try:
            [job] = await asyncio.shield(submission)
        except asyncio.CancelledError:
            submission.add_done_callback(lambda done: self._withdraw(done, owned_key))
            raise
        except BaseException:
            self._arrived(owned_key)
            raise
        active = None if isinstance(job, RequestRejected) else self._active.jobs.get(job.id)
        if active is not None:
            active.holders += 1
        self._arrived(owned_key)
        if isinstance(job, RequestRejected):
            raise job
        if active is None:
            return self.job(job.id)
        try:
            ended = await self.wait([job.id], 1, timeout_s)
        except asyncio.CancelledError:
            active.holders -= 1
            self._abandon(active)
            raise
        active.holders -= 1
        if ended:
            return ended[0]
        message = f"it had not ended after the {timeout_s:g} s that its caller waited"
        self._complete([(active, JobStatus.EXPIRED, failed("deadline", message, policy=active.policy))])
        if active.end is not None:  # this end, or an earlier one that is being committed
            await asyncio.shield(active.end)
        return self.job(job.id)

    def _arrived(self, owned_key: tuple[str, str | None]) -> None:
        self._arriving[owned_key] -= 1
        if not self._arriving[owned_key]:
            del self._arriving[owned_key]

    def _withdraw(
        self, submission: asyncio.Future[list[Job | RequestRejected]], owned_key: tuple[str, str | None]
    ) -> None:
        self._arrived(owned_key)
        if submission.cancelled() or submission.exception() is not None:
            return
        for job in submission.result():
            active = None if isinstance(job, RequestRejected) else self._active.jobs.get(job.id)
            if active is not None:
                self._abandon(active)

    def _abandon(self, active: ActiveJob) -> None:
        """Cancel a job whose last open request was closed, and release its key: the same request, sent again, is
        evaluated."""
        arriving = active.key is not None and (active.caller, active.key) in self._arriving
        if not active.holders and not active.kept and not arriving:
            message = "its caller went away"
            self._complete(
                [(active, JobStatus.CANCELLED, failed("cancelled", message, policy=active.policy, retryable=True))],
                forget_keys=True,
            )

    # -- following ----------------------------------------------------------------------------------------------------

    def fingerprint_at(self, sizes: CheckedSizes | None, run_id: str) -> Fingerprint:
        """The fingerprint of a run's evaluations at some sizes; None: the run's own, else the server's.

        Raises:
            RequestRejected: 422: the sizes are not offered.
        """
        return self._submission.fingerprint_at(sizes, run_id)

    def job(self, job_id: str) -> Job:
        """
        Raises:
            RequestRejected: 404: it is unknown, or no longer kept.
        """
        active = self._active.jobs.get(job_id)
        if active is not None and not self._submission.is_pending(job_id):
            return active.snapshot()
        job = self._state.completed.get(job_id) if active is None else None
        if job is None:
            raise unknown_job(job_id)
        return job

    def keyed(self, key: str, caller: Caller) -> Job | None:
        """The job of an idempotency key of this caller; None if there is none, or it is no longer kept."""
        record = self._state.completed.keyed(caller.name, key)
        if record is None:
            return None
        with contextlib.suppress(RequestRejected):
            return self.job(record.job)
        return None

    def stored(self, job_id: str) -> Evaluated | None:
        """The evaluation of a job that was scored; None if nothing was evaluated."""
        result = self.job(job_id).result
        task = None if result is None else self._state.completed.task_of(job_id)
        return None if task is None or result is None else self._state.cache.of_task(task, result.evaluation)

    def evaluation(self, key: str) -> tuple[str, Evaluated, Sequence[str]]:
        """The newest evaluation of a key, the name of its task, and the notes of the last job with a ``ModelNew``.

        Raises:
            RequestRejected: 404: there is none, or it is no longer kept.
        """
        stored = self._state.cache.newest(key)
        task = None if stored is None else self.registry.of_digest(stored.evaluation.task)
        if stored is None or task is None:
            raise RequestRejected(404, "unknown_evaluation", f"there is no evaluation {key[:64]!r}; it may be too old")
        rows = self._state.store.read(
            "SELECT reading FROM jobs WHERE work = ? AND reading IS NOT NULL ORDER BY seq DESC LIMIT 1", (stored.task,)
        )
        return task.name, stored, READING.validate_json(rows[0][0]).notes if rows else ()

    async def wait(self, ids: Sequence[str], k: int | None, timeout_s: float) -> list[Job]:
        """Completed jobs in the order of their end, once there are ``k`` (None: all) of them or time is up.

        Raises:
            RequestRejected: 404: one of them is unknown.
        """
        names = list(dict.fromkeys(ids))
        expected = len(names) if k is None else min(k, len(names))
        loop = asyncio.get_running_loop()
        until = loop.time() + timeout_s
        with self._watchers.follow(names) as changes:
            now = [self.job(name) for name in names]
            ended = sorted((job for job in now if job.status.ended), key=lambda job: job.finished_at or 0.0)
            while len(ended) < expected:
                try:
                    async with asyncio.timeout_at(until):
                        job = await changes.get()
                except TimeoutError:
                    break
                if job.status.ended:
                    ended.append(job)
        return ended

    def group(self, run_id: str, group_id: str, size: int | None, caller: Caller) -> GroupAnswer:
        """The jobs of a group that the caller may act for, with smoothed rewards once it is complete.

        Args:
            size: how many jobs the group has; None: those that were submitted.

        Raises:
            RequestRejected: 404: there is none.
        """
        rows = self._state.store.read(
            "SELECT id, caller FROM jobs WHERE run = ? AND group_id = ? ORDER BY seq", (run_id, group_id)
        )
        jobs = [self.job(job_id) for job_id, owner in rows if caller.may_act_for(owner)]
        if not jobs:
            raise RequestRejected(404, "unknown_group", f"run {run_id} has no job of group {group_id!r} of yours")
        results = [job.result for job in jobs]
        rewards = [None if result is None else result.trained_reward for result in results]
        complete = all(job.status.ended for job in jobs) and len(jobs) >= (size or 1)
        smooth = smoothed(rewards) if complete else [None] * len(jobs)
        group = [
            GroupRow(id=job.id, status=job.status, policy_version=job.policy_version, reward=reward, smoothed=value)
            for job, reward, value in zip(jobs, rewards, smooth, strict=True)
        ]
        return GroupAnswer(run_id=run_id, group_id=group_id, complete=complete, jobs=group)

    async def watch(self, ids: Sequence[str]) -> AsyncIterator[Job]:
        """Each job now and whenever its status changes, until all have ended."""
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

    async def cancel(self, ids: Sequence[str], caller: Caller) -> list[str]:
        """End jobs, and free workers without other jobs. Returns the jobs that had not ended.

        Raises:
            RequestRejected: 403: one of them is another caller's; none is ended then.
        """
        jobs = [self._active.jobs[name] for name in dict.fromkeys(ids) if name in self._active.jobs]
        for job in jobs:
            if not caller.may_act_for(job.caller):
                message = f"job {job.id} belongs to another token; the scope 'admin' cancels jobs of others"
                raise RequestRejected(403, "not_yours", message)
        return await self._cancel(jobs)

    async def cancel_run(self, run_id: str, older_than: int | None, caller: Caller) -> list[str]:
        """End the jobs of a run that the caller may end; those of older policy versions if ``older_than`` is given.
        Returns the jobs that had not ended."""
        state = self._active.runs.get(run_id)
        jobs = [] if state is None else [job for job in state.jobs.values() if caller.may_act_for(job.caller)]
        if older_than is not None:
            jobs = [job for job in jobs if is_older(job.accepted.policy_version, older_than)]
        return await self._cancel(jobs)

    async def _cancel(self, jobs: Sequence[ActiveJob]) -> list[str]:
        ended = await self._end_all(jobs, JobStatus.CANCELLED, "cancelled", "it was cancelled", retryable=True)
        return [job.id for job in ended]

    def _expire(self, due: list[str]) -> None:
        jobs = [self._active.jobs[name] for name in due if name in self._active.jobs]
        self.counters["expired"] += len(jobs)
        end = self._end_all(jobs, JobStatus.EXPIRED, "deadline", "its deadline passed")
        self._completion.track(asyncio.create_task(end))

    async def _end_all(
        self, jobs: Sequence[ActiveJob], status: JobStatus, code: FaultCode, message: str, *, retryable: bool = False
    ) -> list[ActiveJob]:
        """End many jobs for the same reason, in steps, so that the event loop can serve others in between."""
        ended: list[ActiveJob] = []
        for start in range(0, len(jobs), _AT_A_TIME):
            part = jobs[start : start + _AT_A_TIME]
            ended += await self._complete(
                [(job, status, failed(code, message, policy=job.policy, retryable=retryable)) for job in part]
            )
        return ended

    def _complete(self, ends: Sequence[End], *, forget_keys: bool = False) -> Awaitable[list[ActiveJob]]:
        """End jobs, and let the scheduler drop or move their tasks. Await the jobs that ended by this call."""
        completed = self._completion.complete(ends, forget_keys=forget_keys)
        for task in completed.tasks:
            self._scheduler.update(task)
        return completed.written

    # -- runs ---------------------------------------------------------------------------------------------------------

    @property
    def open_suspects(self) -> int:
        """Candidates whose reward is withheld until an operator decides."""
        return self.checks.waiting if self._phase != "starting" else 0

    def runs(self) -> list[RunStatus]:
        return [self._run_status(name) for name in sorted(self._active.runs)]

    def policy_version(self, run_id: str) -> int | None:
        """Version of the weights that the trainer of a run has now, if it said so."""
        state = self._active.runs.get(run_id)
        return None if state is None else state.policy_version

    async def set_run(self, run_id: str, settings: RunSettings, caller: Caller | None = None) -> RunStatus:
        """Change the settings that are given, and keep the others.

        Args:
            caller: who asks; None: the server itself. One without the scope ``admin`` sets runs of its own: those with
                jobs of its own alone. The run then takes no other's.

        Raises:
            RequestRejected: 403: the run is not the caller's own; 422: the sizes are not offered; 503: the settings
                could not be stored.
        """
        async with self._settings_lock:
            state = self._active.runs.get(run_id) or RunState()
            owner = state.owner
            if caller is not None and "admin" not in caller.scopes:
                await self._require_own(run_id, state, caller)
                owner = caller.name
            changes = settings.changes()
            require_sizes(changes.get("sizes"), self._engine.fingerprint, self.settings)
            training = state.methods.changed(changes).stored()
            columns = {name: value for name, value in changes.items() if name in RunRow._fields}
            row = state.settings(run_id)._replace(training=training, owner=owner, **columns)
            try:
                await asyncio.shield(self._state.store.commit(Batch(runs=[row])))
            except StoreError as error:
                raise not_stored(error) from error
            state = self._active.run(run_id)
            for name, value in row._asdict().items():
                if name != "run":
                    setattr(state, name, value)
            self._scheduler.queue.set_weight(run_id, row.weight)
        await self._end_stale(state)
        return self._run_status(run_id)

    async def _require_own(self, run_id: str, state: RunState, caller: Caller) -> None:
        state.require_owner(run_id, caller)
        if state.owner is not None:
            return
        if run_id == JobRequest.model_fields["run_id"].default:
            why = "is for all that name none"
        elif state.settings("") != RunState().settings(""):
            why = "was set by a token with the scope 'admin'"
        elif any(job.caller != caller.name for job in state.jobs.values()) or await asyncio.to_thread(
            self._has_jobs_of_others, run_id, caller.name
        ):
            why = "has jobs of other tokens"
        else:
            return
        message = f"run {run_id} {why}; choose another run_id, or use a token with the scope 'admin'"
        raise RequestRejected(403, "not_yours", message)

    def _has_jobs_of_others(self, run_id: str, caller: str) -> bool:
        try:
            with contextlib.closing(self._state.store.reader()) as reader:
                others = "SELECT 1 FROM jobs WHERE run = ? AND caller != ? LIMIT 1"
                return bool(reader.tuples(others, (run_id, caller)))
        except StoreError as error:
            raise not_stored(error) from error

    def _follow_stage(self, job: Job) -> None:
        """Count a job of the stage ``correctness``, and begin the next stage where enough are right."""
        result, state = job.result, self._active.runs.get(job.run_id)
        if result is None or state is None or result.training_stage != "correctness" or result.outcome != "scored":
            return
        methods = state.methods
        if methods.stage != "correctness":
            return
        if state.correct.maxlen != methods.advance_window:
            state.correct = deque(state.correct, methods.advance_window)
        state.correct.append(result.components.correct == 1.0)
        full = len(state.correct) == methods.advance_window
        if methods.advance_at is not None and full and fmean(state.correct) >= methods.advance_at:
            state.correct.clear()
            self._completion.track(asyncio.create_task(self._advance(job.run_id)))

    async def _advance(self, run_id: str) -> list[ActiveJob]:
        try:
            await self.set_run(run_id, RunSettings(stage="speed"))
            _LOG.info("run %s goes on to the stage 'speed'", run_id)
        except RequestRejected as refusal:  # the next full window tries again
            _LOG.error("run %s could not go on to the stage 'speed': %s", run_id, refusal)
        return []

    def suspects(self, run_id: str | None, caller: Caller) -> list[Suspect]:
        """Candidates whose reward is or was withheld, of jobs that the caller may act for, the latest first."""
        return [suspect for suspect in self.checks.suspects(run_id) if caller.may_act_for(suspect.caller)]

    async def decide(self, suspect_id: str, decision: Literal["release", "confirm"]) -> Suspect:
        """Decide about a suspect: give its jobs their rewards, or take it as a hack.

        Raises:
            RequestRejected: 404: there is no such suspect; 409: it is decided; 503: the decision cannot be stored.
            StoreError: the database cannot be read.
        """
        # As a whole, also for a caller that went away: a decision that is not stored has to be taken back.
        return await asyncio.shield(self._decide(suspect_id, decision))

    async def _decide(self, suspect_id: str, decision: Literal["release", "confirm"]) -> Suspect:
        async with self._settings_lock:
            suspects = self.checks.suspects(suspect=suspect_id)
            if not suspects:
                raise RequestRejected(404, "unknown_suspect", f"there is no suspect {suspect_id!r}")
            [suspect] = suspects
            if suspect.decision is not None:
                raise RequestRejected(409, "decided", f"suspect {suspect_id} has the decision {suspect.decision!r}")
            stored = self._state.cache.of_task(suspect.work, None)
            if stored is None:
                raise RequestRejected(503, "not_stored", f"the evaluation of suspect {suspect_id} cannot be read")
            self.checks.decide(suspect, decision, stored)
            try:
                if decision == "release":
                    await self._release(suspect, stored)
                else:
                    await asyncio.shield(self._state.store.commit(Batch(decisions=[(decision, suspect_id)])))
            except Exception as error:
                self.checks.undo(suspect, stored)
                if isinstance(error, StoreError):
                    raise not_stored(error) from error
                raise
        return suspect.model_copy(update={"decision": decision})

    async def _release(self, suspect: Suspect, stored: Stored) -> None:
        """Give the jobs of a suspect their rewards. Jobs that end from now on are judged by the decision already."""
        await self._state.store.written()  # jobs that were withheld just before it
        jobs = self._released(suspect, stored)
        results = [job.result for job in jobs if job.result is not None]
        key = ExemplarKey(suspect.caller, suspect.run_id, stored.evaluation.task)
        row = exemplar_of(key, suspect.work, stored.evaluation)
        batch = Batch(
            decisions=[("release", suspect.id)],
            changed_results=[(job.result.model_dump_json(), job.id) for job in jobs if job.result],
            exemplars=[] if row is None else [row],
        )
        await asyncio.shield(self._state.store.commit(batch))
        for job in jobs:
            self._state.completed.put(job)
        self.checks.released(suspect, stored, results)

    def _released(self, suspect: Suspect, stored: Stored) -> list[Job]:
        """The jobs of a suspect with their rewards."""
        rows = self._state.store.read(
            "SELECT id, profile FROM jobs WHERE work = ? AND caller = ? AND run = ? AND status = 'finished'",
            (suspect.work, suspect.caller, suspect.run_id),
        )
        jobs = []
        for job_id, profile in rows:
            job = self.job(job_id)
            result = job.result
            if result is not None and result.outcome == "withheld":
                scored = stored.scored_by(result.policy, profile=bool(profile)).result
                jobs.append(job.model_copy(update={"result": with_own(scored, result)}))
        return jobs

    async def _end_stale(self, state: RunState) -> None:
        oldest = state.min_policy_version
        stale = [job for job in state.jobs.values() if is_older(job.accepted.policy_version, oldest)]
        message = f"the run requires policy_version {oldest} or later"
        await self._end_all(stale, JobStatus.EXPIRED, "stale", message)

    def _run_status(self, name: str) -> RunStatus:
        state = self._active.runs[name]
        running = sum(job.evaluation_task.phase != "queued" for job in state.jobs.values())
        return RunStatus(
            run_id=name,
            weight=state.weight,
            min_policy_version=state.min_policy_version,
            policy_version=state.policy_version,
            max_staleness=state.max_staleness,
            batch_size=state.batch_size,
            exemplars=state.methods.exemplars,
            stage=state.methods.stage,
            jump_factor=state.methods.jump_factor,
            sizes=state.methods.sizes,
            owner=state.owner,
            advance_at=state.methods.advance_at,
            advance_window=state.methods.advance_window,
            share_correct=fmean(state.correct) if state.correct else None,
            trajectories=state.with_result + state.in_flight,
            capacity=state.capacity,
            lags=dict(sorted(state.lags.items())),
            refused=dict(state.refused),
            queued=len(state.jobs) - running,
            running=running,
            ended=state.ended,
        )
