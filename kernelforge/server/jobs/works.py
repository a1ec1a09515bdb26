"""Jobs that have not ended, and the works that they wait for."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Literal

from kernelforge.client.wire import Job, JobStatus, RewardResult
from kernelforge.engine.base import Order
from kernelforge.records import Candidate
from kernelforge.server.jobs.queue import Bill
from kernelforge.server.jobs.registry import Registered

Phase = Literal["queued", "preparing", "ready", "evaluating", "over"]


@dataclass(slots=True, eq=False, repr=False)
class LiveJob:
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
    work: Work
    ending: bool = False
    """Whether its end is on the way to the journal. It has one end: whoever sets this gives it."""
    end: asyncio.Task[list[LiveJob]] | None = None
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
class Work:
    """One evaluation to be made, for all jobs that wait for it."""

    id: int
    key: str
    registered: Registered
    candidate: Candidate
    candidate_hash: str
    profile: bool
    jobs: dict[str, LiveJob] = field(default_factory=dict)
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
    bill: Bill | None = None
    """Who was charged for it."""
    call: asyncio.Task[None] | None = None
    """The engine's call that is under way."""
    passed_over: int = 0
    """How often a later work was put on a slot first, because its oracle was warm there."""

    @property
    def size(self) -> int:
        """Characters of its candidate, which is what it holds of memory."""
        return len(self.candidate.source) + len(self.candidate.plan)

    def order(self) -> Order:
        return Order(
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
