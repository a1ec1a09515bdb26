"""Many sessions at once, against the job service over a socket."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from kernelforge.client import AsyncClient
from kernelforge.client.async_client import AsyncConversation
from kernelforge.client.environments import VectorEnvironment, gather_sessions
from kernelforge.errors import UsageError
from tests.server.socket_server import ServedJobs
from tests.support.inprocess_engine import completion

TASK = "core/gelu"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedJobs]:
    with ServedJobs(tmp_path_factory.mktemp("service")).running() as served:
        yield served


@pytest.mark.slow
async def test_gathering_hands_back_partial_sessions_and_a_later_one_continues_them(served: ServedJobs) -> None:
    async with AsyncClient(served.url) as client:
        sessions = [await client.session(TASK, turns=2) for _ in range(3)]
        replied: list[str] = []
        fast = sessions[1].id

        async def reply(conversation: AsyncConversation) -> str:
            replied.append(conversation.id)
            if conversation.turns and conversation.id != fast:
                await asyncio.Event().wait()  # a slow generation
            while conversation.turns and not all(each.turns for each in sessions):
                await asyncio.sleep(0.01)
            return completion(f"{conversation.id} {len(conversation.turns)}")

        gathered = await gather_sessions(sessions, reply, 1)
        assert [each.id for each in gathered.done] == [fast]
        assert [each.id for each in gathered.partial] == [sessions[0].id, sessions[2].id]
        resumed = [await client.resume(each.id) for each in gathered.partial]
        first_turns = [len(each.turns) for each in resumed]
        fast, replied = "", []

        async def quick(conversation: AsyncConversation) -> str:
            replied.append(conversation.id)
            return completion(f"later {conversation.id}")

        rest = await gather_sessions(resumed, quick, 2)
        assert (len(rest.done), rest.partial, rest.failed) == (2, [], {})
        assert len(replied) == 4 - sum(first_turns)  # no turn was taken twice
        with pytest.raises(UsageError, match="from 1 to"):
            await gather_sessions(sessions, quick, 4)


async def test_a_turn_that_is_evaluated_when_gathering_ends_is_not_lost(served: ServedJobs) -> None:
    async with AsyncClient(served.url) as client:
        first, second = await client.session(TASK, turns=1), await client.session(TASK, turns=1)
        replied: list[str] = []

        async def reply(conversation: AsyncConversation) -> str:
            replied.append(conversation.id)
            if conversation.id == first.id:
                while second.unanswered is None:
                    await asyncio.sleep(0.01)
                return "no kernel"  # ends without an evaluation
            return completion("held")

        served.hold(True)
        gathered = await gather_sessions([first, second], reply, 1)
        assert gathered.partial == [second]
        assert second.unanswered == completion("held")
        served.hold(False)
        assert (await gather_sessions(gathered.partial, reply, 1)).done == [second]
        assert replied.count(second.id) == 1
        assert second.turns[0].result.verdict == "OK"


async def test_a_vector_of_environments_steps_and_begins_new_episodes(served: ServedJobs) -> None:
    async with AsyncClient(served.url) as client:
        vector = VectorEnvironment(client, [TASK, "core/swish"], 3, turns=2)
        first = await vector.reset()
        assert [step.environment for step in first] == [0, 1, 2]
        assert first[0].observation == first[2].observation != first[1].observation
        steps = await vector.step({2: completion("a"), 0: completion("WRONG b")})
        assert [(step.environment, step.done, step.turn and step.turn.result.verdict) for step in steps] == [
            (2, False, "OK"), (0, False, "WRONG"),
        ]  # fmt: skip
        assert steps[1].reward == 0.0
        vector.send({2: completion("c"), 1: completion("TROUBLE d")})
        with pytest.raises(UsageError, match="has an action already"):
            vector.send({2: completion("e")})
        failed, ended = sorted(await vector.recv(1) + await vector.recv(1), key=lambda step: step.environment)
        assert (ended.done, ended.observation) == (True, first[1].observation)
        assert failed.error is not None
        assert (failed.error.code, failed.reward, failed.observation) == ("infra_error", None, first[1].observation)
        with pytest.raises(UsageError, match="0 have an action"):
            await vector.recv(1)
        await vector.close()
