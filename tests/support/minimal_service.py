"""A job service in memory for tests of the HTTP side: a job ends when a test says so, or at once."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

from kernelforge.agents.base import TaskContext
from kernelforge.client.models import (
    Components,
    Fault,
    GeneratorScore,
    GroupAnswer,
    InputTestsAnswer,
    InputTestsRequest,
    Job,
    JobRequest,
    JobStatus,
    RewardResult,
    RunSettings,
    RunStatus,
    ServerStatus,
    Suspect,
    WorkerRow,
)
from kernelforge.errors import UsageError
from kernelforge.records import CheckedSizes, Fingerprint, Task, TaskFacts
from kernelforge.rewards import DEFAULT_POLICY
from kernelforge.server.base import Caller, RequestRejected
from kernelforge.server.jobs.results import Evaluated
from kernelforge.tasks.suites import Catalogue
from kernelforge.workers.base import Health
from tests.agents.prompt_samples import BRIEF
from tests.support.factories import make_evaluation, make_fingerprint, make_profile

SLOW = "slow"
"""A completion with this text ends when the test says so."""
FULL = "full"
"""A completion that is this finds the queue full."""
BROKEN = "broken"
"""A completion that is this meets a bug."""


@cache
def _catalogue() -> Catalogue:
    return Catalogue(["core"])


@dataclass
class MinimalService:
    catalogue: Catalogue = field(default_factory=_catalogue)
    default_policy: str = DEFAULT_POLICY
    state: Any = "ready"
    jobs: dict[str, Job] = field(default_factory=dict)
    keys: dict[tuple[str, str], tuple[JobRequest, str]] = field(default_factory=dict)
    settings: dict[str, RunSettings] = field(default_factory=dict)
    ended: list[str] = field(default_factory=list)
    callers: list[Caller] = field(default_factory=list)
    listeners: list[Callable[[Job], None]] = field(default_factory=list)
    counters: Counter[str] = field(default_factory=Counter)
    watching: int = 0
    watched_jobs: list[Job] = field(default_factory=list)
    """Jobs that watchers received, in order."""

    def __post_init__(self) -> None:
        self._numbers = itertools.count(1)
        self.drained = False
        self._changed = asyncio.Condition()

    def status(self) -> ServerStatus:
        queued = sum(not job.status.ended for job in self.jobs.values())
        return ServerStatus(
            state=self.state,
            version="0",
            engine="local",
            devices=["emulated:h100"],
            workers=1,
            queued=queued,
            running=0,
        )

    def health(self) -> Health:
        return Health(workers=1, restarts=2, extra={"warm tasks": 3.0})

    def on_ended(self, listener: Callable[[Job], None]) -> None:
        self.listeners.append(listener)

    def keyed(self, key: str, caller: Caller) -> Job | None:
        existing = self.keys.get((caller.name, key))
        return None if existing is None else self.jobs[existing[1]]

    def find_task(self, reference: str | None, reference_code: str | None = None) -> tuple[str, Task]:
        try:
            suite, task = self.catalogue.task(reference or "")
        except UsageError as error:
            raise RequestRejected(422, "unknown_task", str(error)) from error
        return f"{suite.name}/{task.name}", task

    async def submit(
        self, requests: Sequence[JobRequest], caller: Caller, keys: Sequence[str | None] | None = None
    ) -> list[Job | RequestRejected]:
        made: list[Job | RequestRejected] = []
        for request, key in zip(requests, keys or [None] * len(requests), strict=True):
            try:
                made.append(await self._accept(request, caller, key))
            except RequestRejected as refusal:
                made.append(refusal)
        return made

    async def _accept(self, request: JobRequest, caller: Caller, key: str | None) -> Job:
        self.callers.append(caller)
        self.counters["submitted"] += 1
        if self.state != "ready":
            raise RequestRejected(503, "draining", "draining", retry_after_s=2.5)
        if request.completion == FULL:
            raise RequestRejected(429, "queue_full", "the queue of this run is full", retry_after_s=0.2)
        if request.completion == BROKEN:
            raise RuntimeError("a bug with sk-secret in it")
        earlier = self._earlier(request, caller, key)
        if earlier is not None:
            return earlier
        job = self._enter(request, caller, key, JobStatus.QUEUED)
        if SLOW not in (request.completion or ""):
            await self.finish(job.id, 1.5)
        return self.jobs[job.id]

    def _earlier(self, request: JobRequest, caller: Caller, key: str | None) -> Job | None:
        """The job that the key was used for before."""
        if key is None or (caller.name, key) not in self.keys:
            return None
        earlier, job_id = self.keys[caller.name, key]
        if earlier != request:
            raise RequestRejected(409, "key_reused", "the key belongs to another request")
        return self.jobs[job_id]

    def _enter(self, request: JobRequest, caller: Caller, key: str | None, status: JobStatus) -> Job:
        name, _ = self.find_task(request.task, request.reference_code)
        job = Job(
            id=f"job-{next(self._numbers)}",
            status=status,
            task=name,
            run_id=request.run_id,
            tag=request.tag,
            submitted_at=time.time(),
        )
        self.jobs[job.id] = job
        if key is not None:
            self.keys[caller.name, key] = (request, job.id)
        return job

    async def finish(self, job_id: str, reward: float) -> None:
        result = RewardResult(
            outcome="scored", reward=reward, policy="kernelforge/1", components=Components(format=1.0), verdict="OK"
        )
        await self._end(job_id, JobStatus.FINISHED, result)

    async def start(self, job_id: str) -> None:
        async with self._changed:
            self.jobs[job_id] = self.jobs[job_id].model_copy(
                update={"status": JobStatus.RUNNING, "started_at": time.time(), "tries": 1}
            )
            self._changed.notify_all()

    async def _end(self, job_id: str, status: JobStatus, result: RewardResult) -> None:
        async with self._changed:
            job = self.jobs[job_id].model_copy(update={"status": status, "result": result, "finished_at": time.time()})
            self.jobs[job_id] = job
            self.ended.append(job_id)
            self._changed.notify_all()
        for listener in self.listeners:
            listener(job)

    async def score(
        self, request: JobRequest, caller: Caller, *, timeout_s: float, key: str | None = None, turn: bool = False
    ) -> Job:
        assert turn == (request.tag or "").startswith("session/"), "tags of turns are no other job's"
        job = (await self.submit([request], caller, [key]))[0]
        if isinstance(job, RequestRejected):
            raise job
        try:
            await self.wait([job.id], 1, timeout_s)
        finally:
            await self.cancel([job.id], caller)
        return self.jobs[job.id]

    def job(self, job_id: str) -> Job:
        if job_id not in self.jobs:
            raise RequestRejected(404, "unknown_job", f"there is no job {job_id!r}")
        return self.jobs[job_id]

    def stored(self, job_id: str) -> Evaluated | None:
        return None

    def evaluation(self, key: str) -> tuple[str, Evaluated]:
        if not key.startswith("a"):
            raise RequestRejected(404, "unknown_evaluation", f"there is no evaluation {key}")
        return "core/swish", Evaluated(make_evaluation(), make_profile(), "// source", 1.0)

    async def wait(self, ids: Sequence[str], k: int | None, timeout_s: float) -> list[Job]:
        for job_id in ids:
            self.job(job_id)
        needed = min(k or len(ids), len(ids))
        try:
            async with asyncio.timeout(timeout_s), self._changed:
                await self._changed.wait_for(lambda: len(self._ended_of(ids)) >= needed)
        except TimeoutError:
            pass
        return [self.jobs[job_id] for job_id in self._ended_of(ids)]

    def _ended_of(self, ids: Sequence[str]) -> list[str]:
        return [job_id for job_id in self.ended if job_id in ids]

    async def watch(self, ids: Sequence[str]) -> AsyncIterator[Job]:
        self.watching += 1
        try:
            async for job in self._watch(ids):
                self.watched_jobs.append(job)
                yield job
        finally:
            self.watching -= 1

    async def _watch(self, ids: Sequence[str]) -> AsyncIterator[Job]:
        reported: dict[str, Job] = {}
        while True:
            for job_id in ids:
                if reported.get(job_id) != self.jobs[job_id]:
                    reported[job_id] = self.jobs[job_id]
                    yield reported[job_id]
            if all(job.status.ended for job in reported.values()):
                return
            async with self._changed:
                await self._changed.wait_for(lambda: any(reported[name] != self.jobs[name] for name in ids))

    async def cancel(self, ids: Sequence[str], caller: Caller) -> list[str]:
        cancelled = []
        for job_id in ids:
            if not self.job(job_id).status.ended:
                fault = Fault(code="cancelled", message="cancelled", retryable=True)
                await self._end(job_id, JobStatus.CANCELLED, RewardResult(outcome="infra_error", error=fault))
                cancelled.append(job_id)
        return cancelled

    async def cancel_run(self, run_id: str, older_than: int | None, caller: Caller) -> list[str]:
        return await self.cancel(
            [job.id for job in self.jobs.values() if job.run_id == run_id and not job.status.ended], caller
        )

    def runs(self) -> list[RunStatus]:
        names = {job.run_id for job in self.jobs.values()} | self.settings.keys()
        return [self._run(name) for name in sorted(names)]

    def _run(self, name: str) -> RunStatus:
        jobs = [job for job in self.jobs.values() if job.run_id == name]
        ended = sum(job.status.ended for job in jobs)
        weight = self.settings.get(name, RunSettings()).weight or 1.0
        return RunStatus(run_id=name, weight=weight, queued=len(jobs) - ended, running=0, ended=ended)

    def fingerprint_at(self, sizes: CheckedSizes | None, run_id: str) -> Fingerprint:
        return make_fingerprint().at_sizes(sizes)

    def policy_version(self, run_id: str) -> int | None:
        return None

    open_suspects = 0

    def suspects(self, run_id: str | None, caller: Caller) -> list[Suspect]:
        return []

    async def decide(self, suspect_id: str, decision: str) -> Suspect:
        raise RequestRejected(404, "unknown_suspect", f"there is no suspect {suspect_id!r}")

    def group(self, run_id: str, group_id: str, size: int | None, caller: Caller) -> GroupAnswer:
        raise RequestRejected(404, "unknown_group", f"no job of {run_id} is of group {group_id}")

    async def set_run(self, run_id: str, settings: RunSettings, caller: Caller | None = None) -> RunStatus:
        self.settings[run_id] = settings
        return self._run(run_id)

    def workers(self) -> list[WorkerRow]:
        row = WorkerRow(name="emulated:h100#1", kind="device", device="emulated:h100", state="idle")
        return [row.model_copy(update={"state": "drained"}) if self.drained else row]

    def drain_workers(self, name: str, *, resume: bool = False) -> list[WorkerRow]:
        if name != "emulated:h100#1":
            raise RequestRejected(404, "no_worker", f"no worker is called {name!r}")
        self.drained = not resume
        return self.workers()

    async def task_context(self, task: Task) -> TaskContext:
        return replace(BRIEF, task=task, facts=TaskFacts(task_digest=task.digest, sizes=BRIEF.facts.sizes))

    async def score_tests(self, request: InputTestsRequest, caller: Caller) -> InputTestsAnswer:
        self.callers.append(caller)
        name, _ = self.find_task(request.task)
        test = GeneratorScore(name="far", admitted=True, sizes=2, rejected=1)
        return InputTestsAnswer(
            task=name, outcome="scored", reward=0.5, tests=[test], mutants=request.most, counted=2, rejected=1
        )

    async def drain(self) -> None:
        self.state = "draining"
