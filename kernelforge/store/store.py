"""The results store: runs, tasks and attempts, each written in one transaction."""

from __future__ import annotations

import contextlib
import json
import operator
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from kernelforge.errors import StoreError, UsageError
from kernelforge.records import (
    Attempt,
    Evaluation,
    ForecastOutcome,
    Graph,
    LaunchQueue,
    Lesson,
    Message,
    Run,
    RunConfig,
    RunState,
    Task,
    TaskFacts,
    Usage,
    forecast_outcome,
)
from kernelforge.store.database import RESULTS, Database, as_text, readable
from kernelforge.store.live_runs import is_locked, remove_status, run_lock
from kernelforge.store.task_store import (
    Blobs,
    Row,
    TaskState,
    append_messages,
    blob_names,
    decode_attempt,
    encode_attempt,
    linked,
    message_rows,
    parse_attempt,
    unique,
)
from kernelforge.utils.closing import Closing
from kernelforge.utils.garbage import collection_paused

DATABASE_NAME = "kernelforge.db"
_RUNS_NAMED = 8
"""Most runs named in an error."""


class Store(TaskState, Closing):
    """One results database. Threads may share it; several processes may open it."""

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
        return cls(Database(Path(path), RESULTS, create=create, read_only=read_only, busy_timeout_s=busy_timeout_s))

    @property
    def path(self) -> Path:
        return self._database.path

    def close(self) -> None:
        self._database.close()

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
        with self._database.transaction() as db, unique(f"run {run.id} is already in {self.path}"):
            db.table("runs").insert(row)

    def update_run(self, run_id: str, state: RunState, ended: str | None) -> None:
        with self._database.transaction() as db:
            done = db.execute(
                "UPDATE runs SET state = ?, ended = ? WHERE id = ?", (RunState(state).value, ended, run_id)
            )
            if done.rowcount != 1:
                raise StoreError(f"run {run_id} is not in {self.path}")

    def update_config(self, run_id: str, config: RunConfig) -> None:
        """Change what a run may still do, such as its budget.

        Raises:
            StoreError: there is no such run.
        """
        with self._database.transaction() as db:
            done = db.execute("UPDATE runs SET config = ? WHERE id = ?", (config.model_dump_json(), run_id))
            if done.rowcount != 1:
                raise StoreError(f"run {run_id} is not in {self.path}")

    def runs(self) -> list[Run]:
        """All runs, in the order in which they began; not by their times, since a clock may be put back."""
        return [_run(row, self.path) for row in self._database.rows("SELECT * FROM runs ORDER BY rowid")]

    def run_ids(self) -> list[str]:
        """Ids of all runs, in the order in which they began."""
        rows = self._database.rows("SELECT id FROM runs ORDER BY rowid")
        with readable(self.path, "names of runs"):
            return [as_text(row["id"]) for row in rows]

    def run(self, which: str) -> Run:
        """The run with that id or unique beginning of an id, or the ``latest`` run.

        Raises:
            UsageError: there is none, or more than one.
        """
        ids = self.run_ids()
        if not ids:
            raise UsageError(f"{self.path} holds no run yet: start one with 'kernelforge run'")
        if which == "latest":
            matches = ids[-1:]
        elif which in ids:
            matches = [which]
        else:
            matches = [run_id for run_id in ids if which and run_id.startswith(which)]
        if len(matches) != 1:
            what = (
                f"{len(matches)} runs begin with '{which}'" if matches else f"there is no run '{which}' in {self.path}"
            )
            raise UsageError(f"{what}; runs: {', '.join((matches or ids)[-_RUNS_NAMED:])}, or 'latest'")
        return _run(self._database.rows("SELECT * FROM runs WHERE id = ?", (matches[0],))[0], self.path)

    def is_live(self, run_id: str) -> bool:
        """Whether a process works on the run; a run in state ``running`` that is not live was interrupted."""
        return is_locked(self.path.parent, run_id)

    def refresh(self, run: Run) -> tuple[Run, bool]:
        """Re-read a run, and report whether a process holds its lock.

        The lock is read first. In the other order, a run that ends between the two reads would appear as interrupted.
        """
        locked = self.is_live(run.id)
        run = self.run(run.id)
        return run, locked and run.state is RunState.RUNNING

    @contextlib.contextmanager
    def lock_run(self, run_id: str) -> Iterator[None]:
        """Lock the run for this process. The lock of a dead process is taken over.

        Raises:
            StoreError: on entering, when a live process holds the lock.
        """
        folder = self.path.parent
        with run_lock(folder, run_id):
            remove_status(folder, run_id)  # a status left by a killed process is out of date
            yield

    # Tasks

    def put_task(self, run_id: str, task: Task, facts: TaskFacts | None = None, graph: Graph | None = None) -> None:
        """Journal a task of a run, or its new facts and graph. A task that cannot be worked on has no facts.

        Raises:
            StoreError: the run has another task of that name, or the facts are of another task.
        """
        if facts is not None and facts.task_digest != task.digest:
            raise StoreError(f"the facts for task {task.name} are of another version of it")
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
            stored = list(db.query("SELECT digest FROM tasks WHERE run = ? AND name = ?", (run_id, task.name)))
            if stored and stored[0]["digest"] != task.digest:
                raise StoreError(
                    f"task {task.name} has changed since run {run_id} began: start a new run, or restore the task"
                )
            with linked(f"run {run_id} is not in {self.path}"):
                db.table("tasks").upsert(row, pk=("run", "name"))

    def task(self, run_id: str, name: str) -> Task:
        """
        Raises:
            UsageError: the run has no such task.
        """
        with readable(self.path, f"task {name} of run {run_id}"):
            return Task.model_validate_json(self._task_row(run_id, name)["record"])

    def facts(self, run_id: str, name: str) -> TaskFacts | None:
        """The oracle's facts of a task, or None when the run has not reached it."""
        rows = self._database.rows("SELECT facts FROM tasks WHERE run = ? AND name = ?", (run_id, name))
        with readable(self.path, f"facts of task {name} of run {run_id}"):
            return TaskFacts.model_validate_json(rows[0]["facts"]) if rows and rows[0]["facts"] else None

    def all_facts(self, run_id: str) -> dict[str, TaskFacts]:
        """The oracle's facts of every task that the run has reached, by task."""
        rows = self._database.rows(
            "SELECT name, facts FROM tasks WHERE run = ? AND facts IS NOT NULL ORDER BY rowid", (run_id,)
        )
        with readable(self.path, f"facts of tasks of run {run_id}"):
            return {as_text(row["name"]): TaskFacts.model_validate_json(row["facts"]) for row in rows}

    def compulsory_bytes(self, run_id: str) -> dict[str, int]:
        """Bytes that each task's full size must read and write, by task; does not load all facts."""
        rows = self._database.rows(
            "SELECT name, json_extract(size.value, '$.compulsory_bytes') AS bytes "
            "FROM tasks, json_each(tasks.facts, '$.sizes') AS size "
            "WHERE run = ? AND json_extract(size.value, '$.size') = 'full' ORDER BY tasks.rowid",
            (run_id,),
        )
        with readable(self.path, f"facts of tasks of run {run_id}"):
            return {as_text(row["name"]): operator.index(row["bytes"]) for row in rows}

    def tasks(self, run_id: str) -> list[Task]:
        """Tasks that the run has reached, in the order of their first journal entry."""
        rows = self._database.rows("SELECT record FROM tasks WHERE run = ? ORDER BY rowid", (run_id,))
        with readable(self.path, f"tasks of run {run_id}"):
            return [Task.model_validate_json(row["record"]) for row in rows]

    def finish_task(
        self,
        run_id: str,
        name: str,
        reason: str,
        messages: Sequence[Message] = (),
        lessons: Sequence[Lesson] = (),
    ) -> None:
        """Mark a task as finished, with the reason, the last messages of the agents, and the lessons.

        Deletes drafts that were not evaluated: their messages are among the last messages.

        Raises:
            StoreError: the run has not reached that task.
        """
        blobs = Blobs()
        rows = message_rows(messages, blobs, run=run_id, task=name)
        with self._database.transaction() as db:
            done = db.execute("UPDATE tasks SET finished = ? WHERE run = ? AND name = ?", (reason, run_id, name))
            if done.rowcount != 1:
                raise StoreError(f"run {run_id} has no task {name} in {self.path} that could be finished")
            append_messages(db, run_id, name, blobs, rows)
            db.execute("DELETE FROM drafts WHERE run = ? AND task = ?", (run_id, name))
            db.execute("DELETE FROM lessons WHERE run = ? AND task = ?", (run_id, name))
            db.table("lessons").insert_all(
                {**lesson.model_dump(), "run": run_id, "task": name, "position": position}
                for position, lesson in enumerate(lessons)
            )

    def reopen_task(self, run_id: str, name: str) -> None:
        """Mark a finished task as one to be worked on."""
        with self._database.transaction() as db:
            db.execute("UPDATE tasks SET finished = NULL WHERE run = ? AND name = ?", (run_id, name))

    def finished_tasks(self, run_id: str) -> dict[str, str]:
        """Reasons why tasks of a run are finished, by task."""
        rows = self._database.rows(
            "SELECT name, CAST(finished AS TEXT) AS finished FROM tasks WHERE run = ? ORDER BY rowid", (run_id,)
        )
        with readable(self.path, f"tasks of run {run_id}"):
            return {as_text(row["name"]): row["finished"] for row in rows if row["finished"] is not None}

    def _task_row(self, run_id: str, name: str) -> Row:
        rows = self._database.rows("SELECT name, record FROM tasks WHERE run = ?", (run_id,))
        for row in rows:
            if row["name"] == name:
                return row
        with readable(self.path, f"tasks of run {run_id}"):
            names = ", ".join(row["name"] for row in rows) or "none"
        raise UsageError(f"run {run_id} has no task '{name}'; it has: {names}")

    # Attempts

    def add_attempt(
        self, attempt: Attempt, *, step: int | None = None, search: Mapping[str, Any] | None = None
    ) -> None:
        """Journal everything of one attempt in one transaction.

        Args:
            step: step of the draft that it was made from, which is deleted.
            search: state of the strategy when it requested the attempt.

        Raises:
            StoreError: an attempt of that id or number is there, its task or parent is not, or the write failed;
                the database is then unchanged.
        """
        row, blobs = encode_attempt(attempt)
        with self._database.transaction() as db:
            with (
                unique(f"attempt {attempt.id} is already in {self.path}"),
                linked(f"attempt {attempt.id} belongs to a run, a task or a parent that is not in {self.path}"),
            ):
                db.table("blobs").insert_all(blobs.rows.values(), ignore=True)
                db.table("attempts").insert(row)
            key = (attempt.run, attempt.task)
            if step is not None:
                db.execute("DELETE FROM drafts WHERE run = ? AND task = ? AND step = ?", (*key, step))
            if search is not None:
                db.execute("UPDATE tasks SET search = ? WHERE run = ? AND name = ?", (json.dumps(search), *key))

    def reasoning(self, digest: str) -> list[tuple[str, Usage | None]]:
        """Reasoning before the last reply of a Coder, with that reply's usage, of every attempt at a task that has
        some: of all runs, in their order."""
        rows = self._database.tuples(
            "SELECT attempts.id, blobs.content, json_extract(message.value, '$.usage') FROM attempts "
            "JOIN tasks ON tasks.run = attempts.run AND tasks.name = attempts.task, "
            "json_each(attempts.record, '$.messages') AS message "
            "JOIN blobs ON blobs.sha256 = json_extract(message.value, '$.reasoning') "
            "WHERE tasks.digest = ? AND json_extract(message.value, '$.agent') = 'coder' "
            "ORDER BY attempts.rowid, message.key",
            (digest,),
        )
        with readable(self.path, f"reasoning about the task {digest}"):
            last = {id: (as_text(text), usage and Usage.model_validate_json(usage)) for id, text, usage in rows}
        return list(last.values())

    def launch_queues(self, digest: str) -> list[tuple[str, LaunchQueue]]:
        """GPUs on which launches of eager PyTorch were traced for a task, with the latest trace of each."""
        path = "$.evaluation.performance.timing.eager_launches"
        rows = self._database.tuples(
            f"SELECT attempts.id, json_extract(attempts.record, '$.evaluation.fingerprint.gpu'), "
            f"json_extract(attempts.record, '{path}') FROM attempts "
            "JOIN tasks ON tasks.run = attempts.run AND tasks.name = attempts.task "
            f"WHERE tasks.digest = ? AND json_extract(attempts.record, '{path}') IS NOT NULL ORDER BY attempts.rowid",
            (digest,),
        )
        latest: dict[str, LaunchQueue] = {}
        for id, gpu, text in rows:
            with readable(self.path, f"attempt {id}"):
                latest[str(gpu)] = LaunchQueue.model_validate_json(text)
        return list(latest.items())

    def search_state(self, run_id: str, task: str) -> dict[str, Any] | None:
        """State of the strategy when it requested the last attempt at a task; None before the first."""
        rows = self._database.rows("SELECT search FROM tasks WHERE run = ? AND name = ?", (run_id, task))
        if not rows or not rows[0]["search"]:
            return None
        with readable(self.path, f"the search at task {task} of run {run_id}"):
            return dict(json.loads(rows[0]["search"]))

    def attempts(
        self, run_id: str, task: str | None = None, *, texts: bool = True, metrics: Collection[str] | None = None
    ) -> list[Attempt]:
        """Records of a run, or of one task of it, by task and then number.

        Args:
            texts: load complete records. Otherwise contents of messages are empty, kernels have no metrics and no hot
                spots (metrics of the complete plan remain), and each side of a timing has only its first sample. Only
                the page of an attempt shows these, and they make up most of a results file.
            metrics: names of the metrics to load; None for all. Most of a run's records are metrics.
        """
        where, values = ("run = ?", (run_id,)) if task is None else ("run = ? AND task = ?", (run_id, task))
        return self._load(where, values, texts=texts, metrics=metrics)

    def forecast_outcomes(self) -> list[ForecastOutcome]:
        """Measured times of all runs next to the times that were predicted before them, in the order of the runs."""
        rows = self._database.tuples(
            "SELECT attempts.task, attempts.id, attempts.record FROM attempts "
            "JOIN runs ON runs.id = attempts.run "
            "WHERE json_extract(attempts.record, '$.evaluation.screening.forecast') IS NOT NULL "
            "AND json_extract(attempts.record, '$.evaluation.performance.origin') = 'measured' "
            "ORDER BY runs.rowid, attempts.rowid"
        )
        outcomes = []
        for task, id, text in rows:
            with readable(self.path, f"attempt {id}"):
                evaluation = Evaluation.model_validate(parse_attempt(text, texts=False)["evaluation"])
                outcomes.append(forecast_outcome(evaluation, task))
        return [outcome for outcome in outcomes if outcome is not None]

    def attempt(self, which: str) -> Attempt:
        """The attempt ``<run>/<task>/<number>``; the run may be ``latest``, or a unique beginning without a slash.

        Ids of runs and names of tasks may hold slashes: the longest id that has the attempt is used.

        Raises:
            UsageError: there is no such attempt, or the reference is malformed.
        """
        path, _, number = which.rpartition("/")
        first, _, task = path.partition("/")
        if not task or not number.isdecimal():
            raise UsageError(
                f"'{which}' does not name an attempt: write <run>/<task>/<number>, for instance latest/softmax/3"
            )
        owners = sorted(
            (owner for owner in self.run_ids() if path.startswith(f"{owner}/")),
            key=len,
            reverse=True,
        )
        *longer, last = [(owner, path.removeprefix(f"{owner}/")) for owner in owners] or [(self.run(first).id, task)]
        for run_id, task in longer:
            if attempt := self._find(run_id, task, int(number)):
                return attempt
        return self.attempt_at(*last, int(number))

    def attempt_at(self, run_id: str, task: str, number: int) -> Attempt:
        """One attempt at a task of a run.

        Raises:
            UsageError: there is no such attempt.
        """
        if attempt := self._find(run_id, task, number):
            return attempt
        self._task_row(run_id, task)
        numbers = self._database.rows(
            "SELECT min(number) AS low, max(number) AS high FROM attempts WHERE run = ? AND task = ?", (run_id, task)
        )[0]
        has = "none" if numbers["low"] is None else f"{numbers['low']} to {numbers['high']}"
        raise UsageError(f"task {task} of run {run_id} has no attempt {number}; it has {has}")

    def _find(self, run_id: str, task: str, number: int) -> Attempt | None:
        attempts = self._load("run = ? AND task = ? AND number = ?", (run_id, task, number))
        return attempts[0] if attempts else None

    def _load(
        self, where: str, values: tuple[Any, ...], *, texts: bool = True, metrics: Collection[str] | None = None
    ) -> list[Attempt]:
        attempts: list[Attempt] = []
        # Records have no reference cycles and stay: each collection would visit all, which takes as long as loading.
        with self._database.snapshot(), collection_paused():
            tasks = self._database.tuples(f"SELECT DISTINCT task FROM attempts WHERE {where} ORDER BY task", values)
            # Task by task, so that rows and texts of a large run are not in memory twice.
            for (task,) in tasks:
                rows = self._database.tuples(
                    f"SELECT id, record FROM attempts WHERE {where} AND task = ? ORDER BY number", (*values, task)
                )
                attempts += self._decode(rows, texts=texts, metrics=metrics)
        return attempts

    def _decode(
        self, rows: list[tuple[Any, ...]], *, texts: bool, metrics: Collection[str] | None
    ) -> Iterator[Attempt]:
        records = []
        names: set[str] = set()
        for id, text in rows:
            with readable(self.path, f"attempt {id}"):
                records.append(parse_attempt(text, texts=texts, metrics=metrics))
                names |= blob_names(records[-1])
        blobs = self._blobs(names)
        for (id, _), record in zip(rows, records, strict=True):
            with readable(self.path, f"attempt {id}"):
                attempt = decode_attempt(record, blobs)
                if attempt.id != id:
                    raise ValueError(f"its record is of attempt {attempt.id}")
            yield attempt


def _run(row: Row, path: Path) -> Run:
    with readable(path, f"run {row['id']}"):
        fields = {name: row[name] for name in ("id", "state", "started", "ended", "kernelforge")}
        return Run.model_validate(fields | {"config": json.loads(row["config"])})
