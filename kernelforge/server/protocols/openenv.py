"""OpenEnv's environment (0.10): a client with ``base_url=http://host:port/openenv``.

Over ``/ws`` an episode is a session: ``reset`` names the task, each ``step`` is a turn, and the observation is the next
prompt. The HTTP routes are stateless, as OpenEnv's are: a step names its task and is a complete episode. An
infrastructure failure is an ``error`` message, after which the step may be sent again.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any, Literal

from fastapi import APIRouter, Request, WebSocket, WebSocketDisconnect
from pydantic import BaseModel, ConfigDict, Field
from pydantic_core import from_json

from kernelforge.client.models import (
    MAX_COMPLETION_CHARS,
    MAX_TURNS,
    Components,
    JobRequest,
    Name,
    Narrow,
    RewardResult,
    SessionRequest,
    TurnRequest,
)
from kernelforge.errors import KernelForgeError
from kernelforge.server.base import Caller, RequestRejected
from kernelforge.server.http.auth import Anyone, Reader, Submitter
from kernelforge.server.http.errors import documented
from kernelforge.server.http.limits import api_router, has_too_many_values
from kernelforge.server.jobs.service import JobService
from kernelforge.server.protocols.common import body_of, score_all
from kernelforge.server.sessions.service import TURN_S, Sessions
from kernelforge.version import __version__

MAX_EPISODES = 1_000
"""Connections at the same time."""
MAX_MESSAGE_CHARS = 2 * MAX_COMPLETION_CHARS
_WAITING = 1
"""Messages of a connection that are read ahead; each may take some MiB."""


class _Part(Narrow):
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class ResetRequest(_Part):
    """Task and length of an episode."""

    task: str | None = Field(default=None, max_length=200)
    """``suite/name``, or a task's digest."""
    reference_code: str | None = None
    """The task file instead of its name; only its hash is used."""
    turns: int = Field(default=4, ge=1, le=MAX_TURNS)
    policy: str | None = Field(default=None, max_length=100)
    run_id: Name = "default"
    policy_version: int | None = Field(default=None, ge=0, le=2**53)
    sizes: Literal["all", "train"] | None = None
    """Sizes to check, among those that the server offers; by default the run's, else the server's."""
    seed: int | None = Field(default=None, ge=0)
    """Ignored: a task does not vary, and its inputs are drawn from a secret seed."""
    episode_id: str | None = Field(default=None, max_length=255)


class Action(_Part):
    """Reply of the model."""

    completion: str = Field(max_length=MAX_COMPLETION_CHARS)
    task: str | None = Field(default=None, max_length=200)
    """Only without a reset, as over HTTP: the step is then a complete episode."""
    policy: str | None = Field(default=None, max_length=100)
    """Only with ``task``."""
    sizes: Literal["all", "train"] | None = None
    """Only with ``task``."""
    metadata: dict[str, Any] = {}
    """Ignored; OpenEnv's actions have it."""


class StepRequest(_Part):
    action: dict[str, Any]
    timeout_s: float | None = Field(default=None, gt=0, le=TURN_S)
    request_id: str | None = Field(default=None, max_length=255)


class Observation(_Part):
    """Observation for the model."""

    task: str
    prompt: str
    """The next prompt, verbatim; empty at the end."""
    feedback: str = ""
    """Result of the last completion in a few lines; also part of the prompt."""
    verdict: str | None = None
    uncompared: bool = False
    """Whether the verdict is OK although no value was compared at the full size."""
    sizes: Literal["all", "train"] | None = None
    """Those that were checked: ``train`` are fewer."""
    stage: str | None = None
    components: Components | None = None
    best: bool | None = None
    """Whether the last completion is the best so far; never one whose full size was not compared."""
    turn: int = 0
    max_turns: int
    metadata: dict[str, Any] = {}


class Stepped(BaseModel):
    """OpenEnv's answer to a reset or a step."""

    observation: Observation
    reward: float | None = None
    done: bool = False


class State(BaseModel):
    episode_id: str | None = None
    step_count: int = 0
    task: str | None = None


def router(service: JobService, sessions: Sessions) -> APIRouter:
    routes = api_router("openenv")
    errors = documented(400, 408, 413, 422, 429, 504)
    open_episodes: set[Episode] = set()

    @routes.post("/openenv/reset", responses=errors)
    async def reset(body: ResetRequest, caller: Submitter) -> Stepped:
        """The prompt of a task. Stateless; episodes of several turns use ``/openenv/ws``."""
        reference, _ = service.find_task(body.task, body.reference_code)
        service.fingerprint_at(body.sizes, body.run_id)
        prompt = await sessions.first_prompt(reference)
        return Stepped(observation=Observation(task=reference, prompt=prompt, max_turns=1))

    @routes.post("/openenv/step", responses=errors)
    async def step(request: Request, body: StepRequest, caller: Submitter) -> Stepped:
        """The reward of one completion, for the task that its action names."""
        action = body_of(Action, body.action, "action")
        if action.task is None:
            raise RequestRejected(
                422, "no_task", "over HTTP an action names its task; or reset an episode over /openenv/ws"
            )
        job = JobRequest(task=action.task, completion=action.completion, policy=action.policy, sizes=action.sizes)
        (result,) = await score_all(request, service, caller, [job], timeout_s=body.timeout_s or TURN_S)
        return _single(service.find_task(action.task)[0], result)

    @routes.get("/openenv/state", responses=errors)
    async def state(caller: Reader) -> State:
        """An empty state: HTTP is stateless."""
        return State()

    @routes.get("/openenv/metadata", responses=errors)
    async def metadata(caller: Anyone) -> dict[str, str]:
        return {
            "name": "kernelforge",
            "description": "CUDA kernels for PyTorch modules, checked and timed",
            "version": __version__,
        }

    @routes.get("/openenv/health", responses=errors)
    async def health(caller: Anyone) -> dict[Literal["status"], str]:
        if service.status().state != "ready":
            raise RequestRejected(503, "unavailable", f"the server is {service.status().state}", retry_after_s=1.0)
        return {"status": "healthy"}

    @routes.get("/openenv/schema", responses=errors)
    async def schema(caller: Anyone) -> dict[str, dict[str, Any]]:
        models: dict[str, type[BaseModel]] = {"action": Action, "observation": Observation, "state": State}
        return {name: model.model_json_schema() for name, model in models.items()}

    @routes.websocket("/openenv/ws")
    async def episodes(socket: WebSocket, caller: Submitter) -> None:
        await socket.accept()
        if len(open_episodes) >= MAX_EPISODES:
            await socket.send_json(_error("CAPACITY_REACHED", f"{MAX_EPISODES:,} episodes are open"))
            await socket.close(1013)
            return
        episode = Episode(service, sessions, caller)
        open_episodes.add(episode)
        try:
            await _serve_messages(socket, episode)
        finally:
            open_episodes.discard(episode)
            await episode.end()

    return routes


class Episode:
    """One connection's environment."""

    def __init__(self, service: JobService, sessions: Sessions, caller: Caller) -> None:
        self._service = service
        self._sessions = sessions
        self._caller = caller
        self._session: str | None = None
        self._state = State()
        self._max_turns = 0

    async def answer(self, text: str | None) -> dict[str, Any] | None:
        """The answer to a message; None if the message ends the connection."""
        payload = b"" if text is None else text.encode()
        if has_too_many_values(payload):
            return _error("VALIDATION_ERROR", "a message has too many values")
        try:
            message = from_json(payload, allow_inf_nan=False)
        except ValueError as error:
            return _error("INVALID_JSON", f"Invalid JSON: {error}")
        if not isinstance(message, dict):
            return _error("VALIDATION_ERROR", "a message is an object with a type")
        kind, data = message.get("type"), message.get("data", {})
        try:
            if kind == "close":
                return None
            if kind == "state":
                return {"type": "state", "data": self._state.model_dump()}
            if kind == "reset":
                return _observed(await self._reset(body_of(ResetRequest, data, "reset")))
            if kind == "step":
                return _observed(await self._step(body_of(Action, data, "action")))
        except RequestRejected as refusal:
            invalid = refusal.status in (400, 404, 409, 413, 422)
            return _error("VALIDATION_ERROR" if invalid else "EXECUTION_ERROR", f"{refusal.code}: {refusal}")
        except KernelForgeError as error:
            return _error("EXECUTION_ERROR", str(error))
        return _error("UNKNOWN_TYPE", f"Unknown message type: {str(kind)[:100]}")

    async def end(self) -> None:
        """Delete the session, and end its turn."""
        session, self._session = self._session, None
        if session is not None:
            with suppress(RequestRejected):  # it was idle too long, or deleted by an administrator
                await self._sessions.delete(session, self._caller)

    async def _reset(self, request: ResetRequest) -> Stepped:
        reference, _ = self._service.find_task(request.task, request.reference_code)
        await self.end()
        opened = await self._sessions.open(
            SessionRequest(
                task=reference,
                run_id=request.run_id,
                policy=request.policy,
                policy_version=request.policy_version,
                sizes=request.sizes,
                turns=request.turns,
                observations="whole",
            ),
            self._caller,
        )
        self._session, self._max_turns = opened.id, opened.max_turns
        self._state = State(episode_id=request.episode_id or opened.id, task=reference)
        observation = Observation(task=reference, prompt=opened.prompt, max_turns=opened.max_turns)
        return Stepped(observation=observation, done=opened.done)

    async def _step(self, action: Action) -> Stepped:
        if self._session is None:
            return await self._alone(action)
        for name in ("task", "policy", "sizes"):
            if getattr(action, name) is not None:
                raise RequestRejected(422, "invalid", f"the reset began the episode; omit {name!r} in the action")
        number = self._state.step_count + 1
        turn = await self._sessions.turn(
            self._session, TurnRequest(number=number, completion=action.completion), self._caller
        )
        self._state = self._state.model_copy(update={"step_count": number})
        return Stepped(
            observation=_observation(
                turn.result,
                task=self._state.task or "",
                prompt=turn.observation,
                best=turn.best and not turn.result.uncompared,
                turn=number,
                max_turns=self._max_turns,
            ),
            reward=turn.result.reward,
            done=not turn.observation,
        )

    async def _alone(self, action: Action) -> Stepped:
        """A step without a reset is an episode of one turn."""
        if action.task is None:
            raise RequestRejected(422, "no_task", "reset with a task first, or name one in the action")
        opened = await self._reset(ResetRequest(task=action.task, turns=1, policy=action.policy, sizes=action.sizes))
        if opened.done:
            raise RequestRejected(422, "no_task", f"there is no prompt for task {action.task!r}")
        try:
            return await self._step(Action(completion=action.completion))
        finally:
            await self.end()


async def _serve_messages(socket: WebSocket, episode: Episode) -> None:
    """Answer messages in order until either side closes. A client that disconnects ends its turn."""
    waiting: asyncio.Queue[str | None] = asyncio.Queue(_WAITING)

    async def read() -> None:
        while True:
            message = await socket.receive()
            if message["type"] == "websocket.disconnect":
                return
            text = message.get("text")
            await waiting.put(text if text is None or len(text) <= MAX_MESSAGE_CHARS else None)

    async def work() -> None:
        while True:
            answer = await episode.answer(await waiting.get())
            if answer is None:
                await socket.close()
                return
            await socket.send_json(answer)

    both = {asyncio.create_task(read()), asyncio.create_task(work())}
    try:
        done, _ = await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in both:
            task.cancel()
        await asyncio.wait(both)
    for task in done:
        error = task.exception()
        if error is not None and not isinstance(error, WebSocketDisconnect):
            raise error


def _single(reference: str, result: RewardResult) -> Stepped:
    best = result.verdict == "OK" and not result.uncompared
    observation = _observation(result, task=reference, prompt="", best=best, turn=1, max_turns=1)
    return Stepped(observation=observation, reward=result.reward, done=True)


def _observation(result: RewardResult, **fields: Any) -> Observation:
    names = {"feedback", "verdict", "uncompared", "sizes", "stage", "components"}
    return Observation(**{name: getattr(result, name) for name in names}, **fields)


def _observed(stepped: Stepped) -> dict[str, Any]:
    return {"type": "observation", "data": stepped.model_dump(mode="json")}


def _error(code: str, message: str) -> dict[str, Any]:
    return {"type": "error", "data": {"message": message, "code": code}}
