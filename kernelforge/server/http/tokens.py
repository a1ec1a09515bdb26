"""Tokens: shown once, stored as hashes in the results folder, revocable without a restart."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import sqlite3
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernelforge.errors import StoreError, UsageError
from kernelforge.server.base import DATABASE_NAME, Caller
from kernelforge.server.http.auth import SCOPES
from kernelforge.store.database import as_text, readable

PREFIX = "kf_"
"""So that a token is known for one in a log or a repository."""
MAX_TOKENS = 200
"""Each is compared with whatever is presented."""
REREAD_S = 0.5
"""How long a revoked token may go on being taken."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_BUSY_MS = 5_000
_TABLE = """
create table if not exists tokens (
    name text primary key,
    sha256 blob not null unique,
    scopes text not null,
    created_at real not null,
    revoked_at real
) strict
"""


@dataclass(frozen=True)
class TokenRow:
    """What is known of a token: not the token."""

    name: str
    scopes: tuple[str, ...]
    created_at: float
    """UTC seconds since 1970."""
    revoked_at: float | None


class Tokens:
    """The tokens of a results folder. Other processes may add and revoke at the same time.

    Args:
        folder: the results folder; made if need be.

    Raises:
        StoreError: the database cannot be had.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / DATABASE_NAME
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._path.touch(mode=0o600)
            # One event loop or one command uses it; threads come in only where a framework closes it elsewhere.
            self._db = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False)
            self._db.execute(f"pragma busy_timeout = {_BUSY_MS}")
            self._db.execute("pragma journal_mode = wal")
            self._db.execute(_TABLE)
        except (OSError, sqlite3.Error, UnicodeDecodeError) as error:
            raise StoreError(f"cannot open {self._path}: {error}") from error
        self._known: tuple[tuple[bytes, Caller], ...] = ()
        self._any = False
        self._read_at = float("-inf")

    def close(self) -> None:
        self._db.close()

    def create(self, name: str, scopes: Collection[str]) -> str:
        """Make a token of 256 random bits. It cannot be had again.

        Raises:
            UsageError: the name is taken or malformed, a scope is unknown, or there are too many.
        """
        if not _NAME.fullmatch(name):
            raise UsageError(f"a token's name is 1 to 64 letters, digits and '._-', {name[:80]!r} is not")
        unknown = sorted(set(scopes) - set(SCOPES))
        if unknown or not scopes:
            raise UsageError(f"scopes are {', '.join(SCOPES)}; not {', '.join(unknown) or 'none'}")
        token = PREFIX + secrets.token_urlsafe(32)
        row = (name, _digest(token.encode()), " ".join(scope for scope in SCOPES if scope in scopes), time.time())
        with self._writing():
            if self._db.execute("select count(*) from tokens where revoked_at is null").fetchone()[0] >= MAX_TOKENS:
                raise UsageError(f"there are {MAX_TOKENS} tokens; revoke one first")
            try:
                self._db.execute("insert into tokens (name, sha256, scopes, created_at) values (?, ?, ?, ?)", row)
            except sqlite3.IntegrityError as error:
                raise UsageError(f"there is or was a token {name!r}; choose another name") from error
        return token

    def revoke(self, name: str) -> None:
        """
        Raises:
            UsageError: there is no such token, or it was revoked before.
        """
        with self._writing():
            changed = self._db.execute(
                "update tokens set revoked_at = ? where name = ? and revoked_at is null", (time.time(), name)
            ).rowcount
        if not changed:
            raise UsageError(f"there is no valid token {name[:80]!r}; 'kernelforge token list' names them")

    def rows(self) -> list[TokenRow]:
        """All of them, oldest first; revoked ones too."""
        found = self._query("select name, scopes, created_at, revoked_at from tokens order by created_at")
        with readable(self._path, "tokens"):
            return [
                TokenRow(as_text(name), tuple(scopes.split()), float(created), revoked)
                for name, scopes, created, revoked in found
            ]

    def any(self) -> bool:
        self._reread()
        return self._any

    def caller(self, token: bytes) -> Caller | None:
        self._reread()
        presented = _digest(token)
        found = None
        for digest, caller in self._known:  # all of them, so that time tells nothing
            if hmac.compare_digest(digest, presented):
                found = caller
        return found

    def _reread(self) -> None:
        now = time.monotonic()
        if now - self._read_at < REREAD_S:
            return
        rows = self._query("select name, sha256, scopes, revoked_at from tokens")
        with readable(self._path, "tokens"):
            self._known = tuple(
                (bytes(digest), Caller(as_text(name), frozenset(scopes.split())))
                for name, digest, scopes, revoked in rows
                if revoked is None
            )
        self._any, self._read_at = bool(rows), now

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            self._db.execute("begin immediate")
            try:
                yield
            except BaseException:
                self._db.execute("rollback")
                raise
            self._db.execute("commit")
        except sqlite3.Error as error:
            raise StoreError(f"cannot write {self._path}: {error}") from error

    def _query(self, statement: str) -> list[Any]:
        try:
            return self._db.execute(statement).fetchall()
        except (sqlite3.Error, UnicodeDecodeError) as error:
            raise StoreError(f"cannot read {self._path}: {error}") from error


def _digest(token: bytes) -> bytes:
    """A hash without salt or stretching does for 256 random bits: there is nothing to guess."""
    return hashlib.sha256(token).digest()
