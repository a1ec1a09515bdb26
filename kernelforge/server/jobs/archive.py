"""Jobs that have ended, as they are answered: the latest in memory, all that are kept in the journal."""

from __future__ import annotations

from typing import Any, NamedTuple

from kernelforge.client.wire import Job, JobStatus, RewardResult
from kernelforge.server.jobs.cache import Known, Recent
from kernelforge.server.jobs.journal import Journal
from kernelforge.store.database import readable

_COLUMNS = (
    "id, status, task, run, policy_version, priority, tag, submitted_at, started_at, finished_at, tries, evaluated_at, "
    "result"
)


class Keyed(NamedTuple):
    """What an idempotency key stands for."""

    job: str
    request: str
    """Hash of the request that it came with."""


class Archive:
    """Ended jobs."""

    def __init__(self, journal: Journal, most_in_memory: int) -> None:
        self._journal = journal
        self._jobs: Recent[str, Job] = Recent(most_in_memory)
        self.known_keys = Known("SELECT caller, key FROM keys", journal)

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
            rows = self._journal.read(f"SELECT {_COLUMNS} FROM jobs WHERE id = ? AND result IS NOT NULL", (job_id,))
            if not rows:
                return None
            with readable(self._journal.path, f"job {job_id}"):
                found = _job(rows[0])
            self._jobs.put(job_id, found)
        return found

    def drop(self, job_id: str) -> None:
        """It is no longer kept."""
        self._jobs.drop(job_id)

    def keyed(self, caller: str, key: str) -> Keyed | None:
        if not self.known_keys.may_have(caller, key):
            return None
        rows = self._journal.read("SELECT job, request FROM keys WHERE caller = ? AND key = ?", (caller, key))
        return Keyed(*rows[0]) if rows else None

    def work_of(self, job_id: str) -> int | None:
        """The work that answered a job."""
        rows = self._journal.read("SELECT work FROM jobs WHERE id = ?", (job_id,))
        return rows[0][0] if rows else None


def aged(result: RewardResult, evaluated_at: float | None, now: float) -> RewardResult:
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
        result=aged(RewardResult.model_validate_json(text), evaluated, finished),
    )
