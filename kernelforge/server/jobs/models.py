"""Unfinished jobs, the evaluations that they share, and an index of both."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Literal

from kernelforge.client.models import Job, JobStatus, RewardResult
from kernelforge.records import Candidate
from kernelforge.server.jobs.queue import Charge
from kernelforge.server.jobs.registry import Registered
from kernelforge.workers.base import EvaluationOrder

Phase = Literal["queued", "preparing", "ready", "evaluating", "over"]


@dataclass(slots=True, eq=False, repr=False)
class ActiveJob:
    """A job that was accepted and has not ended."""

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
    work: SharedEvaluation
    ending: bool = False
    """Whether its end is on the way to the journal. It has one end: whoever sets this gives it."""
    end: asyncio.Task[list[ActiveJob]] | None = None
    """Writes its end."""
    holders: int = 0
    """Requests that are held open for it, and cancel it when the last of them goes."""
    kept: bool = False
    """Whether somebody was given it to come back for: it is not cancelled with the requests that are held open."""
    forgotten: bool = False
    """Whether its idempotency key is free again."""

    @property
    def started_at(self) -> float | None:
        """When a worker was given its work; a job that joined later began when it joined."""
        return None if self.work.started_at is None else max(self.work.started_at, self.submitted_at)

    def shown(self) -> Job:
        """As callers see it."""
        running = self.work.phase in ("preparing", "ready", "evaluating", "over")
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
            tries=self.work.tries,
        )

    def ended(self, status: JobStatus, result: RewardResult, now: float) -> Job:
        """As callers will see it from now on."""
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
            tries=self.work.tries,
            result=result,
        )


@dataclass(slots=True, eq=False, repr=False)
class SharedEvaluation:
    """One evaluation to be made, for all jobs that wait for it."""

    id: int
    key: str
    registered: Registered
    candidate: Candidate
    candidate_hash: str
    profile: bool
    jobs: dict[str, ActiveJob] = field(default_factory=dict)
    phase: Phase = "queued"
    tries: int = 0
    """How often a worker was given it."""
    deaths: int = 0
    """Workers that died of it, or near it."""
    troubles: int = 0
    """Tries that ended in trouble that may pass."""
    started_at: float | None = None
    seconds: float = 0.0
    """Of workers, so far."""
    prepared: dict[str, float] = field(default_factory=dict)
    """Those of preparing it, by part."""
    bill: Charge | None = None
    """Who was charged for it."""
    call: asyncio.Task[None] | None = None
    """The engine's call that is under way."""
    passed_over: int = 0
    """How often a later work was put on a slot first, because its oracle was warm there."""

    @property
    def size(self) -> int:
        """Characters of its candidate, which is what it holds of memory."""
        return len(self.candidate.source) + len(self.candidate.plan)

    def order(self) -> EvaluationOrder:
        return EvaluationOrder(
            id=f"w{self.id}.{self.tries}",
            task=self.registered.task,
            candidate=self.candidate,
            profile=self.profile,
            prepared=self.prepared,
        )

    def places(self) -> dict[str, tuple[int, int]]:
        """Priority and age by run, for the fair queue."""
        places: dict[str, tuple[int, int]] = {}
        for job in self.jobs.values():
            old = places.get(job.run)
            if old is None or (-job.priority, job.seq) < (-old[0], old[1]):
                places[job.run] = (job.priority, job.seq)
        return places


_MOST_RUNS = 10_000
"""Runs that are remembered without settings of their own and without jobs."""


@dataclass(slots=True)
class RunState:
    """One run, as long as it is remembered."""

    weight: float = 1.0
    min_policy_version: int | None = None
    ended: int = 0
    """Jobs that ended."""
    jobs: dict[str, ActiveJob] = field(default_factory=dict)
    """Jobs that have not."""

    @property
    def forgettable(self) -> bool:
        return not self.jobs and self.weight == 1.0 and self.min_policy_version is None

    def stale(self, policy_version: int | None) -> bool:
        """Whether work of these weights is not wanted any more."""
        return (
            policy_version is not None
            and self.min_policy_version is not None
            and policy_version < self.min_policy_version
        )


class ActiveJobs:
    """Jobs that have not ended, and open works."""

    def __init__(self) -> None:
        self.jobs: dict[str, ActiveJob] = {}
        self.works: dict[int, SharedEvaluation] = {}
        self.runs: dict[str, RunState] = {}
        self.keyed: dict[tuple[str, str], ActiveJob] = {}
        """By caller and idempotency key."""
        self.chars = 0
        """Of the candidates of open works."""
        self._by_key: dict[str, list[SharedEvaluation]] = {}
        self._forget_at = _MOST_RUNS

    def run(self, name: str) -> RunState:
        state = self.runs.get(name)
        if state is None:
            if len(self.runs) >= self._forget_at:
                for idle in [run for run, one in self.runs.items() if one.forgettable][: _MOST_RUNS // 10]:
                    del self.runs[idle]
                # Where none is idle, not all are looked at again for each that comes.
                self._forget_at = max(len(self.runs) + _MOST_RUNS // 10, _MOST_RUNS)
            state = self.runs[name] = RunState()
        return state

    def add(self, job: ActiveJob) -> None:
        """Enter a job that was accepted; its work too, if it is new."""
        self.jobs[job.id] = job
        self.run(job.run).jobs[job.id] = job
        if job.key is not None:
            self.keyed[job.caller, job.key] = job
        work = job.work
        work.jobs[job.id] = job
        if work.id not in self.works:
            self.works[work.id] = work
            self.chars += work.size
            self._by_key.setdefault(work.key, []).append(work)

    def remove(self, job: ActiveJob) -> None:
        """A job has ended."""
        self.jobs.pop(job.id, None)
        self.run(job.run).jobs.pop(job.id, None)
        if job.key is not None and self.keyed.get((job.caller, job.key)) is job:
            del self.keyed[job.caller, job.key]

    def close(self, work: SharedEvaluation) -> None:
        """No further job may join a work."""
        if self.works.pop(work.id, None) is None:
            return
        self.chars -= work.size
        same = self._by_key[work.key]
        same.remove(work)
        if not same:
            del self._by_key[work.key]

    def open_work(self, key: str, *, profile: bool) -> SharedEvaluation | None:
        """A work that a job with this key may join. One that is still queued can be given a profile."""
        for work in self._by_key.get(key, ()):
            if work.profile or not profile or (work.phase == "queued" and not work.tries):
                return work
        return None
