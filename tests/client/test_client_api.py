"""The rest of the native API: jobs that are left to the server, runs, tasks, and sessions."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path

import pytest

from kernelforge.client import AsyncClient, AsyncConversation, Client, Conversation, flow
from kernelforge.errors import ServerError, ServerUnreachable, UsageError
from tests.support.protocol_server import TASK, ProtocolServer, ScriptedAnswer, refusal


def test_jobs_may_be_left_to_the_server(server: ProtocolServer) -> None:
    with Client(server.url) as client:
        job = client.submit({"task": TASK, "completion": "hold", "tag": "x"}, key="mine")
        assert (job.id, job.status.ended, job.tag) == ("j1", False, "x")
        assert client.submit({"task": TASK, "completion": "hold", "tag": "x"}, key="mine").id == "j1"
        server.release("j1", 2.0)
        assert client.wait(["j1"]).ended[0].result.reward == 2.0
        assert client.job("j1").status.ended


def test_waiting_for_any_k_gives_what_ended_and_what_did_not(server: ProtocolServer) -> None:
    with Client(server.url) as client:
        ids = [job.id for job in client.submit_many([{"task": TASK, "completion": "hold"}] * 3)]
        server.release("j2")
        answer = client.wait(ids, k=1)
        assert ([job.id for job in answer.ended], answer.pending) == (["j2"], ["j1", "j3"])
        answer = client.wait(ids, timeout_s=0.1)
        assert ([job.id for job in answer.ended], answer.pending) == (["j2"], ["j1", "j3"])
        assert client.wait([]).ended == []


def test_any_of_more_jobs_than_a_request_may_name_are_waited_for(
    server: ProtocolServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flow, "MAX_BATCH", 2)
    with Client(server.url) as client:
        ids = [job.id for job in client.submit_many([{"task": TASK, "completion": "hold"}] * 5)]
        server.release("j5")
        answer = client.wait(ids, k=1)
        assert ([job.id for job in answer.ended], answer.pending) == (["j5"], ids[:4])
        for job_id in ids:
            server.release(job_id)
        assert sorted(job.id for job in client.wait(ids).ended) == ids
        assert client.cancel(ids) == []


def test_jobs_and_runs_are_cancelled(server: ProtocolServer) -> None:
    with Client(server.url) as client:
        for run_id in ("a", "b", "b"):
            client.submit({"task": TASK, "completion": "hold", "run_id": run_id})
        assert client.cancel(["j1"]) == ["j1"]
        assert client.cancel(["j1"]) == []
        assert client.cancel_run("b", older_than=4) == ["j2", "j3"]
        assert b'"older_than":4' in server.received[-1].body
        with pytest.raises(UsageError, match="run_id"):
            client.cancel_run("")


async def test_tasks_runs_and_the_servers_state_are_told(server: ProtocolServer) -> None:
    async with AsyncClient(server.url) as client:
        assert [row.task for row in await client.tasks("core")] == [TASK]
        assert server.received[-1].query == "suite=core"
        assert (await client.task(TASK)).prompt == "Write it."
        assert [run.run_id for run in await client.runs()] == ["default"]
        assert (await client.set_run("team/run-1", weight=2.5)).run_id == "team/run-1"
        assert (await client.status()).state == "ready"


async def test_a_testers_prompt_and_the_score_of_its_reply(server: ProtocolServer) -> None:
    async with AsyncClient(server.url) as client:
        await client.task(TASK)
        assert server.received[-1].query == "", "a server that knows no other agent is asked as ever"
        await client.task(TASK, agent="tester")
        assert server.received[-1].query == "agent=tester"
        answer = await client.score_tests(TASK, "a reply")
        assert (answer.task, answer.reward, answer.counted) == (TASK, 0.5, 2)
        assert b"most" not in server.received[-1].body
    with Client(server.url) as client, pytest.raises(UsageError, match="most"):
        client.score_tests(TASK, "a reply", most=0)


def test_a_server_that_drains_tells_so_at_once(server: ProtocolServer) -> None:
    body = (
        b'{"state": "draining", "version": "1", "engine": "local", "devices": [], '
        b'"workers": 0, "queued": 0, "running": 0, "newer": 1}'
    )
    server.instead("/readyz", ScriptedAnswer(503, body))
    with Client(server.url) as client:
        assert client.status().state == "draining"
    assert server.lines() == ["GET /readyz"]


def test_a_name_cannot_lead_to_another_route(server: ProtocolServer) -> None:
    with Client(server.url) as client:
        for name in ("../runs", "j1?wait_s=9", "a/b"):
            with pytest.raises(ServerError):
                client.job(name)
    assert all(line.startswith("GET /v1/jobs/") for line in server.lines())


async def test_a_conversation_takes_turns_and_knows_its_returns(server: ProtocolServer) -> None:
    async with AsyncClient(server.url) as client:
        conversation = await client.session(TASK, turns=2, run_id="run-1")
        assert conversation.prompt == "Write it."
        first = await conversation.turn("0.5")
        assert (first.number, first.result.reward, first.observation) == (1, 0.5, "Faster.")
        assert (await conversation.turn("1.5")).observation == ""
        state = await conversation.state()
        assert ([turn.number for turn in state.turns], state.done) == ([1, 2], True)
        await conversation.close()
        assert server.sessions == {}


def test_a_turn_whose_connection_breaks_counts_once(server: ProtocolServer) -> None:
    with Client(server.url) as client:
        conversation = client.session(TASK)
        server.instead("/v1/sessions/s1/turns", ScriptedAnswer(acted=True, cut=True))
        assert conversation.turn("0.5").number == 1
        assert len(conversation.state().turns) == 1
    assert server.lines().count("POST /v1/sessions/s1/turns") == 2


def test_a_turn_that_could_not_be_evaluated_is_an_error_and_counts_as_none(server: ProtocolServer) -> None:
    with Client(server.url) as client:
        conversation = client.session(TASK)
        server.instead("/v1/sessions/s1/turns", refusal(503, "infra_error", "no worker can do it"))
        with pytest.raises(ServerError, match="no worker can do it"):
            conversation.turn("0.5")
        assert server.lines().count("POST /v1/sessions/s1/turns") == 1
        assert conversation.turn("0.5").number == 1


def test_a_session_is_not_opened_twice_when_nobody_knows_whether_it_was(server: ProtocolServer) -> None:
    server.instead("/v1/sessions", ScriptedAnswer(acted=True, cut=True))
    with Client(server.url) as client, pytest.raises(ServerUnreachable):
        client.session(TASK)
    assert server.lines() == ["POST /v1/sessions"]


@pytest.mark.parametrize(("async_class", "other"), [(AsyncClient, Client), (AsyncConversation, Conversation)])
def test_both_clients_have_the_same_methods(async_class: type, other: type) -> None:
    def methods(kind: type) -> dict[str, list[str]]:
        public = {name: member for name, member in vars(kind).items() if not name.startswith("_")}
        return {
            "close" if name == "aclose" else name: list(inspect.signature(member).parameters)
            for name, member in public.items()
            if inspect.isfunction(member)
        }

    assert methods(async_class) == methods(other)
    assert len(methods(async_class)) >= 3


def test_the_synchronous_client_is_generated_from_the_asynchronous_one() -> None:
    script = Path(__file__).resolve().parents[2] / ".ci" / "generate_sync_client.py"
    subprocess.run([sys.executable, str(script), "--check"], check=True, timeout=60)
