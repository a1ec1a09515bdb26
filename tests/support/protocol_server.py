"""A server on loopback that speaks the native protocol, breaks on request, and keeps a log of requests.

A job's completion names its result: ``now 1.5`` has ended with that reward when it is accepted, ``1.5``
ends when it is first waited for, ``0 uncompared`` is OK and its full size was not compared, ``infra`` ends in trouble,
``lacks`` is unsupported, and ``hold`` runs until it is released or cancelled.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import uvicorn
from pydantic import BaseModel, TypeAdapter

from kernelforge.client.models import (
    BatchAnswer,
    BatchItem,
    BatchRequest,
    CancelAnswer,
    CancelRequest,
    Fault,
    InputTestsAnswer,
    InputTestsRequest,
    Job,
    JobRequest,
    JobStatus,
    Problem,
    ProblemAnswer,
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
    WaitRequest,
)

TASK = "core/swish"
UNKNOWN = "core/unheard-of"


@dataclass(frozen=True)
class ReceivedRequest:
    """One request as it arrived."""

    method: str
    path: str
    headers: dict[str, str]
    query: str
    body: bytes

    @property
    def line(self) -> str:
        return f"{self.method} {self.path}"


@dataclass(frozen=True)
class ScriptedAnswer:
    """An answer in place of the right one. ``acted``: the request is acted on before. ``cut``: the connection breaks
    in the midst of the answer. ``stalls``: there is none until the client has gone."""

    status: int = 200
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    acted: bool = False
    cut: bool = False
    stalls: bool = False


def refusal(status: int, code: str, message: str = "no", retry_after: str | None = None) -> ScriptedAnswer:
    body = ProblemAnswer(error=Problem(code=code, message=message), request_id="r1").model_dump_json().encode()
    return ScriptedAnswer(status, body, {} if retry_after is None else {"retry-after": retry_after})


class ProtocolServer:
    """Runs in a thread; attributes may be read from the test's."""

    def __init__(self) -> None:
        self.url = ""
        self._loop: asyncio.AbstractEventLoop | None = None
        self.reset()

    def reset(self) -> None:
        """As it was at the start."""
        self.received: list[ReceivedRequest] = []
        self.jobs: dict[str, Job] = {}
        self.requests: dict[str, JobRequest] = {}
        self.keys: dict[str, str] = {}
        self.cancelled: list[str] = []
        self.cancels_in_s = 0.0
        """How long it takes from a cancellation to the end of the job."""
        self.full: int = 0
        """So many jobs of batches are refused as too many, with a Retry-After."""
        self.sessions: dict[str, Session] = {}
        self._instead: deque[tuple[str, ScriptedAnswer]] = deque()
        self._numbers = itertools.count(1)
        self._order: list[str] = []
        self._changed: asyncio.Event = asyncio.Event()

    def instead(self, path: str, *answers: ScriptedAnswer) -> None:
        """Answer the next requests for a path that begins so with these, in turn."""
        self._instead.extend((path, answer) for answer in answers)

    def lines(self) -> list[str]:
        return [request.line for request in self.received]

    def release(self, job_id: str, reward: float = 1.0) -> None:
        """End a job that is held."""
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._finish, job_id, scored(reward))

    def until(self, true: Callable[[], Any]) -> None:
        """Wait until the server has seen what a test waits for."""
        end = time.monotonic() + 60
        while not true():
            if time.monotonic() > end:
                raise AssertionError("the server never saw it")
            time.sleep(0.01)

    @contextlib.contextmanager
    def running(self) -> Iterator[ProtocolServer]:
        config = uvicorn.Config(
            self._app, port=0, log_level="error", lifespan="off", interface="asgi3", timeout_graceful_shutdown=1
        )
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, daemon=True)
        thread.start()
        self.until(lambda: server.started)
        self.url = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
        try:
            yield self
        finally:
            server.should_exit = True
            thread.join(10)

    async def _app(self, scope: Any, receive: Any, send: Callable[[dict[str, Any]], Awaitable[None]]) -> None:
        self._loop = asyncio.get_running_loop()
        body = b""
        while (message := await receive())["type"] == "http.request":
            body += message["body"]
            if not message["more_body"]:
                break
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        request = ReceivedRequest(scope["method"], scope["path"], headers, scope["query_string"].decode(), body)
        self.received.append(request)
        scripted = None
        if self._instead and request.path.startswith(self._instead[0][0]):
            scripted = self._instead.popleft()[1]
        if scripted is None or scripted.acted:
            right = await self._answer(request)
            scripted = right if scripted is None else replace(scripted, status=right.status, body=right.body)
        if scripted.stalls:
            await receive()
            return
        length = len(scripted.body) + (100 if scripted.cut else 0)
        sent = {"content-type": "application/json", "content-length": str(length)} | scripted.headers
        pairs = [(name.encode(), value.encode()) for name, value in sent.items()]
        await send({"type": "http.response.start", "status": scripted.status, "headers": pairs})
        await send({"type": "http.response.body", "body": scripted.body})

    async def _answer(self, request: ReceivedRequest) -> ScriptedAnswer:
        match [request.method, *request.path.removeprefix("/v1/").split("/")]:
            case ["POST", "jobs"]:
                job = JobRequest.model_validate_json(request.body)
                return _json_answer(self._accept(job, request.headers["idempotency-key"]))
            case ["POST", "jobs", "batch"]:
                return _json_answer(self._batch(BatchRequest.model_validate_json(request.body)))
            case ["POST", "jobs", "wait"]:
                return _json_answer(await self._wait(WaitRequest.model_validate_json(request.body)))
            case ["POST", "jobs", "cancel"]:
                return _json_answer(self._cancel(CancelRequest.model_validate_json(request.body)))
            case ["GET", "jobs", job_id] if job_id in self.jobs:
                wait_s = float(dict(pair.split("=") for pair in request.query.split("&")).get("wait_s", 0))
                await self._wait(WaitRequest(ids=[job_id], timeout_s=wait_s))
                return _json_answer(self.jobs[job_id])
            case ["GET", "tasks"]:
                row = TaskRow(task=TASK, digest="d1", title="Swish")
                return ScriptedAnswer(body=TypeAdapter(list[TaskRow]).dump_json([row]))
            case ["GET", "tasks", "core", name]:
                return _json_answer(
                    TaskPage(
                        task=f"core/{name}",
                        digest="d1",
                        title="Swish",
                        device="a100",
                        prompt="Write it.",
                        reference_sha256="0",
                    )
                )
            case ["POST", "tests"]:
                tests = InputTestsRequest.model_validate_json(request.body)
                return _json_answer(
                    InputTestsAnswer(task=tests.task, outcome="scored", reward=0.5, counted=2, rejected=1)
                )
            case ["GET", "runs"]:
                return ScriptedAnswer(body=TypeAdapter(list[RunStatus]).dump_json([self._run("default", 1.0)]))
            case ["PATCH", "runs", *parts]:
                return _json_answer(
                    self._run("/".join(parts), RunSettings.model_validate_json(request.body).weight or 1.0)
                )
            case ["POST", "sessions"]:
                return _json_answer(self._open(SessionRequest.model_validate_json(request.body)))
            case ["POST", "sessions", session_id, "turns"]:
                return self._turn(session_id, TurnRequest.model_validate_json(request.body))
            case ["GET", "sessions", session_id]:
                return _json_answer(self.sessions[session_id])
            case ["DELETE", "sessions", session_id]:
                del self.sessions[session_id]
                return ScriptedAnswer(204, headers={"content-length": "0"})
            case ["GET", "", "readyz"]:
                return _json_answer(
                    ServerStatus(
                        state="ready", version="1", engine="test", devices=["a100"], workers=1, queued=0, running=0
                    )
                )
        return refusal(404, "not_found", f"there is no {request.path}")

    def _accept(self, request: JobRequest, key: str) -> Job:
        if key in self.keys:
            return self.jobs[self.keys[key]]
        job_id = f"j{next(self._numbers)}"
        self.keys[key] = job_id
        self.requests[job_id] = request
        self.jobs[job_id] = Job(
            id=job_id,
            status=JobStatus.RUNNING,
            task=request.task or "",
            run_id=request.run_id,
            policy_version=request.policy_version,
            priority=request.priority,
            tag=request.tag,
            submitted_at=1.0,
        )
        if (request.completion or "").startswith("now "):
            self._finish(job_id, scored(float((request.completion or "")[4:])))
        return self.jobs[job_id]

    def _batch(self, request: BatchRequest) -> BatchAnswer:
        assert request.idempotency_keys is not None
        items = []
        for job, key in zip(request.jobs, request.idempotency_keys, strict=True):
            if job.task == UNKNOWN:
                items.append(BatchItem(problem=Problem(code="unknown_task", message=f"no task {job.task!r}")))
            elif self.full > 0:
                self.full -= 1
                items.append(BatchItem(problem=Problem(code="queue_full", message="full", retry_after_s=0.01)))
            else:
                items.append(BatchItem(job=self._accept(job, key)))
        return BatchAnswer(items=items)

    async def _wait(self, request: WaitRequest) -> WaitAnswer:
        until = asyncio.get_running_loop().time() + request.timeout_s
        for job_id in request.ids:
            text = self.requests[job_id].completion
            if self.jobs[job_id].result is None and text != "hold" and request.timeout_s:
                self._finish(job_id, _OTHERS.get(text or "") or _judged(text or ""))
        while True:
            ended = [self.jobs[job_id] for job_id in self._order if job_id in request.ids]
            remaining = until - asyncio.get_running_loop().time()
            if len(ended) >= min(request.k or len(request.ids), len(request.ids)) or remaining <= 0:
                done = {job.id for job in ended}
                return WaitAnswer(ended=ended, pending=[job_id for job_id in request.ids if job_id not in done])
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), min(remaining, 0.05))

    def _cancel(self, request: CancelRequest) -> CancelAnswer:
        ids = request.ids or [job.id for job in self.jobs.values() if job.run_id == request.run_id]
        gone = [job_id for job_id in ids if self.jobs[job_id].result is None]
        fault = Fault(code="cancelled", message="cancelled by the caller")
        trouble = RewardResult(outcome="infra_error", error=fault)
        for job_id in gone:
            asyncio.get_running_loop().call_later(self.cancels_in_s, self._finish, job_id, trouble, JobStatus.CANCELLED)
        self.cancelled += gone
        return CancelAnswer(cancelled=gone)

    def _finish(self, job_id: str, result: RewardResult, status: JobStatus = JobStatus.FINISHED) -> None:
        if self.jobs[job_id].result is None:
            self.jobs[job_id] = self.jobs[job_id].model_copy(
                update={"status": status, "result": result, "finished_at": 2.0}
            )
            self._order.append(job_id)
            self._changed.set()
            self._changed = asyncio.Event()

    def _run(self, run_id: str, weight: float) -> RunStatus:
        return RunStatus(run_id=run_id, weight=weight, queued=0, running=0, ended=len(self.jobs))

    def _open(self, request: SessionRequest) -> Session:
        session = Session(
            id=f"s{len(self.sessions) + 1}",
            task=request.task,
            run_id=request.run_id,
            policy=request.policy or "kernelforge/1",
            prompt="Write it.",
            max_turns=request.turns,
            discount=request.discount,
            done=False,
        )
        self.sessions[session.id] = session
        return session

    def _turn(self, session_id: str, request: TurnRequest) -> ScriptedAnswer:
        session = self.sessions[session_id]
        turns = {turn.number: turn for turn in session.turns}
        if request.number in turns:
            return _json_answer(turns[request.number])
        number = len(turns) + 1
        done = number == session.max_turns
        result = scored(float(request.completion))
        turn = Turn(
            number=number,
            completion=request.completion,
            result=result,
            observation="" if done else "Faster.",
            best=True,
        )
        turned = [*session.turns, turn]
        self.sessions[session_id] = session.model_copy(update={"turns": turned, "done": done})
        return _json_answer(turn)


def scored(reward: float) -> RewardResult:
    return RewardResult(outcome="scored", reward=reward, policy="kernelforge/1", verdict="OK", stage="run")


def _judged(text: str) -> RewardResult:
    number, _, mark = text.partition(" ")
    return scored(float(number)).model_copy(update={"uncompared": mark == "uncompared"})


TROUBLE = RewardResult(
    outcome="infra_error", error=Fault(code="worker_died", message="three workers died", retryable=True)
)


UNSUPPORTED = RewardResult(
    outcome="unsupported", failure_reward=-0.5, error=Fault(code="unsupported", message="no clusters here")
)
_OTHERS = {"infra": TROUBLE, "lacks": UNSUPPORTED}


def _json_answer(answer: BaseModel) -> ScriptedAnswer:
    return ScriptedAnswer(body=json.dumps(answer.model_dump(mode="json")).encode())
