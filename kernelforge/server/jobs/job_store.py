"""Jobs in the server's database: schema, writes in one thread, and recovery after a restart."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import queue
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeVar

from pydantic import Field, FiniteFloat, NonNegativeInt, TypeAdapter

from kernelforge.client.models import JobStatus
from kernelforge.errors import StoreError
from kernelforge.records import Candidate, Fingerprint, evaluation_key
from kernelforge.server.base import DATABASE_NAME, utc_seconds
from kernelforge.server.jobs.models import ActiveJob, ActiveJobs, SharedEvaluation
from kernelforge.server.jobs.registry import Registered, Registry
from kernelforge.server.jobs.results import failed
from kernelforge.store.database import Database, Schema, readable

_TABLES = """
CREATE TABLE texts (
  sha256 TEXT PRIMARY KEY,
  content TEXT NOT NULL
) WITHOUT ROWID;

CREATE TABLE works (
  id INTEGER PRIMARY KEY,
  key TEXT NOT NULL,
  state TEXT NOT NULL CHECK (state IN ('open', 'done', 'failed', 'dropped')),
  task TEXT NOT NULL,
  task_digest TEXT NOT NULL,
  candidate TEXT NOT NULL,
  source TEXT,
  plan TEXT,
  choices TEXT CHECK (choices IS NULL OR json_valid(choices)),
  profiled INTEGER NOT NULL CHECK (profiled IN (0, 1)),
  tries INTEGER NOT NULL DEFAULT 0,
  deaths INTEGER NOT NULL DEFAULT 0,
  started_at REAL,
  finished_at REAL,
  evaluation TEXT,
  profile TEXT,
  trouble TEXT
);
CREATE INDEX works_open ON works(id) WHERE state = 'open';
CREATE INDEX works_done ON works(key, finished_at) WHERE state = 'done';

CREATE TABLE jobs (
  seq INTEGER PRIMARY KEY,
  id TEXT NOT NULL UNIQUE,
  caller TEXT NOT NULL,
  work INTEGER REFERENCES works(id),
  task TEXT NOT NULL,
  run TEXT NOT NULL,
  policy TEXT NOT NULL,
  policy_version INTEGER,
  priority INTEGER NOT NULL,
  deadline_at REAL,
  profile INTEGER NOT NULL CHECK (profile IN (0, 1)),
  tag TEXT NOT NULL,
  completion TEXT REFERENCES texts(sha256),
  status TEXT NOT NULL CHECK (status IN ('queued', 'finished', 'cancelled', 'expired')),
  submitted_at REAL NOT NULL,
  started_at REAL,
  finished_at REAL,
  tries INTEGER NOT NULL,
  evaluated_at REAL,
  result TEXT,
  CHECK ((status = 'queued') = (result IS NULL))
);
CREATE INDEX jobs_open ON jobs(seq) WHERE status = 'queued';
CREATE INDEX jobs_work ON jobs(work);
CREATE INDEX jobs_completion ON jobs(completion);

CREATE TABLE keys (
  caller TEXT NOT NULL,
  key TEXT NOT NULL,
  job TEXT NOT NULL,
  request TEXT NOT NULL,
  PRIMARY KEY (caller, key)
) WITHOUT ROWID;
CREATE INDEX keys_job ON keys(job);

CREATE TABLE runs (
  run TEXT PRIMARY KEY,
  weight REAL NOT NULL DEFAULT 1,
  min_policy_version INTEGER,
  ended INTEGER NOT NULL DEFAULT 0
) WITHOUT ROWID;
"""

SERVER = Schema(
    application_id=0x4B465356,  # "KFSV"
    script=_TABLES,
    synchronous="NORMAL",
    guests=frozenset({"tokens", "sessions", "turns", "sqlite_sequence"}),
)
"""``server.db``. Only whether a work is open is kept, not whether a worker has it: after a kill all open works are
queued again. A transaction that was committed outlives the kill of the gateway; a power cut may take the last ones."""


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


class JobStore:
    """``server.db`` of one gateway. Reads are made where they are called; writes in a thread of its own.

    Raises:
        StoreError: the file is not ours, locked, corrupt, or not writable.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / DATABASE_NAME
        self._writer = Database(self.path, SERVER, create=True, read_only=False)
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
        return Database(self.path, SERVER, create=False, read_only=True)

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


def restore(journal: JobStore, registry: Registry, fingerprint: Fingerprint, book: ActiveJobs) -> Restored:
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
    works: dict[int, SharedEvaluation] = {}
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
                job = ActiveJob(**waiting._asdict() | {"work": works[waiting.work]})
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


def _rows(journal: JobStore, sql: str, kind: type[Row], what: str) -> Iterator[Row]:
    """Rows of a query, held to their types, which SQLite does not do."""
    adapter = TypeAdapter(kind)
    for row in journal.read(sql):
        with readable(journal.path, f"{what} {row[0]}"):
            read = adapter.validate_python(row)
        yield read


def _work(row: _WorkRow, registered: Registered, fingerprint: Fingerprint) -> SharedEvaluation:
    return SharedEvaluation(
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
