"""Answers that are already known: completed jobs, idempotency keys, and evaluations by content."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from kernelforge.client.models import Job, JobStatus, RewardResult
from kernelforge.errors import StoreError
from kernelforge.records import Evaluation, Origin, Profile, Verdict
from kernelforge.server.base import LRUCache
from kernelforge.server.jobs.job_store import JobStore
from kernelforge.server.jobs.results import scored
from kernelforge.store.database import Database, as_text, readable

_JOB_COLUMNS = (
    "id, status, task, run, policy_version, priority, tag, submitted_at, started_at, finished_at, tries, evaluated_at, "
    "result"
)


class IdempotencyRecord(NamedTuple):
    """The job that an idempotency key was used for."""

    job: str
    request: str
    """Hash of the request that the key came with."""


class CompletedJobs:
    """Jobs that have ended, the recent ones cached in memory."""

    def __init__(self, store: JobStore, max_in_memory: int) -> None:
        self._store = store
        self._jobs: LRUCache[str, Job] = LRUCache(max_in_memory)
        self.key_filter = KeyFilter("SELECT caller, key FROM keys", store)

    def put(self, job: Job) -> None:
        """Cache a job whose end is committed."""
        self._jobs.put(job.id, job)

    def get(self, job_id: str) -> Job | None:
        """A completed job; None if it is unknown, has not ended, or is no longer kept.

        Raises:
            StoreError: the database cannot be read.
        """
        job = self._jobs.get(job_id)
        if job is None:
            rows = self._store.read(f"SELECT {_JOB_COLUMNS} FROM jobs WHERE id = ? AND result IS NOT NULL", (job_id,))
            if not rows:
                return None
            with readable(self._store.path, f"job {job_id}"):
                job = _job(rows[0])
            self._jobs.put(job_id, job)
        return job

    def drop(self, job_id: str) -> None:
        self._jobs.drop(job_id)

    def keyed(self, caller: str, key: str) -> IdempotencyRecord | None:
        if not self.key_filter.may_have(caller, key):
            return None
        rows = self._store.read("SELECT job, request FROM keys WHERE caller = ? AND key = ?", (caller, key))
        return IdempotencyRecord(*rows[0]) if rows else None

    def task_of(self, job_id: str) -> int | None:
        """Number of the evaluation task that answered a job."""
        rows = self._store.read("SELECT work FROM jobs WHERE id = ?", (job_id,))
        return rows[0][0] if rows else None


def with_cache_age(result: RewardResult, evaluated_at: float | None, now: float) -> RewardResult:
    """Return ``result`` with its cache age, or unchanged when it was not served from the cache."""
    if evaluated_at is None:
        return result
    return result.model_copy(update={"cached": True, "age_s": round(max(now - evaluated_at, 0.0), 3)})


def _job(row: tuple[Any, ...]) -> Job:
    (job_id, status, task, run, policy_version, priority, tag, submitted, started, finished, tries, evaluated, text) = (
        row
    )
    return Job(
        id=job_id,
        status=JobStatus(status),
        task=task,
        run_id=run,
        policy_version=policy_version,
        priority=priority,
        tag=tag,
        submitted_at=submitted,
        started_at=started,
        finished_at=finished,
        tries=tries,
        result=with_cache_age(RewardResult.model_validate_json(text), evaluated, finished),
    )


_LOG = logging.getLogger(__name__)


class KeyFilter:
    """Tells which keys may be in the database. Most requested keys are new, and a query for each would cost the event
    loop more than all else, because it releases the GIL and has to wait for it.

    Args:
        sql: query for all keys.
    """

    def __init__(self, sql: str, store: JobStore) -> None:
        self._sql = sql
        self._hashes = _hashes(store.read(sql))
        self._added: set[int] | None = None
        """Keys added during a refresh."""

    def __len__(self) -> int:
        return len(self._hashes)

    def may_have(self, *key: str) -> bool:
        return hash(key) in self._hashes

    def add(self, *key: str) -> None:
        self._hashes.add(hash(key))
        if self._added is not None:
            self._added.add(hash(key))

    async def refresh(self, reader: Database) -> None:
        """Read all keys from the database, to drop those of deleted rows."""
        self._added = set()
        hashes = await asyncio.to_thread(lambda: _hashes(reader.tuples(self._sql)))
        self._hashes = hashes | self._added
        self._added = None


def _hashes(keys: Iterable[tuple[str, ...]]) -> set[int]:
    return {hash(key) for key in keys}


@dataclass(slots=True)
class Scored:
    """The result of one policy for an evaluation, and its JSON."""

    result: RewardResult
    text: str


@dataclass(slots=True)
class Stored:
    """A finished evaluation, with the results of the policies that were asked for."""

    task: int
    """Number of its evaluation task."""
    evaluation: Evaluation
    profile: Profile | None
    profiled: bool
    """Whether a profile was requested."""
    source: str | None
    """Source of the candidate; None if the completion held none."""
    finished_at: float
    results: dict[str, Scored] = field(default_factory=dict)

    def answers(self, *, profile: bool, max_age_s: float, now: float) -> bool:
        """Whether it may answer a request: it has a profile if one is requested, and a measured time is no older than
        ``max_age_s``."""
        if profile and not self.profiled and self.evaluation.verdict is Verdict.OK:
            return False
        performance = self.evaluation.performance
        measured = performance is not None and performance.origin is Origin.MEASURED
        return not measured or now - self.finished_at <= max_age_s

    def scored_by(self, policy: str) -> Scored:
        """The result of a policy, computed once."""
        answer = self.results.get(policy)
        if answer is None:
            result = scored(policy, self.evaluation, self.source)
            answer = self.results[policy] = Scored(result, result.model_dump_json())
        return answer


_EVALUATION_COLUMNS = "id, key, evaluation, profile, profiled, source, finished_at"


class EvaluationCache:
    """Evaluations by key."""

    def __init__(self, store: JobStore, max_in_memory: int) -> None:
        self._store = store
        self._by_key: LRUCache[str, Stored] = LRUCache(max_in_memory)
        self.key_filter = KeyFilter("SELECT key FROM works WHERE state = 'done'", store)
        self._deleting: set[int] = set()
        """Tasks that are being deleted; no new job may refer to them."""

    def newest(self, key: str) -> Stored | None:
        stored = self._by_key.get(key)
        if stored is None and self.key_filter.may_have(key):
            stored = self._load("key = ? AND state = 'done' ORDER BY finished_at DESC LIMIT 1", key)
        return stored

    def of_task(self, task: int, key: str | None) -> Stored | None:
        """The evaluation of a task; ``key`` is where it may be in memory."""
        cached = None if key is None else self._by_key.get(key)
        return cached if cached is not None and cached.task == task else self._load("id = ? AND state = 'done'", task)

    def put(self, key: str, stored: Stored) -> None:
        """Cache an evaluation that is, or will be, in the database."""
        self._by_key.put(key, stored)
        self.key_filter.add(key)

    def forget(self, tasks: dict[int, str]) -> None:
        """Drop tasks, given with their keys, from memory."""
        for task, key in tasks.items():
            cached = self._by_key.get(key)
            if cached is not None and cached.task == task:
                self._by_key.drop(key)

    @contextlib.contextmanager
    def deleting(self, tasks: dict[int, str]) -> Iterator[None]:
        """Answer nothing from these tasks, given with their keys, while they are deleted from the database."""
        self._deleting.update(tasks)
        self.forget(tasks)
        try:
            yield
        finally:
            self._deleting.difference_update(tasks)

    def _load(self, where: str, parameter: str | int) -> Stored | None:
        rows = self._store.read(f"SELECT {_EVALUATION_COLUMNS} FROM works WHERE {where}", (parameter,))
        if not rows or rows[0][0] in self._deleting:
            return None
        task, key, evaluation, profile, profiled, source, finished_at = rows[0]
        try:
            with readable(self._store.path, f"evaluation {task}"):
                stored = Stored(
                    task=task,
                    evaluation=Evaluation.model_validate_json(evaluation),
                    profile=None if profile is None else Profile.model_validate_json(profile),
                    profiled=bool(profiled),
                    source=None if source is None else as_text(source),
                    finished_at=float(finished_at),
                )
        except StoreError as error:
            _LOG.warning("a stored evaluation cannot be used and is repeated: %s", error)
            return None
        if where.startswith("key"):
            self._by_key.put(key, stored)
        return stored
