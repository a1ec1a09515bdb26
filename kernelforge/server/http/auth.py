"""Tokens, authentication and scopes.

Tokens are shown once, stored as hashes in the results folder, and revocable without a restart.

A server on a loopback address without tokens is open to local programs, but not to browsers: requests must name a
loopback host (against DNS rebinding) and must not come from another site's page. As soon as there is a token, and
always on any other address, every request needs a valid one, for every path.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import re
import secrets
import sqlite3
import time
from base64 import b64decode
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, get_args

from fastapi import Depends
from fastapi.openapi.models import HTTPBearer
from fastapi.security.base import SecurityBase
from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from kernelforge.errors import StoreError, UsageError
from kernelforge.server.base import DATABASE_NAME, Caller, RequestRejected
from kernelforge.server.http.errors import problem_response
from kernelforge.store.database import as_text, readable

TokenScope = Literal["submit", "read", "admin"]
SCOPES: tuple[TokenScope, ...] = get_args(TokenScope)
_HOST = re.compile(rb"(?:(?P<name>localhost)|\[(?P<v6>[0-9a-f:.]+)\]|(?P<v4>[0-9.]+))(?::[0-9]{1,5})?", re.I)
"""A Host header that names this machine (RFC 9110, section 7.2) unambiguously."""
LOCAL = Caller("local")
"""Caller of a server that requires no token."""


PREFIX = "kf_"
"""Marks a token in a log or a repository."""
MAX_TOKENS = 200
"""Most valid tokens: a presented token is compared with each."""
REREAD_S = 0.5
"""How long a revoked token may still be accepted."""
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
_ADDED = {
    "expires_at": "real",
    "share": "real not null default 1",
    "max_jobs": "integer",
    "jobs_per_minute": "real",
    "earlier_sha256": "blob",
    "earlier_until": "real",
}
"""Columns that came later, with their types."""


@dataclass(frozen=True)
class TokenRow:
    """A token as it is listed, without the token."""

    name: str
    scopes: tuple[str, ...]
    created_at: float
    """UTC seconds since 1970."""
    revoked_at: float | None
    expires_at: float | None = None
    share: float = 1.0
    max_jobs: int | None = None
    jobs_per_minute: float | None = None


class TokenLimits(NamedTuple):
    """Limits of the holder of a token, see :class:`kernelforge.server.base.Caller`. None keeps a value, 0 removes a
    limit. A new token has a share of 1 and no limit."""

    share: float | None = None
    max_jobs: int | None = None
    jobs_per_minute: float | None = None
    expires_at: float | None = None
    """UTC seconds since 1970."""


NO_LIMITS = TokenLimits()


class Tokens:
    """The tokens of a results folder. Other processes may add and revoke at the same time.

    Args:
        folder: the results folder; created if missing.

    Raises:
        StoreError: the database cannot be opened.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / DATABASE_NAME
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._path.touch(mode=0o600)
            # Used by one event loop or one command; only closing may happen in another thread.
            self._db = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False)
            self._db.execute(f"pragma busy_timeout = {_BUSY_MS}")
            self._db.execute("pragma journal_mode = wal")
            self._db.execute(_TABLE)
            self._add_columns()
        except (OSError, sqlite3.Error, UnicodeDecodeError) as error:
            raise StoreError(f"cannot open {self._path}: {error}") from error
        self._valid: tuple[tuple[bytes, float, Caller], ...] = ()
        """Digest, the time until which it is accepted, and whose it is."""
        self._any = False
        self._read_at = float("-inf")

    def close(self) -> None:
        self._db.close()

    def _add_columns(self) -> None:
        def missing() -> list[str]:
            there = {row[1] for row in self._db.execute("pragma table_info(tokens)")}
            return [f"{name} {kind}" for name, kind in _ADDED.items() if name not in there]

        if missing():
            with self._db:
                self._db.execute("begin immediate")  # another process may be adding them
                for column in missing():
                    self._db.execute(f"alter table tokens add column {column}")

    def create(self, name: str, scopes: Collection[str], limits: TokenLimits = NO_LIMITS) -> str:
        """Make a token of 256 random bits, which is shown only once.

        Raises:
            UsageError: the name is taken or malformed, a scope is unknown, or there are too many tokens.
        """
        if not _NAME.fullmatch(name):
            raise UsageError(f"a token's name is 1 to 64 letters, digits and '._-', {name[:80]!r} is not")
        unknown = sorted(set(scopes) - set(SCOPES))
        if unknown or not scopes:
            raise UsageError(f"scopes are {', '.join(SCOPES)}; not {', '.join(unknown) or 'none'}")
        token = _new_token()
        row = (name, _digest(token.encode()), " ".join(scope for scope in SCOPES if scope in scopes), time.time())
        with self._writing():
            if self._db.execute("select count(*) from tokens where revoked_at is null").fetchone()[0] >= MAX_TOKENS:
                raise UsageError(f"there are {MAX_TOKENS} tokens; revoke one first")
            try:
                self._db.execute("insert into tokens (name, sha256, scopes, created_at) values (?, ?, ?, ?)", row)
            except sqlite3.IntegrityError as error:
                raise UsageError(f"there is or was a token {name!r}; choose another name") from error
            self._limit(name, limits)
        return token

    def limit(self, name: str, limits: TokenLimits) -> None:
        """Change the limits of a token that are not None.

        Raises:
            UsageError: there is no such token, or it was revoked.
        """
        with self._writing():
            self._require(name)
            self._limit(name, limits)

    def _limit(self, name: str, limits: TokenLimits) -> None:
        for column, value in limits._asdict().items():
            if value is not None:
                self._db.execute(f"update tokens set {column} = ? where name = ?", (value or None, name))

    def rotate(self, name: str, keep_s: float) -> str:
        """Give a token another secret, which is shown only once. The earlier secret is accepted for ``keep_s`` more
        seconds, so that programs can be changed one after the other.

        Raises:
            UsageError: there is no such token, or it was revoked.
        """
        token, now = _new_token(), time.time()
        with self._writing():
            self._require(name)
            self._db.execute(
                "update tokens set earlier_sha256 = sha256, earlier_until = ?, sha256 = ? where name = ?",
                (now + keep_s, _digest(token.encode()), name),
            )
        return token

    def _require(self, name: str) -> None:
        if not self._db.execute("select 1 from tokens where name = ? and revoked_at is null", (name,)).fetchone():
            raise _no_token(name)

    def revoke(self, name: str) -> None:
        """Revoke a token.

        Raises:
            UsageError: there is no such token, or it was revoked before.
        """
        with self._writing():
            changed = self._db.execute(
                "update tokens set revoked_at = ? where name = ? and revoked_at is null", (time.time(), name)
            ).rowcount
        if not changed:
            raise _no_token(name)

    def rows(self) -> list[TokenRow]:
        """All tokens, oldest first, revoked ones included."""
        rows = self._query(
            "select name, scopes, created_at, revoked_at, expires_at, share, max_jobs, jobs_per_minute "
            "from tokens order by created_at"
        )
        with readable(self._path, "tokens"):
            return [
                TokenRow(as_text(name), tuple(scopes.split()), float(created), *others)
                for name, scopes, created, *others in rows
            ]

    def shares(self) -> dict[str, float]:
        """Share of the devices by the name of a valid token."""
        return {row.name: row.share for row in self.rows() if row.revoked_at is None}

    def any(self) -> bool:
        """Whether a token exists or existed: a server whose tokens are all revoked does not become open."""
        self._reread()
        return self._any

    def caller(self, token: bytes) -> Caller | None:
        """The owner of a token; None if it is unknown, revoked or expired."""
        self._reread()
        presented, now = _digest(token), time.time()
        match = None
        for digest, until, caller in self._valid:  # no early exit: the time must not depend on the token
            if hmac.compare_digest(digest, presented) and now < until:
                match = caller
        return match

    def _reread(self) -> None:
        now = time.monotonic()
        if now - self._read_at < REREAD_S:
            return
        rows = self._query(
            "select sha256, expires_at, earlier_sha256, earlier_until, revoked_at, "
            "name, scopes, share, max_jobs, jobs_per_minute from tokens"
        )
        valid: list[tuple[bytes, float, Caller]] = []
        with readable(self._path, "tokens"):
            for digest, expires, earlier, until, revoked, name, scopes, share, max_jobs, rate in rows:
                caller = Caller(as_text(name), frozenset(scopes.split()), float(share), max_jobs, rate)
                end = float("inf") if expires is None else float(expires)
                if revoked is None:
                    valid.append((bytes(digest), end, caller))
                    if earlier is not None:
                        valid.append((bytes(earlier), min(end, float(until)), caller))
        self._valid, self._any, self._read_at = tuple(valid), bool(rows), now

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            with self._db:  # commits, or rolls back
                self._db.execute("begin immediate")
                yield
        except sqlite3.Error as error:
            raise StoreError(f"cannot write {self._path}: {error}") from error

    def _query(self, statement: str) -> list[Any]:
        try:
            return self._db.execute(statement).fetchall()
        except (sqlite3.Error, UnicodeDecodeError) as error:
            raise StoreError(f"cannot read {self._path}: {error}") from error


def _new_token() -> str:
    return PREFIX + secrets.token_urlsafe(32)


def _no_token(name: str) -> UsageError:
    return UsageError(f"there is no valid token {name[:80]!r}; 'kernelforge token list' names them")


def _digest(token: bytes) -> bytes:
    """SHA-256. Tokens are 256 random bits, so they need no salt or key stretching."""
    return hashlib.sha256(token).digest()


class AuthMiddleware:
    """Pure ASGI middleware that authenticates each request before anything else reads it.

    Args:
        tokens: None on a server that can have none.
        public: whether the address is not a loopback one; tokens are then always required.
    """

    def __init__(self, app: ASGIApp, tokens: Tokens | None, public: bool) -> None:
        self._app = app
        self._tokens = tokens
        self._public = public

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        try:
            if not scope.get("raw_path", b"/").startswith((b"/", b"*")):
                # In an absolute URL as the target, the host overrides the Host header.
                raise RequestRejected(400, "bad_request", "request a path of this server, not an absolute URL")
            if sum(name == b"host" for name, _ in scope["headers"]) > 1:
                raise RequestRejected(400, "bad_request", "send one Host header")
            scope.setdefault("state", {})["caller"] = self._admit(dict(scope["headers"]))
        except RequestRejected as refusal:
            await _refuse(refusal, scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _admit(self, headers: dict[bytes, bytes]) -> Caller:
        if self._public or (self._tokens is not None and self._tokens.any()):
            token = _token(headers.get(b"authorization", b""))
            caller = self._tokens.caller(token) if self._tokens and token else None
            if caller is None:
                message = "send a valid token: 'Authorization: Bearer TOKEN', or set KERNELFORGE_TOKEN for the client"
                raise RequestRejected(401, "unauthorised", message)
            return caller
        host = headers.get(b"host", b"")
        if not _is_loopback(host):
            raise RequestRejected(403, "forbidden_host", "this server answers only to loopback names such as 127.0.0.1")
        origin = headers.get(b"origin")
        if origin is not None and origin.lower().partition(b"://")[2] != host.lower():
            raise RequestRejected(403, "forbidden_origin", "this server takes no requests from other sites' pages")
        return LOCAL


def _token(header: bytes) -> bytes | None:
    """The token in an Authorization header. Basic is for clients that can only be given a URL, such as
    ``http://any:TOKEN@host``: the password is the token."""
    kind, _, value = header.partition(b" ")
    if kind.lower() == b"bearer":
        return value.strip()
    if kind.lower() == b"basic":
        try:
            return b64decode(value.strip(), validate=True).partition(b":")[2]
        except ValueError:
            return None
    return None


@lru_cache(maxsize=256)
def _is_loopback(host: bytes) -> bool:
    """Whether a Host header names this machine by a name that DNS cannot redirect."""
    match = _HOST.fullmatch(host)
    if match is None or match["name"]:
        return match is not None
    try:
        return ipaddress.ip_address((match["v6"] or match["v4"]).decode()).is_loopback
    except ValueError:
        return False


async def _refuse(refusal: RequestRejected, scope: Scope, receive: Receive, send: Send) -> None:
    # The body was not read: close the connection, so that the client stops sending it.
    response = problem_response(refusal, scope, {"Connection": "close"} if _has_body(scope) else None)
    if scope["type"] != "websocket":
        await response(scope, receive, send)
        return
    await receive()  # the handshake
    if "websocket.http.response" not in scope.get("extensions", {}):
        await send({"type": "websocket.close", "code": 1008})
        return

    async def send_denial(message: Message) -> None:
        await send({**message, "type": "websocket." + message["type"]})

    await response({**scope, "type": "http", "method": "GET"}, receive, send_denial)


def _has_body(scope: Scope) -> bool:
    return any(name in (b"content-length", b"transfer-encoding") and value != b"0" for name, value in scope["headers"])


class RequireScope(SecurityBase):
    """A dependency that returns the caller if its token has a scope.

    Args:
        scopes: one of these; none accepts any valid token.
    """

    def __init__(self, *scopes: TokenScope) -> None:
        self.scopes = scopes
        self.model = HTTPBearer(description="A token of `kernelforge token create`; an open server needs none.")
        self.scheme_name = "token"

    async def __call__(self, connection: HTTPConnection) -> Caller:
        caller: Caller = connection.scope["state"]["caller"]
        if self.scopes and not caller.scopes.intersection(self.scopes):
            scopes = " or ".join(map(repr, self.scopes))
            raise RequestRejected(403, "forbidden", f"token {caller.name!r} lacks the scope {scopes}")
        return caller


Submitter = Annotated[Caller, Depends(RequireScope("submit"))]
"""A parameter of routes that submit or cancel."""
Reader = Annotated[Caller, Depends(RequireScope("read"))]
"""A parameter of routes that read jobs, runs and tasks."""
Admin = Annotated[Caller, Depends(RequireScope("admin"))]
"""A parameter of routes that change the server's settings."""
SubmitterOrAdmin = Annotated[Caller, Depends(RequireScope("submit", "admin"))]
"""A parameter of routes that change what may be the caller's own."""
Anyone = Annotated[Caller, Depends(RequireScope())]
"""A parameter of routes that accept any valid token."""
