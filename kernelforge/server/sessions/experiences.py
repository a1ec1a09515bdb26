"""The experience stream: trajectories of a run in the order of their ends, claimed by groups of consumers.

As in AsyncFlow (arXiv:2507.01663), trainers take what has been scored as it comes. A trajectory is a job, or a session
that is done. It enters the stream in the transaction that ends it. Each group has its own cursor; a claim leases
the next trajectories to one consumer, and those that it does not acknowledge in time are claimed again.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from kernelforge.client.models import ClaimRequest, Experience, Session
from kernelforge.server.base import Caller, RequestRejected, utc_seconds
from kernelforge.server.jobs.job_store import SERVER
from kernelforge.server.jobs.results import COMPLETED_COLUMNS, job_of
from kernelforge.store.database import Database, readable

_JOB = (
    f"SELECT {COMPLETED_COLUMNS}, group_id, (SELECT content FROM texts WHERE sha256 = jobs.prompt), "
    "(SELECT content FROM texts WHERE sha256 = jobs.completion) FROM jobs WHERE id = ?"
)


class Claimed(NamedTuple):
    """Trajectories that were leased."""

    lease: str
    rows: list[tuple[Any, ...]]
    """Number, kind and name of each."""
    passed_over: int


def _lease(size: int) -> str:
    """A new lease, which says how many trajectories it has."""
    return f"{size}-{secrets.token_hex(12)}"


class ExperienceStore:
    """The tables of the stream, over a separate connection. Thread-safe.

    Raises:
        StoreError: the database cannot be opened, read or written.
    """

    def __init__(self, path: Path) -> None:
        self._database = Database(path, SERVER, create=True, read_only=False)

    def close(self) -> None:
        self._database.close()

    def page(self, caller: Caller, run: str, after: int, limit: int) -> list[tuple[Any, ...]]:
        """Number, kind and name of the trajectories after a number."""
        return self._database.tuples(
            "SELECT number, kind, name FROM experiences WHERE run = ? AND number > ? AND (? OR owner = ?) "
            "ORDER BY number LIMIT ?",
            (run, after, "admin" in caller.scopes, caller.name, limit),
        )

    def claim(self, caller: Caller, request: ClaimRequest, oldest: int | None) -> Claimed:
        """Lease trajectories: those whose leases have expired, then those after the group's cursor.

        Args:
            oldest: pass over those of older policy versions, and of none.
        """
        group = (caller.name, request.run_id, request.group)
        is_fresh = "(?1 IS NULL OR policy_version >= ?1)"
        now = utc_seconds()
        if not self._has_new(caller, group, now):
            return Claimed(_lease(0), [], 0)
        with self._database.transaction() as db:
            expired = "caller = ?2 AND leases.run = ?3 AND consumers = ?4 AND acknowledged = 0 AND expires_at <= ?5"
            dropped = db.execute(
                f"UPDATE leases SET acknowledged = 1 FROM experiences WHERE number = experience AND {expired} "
                f"AND NOT coalesce({is_fresh}, 0)",
                (oldest, *group, now),
            ).rowcount
            rows = db.execute(
                "SELECT number, kind, name, lease FROM leases JOIN experiences ON number = experience "
                f"WHERE {expired} ORDER BY number LIMIT ?6",
                (oldest, *group, now, request.count),
            ).fetchall()
            for lost in {lease for *_, lease in rows} - {""}:  # as a whole, with the trajectories that are left of it
                db.execute("UPDATE leases SET lease = '' WHERE lease = ?", (lost,))
            rows = [row[:3] for row in rows]
            missing = request.count - len(rows)
            if missing:
                cursor = db.execute(
                    "SELECT cursor FROM consumers WHERE caller = ? AND run = ? AND consumers = ?", group
                ).fetchone() or (0,)
                later = "run = ?2 AND number > ?3 AND (?4 OR owner = ?5)"
                own = (oldest, request.run_id, cursor[0], "admin" in caller.scopes, caller.name)
                fresh = db.execute(
                    f"SELECT number, kind, name FROM experiences WHERE {later} AND {is_fresh} ORDER BY number LIMIT ?6",
                    (*own, missing),
                ).fetchall()
                [(end,)] = (
                    [(fresh[-1][0],)]
                    if len(fresh) == missing
                    else db.execute(f"SELECT max(number) FROM experiences WHERE {later}", own).fetchall()
                )
                if end is not None:
                    [(seen,)] = db.execute(
                        f"SELECT count(*) FROM experiences WHERE {later} AND number <= ?6", (*own, end)
                    ).fetchall()
                    dropped += seen - len(fresh)
                    db.execute("INSERT OR REPLACE INTO consumers VALUES (?, ?, ?, ?)", (*group, end))
                rows += fresh
            lease = _lease(len(rows))
            until = now + request.lease_s
            for number, *_ in rows:
                db.execute("INSERT OR REPLACE INTO leases VALUES (?, ?, ?, ?, ?, ?, 0)", (*group, number, lease, until))
        return Claimed(lease, rows, dropped)

    def _has_new(self, caller: Caller, group: tuple[str, str, str], now: float) -> bool:
        """Whether a group may claim anything. It only reads, for a claim that waits asks again and again."""
        [(new,)] = self._database.tuples(
            "SELECT EXISTS (SELECT 1 FROM leases WHERE caller = ?1 AND run = ?2 AND consumers = ?3 "
            "AND acknowledged = 0 AND expires_at <= ?4) OR EXISTS (SELECT 1 FROM experiences "
            "WHERE run = ?2 AND (?5 OR owner = ?1) AND number > coalesce((SELECT cursor FROM consumers "
            "WHERE caller = ?1 AND run = ?2 AND consumers = ?3), 0))",
            (*group, now, "admin" in caller.scopes),
        )
        return bool(new)

    def acknowledge(self, caller: Caller, lease: str) -> int:
        """Mark the trajectories of a lease as used, all or none, and return how many of them are still kept. A repeated
        call has no further effect.

        Raises:
            RequestRejected: 409: the lease expired and others have claimed some of them, or none is kept any more.
        """
        size = int(lease.partition("-")[0])
        with self._database.transaction() as db:
            count = db.execute(
                "UPDATE leases SET acknowledged = 1 WHERE lease = ? AND caller = ?", (lease, caller.name)
            ).rowcount
            if size and not count:
                message = f"lease {lease} has expired and trajectories of it went to others, or all {size} were deleted"
                raise RequestRejected(409, "lease_lost", message)
        return count

    def experience(self, row: tuple[Any, ...], session_of: Callable[[str], Session | None]) -> Experience | None:
        """The trajectory of a row of the stream; None if it was deleted since."""
        number, kind, name = row
        if kind == "session":
            session = session_of(name)
            return None if session is None else Experience(number=number, session=session)
        rows = self._database.tuples(_JOB, (name,))
        if not rows:
            return None
        *columns, group_id, prompt, completion = rows[0]
        with readable(self._database.path, f"job {name}"):
            return Experience(
                number=number, job=job_of(tuple(columns)), group_id=group_id, prompt=prompt, completion=completion
            )
