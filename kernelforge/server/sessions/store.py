"""Session storage: requests, replies and findings, so that a restart continues where it stopped."""

from __future__ import annotations

import json
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel

from kernelforge.client.models import RewardResult, SessionRequest, Turn
from kernelforge.errors import StoreError
from kernelforge.records import Attempt
from kernelforge.server.base import DATABASE_NAME, utc_seconds
from kernelforge.server.jobs.job_store import EXPERIENCES, SERVER
from kernelforge.server.jobs.results import with_own
from kernelforge.server.sessions.turns import FirstTurn, NextTurn
from kernelforge.store.database import Database, readable

_BUSY_MS = 10_000
_TABLES = """
create table if not exists sessions (
    id text primary key,
    owner text not null,
    task text not null,
    digest text not null,
    policy text not null,
    request text not null,
    first text not null,
    created_at real not null,
    used_at real not null,
    done integer not null
) strict;
create index if not exists sessions_used on sessions (used_at);
create index if not exists sessions_done on sessions (done, used_at);
create table if not exists turns (
    session text not null references sessions (id) on delete cascade,
    number integer not null,
    job text not null,
    turn text not null,
    attempt text not null,
    next text not null,
    primary key (session, number)
) strict, without rowid;
create trigger if not exists session_done after update of done on sessions when new.done and not old.done begin
    insert into experiences (owner, run, kind, name, policy_version)
    select new.owner, json_extract(new.request, '$.run_id'), 'session', new.id,
        min(json_extract(turn, '$.policy_version')) from turns where session = new.id;
end;
create trigger if not exists session_deleted after delete on sessions begin
    delete from experiences where name = old.id;
end;
"""

_CHARS = "sum(length(turn) + length(attempt) + length(next))"


@dataclass(frozen=True)
class SessionRow:
    """A session at its start."""

    id: str
    owner: str
    """Name of the caller that opened it."""
    task: str
    """``suite/name``."""
    digest: str
    """Digest of the task, to detect a changed suite."""
    policy: str
    """Reward policy of its turns."""
    request: SessionRequest
    first: FirstTurn

    def attempts(self, turns: Sequence[TurnRow]) -> list[Attempt]:
        """Its attempts: the start, if it has one, and those of its turns."""
        return [*([] if self.first.start is None else [self.first.start]), *(turn.attempt for turn in turns)]


@dataclass(frozen=True)
class TurnRow:
    """One turn, with the data that the next one depends on."""

    job: str
    turn: Turn
    attempt: Attempt
    next: NextTurn


class SessionStore:
    """The tables ``sessions`` and ``turns`` of the server's database, over a separate connection. Thread-safe.

    Args:
        most_chars: limit of stored characters of all turns; above it old sessions are deleted.

    Raises:
        StoreError: the database cannot be opened, read or written.
    """

    def __init__(self, path: Path, most_chars: int) -> None:
        self._path = path
        self._most_chars = most_chars
        self._lock = threading.Lock()
        with self._errors():
            path.touch(mode=0o600)
            self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
            self._db.execute(f"pragma busy_timeout = {_BUSY_MS}")
            self._db.execute("pragma journal_mode = wal")
            self._db.execute("pragma foreign_keys = on")
            self._db.executescript(EXPERIENCES + _TABLES)
            self._chars: dict[str, int] = dict(
                self._db.execute(f"select session, {_CHARS} from turns group by session")
            )
            """Characters of the turns by session."""

    def close(self) -> None:
        with self._lock:
            self._db.close()

    def add(self, row: SessionRow, most: int, unused_since: float, busy: Sequence[str]) -> bool:
        """Store a session. If there are ``most`` already, the least recently used one that is done is deleted, or else
        the least recently used one since before ``unused_since``, in UTC seconds since 1970. Sessions that are
        ``busy`` stay. Returns False, without a change, if all are in use.
        """
        now = utc_seconds()
        texts = (row.id, row.owner, row.task, row.digest, row.policy, _json(row.request), _json(row.first))
        with self._errors(), self._lock, self._db:
            self._db.execute("begin immediate")
            [count] = self._db.execute("select count(*) from sessions").fetchone()
            if count >= most:
                expendable = self._expendable(unused_since, busy)
                if expendable is None:
                    return False
                self._delete(expendable)
            self._db.execute("insert into sessions values (?, ?, ?, ?, ?, ?, ?, ?, ?, 0)", (*texts, now, now))
        return True

    def _expendable(self, unused_since: float, busy: Sequence[str]) -> str | None:
        """The session to delete first, if any may be deleted."""
        for condition, parameters in (("done = 1", ()), ("used_at < ?", (unused_since,))):
            free = "id not in (select value from json_each(?))"
            row = self._db.execute(
                f"select id from sessions where {free} and {condition} order by used_at limit 1",
                (json.dumps(busy), *parameters),
            ).fetchone()
            if row is not None:
                return str(row[0])
        return None

    def get(self, session: str) -> tuple[SessionRow, list[TurnRow]] | None:
        """A session with its turns, by number; None if there is none.

        Raises:
            StoreError: it cannot be read.
        """
        with self._errors(), self._lock:
            columns = self._db.execute(
                "select id, owner, task, digest, policy, request, first from sessions where id = ?", (session,)
            ).fetchone()
            turns = self._db.execute(
                "select job, turn, attempt, next from turns where session = ? order by number", (session,)
            ).fetchall()
        if columns is None:
            return None
        name, owner, task, digest, policy, request, first = columns
        with readable(self._path, f"session {session}"):
            parsed = SessionRequest.model_validate_json(request), FirstTurn.model_validate_json(first)
            row = SessionRow(name, owner, task, digest, policy, *parsed)
            rows = [
                TurnRow(
                    job,
                    Turn.model_validate_json(turn),
                    Attempt.model_validate_json(attempt),
                    NextTurn.model_validate_json(following),
                )
                for job, turn, attempt, following in turns
            ]
            return row, [self._decided(turn) for turn in rows]

    def _decided(self, row: TurnRow) -> TurnRow:
        """A turn with its reward, if that was withheld and an operator has released it since."""
        if row.turn.result.outcome != "withheld":
            return row
        with self._errors(), self._lock:
            job = self._db.execute("select result from jobs where id = ?", (row.job,)).fetchone()
        result = row.turn.result if job is None else RewardResult.model_validate_json(job[0])
        if result.outcome != "scored":
            return row
        result = with_own(result, row.turn.result)
        reward = row.attempt.reward.model_copy(update={"value": result.reward})
        return TurnRow(
            row.job,
            row.turn.model_copy(update={"result": result}),
            row.attempt.model_copy(update={"reward": reward}),
            row.next,
        )

    def add_turn(self, session: str, row: TurnRow, busy: Sequence[str]) -> None:
        """Store the next turn; it is on disk when this returns. If all sessions together are then too large, others
        are deleted, except those that are ``busy``."""
        values = (session, row.turn.number, row.job, _json(row.turn), _json(row.attempt), _json(row.next))
        chars = sum(map(len, values[3:]))
        deleted: list[str] = []
        with self._errors(), self._lock:
            total = sum(self._chars.values()) + chars
            with self._db:
                self._db.execute("begin immediate")
                self._db.execute("insert into turns values (?, ?, ?, ?, ?, ?)", values)
                done = row.next.asked is None
                self._db.execute(
                    "update sessions set used_at = ?, done = ? where id = ?", (utc_seconds(), done, session)
                )
                while total > self._most_chars:
                    other = self._expendable(utc_seconds(), (session, *busy))
                    if other is None:
                        break
                    self._db.execute("delete from sessions where id = ?", (other,))
                    total -= self._chars.get(other, 0)
                    deleted.append(other)
            for other in deleted:
                self._chars.pop(other, None)
            self._chars[session] = self._chars.get(session, 0) + chars

    def delete(self, session: str) -> None:
        with self._errors(), self._lock:
            self._delete(session)

    def _delete(self, session: str) -> None:
        self._db.execute("delete from sessions where id = ?", (session,))
        self._chars.pop(session, None)

    def expire(self, before: float) -> list[str]:
        """Delete sessions that were not used since a time, in UTC seconds since 1970. Returns their ids."""
        with self._errors(), self._lock:
            rows = self._db.execute("delete from sessions where used_at < ? returning id", (before,)).fetchall()
            for (session,) in rows:
                self._chars.pop(session, None)
        return [str(session) for (session,) in rows]

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except (OSError, sqlite3.Error, UnicodeDecodeError) as error:
            raise StoreError(f"cannot use {self._path}: {error}") from error


def stored_sessions(folder: Path, run_id: str | None = None) -> Iterator[tuple[SessionRow, list[TurnRow]]]:
    """Sessions with their turns, in the order of their beginning; only those of ``run_id`` if given.

    Raises:
        StoreError: there is no ``server.db``, or it cannot be read.
    """
    path = folder / DATABASE_NAME
    with closing(Database(path, SERVER, create=False, read_only=True)) as database:
        names = database.tuples("SELECT name FROM sqlite_master WHERE type = 'table' AND name = 'sessions'")
        ids = database.tuples("SELECT id FROM sessions ORDER BY created_at, id") if names else []
    store = SessionStore(path, 0)
    try:
        for (session,) in ids:
            stored = store.get(session)
            if stored is not None and run_id in (None, stored[0].request.run_id):
                yield stored
    finally:
        store.close()


def _json(model: BaseModel) -> str:
    return model.model_dump_json()
