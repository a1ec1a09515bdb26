"""Stored state of a task: messages, drafts, lessons, input generators, and the rows of its attempts.

Attempts and messages are JSON rows, with long or repeated texts kept once, by their SHA-256.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import sqlite3
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic_core import from_json

from kernelforge.errors import StoreError
from kernelforge.records import Attempt, InputGenerator, Lesson, Message, Usage
from kernelforge.store.database import Database, as_text, readable

if TYPE_CHECKING:
    import sqlite_utils


Row = dict[str, Any]
Json = dict[str, Any]
"""A record as its JSON decodes."""


class Blobs:
    """Texts by SHA-256, collected while records are encoded."""

    def __init__(self) -> None:
        self.rows: dict[str, Row] = {}

    def add(self, text: str) -> str:
        data = text.encode()
        name = hashlib.sha256(data).hexdigest()
        self.rows[name] = {"sha256": name, "bytes": len(data), "content": text}
        return name


def encode_attempt(attempt: Attempt) -> tuple[Row, Blobs]:
    """Row of an attempt in ``attempts``: the columns to search by, and the record with its texts moved to blobs."""
    blobs = Blobs()
    record: Json = json.loads(attempt.model_dump_json())
    for holder, field in _texts(record):
        holder[field] = blobs.add(holder[field])
    candidate = record["candidate"] or {}
    row = {
        **{name: record[name] for name in ("id", "run", "task", "number", "operator", "parent", "started", "seconds")},
        "candidate": attempt.candidate and attempt.candidate.hash,
        "evaluation_key": attempt.evaluation.key,
        "source": candidate.get("source"),
        "plan": candidate.get("plan"),
        "verdict": record["evaluation"]["verdict"],
        "accepted": int(attempt.accepted),
        "record": json.dumps(record, separators=(",", ":"), ensure_ascii=False),
    }
    return row, blobs


def parse_attempt(text: str, *, texts: bool = True, metrics: Collection[str] | None = None) -> Json:
    """JSON of an attempt with names of blobs in place of its texts.

    Args:
        texts: with names of message contents, metrics and hot spots of kernels and all samples of a time. Otherwise
            contents are empty, kernels have no numbers, and each timed side has its first sample only.
        metrics: names of the metrics to keep; None keeps all.

    Raises:
        ValueError, LookupError, TypeError: it is not the JSON of an attempt.
    """
    record: Json = from_json(text)
    profile, performance = record["profile"], record["evaluation"]["performance"]
    kernels = profile["kernels"] if profile else []
    if not texts:
        for message in record["messages"]:
            message |= {"content": "", "reasoning": None}
        for kernel in kernels:
            kernel |= {"metrics": [], "hot_spots": []}
        timing = (performance or {}).get("timing")
        for side in (timing["candidate"], *timing["baselines"]) if timing else ():
            del side["samples_us"][1:]
    if metrics is not None:
        for holder in (profile, *kernels) if profile else ():
            holder["metrics"] = [metric for metric in holder["metrics"] if metric["name"] in metrics]
    return record


def blob_names(record: Json) -> set[str]:
    """SHA-256 of every blob that :func:`decode_attempt` needs."""
    return {holder[field] for holder, field in _texts(record)} - {""}


def decode_attempt(record: Json, blobs: Mapping[str, str]) -> Attempt:
    """The attempt of :func:`parse_attempt`'s JSON, validated.

    Raises:
        ValueError, LookupError, TypeError: the JSON is no valid record, or a blob is missing.
    """
    for holder, field in _texts(record):
        holder[field] = holder[field] and blobs[holder[field]]
    return Attempt.model_validate(record)


def _texts(record: Json) -> Iterator[tuple[Json, str]]:
    """Each text that is kept as a blob: the object that holds it, and its field."""
    if record["candidate"]:
        yield record["candidate"], "source"
        yield record["candidate"], "plan"
    for message in record["messages"]:
        yield message, "content"
        if message.get("reasoning"):
            yield message, "reasoning"


def message_rows(messages: Iterable[Message], blobs: Blobs, **owner: str) -> list[Row]:
    """Rows of ``task_messages``; ``owner`` holds the columns that name their task."""
    return [
        {
            **owner,
            "position": position,
            **message.model_dump(),
            "content": blobs.add(message.content),
            "reasoning": None if message.reasoning is None else blobs.add(message.reasoning),
            "usage": None if message.usage is None else message.usage.model_dump_json(),
        }
        for position, message in enumerate(messages)
    ]


def messages_from_rows(rows: Iterable[Row], blobs: Mapping[str, str] | None) -> tuple[Message, ...]:
    """Inverse of :func:`message_rows`; without ``blobs``, contents are empty."""
    return tuple(
        Message(
            **{name: row[name] for name in ("agent", "role", "provider")},
            content="" if blobs is None else blobs[row["content"]],
            reasoning=None if blobs is None or row.get("reasoning") is None else blobs[row["reasoning"]],
            usage=None if row["usage"] is None else Usage.model_validate_json(row["usage"]),
        )
        for row in rows
    )


_NAMES_PER_QUERY = 500


class Draft(NamedTuple):
    """A paid reply that is not yet evaluated."""

    step: int
    proposal: str
    """The proposal, as JSON."""
    content: str
    """The reply, as JSON."""


class TaskKey(NamedTuple):
    """Key that changes with every journal entry of a task."""

    attempts: int
    described: bool
    """Whether the oracle's facts are stored."""
    finished: bool


class TaskState:
    """Tables of a results database about tasks of runs."""

    _database: Database

    @property
    def path(self) -> Path:
        return self._database.path

    # Changes

    def revision(self) -> int:
        """A number that changes when another connection writes to the database; reads no table."""
        return int(self._database.tuples("PRAGMA data_version")[0][0])

    def task_marks(self, run_id: str) -> dict[str, TaskKey]:
        """Key of every task that the run has reached, by task."""
        rows = self._database.tuples(
            "SELECT name, "
            "(SELECT count(*) FROM attempts WHERE attempts.run = tasks.run AND attempts.task = tasks.name), "
            "facts IS NOT NULL, finished IS NOT NULL FROM tasks WHERE run = ? ORDER BY rowid",
            (run_id,),
        )
        with readable(self.path, f"tasks of run {run_id}"):
            return {
                as_text(name): TaskKey(attempts, bool(described), bool(finished))
                for name, attempts, described, finished in rows
            }

    # Messages outside attempts

    def add_task_messages(self, run_id: str, name: str, messages: Sequence[Message]) -> None:
        """Journal messages about a task outside any attempt.

        Raises:
            StoreError: the run has not reached that task.
        """
        blobs = Blobs()
        rows = message_rows(messages, blobs, run=run_id, task=name)
        with self._database.transaction() as db, linked(f"run {run_id} has no task {name} in {self.path}"):
            append_messages(db, run_id, name, blobs, rows)

    def task_messages(self, run_id: str, name: str, *, texts: bool = True) -> tuple[Message, ...]:
        """Messages about a task outside any attempt, in order: proposed tests, last words, lessons.

        Args:
            texts: load their contents; otherwise these are empty.
        """
        rows = self._database.rows(
            "SELECT * FROM task_messages WHERE run = ? AND task = ? ORDER BY position", (run_id, name)
        )
        names: set[str] = {row[name] for row in rows for name in ("content", "reasoning") if row.get(name) is not None}
        blobs = self._blobs(names) if texts else None
        with readable(self.path, f"messages about task {name} of run {run_id}"):
            return messages_from_rows(rows, blobs)

    # Drafts

    def put_draft(self, run_id: str, task: str, draft: Draft) -> None:
        """Keep a reply until its attempt is journalled, so that a kill in between does not lose it."""
        row = {"run": run_id, "task": task, **draft._asdict()}
        with self._database.transaction() as db, linked(f"run {run_id} has no task {task} in {self.path}"):
            db.table("drafts").upsert(row, pk=("run", "task", "step"))

    def drafts(self, run_id: str, task: str) -> list[Draft]:
        """Replies that wait for their evaluation, by step."""
        rows = self._database.rows("SELECT * FROM drafts WHERE run = ? AND task = ? ORDER BY step", (run_id, task))
        with readable(self.path, f"drafts for task {task} of run {run_id}"):
            return [Draft(row["step"], as_text(row["proposal"]), as_text(row["content"])) for row in rows]

    # Input generators

    def put_generators(
        self, run_id: str, task: str, generators: Sequence[InputGenerator], messages: Sequence[Message] = ()
    ) -> None:
        """Journal the further tests of a task, refused ones included, and the messages about them. They never change.

        Raises:
            StoreError: the run has not reached that task, or has generators of these names for it.
        """
        blobs = Blobs()
        rows = [
            {"run": run_id, "task": task, "name": generator.name, "record": generator.model_dump_json()}
            for generator in generators
        ]
        with (
            self._database.transaction() as db,
            linked(f"run {run_id} has no task {task} in {self.path}"),
            unique(f"task {task} of run {run_id} has its input generators already"),
        ):
            db.table("generators").insert_all(rows)
            db.execute("UPDATE tasks SET tested = 1 WHERE run = ? AND name = ?", (run_id, task))
            append_messages(db, run_id, task, blobs, message_rows(messages, blobs, run=run_id, task=task))

    def was_tested(self, run_id: str, task: str) -> bool:
        """Whether a Tester was asked about a task, also if it proposed no test."""
        rows = self._database.rows("SELECT tested FROM tasks WHERE run = ? AND name = ?", (run_id, task))
        return bool(rows and rows[0]["tested"])

    def generators(self, run_id: str, task: str) -> tuple[InputGenerator, ...]:
        """Further tests of a task, refused ones included, in the order of their proposal."""
        rows = self._database.tuples(
            "SELECT record FROM generators WHERE run = ? AND task = ? ORDER BY rowid", (run_id, task)
        )
        with readable(self.path, f"input generators of task {task} of run {run_id}"):
            return tuple(InputGenerator.model_validate_json(record) for (record,) in rows)

    # Lessons

    def lessons(self, families: Sequence[str], run_id: str | None) -> list[Lesson]:
        """Lessons about operator families, newest first: those of one run, or of all runs in the file."""
        marks = ", ".join("?" * len(families))
        where, values = f"family IN ({marks})", list(families)
        if run_id is not None:
            where, values = f"{where} AND run = ?", [*values, run_id]
        rows = self._database.rows(
            f"SELECT * FROM lessons WHERE {where} ORDER BY written DESC, rowid DESC", tuple(values)
        )
        with readable(self.path, "lessons"):
            return [_lesson(row) for row in rows]

    def lessons_of(self, run_id: str, task: str) -> tuple[Lesson, ...]:
        """Lessons of one task of a run."""
        rows = self._database.rows("SELECT * FROM lessons WHERE run = ? AND task = ? ORDER BY position", (run_id, task))
        with readable(self.path, f"lessons of task {task} of run {run_id}"):
            return tuple(_lesson(row) for row in rows)

    def _blobs(self, names: set[str]) -> dict[str, str]:
        texts: dict[str, str] = {}
        with readable(self.path, "names of texts"):
            hashes = sorted(names)
        for start in range(0, len(hashes), _NAMES_PER_QUERY):
            part = hashes[start : start + _NAMES_PER_QUERY]
            marks = ", ".join("?" * len(part))
            rows = self._database.rows(f"SELECT sha256, content FROM blobs WHERE sha256 IN ({marks})", tuple(part))
            texts |= {row["sha256"]: row["content"] for row in rows}
        return texts


def _lesson(row: Row) -> Lesson:
    return Lesson(**{name: row[name] for name in ("family", "text", "task", "provider", "gain", "written")})


def append_messages(db: sqlite_utils.Database, run_id: str, task: str, blobs: Blobs, rows: list[Row]) -> None:
    """Append messages to those of a task."""
    stored = list(
        db.query(
            "SELECT coalesce(max(position) + 1, 0) AS next FROM task_messages WHERE run = ? AND task = ?",
            (run_id, task),
        )
    )
    db.table("blobs").insert_all(blobs.rows.values(), ignore=True)
    db.table("task_messages").insert_all([{**row, "position": stored[0]["next"] + row["position"]} for row in rows])


@contextlib.contextmanager
def unique(message: str) -> Iterator[None]:
    with _constraint(("SQLITE_CONSTRAINT_PRIMARYKEY", "SQLITE_CONSTRAINT_UNIQUE"), message):
        yield


@contextlib.contextmanager
def linked(message: str) -> Iterator[None]:
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
