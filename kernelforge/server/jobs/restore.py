"""What a gateway before this one left open: read from the journal, to be queued again in its old order."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from typing import Any

from kernelforge.client.wire import JobStatus
from kernelforge.records import Candidate, Fingerprint, evaluation_key
from kernelforge.server.jobs.book import Book
from kernelforge.server.jobs.journal import Batch, JobEnd, Journal, WorkEnd, WorkProgress
from kernelforge.server.jobs.registry import Registered, Registry
from kernelforge.server.jobs.results import failed
from kernelforge.server.jobs.works import LiveJob, Work

_WORKS = (
    "SELECT id, task, task_digest, candidate, source, plan, choices, profiled, tries, deaths, started_at "
    "FROM works WHERE state = 'open' ORDER BY id"
)
_JOBS = (
    "SELECT j.seq, j.id, j.caller, j.work, j.task, j.run, j.policy, j.policy_version, j.priority, j.deadline_at, "
    "j.profile, j.tag, j.submitted_at, (SELECT key FROM keys WHERE keys.job = j.id) "
    "FROM jobs j WHERE j.status = 'queued' ORDER BY j.seq"
)


@dataclass
class Restored:
    """What was found."""

    next_seq: int
    next_work: int
    batch: Batch = field(default_factory=Batch)
    """What has to be put right in the journal."""


def restore(journal: Journal, registry: Registry, fingerprint: Fingerprint, book: Book) -> Restored:
    """Enter open works with their jobs, and the settings of runs, into an empty book.

    Keys are made anew: the device, its driver or the toolchain may be others now.
    """
    for run, weight, min_policy_version, ended in journal.read(
        "SELECT run, weight, min_policy_version, ended FROM runs"
    ):
        state = book.run(run)
        state.weight, state.min_policy_version, state.ended = weight, min_policy_version, ended
    [(last_seq,)] = journal.read("SELECT coalesce(max(seq), 0) FROM jobs")
    [(last_work,)] = journal.read("SELECT coalesce(max(id), 0) FROM works")
    restored = Restored(last_seq + 1, last_work + 1)
    works: dict[int, Work] = {}
    for row in journal.read(_WORKS):
        registered = registry.of_digest(row[2])
        if registered is None:
            restored.batch.ended_works.append(WorkEnd(row[0], "failed", time.time(), None, None, None))
            continue
        work = works[row[0]] = _work(row, registered, fingerprint)
        restored.batch.progress.append(
            WorkProgress(work.id, work.key, work.profile, work.tries, work.deaths, work.started_at)
        )
    for row in journal.read(_JOBS):
        if row[3] in works:
            job = _job(row, works[row[3]])
            job.work.profile = job.work.profile or job.profile
            book.add(job)
        else:
            restored.batch.ended_jobs.append(_not_offered(row))
    for work in works.values():
        if not work.jobs:
            restored.batch.ended_works.append(WorkEnd(work.id, "dropped", time.time(), None, None, None))
    return restored


def _work(row: tuple[Any, ...], registered: Registered, fingerprint: Fingerprint) -> Work:
    work_id, _, digest, candidate_hash, source, plan, choices, profiled, tries, deaths, started_at = row
    return Work(
        id=work_id,
        key=evaluation_key(candidate_hash, digest, fingerprint),
        registered=registered,
        candidate=Candidate(source=source, plan=plan, choices=json.loads(choices)),
        candidate_hash=candidate_hash,
        profile=bool(profiled),
        tries=tries,
        deaths=deaths,
        started_at=started_at,
    )


def _job(row: tuple[Any, ...], work: Work) -> LiveJob:
    seq, job_id, caller, _, task, run, policy, version, priority, deadline, profile, tag, submitted_at, key = row
    return LiveJob(
        seq=seq,
        id=job_id,
        caller=caller,
        key=key,
        task=task,
        run=run,
        policy=policy,
        policy_version=version,
        priority=priority,
        deadline_at=deadline,
        profile=bool(profile),
        tag=tag,
        submitted_at=submitted_at,
        work=work,
    )


def _not_offered(row: tuple[Any, ...]) -> JobEnd:
    job_id, task, policy = row[1], row[4], row[6]
    message = f"task {task} is not offered by this server any more; offer its suite and submit the job again"
    result = failed("unsupported", message, policy=policy)
    return JobEnd(job_id, JobStatus.FINISHED.value, None, time.time(), 0, None, result.model_dump_json())
