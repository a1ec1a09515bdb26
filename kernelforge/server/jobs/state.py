"""Shared parts of the job service: settings, state, watchers of jobs and deadlines."""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from kernelforge.client.models import Job
from kernelforge.rewards import DEFAULT_POLICY
from kernelforge.server.base import utc_seconds
from kernelforge.server.jobs.cache import CompletedJobs, EvaluationCache
from kernelforge.server.jobs.job_store import JobStore
from kernelforge.server.jobs.models import ActiveJobs

_LOG = logging.getLogger(__name__)

_FIRST_COMPACTION = 1_000


class JobWatchers:
    """Queues that receive each job they follow whenever its status changes."""

    def __init__(self) -> None:
        self._queues: dict[str, set[asyncio.Queue[Job]]] = {}
        self._listeners: list[Callable[[Job], None]] = []

    @contextlib.contextmanager
    def follow(self, ids: Sequence[str]) -> Iterator[asyncio.Queue[Job]]:
        """A queue of the changes of some jobs from now on."""
        queue: asyncio.Queue[Job] = asyncio.Queue()
        for job_id in ids:
            self._queues.setdefault(job_id, set()).add(queue)
        try:
            yield queue
        finally:
            for job_id in ids:
                queues = self._queues.get(job_id, set())
                queues.discard(queue)
                if not queues:
                    self._queues.pop(job_id, None)

    def followed(self, job_id: str) -> bool:
        return job_id in self._queues

    def changed(self, job: Job) -> None:
        """Send a job to the queues that follow it."""
        for queue in self._queues.get(job.id, ()):
            queue.put_nowait(job)

    def on_ended(self, listener: Callable[[Job], None]) -> None:
        self._listeners.append(listener)

    def ended(self, job: Job) -> None:
        """Send a completed job to the queues that follow it, and to every listener."""
        self.changed(job)
        for listener in self._listeners:
            try:
                listener(job)
            except Exception:
                _LOG.exception("a listener failed for job %s", job.id)


class Deadlines:
    """Calls back when jobs reach their deadlines. One timer serves all jobs.

    Args:
        expire: gets the ids of the jobs that are due; some may have ended already.
        is_active: whether a job has not ended.
    """

    def __init__(self, expire: Callable[[list[str]], None], is_active: Callable[[str], bool]) -> None:
        self._expire = expire
        self._is_active = is_active
        self._compact_at = _FIRST_COMPACTION
        self._heap: list[tuple[float, str]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._due_at = 0.0

    def add(self, at: float, job_id: str) -> None:
        """Watch a job's deadline ``at``, in UTC seconds since 1970."""
        heapq.heappush(self._heap, (at, job_id))
        if len(self._heap) >= self._compact_at:  # most jobs end long before their deadline
            self._heap = [entry for entry in self._heap if self._is_active(entry[1])]
            heapq.heapify(self._heap)
            self._compact_at = max(2 * len(self._heap), _FIRST_COMPACTION)
        if self._timer is None or at < self._due_at:
            self._set()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._heap.clear()

    def _set(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._heap:
            self._due_at = self._heap[0][0]
            delay = max(self._due_at - utc_seconds(), 0.0)
            self._timer = asyncio.get_running_loop().call_later(delay, self._ring)

    def _ring(self) -> None:
        now = utc_seconds()
        due = []
        while self._heap and self._heap[0][0] <= now:
            due.append(heapq.heappop(self._heap)[1])
        self._set()
        if due:
            self._expire(due)


@dataclass(frozen=True)
class JobServiceSettings:
    """Limits set by the operator."""

    policy: str = DEFAULT_POLICY
    """Reward policy of requests that name none."""
    max_jobs: int = 20_000
    """Jobs that may be queued or running; more are refused with 503."""
    max_jobs_per_run: int = 10_000
    """Jobs of one run that may be queued or running; more are refused with 429."""
    max_queued_chars: int = 1 << 30
    """Characters of candidates in memory, queued or running; more are refused with 503."""
    max_measured_age_s: float = 86_400.0
    """Oldest measured time that is answered from the cache, in seconds. Modelled times do not age."""
    worker_limit_s: float = 900.0
    """Longest time a worker may hold one evaluation task, in seconds; then it counts as dead."""
    keep_jobs: int = 200_000
    """Completed jobs that are kept, with their completions and idempotency keys; the oldest are deleted."""
    keep_evaluations: int = 200_000
    """Evaluations that are kept once no kept job refers to them; the oldest are deleted."""
    keep_bytes: int = 16 << 30
    """Size of ``server.db`` above which the oldest completed jobs and evaluations are deleted first."""
    evaluations_in_memory: int = 1_000
    jobs_in_memory: int = 10_000
    """Completed jobs whose answers are cached in memory."""
    readings_in_memory: int = 20_000
    """Parsed completions that are cached, by their hash."""


class ServiceState:
    """State that the parts of the job service share.

    Args:
        active: jobs that have not ended, and their evaluation tasks.
    """

    def __init__(
        self,
        settings: JobServiceSettings,
        store: JobStore,
        active: ActiveJobs,
        watchers: JobWatchers,
        counters: Counter[str],
    ) -> None:
        self.settings = settings
        self.store = store
        self.active = active
        self.watchers = watchers
        self.counters = counters
        self.completed = CompletedJobs(store, settings.jobs_in_memory)
        self.cache = EvaluationCache(store, settings.evaluations_in_memory)
