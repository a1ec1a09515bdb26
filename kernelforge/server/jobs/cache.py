"""Known rewards: by content, by idempotency key, and of finished jobs."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, TypeVar

from kernelforge.client.models import Job, JobStatus, RewardResult
from kernelforge.errors import StoreError
from kernelforge.records import Evaluation, Origin, Profile, Verdict
from kernelforge.server.jobs.job_store import JobStore
from kernelforge.store.database import Database, as_text, readable

_JOB_COLUMNS = (
    "id, status, task, run, policy_version, priority, tag, submitted_at, started_at, finished_at, tries, evaluated_at, "
    "result"
)


class IdempotencyRecord(NamedTuple):
    """What an idempotency key stands for."""

    job: str
    request: str
    """Hash of the request that it came with."""


class CompletedJobs:
    """Ended jobs."""

    def __init__(self, journal: JobStore, most_in_memory: int) -> None:
        self._journal = journal
        self._jobs: Recent[str, Job] = Recent(most_in_memory)
        self.known_keys = KeyFilter("SELECT caller, key FROM keys", journal)

    def put(self, job: Job) -> None:
        """Hold ready a job whose end is in the journal."""
        self._jobs.put(job.id, job)

    def get(self, job_id: str) -> Job | None:
        """None: there is no such job, or it has not ended, or it is no longer kept.

        Raises:
            StoreError: it cannot be read.
        """
        found = self._jobs.get(job_id)
        if found is None:
            rows = self._journal.read(f"SELECT {_JOB_COLUMNS} FROM jobs WHERE id = ? AND result IS NOT NULL", (job_id,))
            if not rows:
                return None
            with readable(self._journal.path, f"job {job_id}"):
                found = _job(rows[0])
            self._jobs.put(job_id, found)
        return found

    def drop(self, job_id: str) -> None:
        """It is no longer kept."""
        self._jobs.drop(job_id)

    def keyed(self, caller: str, key: str) -> IdempotencyRecord | None:
        if not self.known_keys.may_have(caller, key):
            return None
        rows = self._journal.read("SELECT job, request FROM keys WHERE caller = ? AND key = ?", (caller, key))
        return IdempotencyRecord(*rows[0]) if rows else None

    def work_of(self, job_id: str) -> int | None:
        """The work that answered a job."""
        rows = self._journal.read("SELECT work FROM jobs WHERE id = ?", (job_id,))
        return rows[0][0] if rows else None


def with_cache_age(result: RewardResult, evaluated_at: float | None, now: float) -> RewardResult:
    """A result as it is told by a job that ended now and was answered from the cache, if it was."""
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

Key = TypeVar("Key")
Value = TypeVar("Value")


class Recent(Generic[Key, Value]):
    """A mapping that keeps what was used last."""

    def __init__(self, most: int) -> None:
        self._most = max(most, 1)
        self._values: OrderedDict[Key, Value] = OrderedDict()

    def __len__(self) -> int:
        return len(self._values)

    def get(self, key: Key) -> Value | None:
        value = self._values.get(key)
        if value is not None:
            self._values.move_to_end(key)
        return value

    def put(self, key: Key, value: Value) -> None:
        self._values[key] = value
        self._values.move_to_end(key)
        if len(self._values) > self._most:
            self._values.popitem(last=False)

    def drop(self, key: Key) -> None:
        self._values.pop(key, None)


class KeyFilter:
    """Which keys may be in the journal. Most that are asked for are new, and a query for each would cost the event loop
    more than all else: it gives up the interpreter lock, and has to wait for it.

    Args:
        sql: a query for all keys.
    """

    def __init__(self, sql: str, journal: JobStore) -> None:
        self._sql = sql
        self._hashes = _hashes(journal.read(sql))
        self._added: set[int] | None = None
        """What was added while the rest is read anew."""

    def __len__(self) -> int:
        return len(self._hashes)

    def may_have(self, *key: str) -> bool:
        return hash(key) in self._hashes

    def add(self, *key: str) -> None:
        self._hashes.add(hash(key))
        if self._added is not None:
            self._added.add(hash(key))

    async def refresh(self, reader: Database) -> None:
        """Read all keys anew, so that those which were pruned are forgotten."""
        self._added = set()
        hashes = await asyncio.to_thread(lambda: _hashes(reader.tuples(self._sql)))
        self._hashes = hashes | self._added
        self._added = None


def _hashes(keys: Iterable[tuple[str, ...]]) -> set[int]:
    return {hash(key) for key in keys}


@dataclass(slots=True)
class Scored:
    """A result as one policy makes it of an evaluation, and its JSON."""

    result: RewardResult
    text: str


@dataclass(slots=True)
class Stored:
    """An evaluation that was made, with the results that policies made of it."""

    work: int
    evaluation: Evaluation
    profile: Profile | None
    profiled: bool
    """Whether a profile was asked for."""
    source: str | None
    """Of the candidate; None where the completion held none."""
    finished_at: float
    results: dict[str, Scored] = field(default_factory=dict)

    def answers(self, *, profile: bool, max_age_s: float, now: float) -> bool:
        """Whether a request may be answered by it: the profile is there if one is wanted, and a measured time is no
        older than ``max_age_s``."""
        if profile and not self.profiled and self.evaluation.verdict is Verdict.OK:
            return False
        performance = self.evaluation.performance
        measured = performance is not None and performance.origin is Origin.MEASURED
        return not measured or now - self.finished_at <= max_age_s


_EVALUATION_COLUMNS = "id, key, evaluation, profile, profiled, source, finished_at"


class EvaluationCache:
    """Evaluations by key."""

    def __init__(self, journal: JobStore, most_in_memory: int) -> None:
        self._journal = journal
        self._by_key: Recent[str, Stored] = Recent(most_in_memory)
        self.known = KeyFilter("SELECT key FROM works WHERE state = 'done'", journal)
        self._condemned: set[int] = set()
        """Works that are about to be pruned: nothing may refer to them any more."""

    def newest(self, key: str) -> Stored | None:
        """The newest evaluation of a key."""
        found = self._by_key.get(key)
        if found is None and self.known.may_have(key):
            found = self._load("key = ? AND state = 'done' ORDER BY finished_at DESC LIMIT 1", key)
        return found

    def of_work(self, work: int, key: str | None) -> Stored | None:
        """The evaluation of a work, which may be held under this key."""
        held = None if key is None else self._by_key.get(key)
        return held if held is not None and held.work == work else self._load("id = ? AND state = 'done'", work)

    def put(self, key: str, stored: Stored) -> None:
        """Keep an evaluation in memory. It is, or will be, in the journal too."""
        self._by_key.put(key, stored)
        self.known.add(key)

    def forget(self, works: dict[int, str]) -> None:
        """These works, with their keys, did not get into the journal."""
        for work, key in works.items():
            held = self._by_key.get(key)
            if held is not None and held.work == work:
                self._by_key.drop(key)

    def condemn(self, works: dict[int, str]) -> None:
        """Answer from these works (with their keys) no more."""
        self._condemned.update(works)
        self.forget(works)

    def pruned(self, works: dict[int, str]) -> None:
        """These works were taken out of the journal, or were kept after all."""
        self._condemned.difference_update(works)

    def _load(self, where: str, parameter: str | int) -> Stored | None:
        rows = self._journal.read(f"SELECT {_EVALUATION_COLUMNS} FROM works WHERE {where}", (parameter,))
        if not rows or rows[0][0] in self._condemned:
            return None
        work, key, evaluation, profile, profiled, source, finished_at = rows[0]
        try:
            with readable(self._journal.path, f"the evaluation of work {work}"):
                stored = Stored(
                    work=work,
                    evaluation=Evaluation.model_validate_json(evaluation),
                    profile=None if profile is None else Profile.model_validate_json(profile),
                    profiled=bool(profiled),
                    source=None if source is None else as_text(source),
                    finished_at=float(finished_at),
                )
        except StoreError as error:
            _LOG.warning("it is evaluated again: %s", error)
            return None
        if where.startswith("key"):
            self._by_key.put(key, stored)
        return stored
