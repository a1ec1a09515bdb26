"""What outlives the gateway: jobs, works and runs in ``server.db``, written by one thread that shares commits.

Callers hand in a :class:`Batch` and await its commit. The thread takes all that has gathered while it wrote, so that
under load hundreds of submissions share a transaction. Batches are committed in the order they came. Rows go in by
the dozen per statement: each statement gives up the interpreter lock and has to win it back from the event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import queue
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from kernelforge.errors import StoreError
from kernelforge.server.base import DATABASE_NAME
from kernelforge.server.jobs.schema import SERVER
from kernelforge.store.database import Database

_LOG = logging.getLogger(__name__)

_MOST_GATHERED = 1_000
"""Batches of one transaction."""
_CHECKPOINT_PAGES = 4_000
_ROWS = (64, 16, 4, 1)
"""Rows of one statement: few lengths, so that prepared statements are used again."""


class NewText(NamedTuple):
    sha256: str
    content: str


class NewWork(NamedTuple):
    id: int
    key: str
    state: str
    task: str
    task_digest: str
    candidate: str
    source: str | None
    plan: str | None
    choices: str | None
    profiled: bool
    finished_at: float | None = None
    evaluation: str | None = None


class NewJob(NamedTuple):
    """A job as it was accepted; one that is answered at once has its end already."""

    seq: int
    id: str
    caller: str
    work: int | None
    task: str
    run: str
    policy: str
    policy_version: int | None
    priority: int
    deadline_at: float | None
    profile: bool
    tag: str
    completion: str | None
    status: str
    submitted_at: float
    started_at: float | None
    finished_at: float | None
    tries: int
    evaluated_at: float | None
    result: str | None


class NewKey(NamedTuple):
    caller: str
    key: str
    job: str
    request: str


class JobEnd(NamedTuple):
    id: str
    status: str
    started_at: float | None
    finished_at: float
    tries: int
    evaluated_at: float | None
    result: str


class WorkEnd(NamedTuple):
    id: int
    state: str
    finished_at: float
    evaluation: str | None
    profile: str | None
    trouble: str | None


class WorkProgress(NamedTuple):
    id: int
    key: str
    profiled: bool
    tries: int
    deaths: int
    started_at: float | None


class RunRow(NamedTuple):
    run: str
    weight: float
    min_policy_version: int | None


@dataclass(slots=True)
class Batch:
    """Rows that are written as one, or not at all."""

    texts: list[NewText] = field(default_factory=list)
    works: list[NewWork] = field(default_factory=list)
    jobs: list[NewJob] = field(default_factory=list)
    keys: list[NewKey] = field(default_factory=list)
    progress: list[WorkProgress] = field(default_factory=list)
    ended_jobs: list[JobEnd] = field(default_factory=list)
    ended_works: list[WorkEnd] = field(default_factory=list)
    runs: list[RunRow] = field(default_factory=list)
    ended_of_runs: list[tuple[str, int]] = field(default_factory=list)
    """How many jobs of a run ended."""
    forgotten_keys: list[tuple[str, str, str]] = field(default_factory=list)
    """Caller, key and job."""
    pruned_jobs: list[int] = field(default_factory=list)
    """``seq`` of ended jobs that go, with their keys, and with texts that no other job has."""
    pruned_works: list[int] = field(default_factory=list)
    """Works that go unless a job refers to them."""
    pruned_runs: list[str] = field(default_factory=list)
    """Runs that go unless they have settings."""

    def __bool__(self) -> bool:
        return any(getattr(self, part) for part in self.__slots__)


class _Pending(NamedTuple):
    batch: Batch
    done: asyncio.Future[None]


class Journal:
    """``server.db`` of one gateway. Reads are made where they are called; writes in a thread of its own.

    Raises:
        StoreError: the file is not ours, locked, corrupt, or not writable.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / DATABASE_NAME
        self._writer = Database(self.path, create=True, read_only=False, schema=SERVER)
        with self._writer.transaction() as db:
            db.execute(f"PRAGMA wal_autocheckpoint = {_CHECKPOINT_PAGES}")
        self._reader = self.reader()
        self._waiting: queue.SimpleQueue[_Pending | None] = queue.SimpleQueue()
        self._known_texts: set[str] = set()
        self._closed = False
        self._end = threading.Lock()
        """Nothing is handed in after the end, which another thread than the event loop's may bring."""
        self._thread = threading.Thread(target=self._write, name="journal", daemon=True)
        self._thread.start()
        self.transactions = 0
        """How many were made."""

    def commit(self, batch: Batch) -> asyncio.Future[None]:
        """Write a batch. The future is done when the batch is committed.

        It raises StoreError where it could not be written; nothing of it was kept then.
        """
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        with self._end:
            if not self._closed:
                self._waiting.put(_Pending(batch, done))
                return done
        done.set_exception(StoreError(f"cannot write to {self.path}: it is closed"))
        return done

    def read(self, sql: str, parameters: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        """Rows of a query over what is committed.

        Raises:
            StoreError: the file cannot be read.
        """
        return self._reader.tuples(sql, parameters)

    def reader(self) -> Database:
        """Another connection, for queries that take long; :meth:`read` is for those that an event loop can wait for."""
        return Database(self.path, create=False, read_only=True, schema=SERVER)

    def note(self, batch: Batch) -> None:
        """Write what nobody waits for, and what may be lost."""
        self.commit(batch).add_done_callback(self._noted)

    def _noted(self, done: asyncio.Future[None]) -> None:
        if not done.cancelled() and done.exception() is not None:
            _LOG.warning("a note was not kept: %s", done.exception())

    def close(self) -> None:
        """Write what was handed in, and close the file."""
        with self._end:
            self._closed = True
            self._waiting.put(None)
        self._thread.join()
        self._reader.close()
        self._writer.close()

    def _write(self) -> None:
        ended = False
        while not ended:
            gathered: list[_Pending] = []
            one = self._waiting.get()
            while one is not None:
                gathered.append(one)
                if len(gathered) == _MOST_GATHERED or self._waiting.empty():
                    break
                one = self._waiting.get()
            ended = one is None
            if gathered:
                self._commit_all(gathered)

    def _commit_all(self, gathered: Sequence[_Pending]) -> None:
        error = self._try([one.batch for one in gathered])
        if error is None or len(gathered) == 1:
            _tell([(one.done, error) for one in gathered])
            return
        # One batch that cannot be written must not fail the others.
        _tell([(one.done, self._try([one.batch])) for one in gathered])

    def _try(self, batches: Sequence[Batch]) -> Exception | None:
        try:
            with self._writer.transaction() as db:
                self._insert(db.execute, batches)
        except Exception as error:  # told to whoever awaits the commit
            self._known_texts.clear()
            return error if isinstance(error, StoreError) else StoreError(f"cannot write to {self.path}: {error!r}")
        self.transactions += 1
        return None

    def _insert(self, execute: Callable[..., Any], batches: Sequence[Batch]) -> None:
        def gather(part: str) -> list[Any]:
            return list(chain.from_iterable(getattr(batch, part) for batch in batches))

        texts = [text for text in gather("texts") if text.sha256 not in self._known_texts]
        if len(self._known_texts) > 50_000:
            self._known_texts.clear()
        self._known_texts.update(text.sha256 for text in texts)
        _many(execute, "INSERT OR IGNORE INTO texts VALUES {rows}", texts)
        _many(
            execute,
            "INSERT INTO works (id, key, state, task, task_digest, candidate, source, plan, choices, profiled, "
            "finished_at, evaluation) VALUES {rows}",
            gather("works"),
        )
        _many(execute, "INSERT INTO jobs VALUES {rows}", gather("jobs"))
        _many(execute, "INSERT OR REPLACE INTO keys VALUES {rows}", gather("keys"))
        for row in gather("progress"):
            execute(
                "UPDATE works SET key = ?, profiled = ?, tries = ?, deaths = ?, started_at = ? "
                "WHERE id = ? AND state = 'open'",
                (*row[1:], row.id),
            )
        _many(
            execute,
            "WITH ends(id, status, started_at, finished_at, tries, evaluated_at, result) AS (VALUES {rows}) "
            "UPDATE jobs SET status = ends.status, started_at = ends.started_at, finished_at = ends.finished_at, "
            "tries = ends.tries, evaluated_at = ends.evaluated_at, result = ends.result "
            "FROM ends WHERE jobs.id = ends.id AND jobs.status = 'queued'",
            gather("ended_jobs"),
        )
        for end in gather("ended_works"):
            execute(
                "UPDATE works SET state = ?, finished_at = ?, evaluation = ?, profile = ?, trouble = ? "
                "WHERE id = ? AND state = 'open'",
                (*end[1:], end.id),
            )
        _many(
            execute,
            "INSERT INTO runs (run, weight, min_policy_version) VALUES {rows} ON CONFLICT (run) "
            "DO UPDATE SET weight = excluded.weight, min_policy_version = excluded.min_policy_version",
            gather("runs"),
        )
        counts: dict[str, int] = {}
        for run, ended in gather("ended_of_runs"):
            counts[run] = counts.get(run, 0) + ended
        _many(
            execute,
            "INSERT INTO runs (run, ended) VALUES {rows} "
            "ON CONFLICT (run) DO UPDATE SET ended = ended + excluded.ended",
            list(counts.items()),
        )
        for forgotten in gather("forgotten_keys"):
            execute("DELETE FROM keys WHERE caller = ? AND key = ? AND job = ?", forgotten)
        self._prune(execute, gather("pruned_jobs"), gather("pruned_works"))
        for run in gather("pruned_runs"):
            execute("DELETE FROM runs WHERE run = ? AND weight = 1 AND min_policy_version IS NULL", (run,))

    def _prune(self, execute: Callable[..., Any], jobs: Sequence[int], works: Sequence[int]) -> None:
        for seq in jobs:
            gone = execute(
                "DELETE FROM jobs WHERE seq = ? AND status != 'queued' RETURNING id, completion", (seq,)
            ).fetchall()
            for job, text in gone:
                execute("DELETE FROM keys WHERE job = ?", (job,))
                execute(
                    "DELETE FROM texts WHERE sha256 = ? AND NOT EXISTS (SELECT 1 FROM jobs WHERE completion = ?)",
                    (text, text),
                )
                self._known_texts.discard(text)
        for work in works:
            execute(
                "DELETE FROM works WHERE id = ? AND state != 'open' AND NOT EXISTS (SELECT 1 FROM jobs WHERE work = ?)",
                (work, work),
            )


def _many(execute: Callable[..., Any], sql: str, rows: Sequence[Sequence[Any]]) -> None:
    """Run a statement over many rows, a few dozen at a time."""
    start = 0
    for length in _ROWS:
        while len(rows) - start >= length:
            part = rows[start : start + length]
            row = f"({','.join('?' * len(part[0]))})"
            execute(sql.format(rows=",".join([row] * length)), tuple(chain.from_iterable(part)))
            start += length


def _tell(outcomes: Iterable[tuple[asyncio.Future[None], Exception | None]]) -> None:
    """Settle futures on the loops that they belong to, one call for each loop."""
    by_loop: dict[asyncio.AbstractEventLoop, list[tuple[asyncio.Future[None], Exception | None]]] = {}
    for done, error in outcomes:
        by_loop.setdefault(done.get_loop(), []).append((done, error))
    for loop, settled in by_loop.items():
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(_settle, settled)


def _settle(outcomes: Sequence[tuple[asyncio.Future[None], Exception | None]]) -> None:
    for done, error in outcomes:
        if done.done():  # whoever waited was cancelled; the batch is written all the same
            continue
        if error is None:
            done.set_result(None)
        else:
            done.set_exception(error)
