"""Many sessions at once: a vector environment as EnvPool's, and a gathering of those that end first as APRIL's."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from kernelforge.client.async_client import AsyncClient, AsyncConversation
from kernelforge.client.models import Turn
from kernelforge.errors import ServerError, UsageError

Reply = Callable[[AsyncConversation], Awaitable[str]]
"""Asks the policy for the reply to a conversation's ``observation``."""


class GatheredSessions(NamedTuple):
    """Answer of :func:`gather_sessions`."""

    done: list[AsyncConversation]
    """Those that are done, in the order of their ends: at least ``k``, unless others failed."""
    partial: list[AsyncConversation]
    """The others, to be gathered later: they keep their turns."""
    failed: dict[str, ServerError]
    """By id: conversations among ``partial`` whose last turn ended in an infrastructure failure."""


async def gather_sessions(conversations: Sequence[AsyncConversation], reply: Reply, k: int) -> GatheredSessions:
    """Continue conversations until ``k`` are done, and hand back the others as they are, as in APRIL
    (arXiv:2509.18521): begin more than a step needs, and continue those that are left in the next.

    A turn that is being evaluated at the end goes on, and a later gathering gets its answer.

    Args:
        reply: is cancelled for the conversations that are left.

    Raises:
        UsageError: ``k`` is not between 1 and the number of conversations.
    """
    if not 1 <= k <= len(conversations):
        raise UsageError(f"gather waits for {k} of {len(conversations)} sessions: give a k from 1 to their number")
    running = {asyncio.create_task(_finish(each, reply)): each for each in conversations}
    done: list[AsyncConversation] = []
    failed: dict[str, ServerError] = {}
    try:
        while running and len(done) < k:
            ended, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            for task in ended:
                conversation = running.pop(task)
                error = task.exception()
                if error is None:
                    done.append(conversation)
                elif isinstance(error, ServerError) and error.code == "infra_error":
                    failed[conversation.id] = error
                else:
                    raise error
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
    return GatheredSessions(done, [each for each in conversations if each not in done], failed)


async def _finish(conversation: AsyncConversation, reply: Reply) -> None:
    while not conversation.done:
        await conversation.turn(conversation.unanswered or await reply(conversation))


class Step(NamedTuple):
    """Answer of an environment."""

    environment: int
    """Its number."""
    observation: str
    """The next message for the model: after the last turn of an episode the first prompt of the next."""
    reward: float | None = None
    """None before the first action, and where there is no score."""
    done: bool = False
    """Whether the action ended the episode."""
    turn: Turn | None = None
    """The evaluated turn."""
    error: ServerError | None = None
    """An infrastructure failure: the turn does not count, and the observation is the same as before."""


class VectorEnvironment:
    """Sessions as a vector of environments with the asynchronous interface of EnvPool (arXiv:2206.10558).

    Args:
        client: its server evaluates.
        tasks: of the episodes, in turns.
        count: environments.
        options: further arguments of :meth:`~kernelforge.client.AsyncClient.session`, such as ``turns``.

    Raises:
        UsageError: there is no task or no environment.
    """

    def __init__(self, client: AsyncClient, tasks: Iterable[str], count: int, **options: Any) -> None:
        self._client = client
        self._tasks = list(tasks)
        self._count = count
        self._options = options
        if not self._tasks or count < 1:
            raise UsageError("give a vector environment at least one task and one environment")
        self._episodes = 0
        self._sessions: dict[int, AsyncConversation] = {}
        self._running: dict[int, asyncio.Task[Step]] = {}

    async def reset(self) -> list[Step]:
        """Begin a new episode in every environment. Returns one step each, with the first prompts."""
        await self.close()
        return list(await asyncio.gather(*(self._begin(number) for number in range(self._count))))

    def send(self, actions: Mapping[int, str]) -> None:
        """Send replies to environments, by their numbers, without waiting.

        Raises:
            UsageError: an environment was not begun, or has an action already.
        """
        for number in actions:
            if number not in self._sessions or number in self._running:
                reason = "has an action already" if number in self._running else "was not begun: call reset"
                raise UsageError(f"environment {number} {reason}")
        for number, completion in actions.items():
            self._running[number] = asyncio.create_task(self._act(number, completion))

    async def recv(self, batch: int) -> list[Step]:
        """Wait for the next ``batch`` environments that have answered, in any order.

        Raises:
            UsageError: fewer have an action.
            ServerError: the server refused one.
        """
        if batch > len(self._running):
            raise UsageError(f"recv waits for {batch} environments, and {len(self._running)} have an action")
        steps: list[Step] = []
        while len(steps) < batch:
            await asyncio.wait(self._running.values(), return_when=asyncio.FIRST_COMPLETED)
            for number in [number for number, task in self._running.items() if task.done()][: batch - len(steps)]:
                steps.append(self._running.pop(number).result())
        return steps

    async def step(self, actions: Mapping[int, str]) -> list[Step]:
        """Send replies and wait for all that have one, in the order of the actions."""
        self.send(actions)
        order = list(actions)
        return sorted(await self.recv(len(self._running)), key=lambda step: order.index(step.environment))

    async def close(self) -> None:
        """End all episodes, and delete their sessions."""
        for task in self._running.values():
            task.cancel()
        await asyncio.gather(*self._running.values(), return_exceptions=True)
        self._running.clear()
        sessions, self._sessions = self._sessions, {}
        await asyncio.gather(*(session.close() for session in sessions.values()))

    async def _begin(self, number: int) -> Step:
        task = self._tasks[self._episodes % len(self._tasks)]
        self._episodes += 1
        self._sessions[number] = await self._client.session(task, **self._options)
        return Step(number, self._sessions[number].observation)

    async def _act(self, number: int, completion: str) -> Step:
        session = self._sessions[number]
        try:
            turn = await session.turn(completion)
        except ServerError as error:
            if error.code != "infra_error":
                raise
            return Step(number, session.observation, error=error)
        if not session.done:
            return Step(number, turn.observation, turn.result.reward, turn=turn)
        following = await self._begin(number)
        return following._replace(reward=turn.result.reward, done=True, turn=turn)
