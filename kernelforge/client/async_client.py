"""Asynchronous client of the reward server."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, TypeVar

import httpx2

from kernelforge.client import bulk, flow
from kernelforge.client import requests as calls
from kernelforge.client.flow import Await, Emit, Outcome, Pause, Send, Step, Steps, Walk
from kernelforge.client.models import (
    CancelRequest,
    Job,
    JobRequest,
    PolicyRow,
    RewardResult,
    RunSettings,
    RunStatus,
    ServerStatus,
    Session,
    SessionRequest,
    TaskPage,
    TaskRow,
    Turn,
    TurnRequest,
    WaitAnswer,
)
from kernelforge.client.requests import RequestSpec, ResponseData
from kernelforge.client.settings import (
    Settings,
    SharedWait,
    broken,
    checked,
    checked_job,
    httpx_timeout,
    job_request,
    job_requests,
    received,
)

T = TypeVar("T")
Request = JobRequest | Mapping[str, Any]
"""A request, or its fields."""


class AsyncClient:
    """Asks a reward server. One client serves any number of tasks at once, on whichever event loop they run.

    Args:
        url: the server; by default ``KERNELFORGE_SERVER``, else ``http://127.0.0.1:8765``.
        token: by default ``KERNELFORGE_TOKEN``, else none.
        timeout_s: longest time that one call may take in all, with submission, waiting and trying again.
        connections: at most so many at once.
        retries: how often a request is tried again after a failure; a server that says when to come again (status 429
            or 503 with Retry-After) is asked until time is up.

    Every method raises :class:`~kernelforge.errors.ServerError` where the server refuses,
    :class:`~kernelforge.errors.ServerUnreachable` where there is none, and
    :class:`~kernelforge.errors.UsageError` where a request would be refused. An evaluation that failed for reasons
    of the server's is a result with the outcome ``infra_error``.
    """

    def __init__(
        self,
        url: str | None = None,
        token: str | None = None,
        *,
        timeout_s: float = 1_800.0,
        connections: int = 100,
        retries: int = 8,
    ) -> None:
        self._settings = Settings.of(url, token, timeout_s, connections, retries)
        self._lines: dict[tuple[int, asyncio.AbstractEventLoop], _Line] = {}
        self._leaving: set[asyncio.Task[Any]] = set()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._settings.url!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _made_again, (type(self), self._settings)

    @property
    def url(self) -> str:
        return self._settings.url

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close this event loop's connections."""
        here = asyncio.get_running_loop()
        if leaving := [task for task in self._leaving if task.get_loop() is here]:
            await asyncio.wait(leaving)
        line = self._lines.pop((os.getpid(), here), None)
        if line is not None:
            await line.shared.aclose()
            await line.http.aclose()

    async def score(
        self,
        task: str,
        completion: str,
        *,
        policy: str | None = None,
        run_id: str = "default",
        policy_version: int | None = None,
        priority: int = 0,
        deadline_s: float | None = None,
        profile: bool = False,
        tag: str = "",
        timeout_s: float | None = None,
        key: str | None = None,
    ) -> RewardResult:
        """Submit one completion and wait for its reward.

        Cancelling the call cancels the job on the server. When time is up the job is cancelled too, and the result is
        what it had come to by then, as a rule an ``infra_error``.

        Args:
            task: ``suite/name``, a name of the default suite, or a digest.
            completion: the model's whole reply.
            timeout_s: for this call, in place of the client's.
            key: idempotency key; made here if left out. The same key gives the job of then.

        The others are the fields of :class:`~kernelforge.client.models.JobRequest`.
        """
        return await self.score_request(
            {
                "task": task,
                "completion": completion,
                "policy": policy,
                "run_id": run_id,
                "policy_version": policy_version,
                "priority": priority,
                "deadline_s": deadline_s,
                "profile": profile,
                "tag": tag,
            },
            timeout_s=timeout_s,
            key=key,
        )

    async def score_request(
        self, request: Request, *, timeout_s: float | None = None, key: str | None = None
    ) -> RewardResult:
        """:meth:`score` for a request with any of its fields."""
        made = job_request(request, self._settings.time_s(timeout_s))
        return await self._run(flow.score(made, key or flow.new_key(), self._settings.limits(timeout_s), together=True))

    async def score_many(self, requests: Sequence[Request], *, timeout_s: float | None = None) -> list[RewardResult]:
        """Results in the order of the requests, once all are there; see :meth:`stream`."""
        results: dict[int, RewardResult] = {}
        async for index, result in self.stream(requests, timeout_s=timeout_s):
            results[index] = result
        return [results[index] for index in range(len(requests))]

    async def stream(
        self, requests: Sequence[Request], *, timeout_s: float | None = None
    ) -> AsyncGenerator[tuple[int, RewardResult], None]:
        """Submit in batches and give each result as it comes, with its index in ``requests``.

        Whoever leaves the loop early cancels the rest. When time is up the rest is cancelled, and its results are
        given as they then are.

        Raises:
            ServerError: a request was refused; none is left running.
        """
        made, keys = job_requests(requests, self._settings.time_s(timeout_s))
        walk = Walk(bulk.stream(made, keys, self._settings.limits(timeout_s)))
        while walk.step is not None:
            if isinstance(walk.step, Send) and walk.step.leaving:
                await self._walk_aside(walk)
                return
            try:
                if isinstance(walk.step, Emit):
                    yield walk.step.index, walk.step.result
                    answer = None
                else:
                    answer = await self._perform(walk.step)
            except GeneratorExit:  # which must not cross from one task to another
                with contextlib.suppress(_LeftTheLoop):
                    walk.fail(_LeftTheLoop())
                    await self._walk(walk)
                raise
            except BaseException as error:
                walk.fail(error)
            else:
                walk.go_on(answer)

    async def submit(self, request: Request, *, key: str | None = None, timeout_s: float | None = None) -> Job:
        """Submit a job and leave it to the server; it has no deadline but its own."""
        made = checked_job(request)
        return await self._ask(calls.submission(made, key or flow.new_key()), timeout_s)

    async def submit_many(self, requests: Sequence[Request], *, timeout_s: float | None = None) -> list[Job]:
        """Submit jobs and leave them to the server.

        Raises:
            ServerError: one was refused; those that were accepted are cancelled.
        """
        made, keys = job_requests(requests, None)
        return await self._run(bulk.submit_many(made, keys, self._settings.limits(timeout_s)))

    async def job(self, job_id: str) -> Job:
        return await self._ask(calls.poll(job_id))

    async def wait(self, ids: Sequence[str], k: int | None = None, *, timeout_s: float | None = None) -> WaitAnswer:
        """Wait until any ``k`` of the jobs (None: all) have ended, or time is up: fewer have ended then."""
        return await self._run(flow.wait(ids, k, self._settings.limits(timeout_s)))

    async def cancel(self, ids: Sequence[str]) -> list[str]:
        """End jobs. Returns those that had not ended."""
        return await self._run(flow.cancel(ids, self._settings.limits(None)))

    async def cancel_run(self, run_id: str, *, older_than: int | None = None) -> list[str]:
        """End a run's jobs, or those whose ``policy_version`` is below ``older_than``."""
        request = checked(CancelRequest, {"run_id": run_id, "older_than": older_than})
        return (await self._ask(calls.cancel(request))).cancelled

    async def tasks(self, suite: str | None = None) -> list[TaskRow]:
        """The tasks that are offered, or those of one suite."""
        return await self._ask(calls.tasks(suite))

    async def task(self, name: str) -> TaskPage:
        """A task with the prompt that a model is given, by ``suite/name``."""
        return await self._ask(calls.task(name))

    async def policies(self) -> list[PolicyRow]:
        """The reward policies that a request may name."""
        return await self._ask(calls.policies())

    async def runs(self) -> list[RunStatus]:
        return await self._ask(calls.runs())

    async def set_run(
        self, run_id: str, *, weight: float | None = None, min_policy_version: int | None = None
    ) -> RunStatus:
        """Set a run's share of the devices, the oldest weights whose work is still wanted (0: any), or both; what is
        None stays as it is."""
        settings = checked(RunSettings, {"weight": weight, "min_policy_version": min_policy_version})
        return await self._ask(calls.set_run(run_id, settings))

    async def status(self) -> ServerStatus:
        return await self._ask(calls.status())

    async def session(
        self,
        task: str,
        *,
        turns: int = 4,
        discount: float = 0.4,
        policy: str | None = None,
        run_id: str = "default",
        policy_version: int | None = None,
    ) -> AsyncConversation:
        """Begin a conversation about a task; the fields are those of
        :class:`~kernelforge.client.models.SessionRequest`."""
        fields = {"task": task, "turns": turns, "discount": discount, "policy": policy, "run_id": run_id}
        request = checked(SessionRequest, fields | {"policy_version": policy_version})
        return AsyncConversation(self, await self._ask(calls.open_session(request)))

    async def _ask(self, call: RequestSpec[T], timeout_s: float | None = None) -> T:
        return await self._run(flow.ask(call, self._settings.limits(timeout_s)))

    async def _run(self, steps: Steps[T]) -> T:
        return await self._walk(Walk(steps))

    async def _walk(self, walk: Walk[T], *, aside: bool = False) -> T:
        while walk.step is not None:
            if isinstance(walk.step, Send) and walk.step.leaving and not aside:
                return await self._walk_aside(walk)
            try:
                answer = await self._perform(walk.step)
            except BaseException as error:
                walk.fail(error)
            else:
                walk.go_on(answer)
        return walk.result

    async def _walk_aside(self, walk: Walk[T]) -> T:
        """Everything this task awaits from now on may be cancelled too; the server must hear of it all the same."""
        task = asyncio.create_task(self._walk(walk, aside=True))
        self._leaving.add(task)
        task.add_done_callback(self._left)
        return await asyncio.shield(task)

    def _left(self, task: asyncio.Task[Any]) -> None:
        self._leaving.discard(task)
        if not task.cancelled():
            task.exception()  # what made the caller leave; it knows

    async def _perform(self, step: Step) -> Outcome:
        if isinstance(step, Pause):
            await asyncio.sleep(step.seconds)
            return None
        if isinstance(step, Await):
            return await self._line().shared.wait(step.job_id, step.seconds)
        assert isinstance(step, Send)
        return await self._send(step)

    async def _send(self, step: Send) -> ResponseData:
        try:
            response = await self._line().http.request(
                step.method,
                step.path,
                params=step.query,
                headers=step.headers,
                content=step.content,
                timeout=httpx_timeout(step),
            )
        except (httpx2.HTTPError, httpx2.StreamError) as error:
            raise broken(error) from error
        return received(response)

    def _line(self) -> _Line:
        """Those of this process and event loop: a forked child and a second loop must not use what is not theirs."""
        here = (os.getpid(), asyncio.get_running_loop())
        if here not in self._lines:
            self._lines = {where: line for where, line in self._lines.items() if not where[1].is_closed()}
            self._lines[here] = _Line(
                httpx2.AsyncClient(**self._settings.http()),
                SharedWait(self._wait_for_one, requests=self._settings.connections // 2),
            )
        return self._lines[here]

    async def _wait_for_one(self, ids: Sequence[str], hold_s: float) -> WaitAnswer:
        return await self._ask(calls.wait(list(ids), 1, hold_s))


@dataclass(frozen=True)
class _Line:
    """What one event loop has of a client."""

    http: httpx2.AsyncClient
    shared: SharedWait


class _LeftTheLoop(Exception):
    """Whoever iterated over a stream wants no more of it."""


class AsyncConversation:
    """A session about one task: each turn is evaluated, and the Judge's words come back as the observation."""

    def __init__(self, client: AsyncClient, session: Session) -> None:
        self._client = client
        self._session = session
        self._turns = list(session.turns)

    @property
    def id(self) -> str:
        return self._session.id

    @property
    def prompt(self) -> str:
        """What the model is asked first."""
        return self._session.prompt

    async def turn(self, completion: str, *, deadline_s: float | None = None, timeout_s: float | None = None) -> Turn:
        """Have one reply evaluated.

        Raises:
            ServerError: with the code ``infra_error`` where it could not be evaluated; it then counts as no turn.
        """
        number = len(self._turns) + 1
        request = checked(TurnRequest, {"number": number, "completion": completion, "deadline_s": deadline_s})
        limit_s = self._client._settings.time_s(timeout_s)
        turn = await self._client._ask(calls.turn(self.id, request, limit_s), limit_s)
        self._turns.append(turn)
        return turn

    async def state(self) -> Session:
        """The conversation so far, with the discounted return of each turn."""
        session = await self._client._ask(calls.session(self.id))
        self._turns = list(session.turns)
        return session

    async def close(self) -> None:
        """Have the server forget the conversation."""
        await self._client._ask(calls.close_session(self.id))


def _made_again(kind: type[AsyncClient], settings: Settings) -> AsyncClient:
    return kind(
        settings.url,
        settings.token,
        timeout_s=settings.timeout_s,
        connections=settings.connections,
        retries=settings.retries,
    )
