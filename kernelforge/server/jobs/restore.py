"""What a gateway before this one left open: read from the journal, to be queued again in its old order."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated, NamedTuple, TypeVar

from pydantic import Field, FiniteFloat, NonNegativeInt, TypeAdapter

from kernelforge.client.wire import JobStatus
from kernelforge.records import Candidate, Fingerprint, evaluation_key
from kernelforge.server.base import utc_seconds
from kernelforge.server.jobs.book import Book
from kernelforge.server.jobs.journal import Batch, JobEnd, Journal, WorkEnd, WorkProgress
from kernelforge.server.jobs.registry import Registered, Registry
from kernelforge.server.jobs.results import failed
from kernelforge.server.jobs.works import LiveJob, Work
from kernelforge.store.database import readable


class _WorkRow(NamedTuple):
    id: int
    task: str
    task_digest: str
    candidate: str
    source: str
    plan: str
    choices: str
    profiled: bool
    tries: NonNegativeInt
    deaths: NonNegativeInt
    started_at: FiniteFloat | None


class _JobRow(NamedTuple):
    seq: int
    id: str
    caller: str
    work: int | None
    task: str
    run: str
    policy: str
    policy_version: int | None
    priority: int
    deadline_at: FiniteFloat | None
    profile: bool
    tag: str
    submitted_at: FiniteFloat
    key: str | None


class _SettingsRow(NamedTuple):
    run: str
    weight: Annotated[FiniteFloat, Field(gt=0)]
    min_policy_version: int | None
    ended: NonNegativeInt


_WORKS = (
    "SELECT id, task, task_digest, candidate, source, plan, choices, profiled, tries, deaths, started_at "
    "FROM works WHERE state = 'open' ORDER BY id"
)
_JOBS = (
    "SELECT j.seq, j.id, j.caller, j.work, j.task, j.run, j.policy, j.policy_version, j.priority, j.deadline_at, "
    "j.profile, j.tag, j.submitted_at, (SELECT key FROM keys WHERE keys.job = j.id) "
    "FROM jobs j WHERE j.status = 'queued' ORDER BY j.seq"
)
_SETTINGS = "SELECT run, weight, min_policy_version, ended FROM runs"


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

    Raises:
        StoreError: a row of them cannot be read. Nothing has changed then.
    """
    for run in _rows(journal, _SETTINGS, _SettingsRow, "the settings of run"):
        state = book.run(run.run)
        state.weight, state.min_policy_version, state.ended = run.weight, run.min_policy_version, run.ended
    [(last_seq,)] = journal.read("SELECT coalesce(max(seq), 0) FROM jobs")
    [(last_work,)] = journal.read("SELECT coalesce(max(id), 0) FROM works")
    restored = Restored(last_seq + 1, last_work + 1)
    works: dict[int, Work] = {}
    for row in _rows(journal, _WORKS, _WorkRow, "open work"):
        registered = registry.of_digest(row.task_digest)
        if registered is None:
            restored.batch.ended_works.append(WorkEnd(row.id, "failed", utc_seconds(), None, None, None))
            continue
        with readable(journal.path, f"open work {row.id}"):
            work = works[row.id] = _work(row, registered, fingerprint)
        restored.batch.progress.append(
            WorkProgress(work.id, work.key, work.profile, work.tries, work.deaths, work.started_at)
        )
    for waiting in _rows(journal, _JOBS, _JobRow, "open job"):
        if waiting.work in works:
            with readable(journal.path, f"open job {waiting.id}"):
                job = LiveJob(**waiting._asdict() | {"work": works[waiting.work]})
                job.shown()  # what it holds may be of the right type, and yet nothing that a caller can be told
            job.work.profile = job.work.profile or job.profile
            book.add(job)
        else:
            restored.batch.ended_jobs.append(_not_offered(waiting))
    for work in works.values():
        if not work.jobs:
            restored.batch.ended_works.append(WorkEnd(work.id, "dropped", utc_seconds(), None, None, None))
    return restored


Row = TypeVar("Row", bound=NamedTuple)


def _rows(journal: Journal, sql: str, kind: type[Row], what: str) -> Iterator[Row]:
    """Rows of a query, held to their types, which SQLite does not do."""
    adapter = TypeAdapter(kind)
    for row in journal.read(sql):
        with readable(journal.path, f"{what} {row[0]}"):
            read = adapter.validate_python(row)
        yield read


def _work(row: _WorkRow, registered: Registered, fingerprint: Fingerprint) -> Work:
    return Work(
        id=row.id,
        key=evaluation_key(row.candidate, row.task_digest, fingerprint),
        registered=registered,
        candidate=Candidate(source=row.source, plan=row.plan, choices=json.loads(row.choices)),
        candidate_hash=row.candidate,
        profile=row.profiled,
        tries=row.tries,
        deaths=row.deaths,
        started_at=row.started_at,
    )


def _not_offered(row: _JobRow) -> JobEnd:
    message = f"task {row.task} is not offered by this server any more; offer its suite and submit the job again"
    result = failed("unsupported", message, policy=row.policy)
    return JobEnd(row.id, JobStatus.FINISHED.value, None, utc_seconds(), 0, None, result.model_dump_json())
