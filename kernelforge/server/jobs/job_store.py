"""Jobs in the server's database: schema, and writes in one thread."""

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
from kernelforge.store.database import Database, Schema

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
  trouble TEXT,
  shared_key TEXT,
  program TEXT CHECK (program IS NULL OR json_valid(program)),
  sizes TEXT CHECK (sizes IN ('all', 'train'))
);
CREATE INDEX works_open ON works(id) WHERE state = 'open';
CREATE INDEX works_done ON works(key, finished_at) WHERE state = 'done';
CREATE INDEX works_shared ON works(shared_key, finished_at) WHERE shared_key IS NOT NULL;

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
  group_id TEXT,
  prompt TEXT REFERENCES texts(sha256),
  training_stage TEXT CHECK (training_stage IN ('correctness', 'speed')),
  reading TEXT CHECK (reading IS NULL OR json_valid(reading)),
  CHECK ((status = 'queued') = (result IS NULL))
);
CREATE INDEX jobs_open ON jobs(seq) WHERE status = 'queued';
CREATE INDEX jobs_work ON jobs(work);
CREATE INDEX jobs_completion ON jobs(completion);
CREATE INDEX jobs_prompt ON jobs(prompt) WHERE prompt IS NOT NULL;
CREATE INDEX jobs_group ON jobs(run, group_id) WHERE group_id IS NOT NULL;

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
  ended INTEGER NOT NULL DEFAULT 0,
  policy_version INTEGER,
  max_staleness INTEGER,
  batch_size INTEGER,
  trajectories INTEGER NOT NULL DEFAULT 0,
  training TEXT CHECK (training IS NULL OR json_valid(training)),
  owner TEXT
) WITHOUT ROWID;
"""

_GROUPS_AND_PROMPTS = """
ALTER TABLE jobs ADD COLUMN group_id TEXT;
ALTER TABLE jobs ADD COLUMN prompt TEXT REFERENCES texts(sha256);
CREATE INDEX jobs_prompt ON jobs(prompt) WHERE prompt IS NOT NULL;
"""

_TASKS = """
CREATE TABLE tasks (
  digest TEXT PRIMARY KEY,
  task TEXT NOT NULL CHECK (json_valid(task))
) WITHOUT ROWID;
"""

_EXEMPLARS = """
CREATE TABLE exemplars (
  id INTEGER PRIMARY KEY,
  caller TEXT NOT NULL,
  run TEXT NOT NULL,
  task TEXT NOT NULL,
  work INTEGER NOT NULL REFERENCES works(id),
  candidate TEXT NOT NULL,
  right INTEGER NOT NULL CHECK (right IN (0, 1)),
  score REAL,
  text TEXT,
  ptx TEXT,
  UNIQUE (caller, run, task, candidate)
);
CREATE INDEX exemplars_work ON exemplars(work);
"""

_STALENESS = """
ALTER TABLE runs ADD COLUMN policy_version INTEGER;
ALTER TABLE runs ADD COLUMN max_staleness INTEGER;
ALTER TABLE runs ADD COLUMN batch_size INTEGER;
ALTER TABLE runs ADD COLUMN trajectories INTEGER NOT NULL DEFAULT 0;
"""

EXPERIENCES = """
CREATE TABLE IF NOT EXISTS experiences (
  number INTEGER PRIMARY KEY AUTOINCREMENT,
  owner TEXT NOT NULL,
  run TEXT NOT NULL,
  kind TEXT NOT NULL CHECK (kind IN ('job', 'session')),
  name TEXT NOT NULL UNIQUE,
  policy_version INTEGER
);
CREATE INDEX IF NOT EXISTS experiences_run ON experiences(run, number);
CREATE TABLE IF NOT EXISTS consumers (
  caller TEXT NOT NULL,
  run TEXT NOT NULL,
  consumers TEXT NOT NULL,
  cursor INTEGER NOT NULL,
  PRIMARY KEY (caller, run, consumers)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS leases (
  caller TEXT NOT NULL,
  run TEXT NOT NULL,
  consumers TEXT NOT NULL,
  experience INTEGER NOT NULL REFERENCES experiences(number) ON DELETE CASCADE,
  lease TEXT NOT NULL,
  expires_at REAL NOT NULL,
  acknowledged INTEGER NOT NULL DEFAULT 0,
  PRIMARY KEY (caller, run, consumers, experience)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS leases_lease ON leases(lease);
CREATE INDEX IF NOT EXISTS leases_experience ON leases(experience);
CREATE INDEX IF NOT EXISTS leases_open ON leases(caller, run, consumers, expires_at) WHERE acknowledged = 0;
"""
"""Trajectories in the order of their ends, and how far groups of consumers have come with them."""

_EXPERIENCE_OF_JOB = """
INSERT INTO experiences (owner, run, kind, name, policy_version)
  SELECT NEW.caller, NEW.run, 'job', NEW.id, NEW.policy_version
  WHERE json_extract(NEW.result, '$.outcome') NOT IN ('infra_error', 'withheld') AND NEW.tag NOT GLOB 'session/*/*'"""

_EXPERIENCES_OF_JOBS = f"""
CREATE TRIGGER job_answered AFTER INSERT ON jobs WHEN NEW.result IS NOT NULL BEGIN {_EXPERIENCE_OF_JOB}; END;
CREATE TRIGGER job_ended AFTER UPDATE OF result ON jobs BEGIN {_EXPERIENCE_OF_JOB}; END;
CREATE TRIGGER job_deleted AFTER DELETE ON jobs BEGIN DELETE FROM experiences WHERE name = OLD.id; END;
"""

_STAGES = """
ALTER TABLE jobs ADD COLUMN training_stage TEXT CHECK (training_stage IN ('correctness', 'speed'));
CREATE INDEX jobs_group ON jobs(run, group_id) WHERE group_id IS NOT NULL;
"""

_SUSPECTS = """
CREATE TABLE suspects (
  id TEXT PRIMARY KEY,
  caller TEXT NOT NULL,
  run TEXT NOT NULL,
  work INTEGER NOT NULL REFERENCES works(id),
  candidate TEXT NOT NULL,
  why TEXT NOT NULL,
  cases TEXT NOT NULL CHECK (json_valid(cases)),
  created_at REAL NOT NULL,
  decision TEXT CHECK (decision IN ('release', 'confirm')),
  UNIQUE (caller, run, work)
) WITHOUT ROWID;
CREATE INDEX suspects_work ON suspects(work);
"""

_PROGRAMS = """
ALTER TABLE works ADD COLUMN shared_key TEXT;
ALTER TABLE works ADD COLUMN program TEXT CHECK (program IS NULL OR json_valid(program));
CREATE INDEX works_shared ON works(shared_key, finished_at) WHERE shared_key IS NOT NULL;
"""

UNSET_RUN = (
    "weight = 1 AND min_policy_version IS NULL AND policy_version IS NULL AND max_staleness IS NULL "
    "AND batch_size IS NULL AND training IS NULL AND owner IS NULL"
)
"""Condition of the rows of ``runs`` that have no settings."""

SERVER = Schema(
    application_id=0x4B465356,  # "KFSV"
    script=_TABLES + _TASKS + _EXEMPLARS + _SUSPECTS + EXPERIENCES + _EXPERIENCES_OF_JOBS,
    synchronous="NORMAL",
    guests=frozenset({"tokens", "sessions", "turns", "experiences", "consumers", "leases", "sqlite_sequence"}),
    changes=(
        _GROUPS_AND_PROMPTS,
        _TASKS,
        _STALENESS,
        "ALTER TABLE runs ADD COLUMN training TEXT CHECK (training IS NULL OR json_valid(training));" + _EXEMPLARS,
        EXPERIENCES + _EXPERIENCES_OF_JOBS,
        _STAGES,
        _SUSPECTS,
        "ALTER TABLE jobs ADD COLUMN reading TEXT CHECK (reading IS NULL OR json_valid(reading));",
        "ALTER TABLE runs ADD COLUMN owner TEXT;",
        _PROGRAMS,
        "ALTER TABLE works ADD COLUMN sizes TEXT CHECK (sizes IN ('all', 'train'));",
    ),
)
"""Schema of ``server.db``. A row of ``tasks`` is a suite's task that a job was evaluated for. A row of ``works`` is an
evaluation task; whether a worker has it is not stored, so after a kill all open tasks are queued again. Committed
transactions survive a kill of the server; a power cut may lose the last ones."""


_LOG = logging.getLogger(__name__)

KEPT_FAILURES = 4
"""Failed candidates of a task among a caller's exemplars: the latest, shown as long as none is right. Ours; CUDA-LLM
shows the errors and the history."""
_MAX_GATHERED = 1_000
"""Batches of one transaction."""
_CHECKPOINT_PAGES = 4_000
_ROWS = (64, 16, 4, 1)
"""Rows of one statement: few lengths, so that prepared statements are reused."""


class NewText(NamedTuple):
    sha256: str
    content: str


class TaskText(NamedTuple):
    """A task in JSON."""

    digest: str
    task: str


class NewTask(NamedTuple):
    id: int
    key: str
    state: str
    task: str
    task_digest: str
    candidate: str
    profiled: bool
    source: str | None = None
    plan: str | None = None
    choices: str | None = None
    finished_at: float | None = None
    evaluation: str | None = None
    sizes: str | None = None


class NewJob(NamedTuple):
    """An accepted job; one that is answered at once has its end already."""

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
    group_id: str | None
    prompt: str | None
    training_stage: str | None = None
    reading: str | None = None
    """How the candidate was read out of the completion, as JSON; None for device code and a plan."""


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
    result: str


class TaskEnd(NamedTuple):
    id: int
    state: str
    finished_at: float
    evaluation: str | None = None
    profile: str | None = None
    trouble: str | None = None
    shared_key: str | None = None
    """Key by which it answers for equal candidates; None if it does not."""
    program: str | None = None


class TaskProgress(NamedTuple):
    id: int
    key: str
    profiled: bool
    tries: int
    deaths: int
    started_at: float | None


class NewExemplar(NamedTuple):
    caller: str
    run: str
    task: str
    work: int
    candidate: str
    right: bool
    score: float | None


class NewSuspect(NamedTuple):
    id: str
    caller: str
    run: str
    work: int
    candidate: str
    why: str
    cases: str
    created_at: float


class KeptExemplar(NamedTuple):
    """Fingerprints of an exemplar that no other one has."""

    text: str
    ptx: str | None
    id: int


class RunRow(NamedTuple):
    run: str
    weight: float
    min_policy_version: int | None
    policy_version: int | None
    max_staleness: int | None
    batch_size: int | None
    training: str | None
    """Further settings, as JSON."""
    owner: str | None
    """The token without the scope ``admin`` that set it."""


@dataclass(slots=True)
class Batch:
    """Rows that are committed together."""

    texts: list[NewText] = field(default_factory=list)
    task_texts: list[TaskText] = field(default_factory=list)
    tasks: list[NewTask] = field(default_factory=list)
    jobs: list[NewJob] = field(default_factory=list)
    keys: list[NewKey] = field(default_factory=list)
    progress: list[TaskProgress] = field(default_factory=list)
    ended_jobs: list[JobEnd] = field(default_factory=list)
    ended_tasks: list[TaskEnd] = field(default_factory=list)
    runs: list[RunRow] = field(default_factory=list)
    ended_of_runs: list[tuple[str, int]] = field(default_factory=list)
    """Run of each job that ended, with 1 if it is a trajectory with a result, else 0."""
    forgotten_keys: list[tuple[str, str, str]] = field(default_factory=list)
    """Caller, key and job."""
    pruned_jobs: list[int] = field(default_factory=list)
    """``seq`` of completed jobs to delete, with their keys, and with texts that no other job has."""
    pruned_tasks: list[int] = field(default_factory=list)
    """Tasks to delete unless a job refers to them."""
    pruned_runs: list[str] = field(default_factory=list)
    """Runs to delete unless they have settings."""
    exemplars: list[NewExemplar] = field(default_factory=list)
    kept_exemplars: list[KeptExemplar] = field(default_factory=list)
    dropped_exemplars: list[int] = field(default_factory=list)
    suspects: list[NewSuspect] = field(default_factory=list)
    decisions: list[tuple[str, str]] = field(default_factory=list)
    """Decision and suspect."""
    changed_results: list[tuple[str, str]] = field(default_factory=list)
    """Result, as JSON, and job that has ended."""

    def __bool__(self) -> bool:
        return any(getattr(self, part) for part in self.__slots__)


class _Pending(NamedTuple):
    batch: Batch
    done: asyncio.Future[None]


class JobStore:
    """``server.db``. Reads run in the caller's thread, writes in a separate one.

    Raises:
        StoreError: the file is no server database, or is locked, corrupt or not writable.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / DATABASE_NAME
        self._writer = Database(self.path, SERVER, create=True, read_only=False)
        with self._writer.transaction() as db:
            db.execute(f"PRAGMA wal_autocheckpoint = {_CHECKPOINT_PAGES}")
        self._reader = self.reader()
        self._waiting: queue.SimpleQueue[_Pending | None] = queue.SimpleQueue()
        self._known_texts: set[str] = set()
        self._known_tasks: set[str] = set()
        self._closed = False
        self._lock = threading.Lock()
        """Guards ``_closed``: another thread than the event loop's may close the store."""
        self._thread = threading.Thread(target=self._write, name="journal", daemon=True)
        self._thread.start()
        self.transactions = 0
        """Number of transactions so far."""

    def commit(self, batch: Batch) -> asyncio.Future[None]:
        """Write a batch. The future is done when the batch is committed.

        It raises StoreError if the batch could not be written; none of its rows is stored then.
        """
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        with self._lock:
            if not self._closed:
                self._waiting.put(_Pending(batch, done))
                return done
        done.set_exception(StoreError(f"cannot write to {self.path}: it is closed"))
        return done

    async def written(self) -> None:
        """Return once all that was passed to the writer before is written, or could not be.

        Raises:
            StoreError: the file cannot be written.
        """
        await asyncio.sleep(0)  # ends of evaluated jobs are passed to the writer in the next step of the event loop
        await asyncio.shield(self.commit(Batch()))

    def read(self, sql: str, parameters: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        """Rows of a query over committed data.

        Raises:
            StoreError: the file cannot be read.
        """
        return self._reader.tuples(sql, parameters)

    def reader(self) -> Database:
        """Another connection, for long queries; :meth:`read` is for those that are fast enough for an event loop."""
        return Database(self.path, SERVER, create=False, read_only=True)

    def note(self, batch: Batch) -> None:
        """Write a batch in the background; it may be lost."""
        self.commit(batch).add_done_callback(self._log_failure)

    def _log_failure(self, done: asyncio.Future[None]) -> None:
        if not done.cancelled() and done.exception() is not None:
            _LOG.warning("progress was not stored: %s", done.exception())

    def close(self) -> None:
        """Write the remaining batches, and close the file."""
        with self._lock:
            self._closed = True
            self._waiting.put(None)
        self._thread.join()
        self._reader.close()
        self._writer.close()

    def _write(self) -> None:
        closed = False
        while not closed:
            gathered: list[_Pending] = []
            pending = self._waiting.get()
            while pending is not None:
                gathered.append(pending)
                if len(gathered) == _MAX_GATHERED or self._waiting.empty():
                    break
                pending = self._waiting.get()
            closed = pending is None
            if gathered:
                self._commit_all(gathered)

    def _commit_all(self, gathered: Sequence[_Pending]) -> None:
        error = self._try([pending.batch for pending in gathered])
        if error is None or len(gathered) == 1:
            _resolve([(pending.done, error) for pending in gathered])
            return
        # A batch that cannot be written must not fail the others.
        _resolve([(pending.done, self._try([pending.batch])) for pending in gathered])

    def _try(self, batches: Sequence[Batch]) -> Exception | None:
        try:
            with self._writer.transaction() as db:
                self._insert(db.execute, batches)
        except Exception as error:  # raised by the future of the commit
            self._known_texts.clear()
            self._known_tasks.clear()
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
        task_texts = [text for text in gather("task_texts") if text.digest not in self._known_tasks]
        self._known_tasks.update(text.digest for text in task_texts)
        _many(execute, "INSERT OR IGNORE INTO tasks VALUES {rows}", task_texts)
        _many(
            execute,
            "INSERT INTO works (id, key, state, task, task_digest, candidate, profiled, source, plan, choices, "
            "finished_at, evaluation, sizes) VALUES {rows}",
            gather("tasks"),
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
            "WITH ends(id, status, started_at, finished_at, tries, result) AS (VALUES {rows}) "
            "UPDATE jobs SET status = ends.status, started_at = ends.started_at, finished_at = ends.finished_at, "
            "tries = ends.tries, result = ends.result "
            "FROM ends WHERE jobs.id = ends.id AND jobs.status = 'queued'",
            gather("ended_jobs"),
        )
        for end in gather("ended_tasks"):
            execute(
                "UPDATE works SET state = ?, finished_at = ?, evaluation = ?, profile = ?, trouble = ?, "
                "shared_key = ?, program = ? WHERE id = ? AND state = 'open'",
                (*end[1:], end.id),
            )
        _many(
            execute,
            "INSERT INTO runs "
            "(run, weight, min_policy_version, policy_version, max_staleness, batch_size, training, owner) "
            "VALUES {rows} ON CONFLICT (run) DO UPDATE SET weight = excluded.weight, "
            "min_policy_version = excluded.min_policy_version, policy_version = excluded.policy_version, "
            "max_staleness = excluded.max_staleness, batch_size = excluded.batch_size, training = excluded.training, "
            "owner = excluded.owner",
            gather("runs"),
        )
        counts: dict[str, list[int]] = {}
        for run, trajectory in gather("ended_of_runs"):
            counted = counts.setdefault(run, [0, 0])
            counted[0] += 1
            counted[1] += trajectory
        _many(
            execute,
            "INSERT INTO runs (run, ended, trajectories) VALUES {rows} ON CONFLICT (run) DO UPDATE SET "
            "ended = ended + excluded.ended, trajectories = trajectories + excluded.trajectories",
            [(run, *counted) for run, counted in counts.items()],
        )
        for forgotten in gather("forgotten_keys"):
            execute("DELETE FROM keys WHERE caller = ? AND key = ? AND job = ?", forgotten)
        self._exemplars(execute, gather("exemplars"), gather("kept_exemplars"), gather("dropped_exemplars"))
        for suspect in gather("suspects"):
            execute(
                "INSERT OR IGNORE INTO suspects (id, caller, run, work, candidate, why, cases, created_at) "
                "VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                suspect,
            )
        for decision in gather("decisions"):
            execute("UPDATE suspects SET decision = ? WHERE id = ?", decision)
        for changed in gather("changed_results"):
            execute("UPDATE jobs SET result = ? WHERE id = ?", changed)
        self._prune(execute, gather("pruned_jobs"), gather("pruned_tasks"))
        for run in gather("pruned_runs"):
            execute(f"DELETE FROM runs WHERE run = ? AND {UNSET_RUN}", (run,))

    def _exemplars(
        self,
        execute: Callable[..., Any],
        new: Sequence[NewExemplar],
        kept: Sequence[KeptExemplar],
        dropped: Sequence[int],
    ) -> None:
        for row in new:  # a later evaluation replaces an earlier one that has no time
            execute(
                "INSERT INTO exemplars (caller, run, task, work, candidate, right, score) VALUES (?, ?, ?, ?, ?, ?, ?) "
                "ON CONFLICT (caller, run, task, candidate) DO UPDATE SET work = excluded.work, "
                "right = excluded.right, score = excluded.score WHERE score IS NULL AND excluded.score IS NOT NULL",
                row,
            )
            if not row.right:
                failed = "caller = ?1 AND run = ?2 AND task = ?3 AND right = 0"
                execute(
                    f"DELETE FROM exemplars WHERE {failed} AND id <= "
                    f"(SELECT id FROM exemplars WHERE {failed} ORDER BY id DESC LIMIT 1 OFFSET ?4)",
                    (row.caller, row.run, row.task, KEPT_FAILURES),
                )
        for mark in kept:
            execute("UPDATE exemplars SET text = ?, ptx = ? WHERE id = ?", mark)
        for exemplar in dropped:
            execute("DELETE FROM exemplars WHERE id = ?", (exemplar,))

    def _prune(self, execute: Callable[..., Any], jobs: Sequence[int], tasks: Sequence[int]) -> None:
        for seq in jobs:
            deleted = execute(
                "DELETE FROM jobs WHERE seq = ? AND status != 'queued' RETURNING id, completion, prompt", (seq,)
            ).fetchall()
            for job, *texts in deleted:
                execute("DELETE FROM keys WHERE job = ?", (job,))
                for text in filter(None, texts):
                    execute(
                        "DELETE FROM texts WHERE sha256 = ?1 AND NOT EXISTS (SELECT 1 FROM jobs WHERE completion = ?1) "
                        "AND NOT EXISTS (SELECT 1 FROM jobs WHERE prompt = ?1)",
                        (text,),
                    )
                    self._known_texts.discard(text)
        for task in tasks:
            execute(
                "DELETE FROM works WHERE id = ?1 AND state != 'open' AND NOT EXISTS (SELECT 1 FROM jobs "
                "WHERE work = ?1) AND NOT EXISTS (SELECT 1 FROM exemplars WHERE work = ?1) "
                "AND NOT EXISTS (SELECT 1 FROM suspects WHERE work = ?1)",
                (task,),
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


def _resolve(outcomes: Iterable[tuple[asyncio.Future[None], Exception | None]]) -> None:
    """Resolve futures on their event loops, with one call for each loop."""
    by_loop: dict[asyncio.AbstractEventLoop, list[tuple[asyncio.Future[None], Exception | None]]] = {}
    for done, error in outcomes:
        by_loop.setdefault(done.get_loop(), []).append((done, error))
    for loop, settled in by_loop.items():
        with contextlib.suppress(RuntimeError):  # the loop is closed, so no caller waits
            loop.call_soon_threadsafe(_settle, settled)


def _settle(outcomes: Sequence[tuple[asyncio.Future[None], Exception | None]]) -> None:
    for done, error in outcomes:
        if done.done():  # the caller was cancelled; the batch is written all the same
            continue
        if error is None:
            done.set_result(None)
        else:
            done.set_exception(error)
