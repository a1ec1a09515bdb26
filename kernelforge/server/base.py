"""Shared parts of the server: refusals, callers, the clock, a cache."""

from __future__ import annotations

import time
from collections import OrderedDict
from dataclasses import dataclass
from typing import Generic, TypeVar

from kernelforge.errors import KernelForgeError

_PROCESS_EPOCH = time.time() - time.monotonic()


def utc_seconds() -> float:
    """UTC seconds since 1970, monotonic within the process: setting the system clock ends no deadline and no session
    early."""
    return _PROCESS_EPOCH + time.monotonic()


DATABASE_NAME = "server.db"
"""Database in the results folder: jobs, sessions and tokens."""


class RequestRejected(KernelForgeError):
    """A request that the server refuses, with the HTTP status of the reason.

    Args:
        status: 400 malformed, 401 no token, 403 not in the token's scope, 404 unknown, 409 conflicts with an earlier
            request, 413 too large, 422 well-formed but impossible, 429 this run or token has too many jobs waiting,
            503 the server has too many jobs waiting, or is draining.
        code: machine-readable reason.
        retry_after_s: seconds after which to try again.
    """

    def __init__(self, status: int, code: str, message: str, *, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.retry_after_s = retry_after_s


@dataclass(frozen=True)
class Caller:
    """The sender of a request: the name of a token, or ``local`` where a loopback server requires none."""

    name: str
    scopes: frozenset[str] = frozenset({"submit", "read", "admin"})
    share: float = 1.0
    """Share of the devices, relative to other callers with queued jobs."""
    max_jobs: int | None = None
    """Jobs that may be queued or running; None: as many as one run may have."""
    jobs_per_minute: float | None = None
    """Jobs that may be submitted in a minute; None: any number."""

    def may_act_for(self, owner: str) -> bool:
        """Whether it may cancel jobs and use sessions of the caller with a name."""
        return owner == self.name or "admin" in self.scopes


Key = TypeVar("Key")
Value = TypeVar("Value")


class LRUCache(Generic[Key, Value]):
    """A mapping that keeps the most recently used entries.

    Args:
        size: number of entries, at least 1.
    """

    def __init__(self, size: int) -> None:
        self._size = max(size, 1)
        self._values: OrderedDict[Key, Value] = OrderedDict()

    def get(self, key: Key) -> Value | None:
        value = self._values.get(key)
        if value is not None:
            self._values.move_to_end(key)
        return value

    def put(self, key: Key, value: Value) -> None:
        self._values[key] = value
        self._values.move_to_end(key)
        if len(self._values) > self._size:
            self._values.popitem(last=False)

    def items(self) -> list[tuple[Key, Value]]:
        """All entries, the most recently used last."""
        return list(self._values.items())

    def drop(self, key: Key) -> None:
        self._values.pop(key, None)
