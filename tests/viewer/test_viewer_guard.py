"""Access to the viewer: only with its token and under its name, and only to the viewer's own files."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import httpx2
import pytest

from kernelforge.viewer.auth import HEADERS
from tests.server.service_tools import ended, serving
from tests.support.inprocess_engine import request
from tests.viewer.viewer_tools import HOST, Open, opened

ROUTES = (
    "/", "/index.html", "/live", "/live.html", "/live.html?run=r1", "/events", "/events?run=r1", "/leaderboard.html",
    "/runs/r1/index.html", "/runs/r1/softmax/01.html", "/data/r1.json", "/assets/style.css", "/assets/live.js", "/none",
)  # fmt: skip
CANARY = "CANARY-7f3a"


async def raw_answer(viewer: Open, path: str, *hosts: str) -> bytes:
    """The answer to a request that is sent as it stands, without a client that would tidy it."""
    reader, writer = await asyncio.open_connection(HOST, viewer.port)
    lines = [f"GET {path} HTTP/1.1", *(f"Host: {host}" for host in hosts)]
    lines += [f"Cookie: kernelforge-view-{viewer.port}={viewer.token}", "Connection: close", "", ""]
    writer.write("\r\n".join(lines).encode())
    answer = await reader.read()
    writer.close()
    return answer


def status(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1])


async def test_every_route_needs_the_token(results: Path) -> None:
    async with opened(results) as viewer, httpx2.AsyncClient(base_url=viewer.url) as stranger:
        name = f"kernelforge-view-{viewer.port}"
        for cookie in (
            "",
            f"{name}=",
            f"{name}={'x' * 43}",
            f"{name}={viewer.token[:-1]}",
            f"other={viewer.token}",
        ):
            for route in ROUTES:
                answer = await stranger.get(route, headers={"Cookie": cookie})
                assert answer.status_code == 401, (route, cookie)
                assert viewer.token not in answer.text
                assert "r1" not in answer.text
        for token in ("", "x", viewer.token[:-1], viewer.token + "x", "%00", "ü"):
            answer = await stranger.get(f"/?token={token}")
            assert answer.status_code == 401, token
            assert "set-cookie" not in answer.headers
        twice = await stranger.get(f"/?token={viewer.token}&token=x")
        assert twice.status_code == 401


async def test_the_token_becomes_a_cookie_and_leaves_the_address(results: Path) -> None:
    async with opened(results) as viewer, httpx2.AsyncClient(base_url=viewer.url) as browser:
        answer = await browser.get(f"/live.html?run=r1&token={viewer.token}")
        assert answer.status_code == 303
        assert answer.headers["location"] == "/live.html?run=r1"
        cookie = answer.headers["set-cookie"].lower()
        assert cookie.startswith(f"kernelforge-view-{viewer.port}={viewer.token}".lower())
        assert {part.strip() for part in cookie.split(";")[1:]} == {"httponly", "path=/", "samesite=strict"}
        assert (await browser.get("/")).status_code == 200
        for path in ("//evil.example/", "/\\evil.example/", "/%2F%2Fevil.example/"):
            answer = await browser.get(f"{viewer.url}{path}?token={viewer.token}")
            location = answer.headers["location"]
            assert location.startswith("/")
            assert not location.startswith(("//", "/\\"))


async def test_cookies_that_servers_on_other_ports_set_lock_nobody_out(results: Path) -> None:
    async with opened(results) as viewer, httpx2.AsyncClient(base_url=viewer.url) as browser:
        own = f"kernelforge-view-{viewer.port}={viewer.token}"
        for other_cookies in (
            'a[]{}="x',
            'prefs={"a":1,"b":2}',
            "a b=1; c",
            f"kernelforge-view-{viewer.port}=x",
            "=",
            ";;",
        ):
            for cookie in (f"{other_cookies}; {own}", f"{own};{other_cookies}"):
                answer = await browser.get("/", headers={"Cookie": cookie})
                assert answer.status_code == 200, cookie


@pytest.mark.slow
async def test_a_request_must_name_this_machine(results: Path) -> None:
    async with opened(results) as viewer:
        for host in (
            "evil.example",
            f"evil.example:{viewer.port}",
            HOST,
            f"{HOST}:1",
            f"0.0.0.0:{viewer.port}",
            "",
        ):
            for route in (*ROUTES, f"/?token={viewer.token}"):
                answer = await viewer.client.get(route, headers={"Host": host})
                assert answer.status_code == 403, (host, route)
        assert (await viewer.client.get("/", headers={"Host": f"LOCALHOST:{viewer.port}"})).status_code == 200
        for hosts in ((), (f"{HOST}:{viewer.port}", "evil.example"), ("evil.example", f"{HOST}:{viewer.port}")):
            assert status(await raw_answer(viewer, "/", *hosts)) in (400, 403)


@pytest.mark.slow
async def test_it_shows_and_takes_nothing(results: Path) -> None:
    before = (results / "kernelforge.db").read_bytes()
    async with opened(results) as viewer:
        for method in ("POST", "PUT", "PATCH", "DELETE", "OPTIONS"):
            for route in ROUTES:
                answer = await viewer.client.request(method, route)
                assert answer.status_code == 405
                assert answer.headers["allow"] == "GET, HEAD"
        for route in ROUTES[:-1]:
            answer = await viewer.client.head(route)
            assert (answer.status_code, answer.content) == (200, b"")
    assert (results / "kernelforge.db").read_bytes() == before


async def test_every_answer_carries_the_policy(results: Path) -> None:
    async with opened(results) as viewer:
        for route, host in [(route, None) for route in ROUTES if "events" not in route] + [("/", "evil.example")]:
            answer = await viewer.client.get(route, headers={} if host is None else {"Host": host})
            assert {name: answer.headers[name] for name in HEADERS} == HEADERS, route
            assert "server" not in answer.headers
        policy = HEADERS["Content-Security-Policy"]
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
        assert policy.startswith("default-src 'none'")


@pytest.mark.parametrize(
    "path",
    [
        "/kernelforge.db", "/../kernelforge.db", "/..%2fkernelforge.db", "/%2e%2e/kernelforge.db", "/secret.txt",
        "/assets/../secret.txt", "/assets/..%2f..%2fsecret.txt", "/assets/%2e%2e%2fguard.py", "/assets/..%5cguard.py",
        "/data/..%2f..%2fsecret.txt", "/data/%2e%2e/%2e%2e/secret.txt", "/runs/r1/..%2f..%2fsecret.txt",
        "/locks/r1.lock",        "/assets//etc/passwd", "//etc/passwd", "/assets/%00", "/%c0%ae%c0%ae/secret.txt",
        "/live.html/../secret.txt",
        "/runs/%2e%2e%2f%2e%2e%2fsecret.txt", "/assets/live.html.j2",
    ],
)  # fmt: skip
async def test_no_path_leads_to_a_file(results: Path, path: str) -> None:
    (results / "secret.txt").write_text(CANARY)
    (results.parent / "secret.txt").write_text(CANARY)

    async with opened(results) as viewer:
        answer = await raw_answer(viewer, path, f"{HOST}:{viewer.port}")
    assert status(answer) in (400, 404), answer[:200]
    assert CANARY.encode() not in answer
    assert b"SQLite format" not in answer


async def test_nothing_is_given_out_but_the_journal_and_assets(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", CANARY)
    async with serving(results) as service:
        await ended(service, request(CANARY, prompt=CANARY, group_id=CANARY, tag=CANARY))
    (results / "tokens.txt").write_text(CANARY)
    (results / "report").mkdir()
    (results / "report" / "index.html").write_text(CANARY)

    async with opened(results) as viewer:
        site = viewer.viewer.journal.site()
        assert "training.html" in site.pages()
        for path in (*site.pages(), *site.data(), "live.html", *(f"assets/{name}" for name in site.assets())):
            answer = await viewer.client.get(f"/{path}")
            assert answer.status_code == 200, path
            assert CANARY not in answer.text
            # Commands name the folder, as it was given to the viewer; nothing else does.
            assert str(results) not in answer.text.replace(f"--results {results}", "")
            assert viewer.token not in answer.text


async def test_a_folder_that_cannot_be_written_can_be_looked_at(results: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    copy.mkdir()
    shutil.copy(results / "kernelforge.db", copy)
    copy.chmod(0o555)
    try:
        async with opened(copy) as viewer:
            assert "r1" in (await viewer.client.get("/")).text
    finally:
        copy.chmod(0o755)
