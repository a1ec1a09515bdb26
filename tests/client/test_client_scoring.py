"""One completion, from submission to reward: what is sent, tried again, and cancelled."""

from __future__ import annotations

import asyncio

from wire_server import TASK, WireServer

from kernelforge.client import AsyncClient, Client

SUBMIT = "POST /v1/jobs"


def test_a_completion_is_submitted_and_its_reward_awaited(server: WireServer) -> None:
    async def go() -> None:
        async with AsyncClient(server.url, "kf_secret") as client:
            result = await client.score(TASK, "1.5", run_id="run-1", policy_version=7, tag="sample 3")
        assert (result.outcome, result.reward) == ("scored", 1.5)

    asyncio.run(go())
    assert server.lines() == [SUBMIT, "GET /v1/jobs/j1"]
    assert all(asked.headers["authorization"] == "Bearer kf_secret" for asked in server.asked)
    request = server.requests["j1"]
    assert (request.run_id, request.policy_version, request.tag, request.completion) == ("run-1", 7, "sample 3", "1.5")


def test_both_clients_ask_the_same(server: WireServer) -> None:
    with Client(server.url) as client:
        assert client.score(TASK, "1.5").reward == 1.5
    assert server.lines() == [SUBMIT, "GET /v1/jobs/j1"]
