"""The journal of a results folder: runs, tasks and attempts, whole or not at all."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import sqlite_utils
from pydantic import ValidationError

from kernelforge.errors import StoreError, UsageError
from kernelforge.records import Attempt, Graph, Message, Run, RunState, Task, TaskFacts
from kernelforge.store import locks
from kernelforge.store.codec import (
    Blobs,
    Row,
    attempt_from_rows,
    attempt_rows,
    blob_names,
    message_rows,
    messages_from_rows,
)
from kernelforge.store.database import Database
from kernelforge.store.schema import ATTEMPT_TABLES

DATABASE_NAME = "kernelforge.db"
_NAMES_PER_QUERY = 500


class Store:
    """One results database. Threads may share it; processes may open it side by side."""

    def __init__(self, database: Database) -> None:
        self._database = database

    @classmethod
    def open(
        cls, path: Path, *, create: bool = True, read_only: bool = False, busy_timeout_s: float | None = None
    ) -> Store:
        """Open the database at ``path`` (a file; its folder is made when ``create``).

        Raises:
            StoreError: missing, locked, not a results database, of a newer version, not writable, or the disk is full.
        """
        return cls(Database(Path(path), create=create, read_only=read_only, busy_timeout_s=busy_timeout_s))

    @property
    def path(self) -> Path:
        return self._database.path

    def close(self) -> None:
        self._database.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # Runs

    def start_run(self, run: Run) -> None:
        """Journal a new run.

        Raises:
            StoreError: a run of that id is there already.
        """
        config = run.config
        row = {
            "id": run.id,
            "state": run.state.value,
            "started": run.started,
            "ended": run.ended,
            "kernelforge": run.kernelforge,
            **{
                name: getattr(config, name)
                for name in ("suite", "suite_digest", "device", "strategy", "coder", "judge")
            },
            "config": config.model_dump_json(),
        }
        with self._database.transaction() as db, _unique(f"run {run.id} is already in {self.path}"):
            db.table("runs").insert(row)

    def update_run(self, run_id: str, state: RunState, ended: str | None) -> None:
        with self._database.transaction() as db:
            done = db.execute(
                "UPDATE runs SET state = ?, ended = ? WHERE id = ?", (RunState(state).value, ended, run_id)
            )
            if done.rowcount != 1:
                raise StoreError(f"run {run_id} is not in {self.path}")

    def runs(self) -> list[Run]:
        """All runs, oldest first."""
        return [_run(row, self.path) for row in self._database.rows("SELECT * FROM runs ORDER BY started, rowid")]

    def run(self, which: str) -> Run:
        """The run with that id, that unique beginning of an id, or ``latest``.

        Raises:
            UsageError: none, or more than one.
        """
        ids = [row["id"] for row in self._database.rows("SELECT id FROM runs ORDER BY started, rowid")]
        if not ids:
            raise UsageError(f"{self.path} holds no run yet: start one with 'kernelforge run'")
        if which == "latest":
            found = ids[-1:]
        elif which in ids:
            found = [which]
        else:
            found = [run_id for run_id in ids if which and run_id.startswith(which)]
        if len(found) != 1:
            what = f"{len(found)} runs begin with '{which}'" if found else f"there is no run '{which}' in {self.path}"
            raise UsageError(f"{what}; runs: {', '.join(found or ids[-8:])}, or 'latest'")
        return _run(self._database.rows("SELECT * FROM runs WHERE id = ?", (found[0],))[0], self.path)

    def is_live(self, run_id: str) -> bool:
        """Whether a process is at work on the run now; a run in state ``running`` that is not live was interrupted."""
        return locks.is_locked(locks.lock_path(self.path.parent, run_id))

    def lock_run(self, run_id: str) -> contextlib.AbstractContextManager[None]:
        """Hold the run for this process. The lock of a dead process is taken over.

        Raises:
            StoreError: on entering, when a live process holds it.
        """
        return locks.run_lock(locks.lock_path(self.path.parent, run_id), run_id)

    # Tasks

    def put_task(self, run_id: str, task: Task, facts: TaskFacts | None = None, graph: Graph | None = None) -> None:
        """Journal a task of a run, or what is newly known of it. A task that cannot be worked on has no facts.

        Raises:
            StoreError: the run has another task of that name, or the facts are of another task.
        """
        if facts is not None and facts.task_digest != task.digest:
            raise StoreError(f"the facts given for task {task.name} are of another version of it")
        row = {
            "run": run_id,
            **{name: getattr(task, name) for name in ("name", "suite", "title", "level", "digest")},
            "record": task.model_dump_json(),
        }
        if facts is not None:
            row["facts"] = facts.model_dump_json()
        if graph is not None:
            row["graph"] = graph.model_dump_json()
        with self._database.transaction() as db:
            known = list(db.query("SELECT digest FROM tasks WHERE run = ? AND name = ?", (run_id, task.name)))
            if known and known[0]["digest"] != task.digest:
                raise StoreError(
                    f"task {task.name} has changed since run {run_id} began: start a new run, or restore the task"
                )
            with _linked(f"run {run_id} is not in {self.path}"):
                db.table("tasks").upsert(row, pk=("run", "name"))

    def task(self, run_id: str, name: str) -> Task:
        """
        Raises:
            UsageError: the run has no such task.
        """
        with _readable(self.path):
            return Task.model_validate_json(self._task_row(run_id, name)["record"])

    def facts(self, run_id: str, name: str) -> TaskFacts | None:
        """What the oracle found of a task, or None when the run never came to it."""
        rows = self._database.rows("SELECT facts FROM tasks WHERE run = ? AND name = ?", (run_id, name))
        with _readable(self.path):
            return TaskFacts.model_validate_json(rows[0]["facts"]) if rows and rows[0]["facts"] else None

    def tasks(self, run_id: str) -> list[Task]:
        """Tasks that the run has come to, in the order of their first journal entry."""
        rows = self._database.rows("SELECT record FROM tasks WHERE run = ? ORDER BY rowid", (run_id,))
        with _readable(self.path):
            return [Task.model_validate_json(row["record"]) for row in rows]

    def finish_task(self, run_id: str, name: str, reason: str, messages: Sequence[Message] = ()) -> None:
        """Note that nothing is left to do at a task, why, and the last words of the agents about it.

        Raises:
            StoreError: the run has not come to that task.
        """
        blobs = Blobs()
        rows = message_rows(messages, blobs, run=run_id, task=name)
        with self._database.transaction() as db:
            done = db.execute("UPDATE tasks SET finished = ? WHERE run = ? AND name = ?", (reason, run_id, name))
            if done.rowcount != 1:
                raise StoreError(f"run {run_id} has no task {name} in {self.path} that could be finished")
            _append_messages(db, run_id, name, blobs, rows)

    def finished_tasks(self, run_id: str) -> dict[str, str]:
        """Why each finished task of a run is finished, by task."""
        rows = self._database.rows("SELECT name, finished FROM tasks WHERE run = ? ORDER BY rowid", (run_id,))
        return {row["name"]: row["finished"] for row in rows if row["finished"] is not None}

    def add_task_messages(self, run_id: str, name: str, messages: Sequence[Message]) -> None:
        """Journal what agents said of a task outside any attempt.

        Raises:
            StoreError: the run has not come to that task.
        """
        blobs = Blobs()
        rows = message_rows(messages, blobs, run=run_id, task=name)
        with self._database.transaction() as db, _linked(f"run {run_id} has no task {name} in {self.path}"):
            _append_messages(db, run_id, name, blobs, rows)

    def task_messages(self, run_id: str, name: str) -> tuple[Message, ...]:
        """What agents said of a task outside any attempt, in order: tests proposed, last words, lessons."""
        rows = self._database.rows(
            "SELECT * FROM task_messages WHERE run = ? AND task = ? ORDER BY position", (run_id, name)
        )
        blobs = self._blobs({row["content"] for row in rows})
        with _readable(self.path):
            return messages_from_rows(rows, blobs)

    def _task_row(self, run_id: str, name: str) -> Row:
        rows = self._database.rows("SELECT name, record FROM tasks WHERE run = ?", (run_id,))
        for row in rows:
            if row["name"] == name:
                return row
        raise UsageError(
            f"run {run_id} has no task '{name}'; it has: {', '.join(row['name'] for row in rows) or 'none'}"
        )

    # Attempts

    def add_attempt(self, attempt: Attempt) -> None:
        """Journal everything of one attempt in one transaction.

        Raises:
            StoreError: an attempt of that id or number is there, its task or parent is not, or the write failed;
                then nothing of it is kept.
        """
        blobs, head, rows = attempt_rows(attempt)
        with self._database.transaction() as db:
            with (
                _unique(f"attempt {attempt.id} is already in {self.path}"),
                _linked(f"attempt {attempt.id} belongs to a run, a task or a parent that is not in {self.path}"),
            ):
                db.table("blobs").insert_all(blobs, ignore=True)
                db.table("attempts").insert(head)
                for table in ATTEMPT_TABLES:
                    if rows.get(table):
                        db.table(table).insert_all(rows[table])

    def attempts(self, run_id: str, task: str | None = None) -> list[Attempt]:
        """Full records of a run, or of one task of it, by task and then number."""
        where, values = ("run = ?", (run_id,)) if task is None else ("run = ? AND task = ?", (run_id, task))
        return self._load(where, values)

    def attempt(self, which: str) -> Attempt:
        """The attempt ``<run>/<task>/<number>``; the run may be a unique beginning or ``latest``.

        Raises:
            UsageError: there is no such attempt, or the reference is not one.
        """
        run, _, rest = which.partition("/")
        task, _, number = rest.rpartition("/")
        if not task or not number.isdecimal():
            raise UsageError(
                f"'{which}' does not name an attempt: write <run>/<task>/<number>, for instance latest/softmax/3"
            )
        run_id = self.run(run).id
        found = self._load("run = ? AND task = ? AND number = ?", (run_id, task, int(number)))
        if not found:
            self._task_row(run_id, task)
            numbers = self._database.rows(
                "SELECT min(number) AS low, max(number) AS high FROM attempts WHERE run = ? AND task = ?",
                (run_id, task),
            )[0]
            has = "none" if numbers["low"] is None else f"{numbers['low']} to {numbers['high']}"
            raise UsageError(f"task {task} of run {run_id} has no attempt {int(number)}; it has {has}")
        return found[0]

    def _load(self, where: str, values: tuple[Any, ...]) -> list[Attempt]:
        with self._database.snapshot():
            heads = self._database.rows(f"SELECT * FROM attempts WHERE {where} ORDER BY task, number", values)
            chosen = f"SELECT id FROM attempts WHERE {where}"
            rows: dict[str, dict[str, list[Row]]] = defaultdict(lambda: defaultdict(list))
            for table in ATTEMPT_TABLES:
                for row in self._database.rows(
                    f"SELECT * FROM {table} WHERE attempt IN ({chosen}) ORDER BY rowid", values
                ):
                    rows[row["attempt"]][table].append(row)
            blobs = self._blobs({name for head in heads for name in blob_names(head, rows[head["id"]])})
        with _readable(self.path):
            return [attempt_from_rows(head, rows[head["id"]], blobs) for head in heads]

    def _blobs(self, names: set[str]) -> dict[str, str]:
        found: dict[str, str] = {}
        wanted = sorted(names)
        for start in range(0, len(wanted), _NAMES_PER_QUERY):
            part = wanted[start : start + _NAMES_PER_QUERY]
            marks = ", ".join("?" * len(part))
            rows = self._database.rows(f"SELECT sha256, content FROM blobs WHERE sha256 IN ({marks})", tuple(part))
            found |= {row["sha256"]: row["content"] for row in rows}
        return found


def _append_messages(db: sqlite_utils.Database, run_id: str, task: str, blobs: Blobs, rows: list[Row]) -> None:
    """Put messages after those that a task has."""
    found = list(
        db.query(
            "SELECT coalesce(max(position) + 1, 0) AS next FROM task_messages WHERE run = ? AND task = ?",
            (run_id, task),
        )
    )
    db.table("blobs").insert_all(blobs.rows.values(), ignore=True)
    db.table("task_messages").insert_all([{**row, "position": found[0]["next"] + row["position"]} for row in rows])


def _run(row: Row, path: Path) -> Run:
    with _readable(path):
        fields = {name: row[name] for name in ("id", "state", "started", "ended", "kernelforge")}
        return Run.model_validate(fields | {"config": json.loads(row["config"])})


@contextlib.contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except (ValidationError, KeyError, ValueError) as error:
        first = str(error).splitlines()[0]
        raise StoreError(f"{path} holds a record that this version of KernelForge cannot read: {first}") from error


@contextlib.contextmanager
def _unique(message: str) -> Iterator[None]:
    with _constraint(("SQLITE_CONSTRAINT_PRIMARYKEY", "SQLITE_CONSTRAINT_UNIQUE"), message):
        yield


@contextlib.contextmanager
def _linked(message: str) -> Iterator[None]:
    with _constraint(("SQLITE_CONSTRAINT_FOREIGNKEY",), message):
        yield


@contextlib.contextmanager
def _constraint(names: tuple[str, ...], message: str) -> Iterator[None]:
    try:
        yield
    except sqlite3.IntegrityError as error:
        if error.sqlite_errorname in names:
            raise StoreError(message) from error
        raise
