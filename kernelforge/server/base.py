"""Interface of the job service for HTTP and trainer protocols, and its refusals."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from kernelforge.agents.base import TaskContext
from kernelforge.client.models import Job, JobRequest, RunSettings, RunStatus, ServerStatus
from kernelforge.errors import KernelForgeError
from kernelforge.records import Evaluation, Profile, Task
from kernelforge.tasks.catalogue import Catalogue
from kernelforge.workers.base import Health

_BEGAN_AT = time.time() - time.monotonic()


def utc_seconds() -> float:
    """UTC seconds since 1970, by the clock as it was when this process began: it is never put back or forward, so that
    one that is set meanwhile ends no deadline and no session early, and no job before it began."""
    return _BEGAN_AT + time.monotonic()


DATABASE_NAME = "server.db"
"""What a server keeps, in the results folder: jobs, sessions and tokens."""


class RequestRejected(KernelForgeError):
    """A request that the gateway does not take, with the HTTP status that says why.

    Args:
        status: 400 malformed, 401 no token, 403 not in its scope, 404 unknown, 409 contradicts what is there, 413 too
            large, 422 understood and not possible, 429 this run or token has too much waiting, 503 the whole server
            has, or is draining.
        code: a word for programs.
        retry_after_s: when to try again.
    """

    def __init__(self, status: int, code: str, message: str, *, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.retry_after_s = retry_after_s


@dataclass(frozen=True)
class Caller:
    """Who asks: the name of a token, or ``local`` where a loopback server asks for none."""

    name: str
    scopes: frozenset[str] = frozenset({"submit", "read", "admin"})


@dataclass(frozen=True)
class Evaluated:
    """A stored evaluation."""

    evaluation: Evaluation
    profile: Profile | None
    source: str | None
    """Of the candidate; None where there was none."""
    finished_at: float
    """UTC seconds since 1970."""


class RewardService(Protocol):
    """The gateway, free of any protocol. All of it is used from one event loop."""

    catalogue: Catalogue
    default_policy: str
    """Name of the reward policy of requests that name none."""

    @property
    def counters(self) -> Mapping[str, int]:
        """What happened since the start, by words that the gateway chooses: ``submitted``, ``cached``, ``joined``..."""
        ...

    def status(self) -> ServerStatus: ...

    def health(self) -> Health:
        """What operators are shown of the engine."""
        ...

    def on_ended(self, listener: Callable[[Job], None]) -> None:
        """Have ``listener`` called with every job once it has ended. It must neither block nor raise."""
        ...

    def find_task(self, reference: str | None, reference_code: str | None = None) -> tuple[str, Task]:
        """A registered task as ``suite/name`` with its record, by reference, digest, or the text of its file.

        Raises:
            RequestRejected: 422: it is not registered, or the code is of another task. Nothing was executed.
        """
        ...

    async def submit(
        self, requests: Sequence[JobRequest], caller: Caller, keys: Sequence[str | None] | None = None
    ) -> list[Job | RequestRejected]:
        """Accept jobs, each by itself. A job that is returned survives a kill; one answered from the cache has ended.

        Args:
            keys: idempotency keys; one seen before from this caller gives the job of then, or 409 if the request
                differs.
        """
        ...

    async def score(self, request: JobRequest, caller: Caller, *, timeout_s: float, key: str | None = None) -> Job:
        """Submit and wait. The job is cancelled when the wait is, or when time runs out (it then ended as such).

        Raises:
            RequestRejected: it was not accepted.
        """
        ...

    def job(self, job_id: str) -> Job:
        """
        Raises:
            RequestRejected: 404.
        """
        ...

    def keyed(self, key: str, caller: Caller) -> Job | None:
        """The job of an idempotency key of this caller; None where there is none, or no longer."""
        ...

    def stored(self, job_id: str) -> Evaluated | None:
        """The evaluation behind a job that was scored; None where nothing was evaluated."""
        ...

    async def wait(self, ids: Sequence[str], k: int | None, timeout_s: float) -> list[Job]:
        """Jobs that have ended, in that order, once there are ``k`` of them or time is up.

        Raises:
            RequestRejected: 404: one of them is unknown.
        """
        ...

    def watch(self, ids: Sequence[str]) -> AsyncIterator[Job]:
        """Each job when its status changes, and as it is at the start; ends after the last has ended."""
        ...

    async def cancel(self, ids: Sequence[str]) -> list[str]:
        """End jobs; a device that worked for nobody else is freed. Returns those that had not ended."""
        ...

    async def cancel_run(self, run_id: str, older_than: int | None) -> list[str]: ...

    def runs(self) -> list[RunStatus]: ...

    async def set_run(self, run_id: str, settings: RunSettings) -> RunStatus:
        """Change what the settings name, and leave the rest of the run's as it is."""
        ...

    async def brief(self, task: Task) -> TaskContext:
        """What agents may know of a task; kept."""
        ...

    async def drain(self) -> None:
        """Accept nothing more; returns when nothing runs. What is queued stays for the next start."""
        ...
