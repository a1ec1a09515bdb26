"""One completion, from submission to reward: what is sent, tried again, and cancelled."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Awaitable, Callable
from email.utils import formatdate
from typing import Any

import anyio
import pytest

from kernelforge.client import AsyncClient, Client, flow
from kernelforge.client.requests import retry_after_s
from kernelforge.errors import InvalidServerResponse, MissingRewardError, ServerError, ServerUnreachable, UsageError
from tests.support.protocol_server import TASK, ProtocolServer, ScriptedAnswer, refusal

SUBMIT = "POST /v1/jobs"
WAIT = "POST /v1/jobs/wait"
HTML = b"<html><head><title>502 Bad Gateway</title></head><body>nginx</body></html>"


def asking(
    server: ProtocolServer, use: Callable[[AsyncClient], Awaitable[Any]], token: str | None = None, **options: Any
) -> Any:
    """The result of ``use`` with a client, on an event loop of its own."""

    async def go() -> Any:
        async with AsyncClient(server.url, token, **options) as client:
            return await use(client)

    return asyncio.run(go())


def test_a_completion_is_submitted_and_its_reward_awaited(server: ProtocolServer) -> None:
    result = asking(
        server,
        lambda client: client.score(TASK, "1.5", run_id="run-1", policy_version=7, tag="sample 3"),
        token="kf_secret",
    )
    assert (result.outcome, result.reward, result.require()) == ("scored", 1.5, 1.5)
    assert server.lines() == [SUBMIT, WAIT]
    assert all(received.headers["authorization"] == "Bearer kf_secret" for received in server.received)
    request = server.requests["j1"]
    assert (request.run_id, request.policy_version, request.tag, request.completion) == ("run-1", 7, "sample 3", "1.5")


def test_what_the_cache_answers_takes_one_request(server: ProtocolServer) -> None:
    assert asking(server, lambda client: client.score(TASK, "now 2.5")).reward == 2.5
    assert server.lines() == [SUBMIT]


def test_the_blocking_client_scores_likewise(server: ProtocolServer) -> None:
    with Client(server.url, "kf_secret") as client:
        assert client.score(TASK, "1.5").reward == 1.5
    assert server.lines() == [SUBMIT, "GET /v1/jobs/j1"]
    assert server.received[0].headers["authorization"] == "Bearer kf_secret"


def test_trouble_is_a_result_and_no_number(server: ProtocolServer) -> None:
    result = asking(server, lambda client: client.score(TASK, "infra"))
    assert (result.outcome, result.reward) == ("infra_error", None)
    with pytest.raises(MissingRewardError, match=r"worker_died.*submitted again") as raised:
        result.require()
    assert raised.value.code == "worker_died"
    assert raised.value.retryable


def test_the_deadline_of_a_job_is_when_its_caller_stops_waiting(server: ProtocolServer) -> None:
    asking(server, lambda client: client.score(TASK, "now 1", timeout_s=40.0))
    asking(server, lambda client: client.score(TASK, "now 1", timeout_s=40.0, deadline_s=9.0))
    asking(server, lambda client: client.submit({"task": TASK, "completion": "now 1"}))
    assert [request.deadline_s for request in server.requests.values()] == [40.0, 9.0, None]


@pytest.mark.parametrize("delay", ["0", "0.01", formatdate(0, usegmt=True)], ids=["seconds", "fraction", "date"])
def test_a_server_that_says_when_to_come_again_is_asked_again(server: ProtocolServer, delay: str) -> None:
    server.instead(SUBMIT[5:], refusal(429, "queue_full", retry_after=delay), refusal(503, "full", retry_after=delay))
    assert asking(server, lambda client: client.score(TASK, "1"), retries=0).reward == 1.0
    assert server.lines() == [SUBMIT, SUBMIT, SUBMIT, WAIT]
    assert len({received.headers["idempotency-key"] for received in server.received[:3]}) == 1


@pytest.mark.parametrize("far", ["90", formatdate(4e9, usegmt=True)], ids=["seconds", "date"])
def test_nobody_waits_for_a_server_beyond_the_callers_time(server: ProtocolServer, far: str) -> None:
    server.instead(SUBMIT[5:], refusal(429, "queue_full", "too many jobs wait", retry_after=far))
    with pytest.raises(ServerError, match="too many jobs wait") as raised:
        asking(server, lambda client: client.score(TASK, "1", timeout_s=30.0))
    assert (raised.value.status, raised.value.code, raised.value.request_id) == (429, "queue_full", "r1")
    assert raised.value.retry_after_s >= 80
    assert server.lines() == [SUBMIT]


def test_retry_after_is_read_as_seconds_or_as_a_date() -> None:
    assert retry_after_s(" 3 ") == 3.0
    assert retry_after_s("Wed, 21 Oct 2015 07:28:00 GMT") == 0.0
    assert retry_after_s(formatdate(4e9, usegmt=True)) > 1e6
    for unreadable in (None, "", "soon", "-3", "1e3", "nan", "Wed, 99 Oct 2015", "9" * 40):
        assert retry_after_s(unreadable) is None


@pytest.mark.parametrize("status", [502, 503, 504])
def test_a_proxy_whose_server_is_away_is_asked_so_often_and_no_more(server: ProtocolServer, status: int) -> None:
    server.instead(SUBMIT[5:], *[ScriptedAnswer(status, HTML, {"content-type": "text/html"})] * 9)
    with pytest.raises(ServerError, match=r"'502 Bad Gateway'.*check the address") as raised:
        asking(server, lambda client: client.score(TASK, "1"), retries=2)
    assert (raised.value.status, raised.value.code) == (status, f"http_{status}")
    assert server.lines() == [SUBMIT] * 3


@pytest.mark.parametrize("status", [400, 401, 403, 404, 409, 413, 422, 500])
def test_a_refusal_that_waiting_does_not_mend_is_told_at_once(server: ProtocolServer, status: int) -> None:
    server.instead(SUBMIT[5:], refusal(status, "some_code", "this and that"))
    with pytest.raises(ServerError, match=r"^this and that$") as raised:
        asking(server, lambda client: client.score(TASK, "1"))
    assert (raised.value.status, raised.value.code) == (status, "some_code")
    assert server.lines() == [SUBMIT]


@pytest.mark.parametrize("client_of", [AsyncClient, Client])
def test_a_connection_that_breaks_after_acceptance_makes_no_second_job(server: ProtocolServer, client_of: type) -> None:
    server.instead(SUBMIT[5:], ScriptedAnswer(acted=True, cut=True), ScriptedAnswer(acted=True, cut=True))
    if client_of is Client:
        with Client(server.url) as client:
            result = client.score(TASK, "1.5")
    else:
        result = asking(server, lambda client: client.score(TASK, "1.5"))
    assert result.reward == 1.5
    assert server.lines()[:3] == [SUBMIT] * 3
    assert list(server.jobs) == ["j1"]


def test_a_wait_whose_connection_breaks_goes_on(server: ProtocolServer) -> None:
    server.instead(WAIT[5:], ScriptedAnswer(cut=True))
    assert asking(server, lambda client: client.score(TASK, "1.5")).reward == 1.5
    assert server.lines() == [SUBMIT, WAIT, WAIT]


def test_cancelling_the_call_cancels_the_job(server: ProtocolServer) -> None:
    async def leave(client: AsyncClient) -> None:
        call = asyncio.create_task(client.score(TASK, "hold"))
        await asyncio.to_thread(server.until, lambda: WAIT in server.lines())
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert server.cancelled == ["j1"]

    asking(server, leave)


def test_cancelling_before_the_answer_came_cancels_what_the_server_may_have_accepted(server: ProtocolServer) -> None:
    server.instead(SUBMIT[5:], ScriptedAnswer(acted=True, stalls=True))

    async def leave(client: AsyncClient) -> None:
        call = asyncio.create_task(client.score(TASK, "hold"))
        await asyncio.to_thread(server.until, lambda: server.jobs)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call

    asking(server, leave)
    assert list(server.jobs) == server.cancelled == ["j1"]


def test_a_scope_that_cancels_before_the_answer_came_lets_the_server_know_too(server: ProtocolServer) -> None:
    server.instead(SUBMIT[5:], ScriptedAnswer(acted=True, stalls=True))

    async def leave(client: AsyncClient) -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(client.score, TASK, "hold")
            await anyio.to_thread.run_sync(server.until, lambda: server.jobs)
            group.cancel_scope.cancel()

    asking(server, leave)
    assert list(server.jobs) == server.cancelled == ["j1"]


def test_a_scope_that_cancels_all_awaits_still_lets_the_server_know(server: ProtocolServer) -> None:
    async def leave(client: AsyncClient) -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(client.score, TASK, "hold")
            await anyio.to_thread.run_sync(server.until, lambda: WAIT in server.lines())
            group.cancel_scope.cancel()

    asking(server, leave)
    assert server.cancelled == ["j1"]


@pytest.mark.parametrize("client_of", [AsyncClient, Client])
def test_a_job_whose_time_is_up_is_cancelled_and_told_as_trouble(server: ProtocolServer, client_of: type) -> None:
    if client_of is Client:
        with Client(server.url) as client:
            result = client.score(TASK, "hold", timeout_s=0.2)
    else:
        result = asking(server, lambda client: client.score(TASK, "hold", timeout_s=0.2))
    assert result.outcome == "infra_error"
    assert result.error.code == "cancelled"
    assert server.cancelled == ["j1"]


@pytest.mark.parametrize("client_of", [AsyncClient, Client])
def test_a_job_that_takes_a_while_to_end_is_waited_for(server: ProtocolServer, client_of: type) -> None:
    server.cancels_in_s = 0.1
    if client_of is Client:
        with Client(server.url) as client:
            results = client.score_many([{"task": TASK, "completion": "hold"}] * 2, timeout_s=0.2)
    else:
        results = [asking(server, lambda client: client.score(TASK, "hold", timeout_s=0.2))]
    assert {result.error.code for result in results} == {"cancelled"}


def test_ctrl_c_cancels_the_job(server: ProtocolServer) -> None:
    def interrupt() -> None:
        server.until(lambda: "GET /v1/jobs/j1" in server.lines())
        os.kill(os.getpid(), signal.SIGINT)

    with Client(server.url) as client:
        thread = threading.Thread(target=interrupt)
        thread.start()
        with pytest.raises(KeyboardInterrupt):
            client.score(TASK, "hold")
        thread.join()
    assert server.cancelled == ["j1"]


@pytest.mark.parametrize(
    ("scripted", "expected"),
    [
        (ScriptedAnswer(200, HTML, {"content-type": "text/html"}), "text/html that begins with '502 Bad Gateway'"),
        (ScriptedAnswer(200, b"\xff\xfe\x00"), "application/json that begins with"),
        (ScriptedAnswer(200, b""), "empty body"),
        (ScriptedAnswer(200, b'{"id": "j1", "status": "sleeping"}'), "status: "),
        (ScriptedAnswer(200, b"[1, 2]"), "application/json that begins with"),
        (
            ScriptedAnswer(307, b"", {"location": "https://elsewhere.example/v1/jobs"}),
            "https://elsewhere.example/v1/jobs",
        ),
    ],
    ids=["page", "bytes", "nothing", "shape", "list", "redirection"],
)
def test_an_answer_that_is_none_of_ours_is_told_as_such(
    server: ProtocolServer, scripted: ScriptedAnswer, expected: str
) -> None:
    server.instead(SUBMIT[5:], scripted)
    with pytest.raises(InvalidServerResponse) as raised:
        asking(server, lambda client: client.score(TASK, "1"), token="kf_secret")
    assert expected in str(raised.value)
    assert "\n" not in str(raised.value)
    assert (raised.value.status, raised.value.code) == (scripted.status, "malformed_answer")
    assert server.lines() == [SUBMIT]


async def test_a_server_that_is_not_there_is_told_with_what_to_do() -> None:
    with pytest.raises(
        ServerUnreachable, match=r"http://127.0.0.1:9 .*kernelforge serve.*KERNELFORGE_SERVER"
    ) as raised:
        async with AsyncClient("http://127.0.0.1:9", retries=1) as client:
            await client.score(TASK, "1")
    assert (raised.value.status, raised.value.code) == (None, "unreachable")


def test_a_server_that_cannot_be_reached_is_told_at_once_and_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(flow, "_unreachable", set())
    with Client("http://127.0.0.1:9", retries=2) as client:
        for _ in range(2):
            with pytest.raises(ServerUnreachable):
                client.score(TASK, "1")
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(warnings) == 1
    assert "http://127.0.0.1:9 cannot be reached" in warnings[0]
    assert "trying again, 2 times at most" in warnings[0]


def test_a_request_that_would_be_refused_is_not_sent(server: ProtocolServer) -> None:
    for fields, expected in (
        ({"run_id": ""}, "run_id: "),
        ({"priority": 11}, "priority: "),
        ({"policy_version": -1}, "policy_version: "),
    ):
        with pytest.raises(UsageError, match=expected):
            asking(server, lambda client, fields=fields: client.score(TASK, "1", **fields))
    with pytest.raises(UsageError, match="typo"):
        asking(server, lambda client: client.score_request({"task": TASK, "completion": "1", "typo": 1}))
    assert server.received == []
