"""Active jobs, the evaluation tasks that they share, and an index of both."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Literal

from kernelforge.client.models import Job, JobStatus, RewardResult
from kernelforge.records import Candidate
from kernelforge.server.jobs.queue import Charge
from kernelforge.server.jobs.requests import Registered
from kernelforge.workers.base import EvaluationOrder

Phase = Literal["queued", "preparing", "ready", "evaluating", "over"]


@dataclass(slots=True, eq=False, repr=False)
class ActiveJob:
    """An accepted job that has not ended."""

    seq: int
    """Order of acceptance."""
    id: str
    caller: str
    key: str | None
    task: str
    run: str
    policy: str
    policy_version: int | None
    priority: int
    deadline_at: float | None
    profile: bool
    tag: str
    submitted_at: float
    evaluation_task: EvaluationTask
    ending: bool = False
    """True once its end is being committed. Set exactly once, by the caller that ends the job."""
    end: asyncio.Task[list[ActiveJob]] | None = None
    """Commits its end."""
    holders: int = 0
    """Open requests that wait for it; it is cancelled when the last of them is closed."""
    kept: bool = False
    """Whether a caller has its id to poll: then it is not cancelled when open requests are closed."""
    forgotten: bool = False
    """Whether its idempotency key was released."""

    @property
    def started_at(self) -> float | None:
        """Time at which a worker got its task; for a job that joined later, when it joined."""
        started_at = self.evaluation_task.started_at
        return None if started_at is None else max(started_at, self.submitted_at)

    def snapshot(self) -> Job:
        """The job as callers see it now."""
        running = self.evaluation_task.phase in ("preparing", "ready", "evaluating", "over")
        return Job(
            id=self.id,
            status=JobStatus.RUNNING if running else JobStatus.QUEUED,
            task=self.task,
            run_id=self.run,
            policy_version=self.policy_version,
            priority=self.priority,
            tag=self.tag,
            submitted_at=self.submitted_at,
            started_at=self.started_at if running else None,
            tries=self.evaluation_task.tries,
        )

    def ended(self, status: JobStatus, result: RewardResult, now: float) -> Job:
        """The job as callers see it after its end."""
        return Job(
            id=self.id,
            status=status,
            task=self.task,
            run_id=self.run,
            policy_version=self.policy_version,
            priority=self.priority,
            tag=self.tag,
            submitted_at=self.submitted_at,
            started_at=self.started_at,
            finished_at=now,
            tries=self.evaluation_task.tries,
            result=result,
        )


@dataclass(slots=True, eq=False, repr=False)
class EvaluationTask:
    """One evaluation, shared by all jobs that wait for it."""

    id: int
    key: str
    registered: Registered
    candidate: Candidate
    candidate_hash: str
    profile: bool
    jobs: dict[str, ActiveJob] = field(default_factory=dict)
    phase: Phase = "queued"
    tries: int = 0
    """How often it was given to a worker."""
    deaths: int = 0
    """Workers that died while they had it."""
    failures: int = 0
    """Tries that ended in a retryable failure."""
    started_at: float | None = None
    seconds: float = 0.0
    """Worker time used so far."""
    prepared: dict[str, float] = field(default_factory=dict)
    """Seconds spent on its preparation, by part."""
    charge: Charge | None = None
    """What its runs paid for it."""
    call: asyncio.Task[None] | None = None
    """The engine's call in progress."""
    passed_over: int = 0
    """How often a later task got a slot first, because its oracle was warm there."""

    @property
    def size(self) -> int:
        """Characters of its candidate, an estimate of its memory."""
        return len(self.candidate.source) + len(self.candidate.plan)

    def order(self) -> EvaluationOrder:
        return EvaluationOrder(
            id=f"w{self.id}.{self.tries}",
            task=self.registered.task,
            candidate=self.candidate,
            profile=self.profile,
            prepared=self.prepared,
        )

    def positions(self) -> dict[str, tuple[int, int]]:
        """Priority and age by run, for the fair queue."""
        positions: dict[str, tuple[int, int]] = {}
        for job in self.jobs.values():
            old = positions.get(job.run)
            if old is None or (-job.priority, job.seq) < (-old[0], old[1]):
                positions[job.run] = (job.priority, job.seq)
        return positions


_MOST_RUNS = 10_000
"""Runs in memory above which those without settings and jobs are forgotten."""


@dataclass(slots=True)
class RunState:
    """A run: its settings, and its active jobs."""

    weight: float = 1.0
    min_policy_version: int | None = None
    ended: int = 0
    """Number of jobs that ended."""
    jobs: dict[str, ActiveJob] = field(default_factory=dict)

    @property
    def forgettable(self) -> bool:
        return not self.jobs and self.weight == 1.0 and self.min_policy_version is None

    def stale(self, policy_version: int | None) -> bool:
        """Whether the run rejects jobs of this policy version."""
        return (
            policy_version is not None
            and self.min_policy_version is not None
            and policy_version < self.min_policy_version
        )


class ActiveJobs:
    """Index of the active jobs and their evaluation tasks."""

    def __init__(self) -> None:
        self.jobs: dict[str, ActiveJob] = {}
        self.tasks: dict[int, EvaluationTask] = {}
        self.runs: dict[str, RunState] = {}
        self.keyed: dict[tuple[str, str], ActiveJob] = {}
        """By caller and idempotency key."""
        self.chars = 0
        """Characters of the candidates of open tasks."""
        self._by_key: dict[str, list[EvaluationTask]] = {}
        self._forget_at = _MOST_RUNS

    def run(self, name: str) -> RunState:
        state = self.runs.get(name)
        if state is None:
            if len(self.runs) >= self._forget_at:
                for idle in [run for run, state in self.runs.items() if state.forgettable][: _MOST_RUNS // 10]:
                    del self.runs[idle]
                # If none is idle, do not scan all runs again for every new one.
                self._forget_at = max(len(self.runs) + _MOST_RUNS // 10, _MOST_RUNS)
            state = self.runs[name] = RunState()
        return state

    def add(self, job: ActiveJob) -> None:
        """Enter an accepted job, and its task if that is new."""
        self.jobs[job.id] = job
        self.run(job.run).jobs[job.id] = job
        if job.key is not None:
            self.keyed[job.caller, job.key] = job
        task = job.evaluation_task
        task.jobs[job.id] = job
        if task.id not in self.tasks:
            self.tasks[task.id] = task
            self.chars += task.size
            self._by_key.setdefault(task.key, []).append(task)

    def remove(self, job: ActiveJob) -> None:
        """Remove a job that has ended."""
        self.jobs.pop(job.id, None)
        self.run(job.run).jobs.pop(job.id, None)
        if job.key is not None and self.keyed.get((job.caller, job.key)) is job:
            del self.keyed[job.caller, job.key]

    def close(self, task: EvaluationTask) -> None:
        """Remove a task, so that no further job joins it."""
        if self.tasks.pop(task.id, None) is None:
            return
        self.chars -= task.size
        same_key = self._by_key[task.key]
        same_key.remove(task)
        if not same_key:
            del self._by_key[task.key]

    def joinable_task(self, key: str, *, profile: bool) -> EvaluationTask | None:
        """A task that a job with this key may join. A task that is still queued can be given a profile."""
        for task in self._by_key.get(key, ()):
            if task.profile or not profile or (task.phase == "queued" and not task.tries):
                return task
        return None
