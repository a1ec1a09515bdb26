"""Notification of clients that wait for jobs."""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import logging
from collections.abc import Callable, Iterator, Sequence

from kernelforge.client.models import Job
from kernelforge.server.base import utc_seconds

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
