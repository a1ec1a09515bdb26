"""Retention: delete the oldest finished jobs, then evaluations that no remaining job refers to.

Nothing that is open ever goes. An evaluation leaves the cache before it leaves the journal, so that no answer can refer
to one that is gone.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress

from kernelforge.errors import StoreError
from kernelforge.server.jobs.cache import CompletedJobs, EvaluationCache
from kernelforge.server.jobs.job_store import Batch, JobStore
from kernelforge.server.jobs.settings import JobServiceSettings

_LOG = logging.getLogger(__name__)

_EVERY_S = 10.0
_AT_A_TIME = 500
"""Jobs, and works, of one transaction."""


class Retention:
    """Prunes the journal in the background."""

    def __init__(
        self, journal: JobStore, archive: CompletedJobs, cache: EvaluationCache, settings: JobServiceSettings
    ) -> None:
        self._journal = journal
        self._archive = archive
        self._cache = cache
        self._settings = settings
        self._reader = journal.reader()
        """Its queries take long: they run in a thread, over a connection of their own."""
        self._cursor = 0
        """Work up to which all were looked at."""
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
        """Take out what is too much, and return how many jobs and works went."""
        gone = 0
        while True:
            jobs, works = await self._excess()
            if not jobs and not works:
                return gone
            gone += await self._prune_jobs(min(jobs, _AT_A_TIME)) if jobs else 0
            if works:
                went = await self._prune_works(min(works, _AT_A_TIME))
                gone += went
                if not went and not jobs and not self._cursor:
                    return gone  # all of them are referred to

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(_EVERY_S)
            try:
                if await self.prune():
                    await self._prune_runs()
                    await self._refresh()
            except StoreError as error:
                _LOG.error("old jobs could not be taken out of %s: %s", self._journal.path, error)

    async def _refresh(self) -> None:
        for known, kept in (
            (self._archive.known_keys, self._settings.keep_jobs),
            (self._cache.known, self._settings.keep_works),
        ):
            if len(known) > 2 * kept:
                await known.refresh(self._reader)

    async def _excess(self) -> tuple[int, int]:
        """How many ended jobs, and works, are too many."""
        counts = "SELECT (SELECT count(*) FROM jobs WHERE status != 'queued'), (SELECT count(*) FROM works)"
        [(jobs, works)] = await asyncio.to_thread(self._reader.tuples, counts)
        [(pages,)], [(free,)], [(size,)] = (
            self._reader.tuples(f"PRAGMA {name}") for name in ("page_count", "freelist_count", "page_size")
        )
        keep = self._settings
        if (pages - free) * size > keep.keep_bytes:
            return min(jobs, _AT_A_TIME), min(works, _AT_A_TIME)
        return max(jobs - keep.keep_jobs, 0), max(works - keep.keep_works, 0)

    async def _prune_jobs(self, most: int) -> int:
        oldest = "SELECT seq, id FROM jobs WHERE status != 'queued' ORDER BY seq LIMIT ?"
        rows = await asyncio.to_thread(self._reader.tuples, oldest, (most,))
        await asyncio.shield(self._journal.commit(Batch(pruned_jobs=[seq for seq, _ in rows])))
        for _, job_id in rows:
            self._archive.drop(job_id)
        return len(rows)

    async def _prune_works(self, most: int) -> int:
        rows = await asyncio.to_thread(
            self._reader.tuples,
            "SELECT id, key, NOT EXISTS (SELECT 1 FROM jobs WHERE work = works.id) FROM works "
            "WHERE state != 'open' AND id > ? ORDER BY id LIMIT ?",
            (self._cursor, _AT_A_TIME),
        )
        self._cursor = rows[-1][0] if len(rows) == _AT_A_TIME else 0
        doomed = {work: key for work, key, unused in rows if unused}
        doomed = dict(list(doomed.items())[:most])
        if not doomed:
            return 0
        self._cache.condemn(doomed)
        try:
            await asyncio.shield(self._journal.commit(Batch(pruned_works=list(doomed))))
        finally:
            self._cache.pruned(doomed)
        return len(doomed)

    async def _prune_runs(self) -> None:
        """Runs without settings go with their last job: callers may name any number of them."""
        idle = (
            "SELECT run FROM runs WHERE weight = 1 AND min_policy_version IS NULL "
            "AND run NOT IN (SELECT run FROM jobs) LIMIT 10000"
        )
        rows = await asyncio.to_thread(self._reader.tuples, idle)
        if rows:
            await asyncio.shield(self._journal.commit(Batch(pruned_runs=[run for (run,) in rows])))
