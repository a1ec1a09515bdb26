"""Both clients against the job service itself, over a socket, with an engine in its process."""

from __future__ import annotations

import asyncio
import doctest
from collections.abc import Iterator

import pytest

from kernelforge.client import AsyncClient, Client
from kernelforge.client.models import JobStatus
from kernelforge.errors import ServerError
from tests.server.socket_server import ServedJobs
from tests.support.inprocess_engine import completion

TASK = "core/gelu"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedJobs]:
    with ServedJobs(tmp_path_factory.mktemp("service")).running() as served:
        yield served


@pytest.mark.parametrize("client", [AsyncClient, Client])
def test_the_example_of_a_client_runs(client: type, served: ServedJobs, monkeypatch: pytest.MonkeyPatch) -> None:
    assert {"Args:", "Raises:", "Example:"} <= {line.strip() for line in client.__doc__.splitlines()}
    monkeypatch.setenv("KERNELFORGE_SERVER", served.url)
    (example,) = doctest.DocTestFinder(recurse=False).find(client, client.__name__, globs={client.__name__: client})
    assert example.examples
    assert doctest.DocTestRunner().run(example).failed == 0


async def test_one_completion_is_scored_and_the_same_one_is_answered_from_the_cache(served: ServedJobs) -> None:
    async with AsyncClient(served.url) as client:
        first = await client.score(TASK, completion("one"), run_id="run-1", tag="x")
        second = await client.score(TASK, completion("one"), policy="kevin/1")
    assert (first.outcome, first.verdict, first.cached) == ("scored", "OK", False)
    assert (second.evaluation, second.cached, second.policy) == (first.evaluation, True, "kevin/1")


def test_an_empty_reply_is_scored_by_its_format(served: ServedJobs) -> None:
    with Client(served.url) as client:
        result = client.score(TASK, "no kernel at all")
    assert (result.outcome, result.components.format, result.stage) == ("scored", 0.0, "parse")


def test_many_are_streamed_and_trouble_is_no_number(served: ServedJobs) -> None:
    replies = [completion("many 1"), completion("many TROUBLE"), completion("many WRONG"), completion("many 1")]
    with Client(served.url) as client:
        results = dict(client.stream([{"task": TASK, "completion": reply} for reply in replies]))
    assert [results[index].outcome for index in range(4)] == ["scored", "infra_error", "scored", "scored"]
    assert results[1].error.code == "device"
    assert (results[0].evaluation, results[2].verdict) == (results[3].evaluation, "WRONG")


def test_the_same_key_is_the_same_job(served: ServedJobs) -> None:
    request = {"task": TASK, "completion": completion("key")}
    with Client(served.url) as client:
        job = client.submit(request, key="a-key")
        assert client.submit(request, key="a-key").id == job.id
        with pytest.raises(ServerError) as raised:
            client.submit(request | {"tag": "another"}, key="a-key")
        assert raised.value.status == 409
        assert client.wait([job.id]).pending == []


def test_leaving_a_call_frees_the_device(served: ServedJobs) -> None:
    served.hold(True)

    async def go() -> None:
        async with AsyncClient(served.url) as client:
            call = asyncio.create_task(client.score(TASK, completion("left HANG")))
            while not any("left HANG" in source for source in served.engine.evaluated):
                await asyncio.sleep(0.01)
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            late = await client.score(TASK, completion("late HANG"), timeout_s=0.3)
            assert (late.outcome, late.error.code) in (("infra_error", "cancelled"), ("infra_error", "deadline"))
            # The late one may not have begun before its time was up; nothing begins after it.
            begun = [source for source in served.engine.evaluated if "HANG" in source]
            while sorted(served.engine.freed) != sorted(begun):
                await asyncio.sleep(0.01)

    try:
        asyncio.run(asyncio.wait_for(go(), 240))
    finally:
        served.hold(False)


def test_unknown_names_are_refused_with_what_to_do(served: ServedJobs) -> None:
    with Client(served.url) as client:
        with pytest.raises(ServerError) as raised:
            client.score("core/unheard-of", "x")
        assert (raised.value.status, bool(raised.value.request_id)) == (422, True)
        with pytest.raises(ServerError, match="request 2 of 2"):
            client.score_many([{"task": TASK, "completion": "x"}, {"task": "core/unheard-of", "completion": "x"}])
        for ask in (lambda: client.job("unheard-of"), lambda: client.wait(["unheard-of"])):
            with pytest.raises(ServerError) as raised:
                ask()
            assert raised.value.status == 404


def test_runs_tasks_policies_and_the_state_are_told(served: ServedJobs) -> None:
    with Client(served.url) as client:
        assert client.set_run("team/run-2", weight=2.0, min_policy_version=5).weight == 2.0
        stale = client.score(TASK, completion("stale"), run_id="team/run-2", policy_version=4)
        assert stale.error.code == "stale"
        assert "team/run-2" in [run.run_id for run in client.runs()]
        assert TASK in [row.task for row in client.tasks("core")]
        assert "kevin/1" in [row.policy for row in client.policies()]
        assert client.status().state == "ready"
        job = client.submit({"task": TASK, "completion": completion("to cancel HANG"), "run_id": "gone"})
        assert client.cancel_run("gone") == [job.id]
        assert client.job(job.id).status is JobStatus.CANCELLED


def test_a_result_leads_to_its_evaluation_and_profile(served: ServedJobs) -> None:
    with Client(served.url) as client:
        result = client.score(TASK, completion("whole"), profile=True)
        assert result.evaluation is not None
        stored = client.evaluation(result.evaluation)
        assert (stored.task, stored.evaluation["verdict"]) == (TASK, "OK")
        assert stored.profile is not None
        assert "whole" in (stored.source or "")
        with pytest.raises(ServerError, match="no evaluation"):
            client.evaluation("0" * 16)


def test_a_conversation_is_held_over_several_turns(served: ServedJobs) -> None:
    with Client(served.url) as client:
        conversation = client.session(TASK, turns=2)
        assert conversation.prompt
        first = conversation.turn(completion("turn WRONG"))
        assert (first.number, first.result.verdict) == (1, "WRONG")
        assert first.observation
        assert conversation.turn(completion("turn two")).result.verdict == "OK"
        state = conversation.state()
        assert (state.done, len(state.returns)) == (True, 2)
        with pytest.raises(ServerError) as raised:
            conversation.turn(completion("turn three"))
        assert raised.value.status == 409
        conversation.close()


async def test_a_job_that_is_too_stale_costs_one_sample(served: ServedJobs) -> None:
    async with AsyncClient(served.url) as client:
        await client.set_run("bounded", policy_version=9, max_staleness=1)
        requests = [
            {"task": TASK, "completion": completion("bound"), "run_id": "bounded", "policy_version": version}
            for version in (7, 8)
        ]
        stale, fresh = await client.score_many(requests)
        assert (stale.error.code, fresh.outcome) == ("stale", "scored")
        assert (await client.score_request(requests[0])).error.code == "stale"
