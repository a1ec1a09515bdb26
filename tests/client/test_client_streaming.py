"""Many completions at once: batches, results as they come, and the end of the rest."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace
from typing import Any

import pytest

from kernelforge.client import AsyncClient, Client, bulk, flow
from kernelforge.errors import InvalidServerResponse, ServerError, UsageError
from tests.support.protocol_server import TASK, ProtocolServer, ScriptedAnswer, refusal

BATCH = "POST /v1/jobs/batch"


def jobs(*completions: str, task: str = TASK) -> list[dict[str, Any]]:
    return [{"task": task, "completion": completion} for completion in completions]


async def test_results_come_in_the_order_of_the_requests(server: ProtocolServer) -> None:
    async with AsyncClient(server.url) as client:
        assert [result.reward for result in await client.score_many(jobs("3", "now 1", "infra", "2"))] == [
            3.0,
            1.0,
            None,
            2.0,
        ]
    with Client(server.url) as client:
        assert [result.reward for result in client.score_many(jobs("4", "now 5"))] == [4.0, 5.0]
        assert client.score_many([]) == []


async def test_a_stream_gives_results_as_jobs_end(server: ProtocolServer) -> None:
    seen = []
    async with AsyncClient(server.url) as client:
        async for index, result in client.stream(jobs("hold", "hold", "now 7", "hold")):
            seen.append((index, result.reward))
            if len(seen) < 4:
                released = {1: "j4", 2: "j1", 3: "j2"}[len(seen)]
                server.release(released, float(released[1:]))
    assert seen == [(2, 7.0), (3, 4.0), (0, 1.0), (1, 2.0)]


async def test_gathering_k_cancels_the_others_and_names_them(server: ProtocolServer) -> None:
    async with AsyncClient(server.url) as client:
        gathered = await client.gather(jobs("hold", "infra", "now 1", "hold", "2"), 2)
        assert {index: result.reward for index, result in gathered.results.items()} == {1: None, 2: 1.0, 4: 2.0}
        assert gathered.cancelled == [0, 3]
        assert sorted(server.cancelled) == ["j1", "j4"]
    with Client(server.url) as client:
        second = client.gather(jobs("3", "4"), 2)
        assert ([result.reward for _, result in sorted(second.results.items())], second.cancelled) == ([3.0, 4.0], [])


def test_gathering_more_than_can_end_waits_for_all(server: ProtocolServer) -> None:
    with Client(server.url) as client:
        gathered = client.gather(jobs("infra", "1"), 2)
        assert [gathered.results[index].reward for index in (0, 1)] == [None, 1.0]
        for k in (0, 3):
            with pytest.raises(UsageError, match="give a k from 1"):
                client.gather(jobs("1", "2"), k)
    assert server.cancelled == []


async def test_what_gathering_did_not_send_is_named_too(
    server: ProtocolServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk, "MAX_BATCH", 2)
    async with AsyncClient(server.url) as client:
        gathered = await client.gather(jobs("now 1", "hold", "now 3"), 1)
    assert (list(gathered.results), gathered.cancelled) == ([0], [1, 2])
    assert server.cancelled == ["j2"]


def test_a_job_beyond_the_first_of_very_many_is_told_when_it_ends(
    server: ProtocolServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk, "MAX_BATCH", 2)
    monkeypatch.setattr(bulk, "ROUND_HOLD_S", 0.02)
    with Client(server.url) as client:
        stream = client.stream(jobs("hold", "hold", "hold", "hold", "now 5"))
        assert next(stream)[0] == 4
        server.release("j3", 3.0)
        index, result = next(stream)
        assert (index, result.reward) == (2, 3.0)
        stream.close()
    assert sorted(server.cancelled) == ["j1", "j2", "j4"]


async def test_whoever_leaves_a_stream_cancels_the_rest(server: ProtocolServer) -> None:
    async with AsyncClient(server.url) as client:
        stream = client.stream(jobs("hold", "now 7", "hold"))
        async for index, _ in stream:
            assert index == 1
            break
        await stream.aclose()
    assert sorted(server.cancelled) == ["j1", "j3"]
    server.reset()
    with Client(server.url) as client:
        for index, _ in client.stream(jobs("hold", "now 7", "hold")):
            assert index == 1
            break
    assert sorted(server.cancelled) == ["j1", "j3"]


async def test_cancelling_many_cancels_them_on_the_server(server: ProtocolServer) -> None:
    async with AsyncClient(server.url) as client:
        call = asyncio.create_task(client.score_many(jobs("hold", "hold")))
        await asyncio.to_thread(server.until, lambda: "POST /v1/jobs/wait" in server.lines())
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
    assert sorted(server.cancelled) == ["j1", "j2"]


async def test_cancelling_before_the_batch_was_answered_cancels_what_was_accepted(server: ProtocolServer) -> None:
    server.instead(BATCH[5:], ScriptedAnswer(acted=True, stalls=True))

    async with AsyncClient(server.url) as client:
        call = asyncio.create_task(client.score_many(jobs("hold", "hold")))
        await asyncio.to_thread(server.until, lambda: len(server.jobs) == 2)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
    assert sorted(server.jobs) == sorted(server.cancelled) == ["j1", "j2"]


async def test_a_stream_outlives_connections_that_break(server: ProtocolServer) -> None:
    server.instead(BATCH[5:], ScriptedAnswer(acted=True, cut=True))
    server.instead("/v1/jobs/wait", ScriptedAnswer(cut=True), ScriptedAnswer(503, b"", {"retry-after": "0"}))

    async with AsyncClient(server.url) as client:
        assert ({index: result.reward async for index, result in client.stream(jobs("1", "now 2", "infra"))}) == {
            0: 1.0,
            1: 2.0,
            2: None,
        }
    assert (len(server.jobs), server.cancelled) == (3, [])


def test_a_batch_whose_connection_breaks_is_accepted_once(server: ProtocolServer) -> None:
    server.instead(BATCH[5:], ScriptedAnswer(acted=True, cut=True))
    with Client(server.url) as client:
        assert [result.reward for result in client.score_many(jobs("1", "2"))] == [1.0, 2.0]
    assert server.lines()[:2] == [BATCH, BATCH]
    assert sorted(server.jobs) == ["j1", "j2"]


def test_jobs_of_a_batch_that_found_the_queue_full_are_sent_again(server: ProtocolServer) -> None:
    server.full = 2
    with Client(server.url) as client:
        assert [result.reward for result in client.score_many(jobs("1", "2", "3"))] == [1.0, 2.0, 3.0]
    assert len(server.jobs) == 3


def test_jobs_that_never_found_room_are_an_error_once_time_is_up(server: ProtocolServer) -> None:
    server.full = 10_000
    with Client(server.url) as client, pytest.raises(ServerError, match="request 2 of 2: full") as raised:
        client.score_many(jobs("1", "2"), timeout_s=0.3)
    assert raised.value.code == "queue_full"
    assert server.jobs == {}


def test_one_that_is_refused_for_good_leaves_none_running(server: ProtocolServer) -> None:
    requests = [*jobs("hold"), *jobs("1", task="core/unheard-of"), *jobs("hold")]
    with Client(server.url) as client, pytest.raises(ServerError, match=r"^request 2 of 3: no task") as raised:
        client.score_many(requests)
    assert raised.value.code == "unknown_task"
    assert sorted(server.cancelled) == ["j1", "j2"]
    with Client(server.url) as client, pytest.raises(ServerError, match=r"^request 2 of 3: no task"):
        client.submit_many(requests)
    assert sorted(server.cancelled) == ["j1", "j2", "j3", "j4"]


def test_when_time_is_up_the_rest_is_cancelled_and_told_as_trouble(
    server: ProtocolServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    passed_s = 0.0
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + passed_s)
    for module in (flow, bulk):
        monkeypatch.setattr(module, "time", clock)
    outcomes = {}
    with Client(server.url) as client:
        for index, result in client.stream(jobs("hold", "1", "hold"), timeout_s=600.0):
            outcomes[index] = result.outcome
            passed_s = 600.0
    assert outcomes == {0: "infra_error", 1: "scored", 2: "infra_error"}
    assert sorted(server.cancelled) == ["j1", "j3"]


def test_large_batches_are_split(server: ProtocolServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk, "MAX_BATCH", 3)
    monkeypatch.setattr(bulk, "MAX_BATCH_CHARS", 20)
    completions = ["1", "2", "3", "4", "5" + "0" * 30, "6", "now 7" + " " * 12, "8"]
    with Client(server.url) as client:
        rewards = [result.reward for result in client.score_many(jobs(*completions))]
        accepted = client.submit_many(jobs(*completions))
    assert rewards == [float(completion.removeprefix("now ")) for completion in completions]
    assert [job.id for job in accepted] == [f"j{number}" for number in range(9, 17)]
    assert server.lines().count(BATCH) == 8


@pytest.mark.parametrize(
    "body", [b'{"items": []}', b'{"items": [{}]}', b'{"items": 3}', b"<html>"], ids=["few", "empty", "shape", "page"]
)
def test_a_malformed_answer_to_a_batch_is_told_as_such(server: ProtocolServer, body: bytes) -> None:
    server.instead(BATCH[5:], ScriptedAnswer(body=body))
    with Client(server.url) as client, pytest.raises(InvalidServerResponse):
        client.score_many(jobs("1"))


def test_a_request_that_would_be_refused_is_named_and_nothing_sent(server: ProtocolServer) -> None:
    with Client(server.url) as client, pytest.raises(UsageError, match=r"request 2 of 2: .*completion or a candidate"):
        client.score_many([*jobs("1"), {"task": TASK}])
    assert server.received == []


def test_a_batch_that_was_refused_whole_is_not_sent_again_to_cancel_it(server: ProtocolServer) -> None:
    server.instead(BATCH[5:], refusal(403, "forbidden", "this token may not submit"))
    with Client(server.url) as client, pytest.raises(ServerError, match="may not submit"):
        client.score_many(jobs("1"))
    assert server.lines() == [BATCH]


def test_a_whole_refusal_of_the_batch_is_retried_as_any_request(server: ProtocolServer) -> None:
    server.instead(BATCH[5:], refusal(503, "draining", retry_after="0"))
    with Client(server.url) as client:
        assert [result.reward for result in client.score_many(jobs("1"))] == [1.0]
