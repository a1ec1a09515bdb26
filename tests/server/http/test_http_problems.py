"""Errors of requests: every answer has one JSON shape, and no client's mistake causes a 500."""

from __future__ import annotations

import asyncio
import json
import logging
import resource
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import replace
from functools import cache

import httpx2
import pytest
from fastapi import FastAPI

from kernelforge.client.models import ProblemAnswer
from kernelforge.server.http.app import create_app
from kernelforge.server.http.limits import Limits
from kernelforge.server.http.process import allow_connections
from tests.server.http_serving import JOB, SLOW_JOB, WAIT_S, client_of, served
from tests.support.minimal_service import BROKEN, MinimalService

SMALL = Limits(body_bytes=10_000, batch_bytes=20_000, bodies_bytes=15_000, head_s=WAIT_S, head_bytes=8_192)
SHORT_S = 0.3


@cache
def application(limits: Limits | None) -> FastAPI:
    """One for all that refuse: a refusal changes nothing."""
    return create_app(MinimalService(), limits=limits)


def ask(method: str, path: str, limits: Limits | None = None, **sent: object) -> tuple[httpx2.Response, ProblemAnswer]:
    """One request that is refused."""

    async def all_of_it() -> httpx2.Response:
        transport = httpx2.ASGITransport(application(limits))
        async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            return await client.request(method, path, **sent)

    answer = asyncio.run(all_of_it())
    assert answer.headers["content-type"] == "application/json"
    problem = ProblemAnswer.model_validate_json(answer.text)
    assert problem.request_id == answer.headers["x-request-id"]
    return answer, problem


@pytest.mark.parametrize("sent", [{"content": '{"task": "core/swish"}'}, {"data": {"task": "core/swish"}}])
def test_a_body_of_another_type_is_refused_with_the_type_to_send(sent: dict[str, object]) -> None:
    answer, problem = ask("POST", "/v1/jobs", **sent)
    assert answer.status_code == 422
    assert "send JSON, with Content-Type: application/json" in problem.error.message


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/none", 404, "not_found"),
        ("GET", "/v1/tasks/core/none", 404, "unknown_task"),
        ("GET", "/v1/tasks?suite=none", 404, "unknown_suite"),
        ("PUT", "/v1/jobs", 405, "method_not_allowed"),
        ("POST", "/v1/jobs", 422, "invalid"),
        ("GET", "/v1/jobs/a%20b", 422, "invalid"),
        ("GET", "/v1/jobs/a?wait_s=nan", 422, "invalid"),
        ("GET", "/v1/jobs/%00", 422, "invalid"),
        ("PATCH", "/v1/runs/-", 422, "invalid"),
    ],
)
def test_what_the_framework_refuses_has_the_same_shape(method: str, path: str, status: int, code: str) -> None:
    answer, problem = ask(method, path)
    assert (answer.status_code, problem.error.code) == (status, code)


BOMBS = {
    "no JSON": b"{",
    "not UTF-8": b'{"task": "\xff"}',
    "nothing": b"",
    "deep": b"[" * 100_000,
    "deep and closed": b"[" * 50_000 + b"]" * 50_000,
    "deep in a field": b'{"task":' + b'{"a":' * 90_000 + b"1" + b"}" * 90_000 + b"}",
    "infinity": b'{"task": "core/swish", "completion": "x", "deadline_s": 1e999}',
    "a word for infinity": b'{"task": "core/swish", "completion": "x", "deadline_s": Infinity}',
    "not a number": b'{"task": "core/swish", "completion": "x", "deadline_s": NaN}',
    "a huge integer": b'{"task": "core/swish", "completion": "x", "policy_version": ' + b"9" * 100_000 + b"}",
    "an integer past 64 bits": b'{"task": "core/swish", "completion": "x", "policy_version": ' + b"9" * 40 + b"}",
    "a lone surrogate": b'{"task": "core/swish", "completion": "\\ud800"}',
    "a raw NUL": b'{"task": "core/swish", "completion": "\x00"}',
    "NUL as a task": b'{"task": "\\u0000", "completion": "x"}',
    "another type": b'"a string"',
    "an unknown field": b'{"task": "core/swish", "completion": "x", "priorty": 1}',
    "both": b'{"task": "core/swish", "completion": "x", "candidate": {"source": "a", "plan": "b"}}',
    "neither": b'{"task": "core/swish"}',
    "too long": json.dumps({"task": "core/swish", "completion": "x" * ((2 << 20) + 1)}).encode(),
}


@pytest.mark.parametrize("name", BOMBS)
@pytest.mark.parametrize("path", ["/v1/jobs", "/v1/rewards"])
def test_a_body_that_is_no_request_is_the_callers_fault(name: str, path: str) -> None:
    answer, _ = ask("POST", path, content=BOMBS[name], headers={"Content-Type": "application/json"})
    assert answer.status_code in (400, 422)


def test_json_is_taken_only_under_its_own_name() -> None:
    """A page of another site can send text, but not JSON, without asking first."""
    answer, _ = ask("POST", "/v1/jobs", content=json.dumps(JOB), headers={"Content-Type": "text/plain"})
    assert answer.status_code == 422


def test_a_message_does_not_repeat_what_was_sent() -> None:
    answer, _ = ask("POST", "/v1/jobs", json={"task": "core/swish", "completion": ["my-secret-text"], "tag": 5})
    assert answer.status_code == 422
    assert "completion" in answer.text
    assert "my-secret-text" not in answer.text


@pytest.mark.parametrize(("completion", "status", "retry"), [("full", 429, "1"), (BROKEN, 500, None)])
def test_a_refusal_says_when_to_try_again(completion: str, status: int, retry: str | None) -> None:
    answer, _ = ask("POST", "/v1/jobs", json={**JOB, "completion": completion})
    assert (answer.status_code, answer.headers.get("Retry-After")) == (status, retry)


async def test_a_server_without_a_worker_is_not_ready() -> None:
    service = MinimalService()
    alive = service.status()
    assert alive.workers
    service.status = lambda: alive.model_copy(update={"workers": 0})  # type: ignore[method-assign]

    client = client_of(service)
    assert (await client.get("/readyz")).status_code == 503


async def test_a_draining_server_refuses_jobs_and_rounds_the_wait_up() -> None:
    service = MinimalService()
    client = client_of(service)
    assert (await client.get("/readyz")).status_code == 200
    assert (await client.post("/v1/admin/drain")).json()["state"] == "draining"
    assert (await client.get("/readyz")).status_code == 503
    assert (await client.get("/healthz")).status_code == 200
    refused = await client.post("/v1/jobs", json=JOB)
    assert (refused.status_code, refused.headers["Retry-After"]) == (503, "3")


def test_a_fault_of_ours_is_logged_under_the_id_and_told_in_no_detail(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "kernelforge.server"):
        answer, problem = ask(
            "POST", "/v1/jobs", json={**JOB, "completion": BROKEN}, headers={"X-Request-Id": "mine-1"}
        )
    assert (answer.status_code, problem.request_id) == (500, "mine-1")
    assert "bug" not in problem.error.message
    assert any("mine-1" in str(record.msg) and "RuntimeError" in str(record.msg) for record in caplog.records)


@pytest.mark.parametrize("sent_id", ["a b", "x" * 65, "", 'a"b'])
def test_a_malformed_request_id_is_replaced(sent_id: str) -> None:
    answer, _ = ask("GET", "/none", headers={"X-Request-Id": sent_id})
    assert answer.headers["x-request-id"] != sent_id


def test_a_body_beyond_the_limit_is_refused_before_it_is_read() -> None:
    answer, problem = ask("POST", "/v1/jobs", SMALL, content=b"x" * 10_001)
    assert (answer.status_code, problem.error.code) == (413, "too_large")


def test_a_body_without_a_length_is_refused_once_it_is_beyond_the_limit() -> None:
    sent = 0

    async def pieces() -> AsyncIterator[bytes]:
        nonlocal sent
        while True:
            sent += 1_000
            yield b"x" * 1_000

    answer, problem = ask("POST", "/v1/jobs", SMALL, content=pieces())
    assert (answer.status_code, problem.error.code) == (413, "too_large")
    assert sent <= 12_000


def test_bodies_that_are_too_large_together_are_told_to_come_again() -> None:
    answer, _ = ask("POST", "/v1/jobs/batch", SMALL, content=b"x" * 19_000)
    assert (answer.status_code, answer.headers["Retry-After"]) == (503, "1")


def sent_raw(limits: Limits, *requests: bytes) -> list[bytes]:
    """The server's answers to bytes that end without closing, a connection each, until it closes the connections."""

    async def all_of_it() -> list[bytes]:
        async with served(MinimalService(), limits) as (host, port):

            async def answer(data: bytes) -> bytes:
                reader, writer = await asyncio.open_connection(host, port)
                writer.write(data)
                try:
                    return await asyncio.wait_for(reader.read(), WAIT_S)
                except ConnectionResetError:
                    return b""
                finally:
                    writer.close()

            return await asyncio.gather(*map(answer, requests))

    return asyncio.run(all_of_it())


def test_a_body_that_does_not_arrive_is_given_up() -> None:
    head = (
        b"POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{"
    )
    (answer,) = sent_raw(replace(SMALL, body_s=SHORT_S), head)
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b'"too_slow"' in answer


def test_a_head_that_does_not_arrive_is_given_up() -> None:
    heads = (b"", b"GET / HTTP/1.1\r\nHost: localhost\r\n", b"GET /")
    assert sent_raw(replace(SMALL, head_s=SHORT_S), *heads) == [b"", b"", b""]


@pytest.mark.slow
def test_half_a_websocket_is_answered_or_given_up() -> None:
    upgrades = [
        f"{head} HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: upgrade\r\n{more}\r\n".encode()
        for head in ("OPTIONS /v1/runs/r", "GET /v1/jobs", "POST /v1/jobs")
        for more in ("", "Content-Length: 2\r\n", "Sec-WebSocket-Key: x\r\nSec-WebSocket-Version: 13\r\n")
    ]
    for upgrade, answer in zip(
        upgrades, sent_raw(replace(SMALL, head_s=SHORT_S, body_s=SHORT_S), *upgrades), strict=True
    ):
        assert answer == b"" or answer.startswith(b"HTTP/1.1 4"), upgrade


async def test_a_second_head_that_does_not_arrive_is_given_up_too() -> None:
    limits = replace(SMALL)
    async with served(MinimalService(), limits) as (host, port):
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert (await asyncio.wait_for(reader.readuntil(b"ok\n"), WAIT_S)).startswith(b"HTTP/1.1 200 ")
        object.__setattr__(limits, "head_s", SHORT_S)  # from here on: the first head may take its time
        writer.write(b"GET /")
        assert await asyncio.wait_for(reader.read(), WAIT_S) == b""
        writer.close()


def test_a_head_beyond_the_limit_ends_the_connection() -> None:
    (answer,) = sent_raw(SMALL, b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 100_000)
    assert not answer.startswith(b"HTTP/1.1 2")


HEALTH = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
HALVES = {
    "nothing": b"",
    "half a head": b"POST /v1/jobs HTTP/1.1\r\nHost: loc",
    "half a body": b"POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\n"
    b"Content-Type: application/json\r\nContent-Length: 100\r\n\r\n{",
}


@pytest.mark.slow
@pytest.mark.parametrize("sent", HALVES.values(), ids=HALVES)
async def test_half_open_connections_lock_nobody_out(sent: bytes) -> None:
    limits = Limits(connections=20, head_s=10 * WAIT_S, body_s=10 * WAIT_S)
    async with served(MinimalService(), limits) as (host, port):
        half_open = []
        for number in range(300):
            _, writer = await asyncio.open_connection(host, port)
            writer.write(sent)
            half_open.append(writer)
            if number % 30 == 29:
                reader, client = await asyncio.open_connection(host, port)
                client.write(HEALTH)
                assert (await asyncio.wait_for(reader.readline(), WAIT_S)).startswith(b"HTTP/1.1 200"), number
                client.close()
        for writer in half_open:
            writer.close()


async def test_whoever_waits_for_an_answer_keeps_its_connection() -> None:
    service = MinimalService()
    async with served(service, Limits(connections=2)) as (host, port):
        body = json.dumps(SLOW_JOB).encode()
        head = (
            "POST /v1/rewards HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        waiting = []
        for _ in range(2):
            reader, writer = await asyncio.open_connection(host, port)
            writer.write(head.encode() + body)
            waiting.append((reader, writer))
        async with asyncio.timeout(WAIT_S):
            while service.status().queued + service.status().running < 2:
                await asyncio.sleep(0.01)
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(HEALTH)
        with suppress(ConnectionError):
            assert await asyncio.wait_for(reader.read(), WAIT_S) == b"", "there is no room for it"
        writer.close()
        assert not any(reader.at_eof() for reader, _ in waiting)
        for _, writer in waiting:
            writer.close()


def test_there_are_no_more_connections_than_open_files(monkeypatch: pytest.MonkeyPatch) -> None:
    new_limits = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1_024, 4_096))
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: new_limits.append(limits))
    assert allow_connections(Limits()).connections == 3_096
    assert new_limits == [(4_096, 4_096)]
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1_024, resource.RLIM_INFINITY))
    assert allow_connections(Limits()).connections == Limits().connections
