"""Retention: delete the oldest finished jobs, then evaluations that no remaining job refers to.

Open jobs and tasks are never deleted. An evaluation leaves the cache before it leaves the database, so that no answer
refers to a deleted one.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress

from kernelforge.errors import StoreError
from kernelforge.server.jobs.job_store import UNSET_RUN, Batch
from kernelforge.server.jobs.state import ServiceState

_LOG = logging.getLogger(__name__)

_EVERY_S = 10.0
_AT_A_TIME = 500
"""Jobs, and tasks, deleted in one transaction."""


class Retention:
    """Deletes old rows of ``server.db`` in the background."""

    def __init__(self, state: ServiceState) -> None:
        self._state = state
        self._settings = state.settings
        self._reader = state.store.reader()
        """Queries take long: they run in a thread, over a separate connection."""
        self._cursor = 0
        """Number of the last task that was checked."""
        self._loop: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._loop = asyncio.create_task(self._run())

    async def stop(self) -> None:
        if self._loop is not None:
            self._loop.cancel()
            with suppress(asyncio.CancelledError):
                await self._loop
        self._reader.close()

    async def prune(self) -> int:
        """Delete rows above the limits, and return how many jobs and tasks were deleted."""
        total = 0
        while True:
            jobs, tasks, exemplars = await self._excess()
            if exemplars:
                await self._prune_exemplars(min(exemplars, _AT_A_TIME))
            if not jobs and not tasks:
                return total
            total += await self._prune_jobs(min(jobs, _AT_A_TIME)) if jobs else 0
            if tasks:
                deleted = await self._prune_tasks(min(tasks, _AT_A_TIME))
                total += deleted
                if not deleted and not jobs and not self._cursor:
                    return total  # jobs refer to all of them

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(_EVERY_S)
            try:
                if await self.prune():
                    await self._prune_runs()
                    await self._refresh()
            except StoreError as error:
                _LOG.error("old jobs could not be deleted from %s: %s", self._state.store.path, error)
            except Exception:
                _LOG.exception("old jobs could not be deleted from %s; trying again", self._state.store.path)

    async def _refresh(self) -> None:
        for key_filter, limit in (
            (self._state.completed.key_filter, self._settings.keep_jobs),
            (self._state.cache.key_filter, self._settings.keep_evaluations),
            (self._state.cache.shared_filter, self._settings.keep_evaluations),
        ):
            if len(key_filter) > 2 * limit:
                await key_filter.refresh(self._reader)

    async def _excess(self) -> tuple[int, int, int]:
        """Numbers of completed jobs, of tasks, and of exemplars, above the limits."""
        counts = (
            "SELECT (SELECT count(*) FROM jobs WHERE status != 'queued'), (SELECT count(*) FROM works), "
            "(SELECT count(*) FROM exemplars)"
        )
        [(jobs, tasks, exemplars)] = await asyncio.to_thread(self._reader.tuples, counts)
        [(pages,)], [(free,)], [(size,)] = (
            self._reader.tuples(f"PRAGMA {name}") for name in ("page_count", "freelist_count", "page_size")
        )
        keep = self._settings
        if (pages - free) * size > keep.keep_bytes:
            return min(jobs, _AT_A_TIME), min(tasks, _AT_A_TIME), min(exemplars, _AT_A_TIME)
        return (
            max(jobs - keep.keep_jobs, 0),
            max(tasks - keep.keep_evaluations, 0),
            max(exemplars - keep.keep_exemplars, 0),
        )

    async def _prune_exemplars(self, most: int) -> None:
        oldest = "SELECT id FROM exemplars ORDER BY id LIMIT ?"
        rows = await asyncio.to_thread(self._reader.tuples, oldest, (most,))
        await asyncio.shield(self._state.store.commit(Batch(dropped_exemplars=[row for (row,) in rows])))

    async def _prune_jobs(self, most: int) -> int:
        oldest = "SELECT seq, id FROM jobs WHERE status != 'queued' ORDER BY seq LIMIT ?"
        rows = await asyncio.to_thread(self._reader.tuples, oldest, (most,))
        await asyncio.shield(self._state.store.commit(Batch(pruned_jobs=[seq for seq, _ in rows])))
        for _, job_id in rows:
            self._state.completed.drop(job_id)
        return len(rows)

    async def _prune_tasks(self, most: int) -> int:
        rows = await asyncio.to_thread(
            self._reader.tuples,
            "SELECT id, key, NOT EXISTS (SELECT 1 FROM jobs WHERE work = works.id) AND "
            "NOT EXISTS (SELECT 1 FROM exemplars WHERE work = works.id) AND "
            "NOT EXISTS (SELECT 1 FROM suspects WHERE work = works.id) FROM works "
            "WHERE state != 'open' AND id > ? ORDER BY id LIMIT ?",
            (self._cursor, _AT_A_TIME),
        )
        self._cursor = rows[-1][0] if len(rows) == _AT_A_TIME else 0
        unreferenced = {task: key for task, key, unused in rows if unused}
        unreferenced = dict(list(unreferenced.items())[:most])
        if not unreferenced:
            return 0
        with self._state.cache.deleting(unreferenced):
            await asyncio.shield(self._state.store.commit(Batch(pruned_tasks=list(unreferenced))))
        return len(unreferenced)

    async def _prune_runs(self) -> None:
        """Delete runs without settings and without jobs: callers may name any number of runs."""
        idle = f"SELECT run FROM runs WHERE {UNSET_RUN} AND run NOT IN (SELECT run FROM jobs) LIMIT 10000"
        rows = await asyncio.to_thread(self._reader.tuples, idle)
        if rows:
            await asyncio.shield(self._state.store.commit(Batch(pruned_runs=[run for (run,) in rows])))
