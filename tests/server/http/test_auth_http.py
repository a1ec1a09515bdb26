"""Authentication: a token is required, except on a loopback server without tokens, which refuses other sites' pages."""

from __future__ import annotations

import asyncio
import re
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from fastapi import FastAPI, WebSocket
from fastapi.routing import APIRoute, APIWebSocketRoute, iter_route_contexts
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from kernelforge.client.models import ProblemAnswer
from kernelforge.server.http.app import create_app
from kernelforge.server.http.auth import RequireScope, Submitter, Tokens
from kernelforge.server.http.limits import api_router
from kernelforge.server.jobs.service import JobService
from tests.server.http_serving import JOB, client_of, served
from tests.support.minimal_service import MinimalService

WORLD = "http://192.0.2.7:8765"
"""A server's address that is not a loopback one."""


@pytest.fixture
def tokens(tmp_path: Path) -> Iterator[Tokens]:
    book = Tokens(tmp_path)
    yield book
    book.close()


def routes_of(app: FastAPI) -> list[Any]:
    """Every route with a path, those of included routers too."""
    return [context.original_route for context in iter_route_contexts(app.routes)]


def full_app(service: JobService, folder: Path, **options: Any) -> FastAPI:
    """The application as ``kernelforge serve`` makes it."""
    from kernelforge.server import protocols
    from kernelforge.server.sessions import routes as session_routes
    from kernelforge.server.sessions.service import Sessions

    sessions = Sessions(service, folder / "server.db")
    return create_app(
        service, routers=[*protocols.routers(service, sessions), session_routes.router(sessions)], **options
    )


def needs_of(dependant: Any) -> Iterator[RequireScope]:
    if isinstance(dependant.call, RequireScope):
        yield dependant.call
    for inner in dependant.dependencies:
        yield from needs_of(inner)


def statuses(app: FastAPI, requests: list[tuple[str, str]], headers: dict[str, str], base: str) -> list[int]:
    async def all_of_it() -> list[int]:
        transport = httpx2.ASGITransport(app)
        async with httpx2.AsyncClient(transport=transport, base_url=base, headers=headers) as client:
            return [(await client.request(method, path)).status_code for method, path in requests]

    return asyncio.run(all_of_it())


@pytest.mark.slow
def test_every_route_declares_what_it_needs(tmp_path: Path) -> None:
    routes = routes_of(full_app(MinimalService(), tmp_path))
    assert len(routes) > 25
    for route in routes:
        assert isinstance(route, APIRoute | APIWebSocketRoute), route
        assert list(needs_of(route.dependant)), f"{route.path} declares no scope"


def test_a_route_without_a_scope_would_be_found() -> None:
    router = api_router("more")

    @router.get("/open")
    async def nobody_asked() -> str:
        return "secret"

    (route,) = [route for route in routes_of(create_app(MinimalService(), routers=[router])) if route.path == "/open"]
    assert not list(needs_of(route.dependant))


@pytest.mark.slow
def test_a_public_server_answers_no_path_at_all_without_a_valid_token(tmp_path: Path, tokens: Tokens) -> None:
    app = full_app(MinimalService(), tmp_path, tokens=tokens, public=True)
    requests = [("GET", "/"), ("GET", "/none"), ("TRACE", "/v1/jobs"), ("OPTIONS", "/v1/jobs"), ("HEAD", "/healthz")]
    for route in routes_of(app):
        path = re.sub(r"\{[^}]*\}", "x", route.path)
        requests += [(method, path) for method in getattr(route, "methods", ["GET"])]
    assert {"/healthz", "/readyz", "/metrics", "/openapi.json", "/docs"} <= {path for _, path in requests}
    for headers in (
        {},
        {"Authorization": "Bearer "},
        {"Authorization": "Bearer kf_wrong"},
        {"Authorization": "Basic !!!"},
        {"Authorization": "Basic " + b64encode(b"any:kf_wrong").decode()},
        {"Host": "localhost", "Origin": "http://localhost"},
    ):
        assert set(statuses(app, requests, headers, WORLD)) == {401}


@pytest.mark.slow
async def test_a_websocket_without_a_token_is_refused(tokens: Tokens) -> None:
    router = api_router("socket")

    @router.websocket("/echo")
    async def echo(socket: WebSocket, caller: Submitter) -> None:
        await socket.accept()
        await socket.send_text(caller.name)
        await socket.close()

    token = tokens.create("trainer", ["submit"])
    async with served(MinimalService(), tokens=tokens, public=True, routers=[router]) as (host, port):
        for path in ("/echo", "/none", "/v1/jobs"):
            with pytest.raises(InvalidStatus) as refused:
                await connect(f"ws://{host}:{port}{path}")
            assert refused.value.response.status_code == 401
        headers = {"Authorization": f"Bearer {token}"}
        async with connect(f"ws://{host}:{port}/echo", additional_headers=headers) as socket:
            assert await socket.recv() == "trainer"


@pytest.mark.slow
def test_a_token_is_a_bearers_or_a_password(tokens: Tokens) -> None:
    token = tokens.create("trainer", ["submit", "read"])
    app = create_app(MinimalService(), tokens=tokens, public=True)
    for header in (
        f"Bearer {token}",
        f"bearer {token}",
        "Basic " + b64encode(f"any:{token}".encode()).decode(),
        "Basic " + b64encode(f":{token}".encode()).decode(),
    ):
        assert statuses(app, [("GET", "/v1/runs")], {"Authorization": header}, WORLD) == [200]
    for header in (f"Basic {token}", f"Token {token}", token, "Basic " + b64encode(token.encode()).decode()):
        assert statuses(app, [("GET", "/v1/runs")], {"Authorization": header}, WORLD) == [401]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("scope", "allowed"),
    [("submit", ["POST /v1/jobs", "PATCH /v1/runs/a"]), ("read", ["GET /v1/runs"]), ("admin", ["PATCH /v1/runs/a"])],
)
async def test_a_token_does_only_what_its_scopes_say(tokens: Tokens, scope: str, allowed: list[str]) -> None:
    token = tokens.create("one", [scope])
    service = MinimalService()
    headers = {"Authorization": f"Bearer {token}"}
    client = client_of(service, WORLD, tokens=tokens, public=True, headers=headers)
    answered = {
        "POST /v1/jobs": (await client.post("/v1/jobs", json=JOB)).status_code,
        "GET /v1/runs": (await client.get("/v1/runs")).status_code,
        "PATCH /v1/runs/a": (await client.patch("/v1/runs/a", json={})).status_code,
        "GET /healthz": (await client.get("/healthz")).status_code,
    }
    assert answered.pop("GET /healthz") == 200
    assert [route for route, status in answered.items() if status == 200] == allowed
    assert {status for route, status in answered.items() if route not in allowed} == {403}


async def test_the_gateway_is_told_whose_request_it_is(tokens: Tokens) -> None:
    token = tokens.create("trainer", ["submit"])
    service = MinimalService()

    client = client_of(service, tokens=tokens, headers={"Authorization": f"Bearer {token}"})
    await client.post("/v1/jobs", json=JOB)
    assert [(caller.name, caller.scopes) for caller in service.callers] == [("trainer", {"submit"})]


def test_a_loopback_server_needs_a_token_once_there_is_one_and_stays_closed_when_it_is_revoked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kernelforge.server.http.auth.REREAD_S", 0.0)
    tokens, elsewhere = Tokens(tmp_path), Tokens(tmp_path)
    app = create_app(MinimalService(), tokens=tokens)

    def status(token: str = "") -> int:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        return statuses(app, [("GET", "/v1/runs")], headers, "http://127.0.0.1")[0]

    assert status() == 200
    token = elsewhere.create("one", ["read"])
    assert (status(), status(token)) == (401, 200)
    elsewhere.revoke("one")
    assert (status(), status(token)) == (401, 401)
    tokens.close()
    elsewhere.close()


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:80", "127.0.0.1", "127.8.9.1:8765", "[::1]:8765"])
def test_an_open_server_answers_to_loopback_names(host: str) -> None:
    assert statuses(create_app(MinimalService()), [("GET", "/healthz")], {"Host": host}, "http://127.0.0.1") == [200]


@pytest.mark.parametrize(
    "host",
    [
        "evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "192.0.2.7", "", "[", "0.0.0.0", "1",
        "evil.example@localhost", "localhost/evil.example", "localhost#evil.example", "localhost?evil.example",
        "localhost:evil", "localhost:80:80", "localhost\tevil.example", "[::1].evil.example", "127.0.0.1, evil.example",
    ],
)  # fmt: skip
def test_an_open_server_answers_to_no_other_name(host: str) -> None:
    assert statuses(create_app(MinimalService()), [("GET", "/healthz")], {"Host": host}, "http://127.0.0.1") == [403]


@pytest.mark.parametrize(
    "head",
    [
        b"GET http://evil.example/healthz HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n",
    ],
)
async def test_a_request_with_two_hosts_is_refused(head: bytes) -> None:
    async with served(MinimalService()) as (host, port):
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(head)
        answer = await reader.readline()
        writer.close()
        assert answer.startswith(b"HTTP/1.1 400 ")


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        ("http://127.0.0.1:8765", 200),
        ("http://evil.example", 403),
        ("null", 403),
        ("http://[", 403),
        ("http://127.0.0.1:9999", 403),
        ("http://localhost:8765", 403),
    ],
)
def test_an_open_server_takes_no_requests_of_other_sites_pages(origin: str, status: int) -> None:
    app, headers = create_app(MinimalService()), {"Origin": origin}
    assert statuses(app, [("GET", "/healthz")], headers, "http://127.0.0.1:8765") == [status]


async def test_a_refusal_at_the_gate_has_the_same_shape_and_names_the_scheme(tokens: Tokens) -> None:
    client = client_of(MinimalService(), WORLD, tokens=tokens, public=True)
    answer = await client.get("/v1/runs")
    assert answer.headers["WWW-Authenticate"] == "Bearer"
    assert ProblemAnswer.model_validate_json(answer.text).error.code == "unauthorised"
